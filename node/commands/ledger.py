"""``atoll ledger``: who was left out of a mean or rejected, by which rule, with what was measured and what is allowed.

Read from this node's journal, which keeps the newest `JournalLimits.num_events` events.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..errors import UserError
from ..figures import short_id
from ..journal import Journal
from .options import AsJson, Config, Folder, command_app, print_json, settings_for

app = command_app()

POINTS = (
    "exchange.excluded",
    "exchange.left_out",
    "peer.rejected",
    "peer.proven",
    "spot.suspected",
    "spot.hidden",
    "spot.unconfirmed",
    "swap.refused",
)
Limit = Annotated[int, typer.Option(min=1, max=100_000, help="How many of the newest entries.")]


def entry_of(event: dict[str, Any]) -> dict[str, Any]:
    """One line of the ledger from an event of the journal."""
    data: dict[str, Any] = event["data"] or {}
    why = data.get("why") or data.get("detail") or data.get("kind") or ""
    if by := data.get("by"):
        why = f"says …{short_id(by)}"
    measured = {key: data.get(key) for key in ("value", "limit")}
    about = {"round": event["round"], "peer": data.get("peer", ""), "rule": data.get("rule", event["point"])}
    return {"unix_s": event["unix_s"], **about, **measured, "why": why}


def line_of(entry: dict[str, Any]) -> str:
    """An entry for people."""
    text = f"round {entry['round']}: …{short_id(entry['peer'])}: {entry['rule']}"
    if entry["value"] is not None and entry["limit"] is not None:
        said = f", {entry['why']}" if entry["why"].startswith("says ") else ""
        return f"{text} ({entry['value']:g}, limit {entry['limit']:g}{said})"
    return f"{text} ({entry['why']})" if entry["why"] and entry["why"] != entry["rule"] else text


@app.command()
def show(folder: Folder = None, config: Config = None, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List exclusions and rejections that this node has decided or heard of, oldest first."""
    settings = settings_for(folder, config)
    if not settings.journal_path.exists():
        raise UserError("no ledger", str(settings.folder), "join a run first, or give the node's --folder")
    journal = Journal(settings.journal_path)
    try:
        entries = [entry_of(event) for event in journal.events_at(POINTS, limit=limit)]
    finally:
        journal.close()
    for entry in entries:
        print_json(entry) if as_json else print(line_of(entry))
    if not entries and not as_json:
        print("nobody was left out or rejected")
