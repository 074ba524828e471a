"""Where a new lineage can begin, as this node's folder knows it: the record, the state's hash and the voters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from ..protocol.amendments import RunRules
from ..protocol.changes import Reset, Rollback
from ..protocol.identity import PeerId
from .chain import Chain
from .errors import UserError


def change_for(
    folder: Path, rules: RunRules, to_round: int, roster: tuple[PeerId, ...] | None, *, is_reset: bool
) -> Rollback:
    """A rollback or reset to the state after ``to_round``. Raises `UserError` if this folder does not know it."""
    path = folder / "chain.jsonl"
    if not path.exists():
        todo = "give the --folder of a node that takes part in the run"
        raise UserError("no rounds are known here", str(folder), todo, code="no_chain")
    chain = Chain(path)
    if to_round > len(chain):
        raise UserError("no such round", str(to_round), f"the last one here is {len(chain)}", code="no_such_round")
    standing = rules.standing(chain.get(to_round) if to_round else None)
    kept = tuple(peer for peer in standing.roster if standing.admits(rules.at(to_round + 1), peer))
    return (Reset if is_reset else Rollback)(
        lineage=rules.lineage + 1,
        round=to_round,
        record=standing.record_id,
        state_hash=_state_hash(folder, chain, rules, to_round) if to_round else rules.genesis.initial_state,
        roster=roster or kept,
    )


def _state_hash(folder: Path, chain: Chain, rules: RunRules, to_round: int) -> str:
    """Of a state that this folder holds, or that archivists keep: what nobody has, nobody can go on from."""
    held, record = dict(_held(folder)), chain.get(to_round).record.content_id()
    if record in held:
        return held[record][1]
    if _is_archived(rules, to_round, len(chain)):
        return chain.get(to_round + 1).record.plan.parent_state  # certified by the votes on that commit
    rounds = ", ".join(str(number) for number, _ in sorted(held.values())) or "none"
    todo = f"choose one of those that are ({rounds}), or give the --node folder of an archivist"
    raise UserError("state not held here any more", f"round {to_round}", todo, code="no_checkpoint")


def _is_archived(rules: RunRules, to_round: int, last_round: int) -> bool:
    """Whether archivists that have followed the run until now have kept the state."""
    archive = rules.at(to_round).archive
    num_since = last_round // archive.every_rounds - to_round // archive.every_rounds
    is_due = to_round % archive.every_rounds == 0 and to_round < last_round
    return bool(archive.peers) and is_due and num_since < archive.num_states


def _held(folder: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    """Record -> round and state hash of every state kept in a node's folder, archived ones included."""
    for manifest in (*(folder / "archive").glob("*.json"), *(folder / "state").glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):  # damaged: it is not held
            state = json.loads(manifest.read_bytes())["state"]
            yield str(state["record"]), (int(state["round"]), str(state["state_hash"]))
