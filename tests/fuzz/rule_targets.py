"""Parsers of a run's changing rules, of what others remember of us, and of the files that tools of the project take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atoll.node import amendment_store, lineage_start
from atoll.node.amendment_store import AmendmentStore
from atoll.protocol.amendments import MAX_AMENDMENT_BYTES, Amendment, InvalidAmendment, RunRules
from atoll.protocol.changes import Finish, Reset
from atoll.protocol.quorum import quorum_of
from atoll.protocol.recollection import Recollection, is_of_earlier_life
from atoll.protocol.recovery import Recovery, ResetFile
from atoll.protocol.simulator.faults import Crash, FaultSchedule
from atoll.protocol.simulator.traces import Trace
from atoll.protocol.spec import Genesis, MembershipConfig, SpecError

from . import examples as ex
from .file_targets import FILE_BYTES, in_file
from .harness import Refused, Target, accepted

GENESIS = Genesis(
    name="amended",
    protocol_version=1,
    initial_state=ex.ZERO,
    operators=(ex.ME.peer_id,),
    model={},
    membership=MembershipConfig(roster=(ex.ME.peer_id,)),
)
RULES = RunRules(GENESIS)
AMENDMENT = RULES.next(Finish(), 9).signed(ex.ME)
_FORK: dict[str, Any] = {"lineage": 1, "round": 8, "record": ex.ZERO, "state_hash": ex.ZERO, "roster": (ex.ME.peer_id,)}
RESET = RULES.next(Reset(**_FORK), 9).signed(ex.ME)
LINE = AMENDMENT.canonical() + b"\n"


def _learn(data: bytes) -> None:
    amendment = Amendment.parse(data)
    amendment.signers()
    RULES.extended([amendment])


def _load(path: Path) -> None:
    accepted(AmendmentStore(path.parent).load(GENESIS).amendments or None)


def _collect(path: Path) -> None:
    accepted(AmendmentStore(path.parent.parent).collect() or None)


def _remember(data: bytes) -> None:
    """``data``: what another founder says that we have signed."""
    quorum = quorum_of(GENESIS, GENESIS.membership.roster, 1)
    me, is_earlier = ex.ME.peer_id, lambda raw: is_of_earlier_life(raw, ex.ME.peer_id, ex.RUN, range(0))
    memory = Recollection(me, quorum, is_earlier, began_s=0.0, patience_s=0.0)
    memory.note(ex.ME.peer_id, data)
    accepted(memory._has_evidence)


def _sign_reset(path: Path) -> None:
    accepted(Recovery(ex.ME, ResetFile(path), lambda: 0.0)._sign(RESET))


RULE_TARGETS = (
    Target(
        "an amendment",
        _learn,
        [AMENDMENT.canonical()],
        ("protocol/amendments.py:Amendment.parse", "protocol/amendments.py:Amendment.signers"),
        refusals=(InvalidAmendment,),
        max_bytes=2 * MAX_AMENDMENT_BYTES,
    ),
    Target(
        "the amendments that a node keeps",
        in_file("amendments.jsonl", _load),
        [LINE],
        ("node/amendment_store.py:AmendmentStore.load",),
        refusals=(Refused,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "an amendment that an operator submits",
        in_file("inbox/000001.json", _collect),
        [AMENDMENT.canonical()],
        ("node/amendment_store.py:AmendmentStore.collect",),
        refusals=(Refused,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "the amendments beside a spec",
        in_file("run.toml.amendments", lambda path: amendment_store.read_companion(path.with_suffix(""))),
        [LINE, b""],
        ("node/amendment_store.py:read_companion",),
        refusals=(InvalidAmendment,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "the resets that a delegate has signed",
        in_file("resets.jsonl", _sign_reset),
        [b"", json.dumps({"number": 1, "digest": RESET.digest}).encode() + b"\n"],
        ("protocol/recovery.py:ResetFile.known",),
        refusals=(OSError, Refused),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "the states that a folder holds",
        in_file("state/1.json", lambda path: accepted(list(lineage_start._held(path.parents[1])) or None)),
        [json.dumps({"state": {"record": ex.ZERO, "round": 1, "state_hash": ex.ZERO}}).encode()],
        ("node/lineage_start.py:_held",),
        refusals=(Refused,),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "first words that others remember",
        _remember,
        [ex.first_words()],
        ("protocol/memories.py:Memories.note",),
        refusals=(Refused,),
        max_bytes=32 << 10,
    ),
)

TOOL_TARGETS = (
    Target(
        "a trace",
        in_file("mine.toml", lambda path: Trace.load(str(path))),
        [b'description = "two"\n[[groups]]\nname = "a"\n[[events]]\nwhat = "crash"\nround = 2\n'],
        ("protocol/simulator/traces.py:Trace.load", "protocol/simulator/traces.py:Trace.parse"),
        refusals=(SpecError,),
        max_bytes=4096,
    ),
    Target(
        "a fault schedule",
        FaultSchedule.from_json,
        [FaultSchedule(seed=1, num_peers=3, faults=(Crash(at_s=1.0, for_s=2.0, peer=1),)).to_json().encode()],
        ("protocol/simulator/faults.py:FaultSchedule.from_json",),
        refusals=(ValueError,),
        max_bytes=FILE_BYTES,
    ),
)
