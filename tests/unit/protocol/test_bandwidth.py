"""Caps of what goes through a node's sockets, by a clock of the test's own."""

from __future__ import annotations

import asyncio

import pytest

from atoll.protocol.bandwidth import HEADERS, MAX_PIECE_BYTES, MIN_PIECE_BYTES, NO_CAPS, BandwidthCap, Caps


class Clock:
    """Time passes by sleeping, a little longer than asked for."""

    def __init__(self, late_s: float = 0.0) -> None:
        self.now_s, self.late_s = 100.0, late_s

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds + self.late_s


def capped(bytes_per_s: float, late_s: float = 0.0) -> tuple[BandwidthCap, Clock]:
    clock = Clock(late_s)
    return BandwidthCap(bytes_per_s, clock, clock.sleep), clock


@pytest.mark.parametrize("late_s", [0.0, 0.01, 0.045])
@pytest.mark.parametrize("bytes_per_s", [125e3, 2.5e6, 125e6])
async def test_over_two_seconds_a_cap_is_kept_within_five_percent(bytes_per_s: float, late_s: float) -> None:
    cap, clock = capped(bytes_per_s, late_s)
    num_bytes = 0
    while clock.now_s < 102.0:
        await cap.spend(cap.piece_bytes)
        num_bytes += cap.piece_bytes
    rate = num_bytes / (clock.now_s - 100.0)
    assert 0.95 * bytes_per_s <= rate <= 1.05 * bytes_per_s


async def test_what_was_not_used_is_not_saved_up() -> None:
    cap, clock = capped(1e6)
    clock.now_s += 3600.0
    num_bytes, started_s = 0, clock.now_s
    while clock.now_s < started_s + 1.0:
        await cap.spend(cap.piece_bytes)
        num_bytes += cap.piece_bytes
    assert num_bytes <= 1.1e6


async def test_two_streams_share_one_cap_in_the_order_of_their_asking() -> None:
    cap, clock = capped(1e6)
    for _ in range(8):
        await cap.spend(10_000)
    assert clock.now_s == pytest.approx(100.0 + (70_000 * (1 + HEADERS)) / 1e6 - 0.05, abs=1e-6)


async def test_control_messages_wait_for_nothing_but_use_up_what_others_wait_for() -> None:
    cap, clock = capped(1e6)
    bypassed = Caps(cap, cap).bypassed().sending
    await bypassed.spend(1_000_000)
    assert clock.now_s == 100.0
    assert bypassed.charge(0) == 0.0
    await cap.spend(1000)
    assert clock.now_s == pytest.approx(100.97, abs=0.01)


def test_pieces_follow_the_rate() -> None:
    assert BandwidthCap(1e3).piece_bytes == MIN_PIECE_BYTES
    assert BandwidthCap(2.5e6).piece_bytes == 50_000
    assert BandwidthCap(1e9).piece_bytes == NO_CAPS.sending.piece_bytes == MAX_PIECE_BYTES


async def test_without_a_cap_nothing_waits() -> None:
    await asyncio.wait_for(NO_CAPS.sending.spend(1 << 40), 1.0)
