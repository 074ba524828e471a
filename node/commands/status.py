"""``atoll status``: what the running node does and why; the exit code says the same to a script."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated, Any

import typer

from ..endpoint import NodeStopped, ask
from ..figures import bytes_text, count_text, short_hash, short_id
from ..group_view import group_text
from ..reasons import EXIT_STOPPED
from ..settings import NodeSettings
from .options import AsJson, Config, Folder, bold, command_app, print_json, settings_for

app = command_app()

_WATCH_INTERVAL_S = 1.0


def _stopped() -> dict[str, Any]:
    status = {"state": "stopped", "reason": None, "sentence": "This node is stopped.", "fix": "", "exit_code": 6}
    return {"status": status}


def _fetch(settings: NodeSettings) -> dict[str, Any]:
    try:
        return ask(settings.endpoint_path, "GET", "api/v1/status")
    except NodeStopped:
        return _stopped()


def status_lines(snapshot: dict[str, Any]) -> list[str]:
    """The answer for people: the reason first, then the figures that are known."""
    status = snapshot["status"]
    state: str = "alone" if status["reason"] == "alone" else status["state"]
    lines = [f"{bold(state.capitalize())}: {status['sentence']}"]
    if status["fix"]:
        lines.append(status["fix"])
    if "node" in snapshot:
        lines.extend(f"{title:<12}{text}" for title, text in _figures(snapshot))
    return lines


def _figures(snapshot: dict[str, Any]) -> list[tuple[str, str]]:
    node, training, exchange = snapshot["node"], snapshot["training"], snapshot["exchange"]
    agreement, given = snapshot["agreement"], snapshot["contribution"]
    peers = snapshot["peers"]
    own_id = short_id(node["peer_id"] or "")
    present = sum(peer["state"] != "absent" for peer in peers)
    rows = [
        ("run", snapshot["run"]["name"]),
        ("node", node["name"] if node["name"] == own_id else f"{node['name']} …{own_id}"),
        ("round", f"{_round_text(snapshot['round'])}, {present} of {len(peers)} peers here"),
        ("counted", f"{given['num_counted']} rounds, {count_text(given['tokens'])} tokens"),
    ]
    if text := group_text(snapshot.get("group", {})):
        rows.insert(3, ("group", text))
    if training["loss"] is not None:
        rows.append(("loss", _loss_text(training)))
    if exchange["sent_bytes"] is not None:
        sent, full = bytes_text(exchange["sent_bytes"]), bytes_text(exchange["bytes_at_32_bits"])
        rows.append(("exchange", f"{sent} sent, {full} at 32 bits"))
    if reach := _reach_text(snapshot["network"]):
        rows.append(("reachable", reach))
    if paths := _paths_text(snapshot["network"]):
        rows.append(("bulk data", paths))
    if agreement.get("is_exempt"):
        rows.append(("state", _gossip_text(agreement)))
    elif agreement["state_hash"]:
        same = f"same on {agreement['num_same']} of {agreement['num_known']} peers"
        rows.append(("state", f"{short_hash(agreement['state_hash'])}, {same}"))
    return rows


def _gossip_text(agreement: dict[str, Any]) -> str:
    """Of a gossip run, where every peer has weights of its own."""
    text = f"{short_hash(agreement['state_hash'])}, this node's own: gossip runs have no common state"
    if agreement["spread"] is None:
        return text
    partner, number = short_id(agreement["partner"]), agreement["spread_round"]
    return f"{text}; {100 * agreement['spread']:.2g} % from …{partner} in round {number}"


def _reach_text(network: dict[str, Any]) -> str:
    """Whether others can dial this node, who measured it, and what would mend it; empty until somebody has."""
    if network["is_reachable"] is None:
        return ""
    through = ", through relays" if network["is_relayed"] else ""
    answer = "yes" if network["is_reachable"] else f"no{through}"
    fix = f". {network['reachability_fix']}" if network["reachability_fix"] else ""
    return f"{answer} — {network['reachability']}{fix}"


def _paths_text(network: dict[str, Any]) -> str:
    """To how many peers bulk data go which way; empty while nobody is connected."""
    ways = {"direct": "over encrypted TCP", "libp2p": "over libp2p", "relay_only": "not at all: through a relay only"}
    counts = {way: network[f"num_{way}"] for way in ways}
    return ", ".join(f"{counts[way]} {ways[way]}" for way in ways if counts[way])


def _round_text(round_info: dict[str, Any]) -> str:
    return f"{round_info['number']}{', provisional' if round_info['is_provisional'] else ''}"


def _loss_text(training: dict[str, Any]) -> str:
    text = f"{training['loss']:.3f}"
    if training["validation_loss"] is not None:
        text += f", validation {training['validation_loss']:.3f} after round {training['validation_round']}"
    return text


def _show(snapshot: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(snapshot)
    else:
        print("\n".join(status_lines(snapshot)), flush=True)


def _watch(settings: NodeSettings, *, as_json: bool) -> dict[str, Any]:
    """Print at every change of state, sentence or round until the node stops or Ctrl-C; returns the last answer."""
    shown: tuple[Any, ...] | None = None
    snapshot = _stopped()
    with suppress(KeyboardInterrupt):
        while True:
            snapshot = _fetch(settings)
            status = snapshot["status"]
            key = (status["state"], status["reason"], snapshot.get("round", {}).get("number"))
            if key != shown:
                shown = key
                _show(snapshot, as_json=as_json)
            if status["exit_code"] == EXIT_STOPPED:
                break
            time.sleep(_WATCH_INTERVAL_S)
    return snapshot


@app.command()
def show(
    folder: Folder = None,
    config: Config = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, printing every change, until Ctrl-C.")] = False,
) -> None:
    """Say what the running node does, and why.

    Exit code: 0 contributing, 3 waiting, 4 paused, 5 degraded, 6 stopped.
    """
    settings = settings_for(folder, config)
    if watch:
        snapshot = _watch(settings, as_json=as_json)
    else:
        snapshot = _fetch(settings)
        _show(snapshot, as_json=as_json)
    raise typer.Exit(snapshot["status"]["exit_code"])
