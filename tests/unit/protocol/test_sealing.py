"""Messages are believed once, from the peer that the connection authenticates, in this run and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.protocol.envelope import InvalidMessage
from atoll.protocol.identity import Identity
from atoll.protocol.messages import CommitRequest
from atoll.protocol.sealing import LIFETIME_S, ClockApart, Guard, Sealer, reserve_sequences
from atoll.protocol.transport import RemoteProtocolError

RUN, OTHER_RUN = "ab" * 32, "cd" * 32
ALICE, MALLORY = (Identity.from_seed(bytes([number]) * 32) for number in (1, 2))
NOW = 1.8e9
BODY = CommitRequest(fragment=0, round=3)


def sealed(now: float = NOW, run: str = RUN, lineage: int = 0, sequence: int = 0) -> bytes:
    return Sealer(ALICE, run, lineage, sequence, lambda: now).seal(BODY)


def test_an_honest_message_is_opened():
    envelope = Guard(RUN, 0).open(sealed(), NOW, ALICE.peer_id)
    assert (envelope.header.sender, envelope.body) == (ALICE.peer_id, BODY)


def test_a_replay_is_refused_and_so_is_an_older_message():
    guard, sealer = Guard(RUN, 0), Sealer(ALICE, RUN, 0, 0, lambda: NOW)
    first, second = sealer.seal(BODY), sealer.seal(BODY)
    guard.open(second, NOW)
    for replayed in (second, first):
        with pytest.raises(InvalidMessage, match="replay"):
            guard.open(replayed, NOW)


def test_nobody_speaks_in_anothers_name():
    with pytest.raises(RemoteProtocolError, match="sender") as caught:
        Guard(RUN, 0).open(sealed(), NOW, MALLORY.peer_id)
    assert caught.value.peer == MALLORY.peer_id


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (sealed(run=OTHER_RUN), "another run"),
        (sealed(lineage=1), "lineage 1"),
        (sealed(now=NOW - LIFETIME_S - 1), "expired"),
        (sealed(now=NOW + 2 * LIFETIME_S), "too far in the future"),
        (sealed()[:-1], "malformed"),
        (b"\x80\x04\x95" * 40, "malformed"),
        (b"", "too short"),
        (sealed()[:64] + sealed()[64:].replace(b'"round":3', b'"round":4'), "bad signature"),
    ],
)
def test_foreign_expired_and_damaged_messages_are_refused(raw, why):
    with pytest.raises(InvalidMessage, match=why):
        Guard(RUN, 0).open(raw, NOW)


@pytest.mark.parametrize("skew_s", [-3600, 3600])
def test_clk_01_a_clock_that_is_an_hour_off_is_no_reason_to_refuse(skew_s):
    Guard(RUN, 0).open(sealed(now=NOW + skew_s), NOW)


@pytest.mark.parametrize("skew_s", [-LIFETIME_S - 1, LIFETIME_S + 1, -1.7e9])
def test_clk_01_a_clock_that_is_further_off_is_refused_with_the_offset(skew_s):
    with pytest.raises(ClockApart) as caught:
        Guard(RUN, 0).open(sealed(now=NOW + skew_s), NOW)
    assert caught.value.offset_s == pytest.approx(skew_s)


def test_sequence_numbers_grow_over_restarts_even_if_the_clock_is_set_back(tmp_path: Path):
    first = reserve_sequences(tmp_path / "sequence", NOW)
    assert reserve_sequences(tmp_path / "sequence", NOW - 3600) > first
    assert reserve_sequences(tmp_path / "sequence", NOW + 3600 * 24) == int((NOW + 3600 * 24) * 1e6)


def test_the_guard_remembers_a_bounded_number_of_senders():
    guard = Guard(RUN, 0, max_senders=4)
    for number in range(10, 20):
        sealer = Sealer(Identity.from_seed(bytes([number]) * 32), RUN, 0, 0, lambda: NOW)
        guard.open(sealer.seal(BODY), NOW)
    assert len(guard._last) == 4
