"""Parsers of changed rules: what peers send, what an operator publishes, and what is kept on disk."""

from __future__ import annotations

from pathlib import Path

from atoll.node.amendment_store import AmendmentStore, read_companion
from atoll.protocol.amendments import MAX_AMENDMENT_BYTES, Amendment, InvalidAmendment, RunRules
from atoll.protocol.changes import Finish, Pause
from atoll.protocol.spec import Genesis, MembershipConfig

from . import examples as ex
from .file_targets import FILE_BYTES, in_file
from .harness import Target, accepted

GENESIS = Genesis(
    name="fuzz",
    protocol_version=1,
    initial_state=ex.ZERO,
    operators=(ex.ME.peer_id,),
    model={},
    membership=MembershipConfig(roster=(ex.ME.peer_id,)),
)
_PAUSE = RunRules(GENESIS).next(Pause(), 3).signed(ex.ME)
_RULES = RunRules(GENESIS).extended([_PAUSE])
_FINISH = _RULES.next(Finish(), 4).signed(ex.ME)
_LINES = _PAUSE.canonical() + b"\n" + _FINISH.canonical() + b"\n"


def _take(data: bytes) -> None:
    """What the round loop does with a peer's amendment."""
    RunRules(GENESIS).extended([Amendment.parse(data)])


def _load(path: Path) -> object:
    return accepted(AmendmentStore(path.parent).load(GENESIS).amendments or None)


def _collect(path: Path) -> object:
    return accepted(AmendmentStore(path.parent.parent).collect() or None)


def _companion(path: Path) -> object:
    return accepted(read_companion(path.with_name(path.name.removesuffix(".amendments"))) or None)


AMENDMENT_TARGETS = (
    Target(
        "an amendment",
        _take,
        [_PAUSE.canonical()],
        ("protocol/amendments.py:Amendment.parse", "protocol/amendments.py:Amendment.signers"),
        refusals=(InvalidAmendment,),
        max_bytes=MAX_AMENDMENT_BYTES,
    ),
    Target(
        "amendments on disk",
        in_file("amendments.jsonl", _load),
        [_LINES],
        ("node/amendment_store.py:AmendmentStore.load",),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "an amendment that an operator has submitted",
        in_file("inbox/000001.json", _collect),
        [_PAUSE.canonical()],
        ("node/amendment_store.py:AmendmentStore.collect",),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "amendments beside a run spec",
        in_file("run.toml.amendments", _companion),
        [_LINES],
        ("node/amendment_store.py:read_companion",),
        refusals=(InvalidAmendment,),
        max_bytes=FILE_BYTES,
    ),
)
