"""Parsers of two-tier rounds: what groups say to each other, and the files that outlive a restart."""

from __future__ import annotations

from pathlib import Path

from atoll.protocol.groups import probe
from atoll.protocol.groups.fidelity import is_faithful
from atoll.protocol.groups.ledger import GroupLedger
from atoll.protocol.groups.seat_store import PartStore, SeatStore
from atoll.protocol.groups.seats import Seated, Seats
from atoll.protocol.transport import RemoteProtocolError

from . import examples as ex
from .file_targets import FILE_BYTES, in_file, made
from .harness import ON_STREAMS, Refused, Target, accepted, frames, on_stream, served
from .network_targets import Donor, SwarmStream


def _learn(data: bytes) -> None:
    """A copy of a group's result that another follower passes on."""
    GroupLedger(ex.RUN).add_copy(ex.ME.peer_id, data, ex.ME.peer_id)


def _hold_against(data: bytes) -> None:
    """A result whose proofs the delegate has made up; its fields have been parsed before."""
    accepted(is_faithful(ex.GROUP_RESULT.model_copy(update={"proofs": (data.decode(),)}), 0, ex.CONTRIBUTION.leaves, 3))


async def _answer_probe(stream: SwarmStream) -> None:
    donor = Donor()
    probe.ProbeServer(donor)  # type: ignore[arg-type]
    await donor.handlers[probe.PROTOCOL](stream)


def _write_seats(place: Path) -> None:
    SeatStore(place / "seats.json").save(Seats(0, 3, 4, {1: Seated(ex.ME.peer_id, 2)}))


def _write_parts(place: Path) -> None:
    PartStore(place / "parts.json").note(3, ex.ME.peer_id)


def _read_seats(path: Path) -> None:
    SeatStore(path).load(0, 3, 4).given_to(ex.ME.peer_id)


GROUP_TARGETS = (
    Target(
        "a group's result that is passed on",
        _learn,
        [ex.sealed_message(ex.GROUP_RESULT)],
        ("protocol/groups/groups.py:Groups.hear", "protocol/envelope.py:Envelope.open"),
        refusals=(RemoteProtocolError,),
    ),
    Target(
        "a proof that a delegate contributes its group's mean",
        _hold_against,
        [b""],
        ("protocol/groups/fidelity.py:is_faithful",),
        refusals=(Refused, UnicodeDecodeError),
        max_bytes=8192,
    ),
    Target(
        "a probe of our line",
        served(_answer_probe),
        [frames((1000).to_bytes(4, "little"), b"x")],
        ("protocol/groups/probe.py:ProbeServer._handle",),
        refusals=ON_STREAMS,
        max_bytes=64 << 10,
    ),
    Target(
        "the answer to a probe",
        on_stream(probe._measure),
        [frames(b"Y", bytes(probe.PROBE_BYTES))],
        ("protocol/groups/probe.py:_measure",),
        refusals=ON_STREAMS,
        max_bytes=probe.PROBE_BYTES + 64,
    ),
    Target(
        "a file of seats",
        in_file("seats.json", _read_seats),
        [made("seats.json", _write_seats)],
        ("protocol/groups/seat_store.py:SeatStore.load",),
        max_bytes=FILE_BYTES,
    ),
    Target(
        "a file of the groups that had our work",
        in_file("parts.json", lambda path: PartStore(path).delegate_of(3)),
        [made("parts.json", _write_parts)],
        ("protocol/groups/seat_store.py:PartStore.__init__",),
        max_bytes=FILE_BYTES,
    ),
)
