"""The node's network: its settings as `Swarm` wants them, its start, and how what it reports reads."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Literal

from ..protocol.identity import PeerId
from ..protocol.spec import Genesis
from ..protocol.swarm import DirectPortInUse, PortInUse, Swarm, SwarmError, SwarmEvent, SwarmSettings
from .errors import UserError
from .reasons import Reason, State, explain
from .settings import NodeSettings
from .snapshot import LogLevel
from .telemetry import Telemetry

DIRECT_PORT_ABOVE = 10_000
"""The next port would often be that of another node on the same machine."""
NOT_REACHABLE = Reason.NOT_REACHABLE.value


def listen_addresses(host: str, port: int, *, use_quic: bool, has_ip6: bool) -> tuple[str, ...]:
    """Multiaddresses to listen on; an empty ``host`` means all addresses of both families."""
    hosts = [host] if host else ["0.0.0.0", *(["::"] if has_ip6 else [])]
    kinds = ["tcp/{port}", *(["udp/{port}/quic-v1"] if use_quic else [])]
    return tuple(f"/{'ip6' if ':' in one else 'ip4'}/{one}/{kind.format(port=port)}" for one in hosts for kind in kinds)


def has_ip6() -> bool:
    """Whether this machine can listen on IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def direct_ports(wish: Literal["auto", "off"] | int, listen_port: int) -> tuple[int, ...]:
    """TCP ports for direct connections, the first free one of which is taken; none: no such connections."""
    if wish == "off":
        return ()
    if wish != "auto":
        return (wish,)
    return (listen_port + DIRECT_PORT_ABOVE, 0) if 0 < listen_port <= 65_535 - DIRECT_PORT_ABOVE else (0,)


def _bytes_per_s(mbit_s: float | None) -> float | None:
    return None if mbit_s is None else mbit_s * 125_000


def swarm_settings(
    settings: NodeSettings, genesis: Genesis, me: PeerId, known_peers: dict[PeerId, tuple[str, ...]]
) -> SwarmSettings:
    """How this node takes part in the run's network. A seed of the spec is never taken for a home."""
    membership = genesis.membership
    is_seed = any(seed.endswith(f"/{me}") for seed in membership.seeds)
    return SwarmSettings(
        identity_path=settings.identity_path,
        run_id=genesis.run_id,
        listen=listen_addresses(settings.listen_host, settings.listen_port, use_quic=settings.quic, has_ip6=has_ip6()),
        announce=settings.announce,
        seeds=tuple(dict.fromkeys((*membership.seeds, *settings.seeds))),
        known_peers=known_peers,
        runtime_folder=settings.folder,
        is_seed=is_seed,
        behind_router=False if is_seed and settings.behind_router is None else settings.behind_router,
        direct_ports=direct_ports(settings.direct_port, settings.listen_port),
        upload_bytes_per_s=_bytes_per_s(settings.max_upload_mbit_s),
        download_bytes_per_s=_bytes_per_s(settings.max_download_mbit_s),
        progress_timeout_s=genesis.timing.progress_timeout_s,
    )


def tell(telemetry: Telemetry, event: SwarmEvent) -> None:
    """Say what the network reports; that nobody can dial this node stays on the dashboard until somebody can."""
    if event.kind == "seed" and event.text.endswith("answered"):
        return
    if event.kind == "path":
        telemetry.journal.point("path", event.text, data={"peer": event.peer})
        telemetry.event("path", peer=event.peer, text=event.text)
    if event.kind != "reachability":
        level: LogLevel = "warning" if event.kind in ("p2pd_failed", "identity_conflict") else "info"
        telemetry.say(event.text, level)
    elif event.fix:
        shown = explain(State.DEGRADED, Reason.NOT_REACHABLE, {"measured": event.text, "remedy": event.fix})
        telemetry.alert(NOT_REACHABLE, shown.sentence, fix=shown.fix)
    else:
        telemetry.clear_alert(NOT_REACHABLE)
        telemetry.say(f"other peers can reach this node, {event.text}")


async def start_swarm(settings: SwarmSettings, on_event: Callable[[SwarmEvent], None]) -> Swarm:
    """The running network. Raises `UserError` that names what the user can mend."""
    try:
        return await Swarm.start(settings, on_event)
    except SwarmError as error:
        what, _, todo = str(error).partition("; ")
        raise UserError(what, "", todo or "see the log", code="swarm") from None
    except PortInUse as error:
        what, _, _ = str(error).partition("; ")
        option = "--direct-port" if isinstance(error, DirectPortInUse) else "--port"
        raise UserError(what, "", f"choose another with {option}, or 0 for a free one", code="port_in_use") from None
