"""A member that fails costs its own contribution, an owner its spans, and the others agree bit for bit (CHN-01)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from atoll.protocol.exchange import (
    ExchangeSettings,
    FirstChunkReduced,
    FirstChunkSent,
    MemberExcluded,
    SelfExcluded,
    SpanLost,
    SpanReduced,
)
from atoll.protocol.memory import CutStream, Delay, Die, StallStream, Unreachable

HEADER_BYTES = 40 + 40 * (4 + 1)  # the shortest proof, of the last span
SPAN_BYTES = 4 * 258
EVERYBODY, WITHOUT_LAST = (True,) * 4, (True, True, True, False)


def four(lab, **changes):
    """Four members, of which the last owns nothing and so can only spoil its own contribution."""
    return lab(num_peers=4, owners=[0, 1, 2], num_elements=256 * 12, **changes)


def survivors(reports):
    return {peer: report for peer, report in reports.items() if peer != 3}


async def test_a_member_that_dies_before_sending_is_left_out_everywhere(lab):
    swarm = four(lab)
    swarm.network.kill(swarm.peers[3])
    reports = await swarm.run(absent=[3])
    assert swarm.check_agreement(reports) == [WITHOUT_LAST] * 3
    assert all(set(report.held) == {0, 1, 2} for report in reports.values())
    excluded = [event for peer in range(3) for event in swarm.said(peer, MemberExcluded)]
    assert {(event.peer, event.rule, event.misconduct) for event in excluded} == {(swarm.peers[3], "no contact", False)}


async def test_a_member_whose_heartbeats_have_stopped_is_not_waited_for(lab):
    patient = ExchangeSettings(contact_timeout_s=600, keepalive_interval_s=0.02)
    swarm = four(lab, settings=patient)
    swarm.dead.add(swarm.peers[3])
    async with asyncio.timeout(30):
        reports = await swarm.run(absent=[3])
    assert swarm.check_agreement(reports) == [WITHOUT_LAST] * 3
    excluded = [event for peer in range(3) for event in swarm.said(peer, MemberExcluded)]
    assert {(event.peer, event.rule, event.misconduct) for event in excluded} == {(swarm.peers[3], "dead", False)}


async def test_a_member_that_sends_although_its_heartbeats_are_lost_stays_in(lab):
    swarm = four(lab, settings=ExchangeSettings(contact_timeout_s=600, keepalive_interval_s=0.02))
    swarm.dead.add(swarm.peers[3])
    assert swarm.check_agreement(await swarm.run()) == [EVERYBODY] * 3


async def test_a_member_that_dies_half_way_is_left_out_of_each_span_that_it_had_not_finished(lab):
    swarm = four(lab)
    swarm.network.inject(Die(sender=swarm.peers[3], after_bytes=3000))
    reports = survivors(await swarm.run())
    flags = swarm.check_agreement(reports)
    assert WITHOUT_LAST in flags
    assert all(set(report.held) == {0, 1, 2} for report in reports.values())


async def test_chunks_that_were_reduced_with_a_member_that_then_fails_are_reduced_again(lab):
    swarm = four(lab)
    # Two of the span's four chunks pass, so that the owner has already reduced and sent means that contain them.
    swarm.network.inject(
        CutStream(sender=swarm.peers[3], receiver=swarm.peers[0], after_bytes=36 + 4 + 40 * (4 + 2) + 258 * 2)
    )
    reports = await swarm.run()
    assert swarm.check_agreement(reports) == [WITHOUT_LAST, EVERYBODY, EVERYBODY]
    (excluded,) = swarm.said(0, MemberExcluded)
    assert (excluded.peer, excluded.rule) == (swarm.peers[3], "connection lost")


async def test_a_member_that_dies_after_sending_stays_in(lab):
    swarm = four(lab, progress_timeout_s=5.0)
    # Of the mean, all chunks pass (each with 5 bytes of control, and a few keepalives), but not the final frame.
    for owner in range(3):
        cut = CutStream(sender=swarm.peers[owner], receiver=swarm.peers[3], after_bytes=SPAN_BYTES + 4 * 5 + 60)
        swarm.network.inject(cut)
    # The owners wait for one member more, so that the last has sent everything before any mean comes back.
    slow = asyncio.create_task(swarm.run(absent=[1]))
    arrived = [swarm.transports[swarm.peers[owner]].traffic.received_from for owner in (0, 2)]
    everything = HEADER_BYTES + SPAN_BYTES
    await swarm.until(lambda: all(traffic.get(swarm.peers[3], 0) > everything for traffic in arrived))
    reports = await swarm.run(absent=[0, 2, 3]) | await slow
    assert swarm.check_agreement(survivors(reports)) == [EVERYBODY] * 3
    assert set(reports[3].lost) == {0, 1, 2}


async def test_a_frozen_member_is_left_out_while_the_others_are_kept_alive(lab):
    swarm = four(lab, settings=ExchangeSettings(contact_timeout_s=1.0, keepalive_interval_s=0.03, frame_bytes=1000))
    for owner in range(3):
        swarm.network.inject(StallStream(sender=swarm.peers[3], receiver=swarm.peers[owner], after_bytes=700))
    reports = survivors(await swarm.run())
    assert swarm.check_agreement(reports) == [WITHOUT_LAST] * 3
    assert all(set(report.held) == {0, 1, 2} and not report.lost for report in reports.values())
    assert {event.rule for event in swarm.said(0, MemberExcluded)} == {"connection lost"}


async def test_a_slow_member_is_told_that_the_span_goes_on_without_it(lab):
    settings = ExchangeSettings(contact_timeout_s=5, keepalive_interval_s=0.02, contribution_share=0.5, frame_bytes=50)
    swarm = four(lab, settings=settings, progress_timeout_s=5.0, attempt_timeout_s=1.0)
    swarm.network.inject(Delay(sender=swarm.peers[3], delay_s=0.1))
    reports = await swarm.run()
    assert swarm.check_agreement(reports) == [WITHOUT_LAST] * 3
    assert [event.why for event in swarm.said(3, SelfExcluded)] == ["too slow"] * 3
    assert not reports[3].lost


@pytest.mark.parametrize("point", [FirstChunkSent, FirstChunkReduced, SpanReduced])
async def test_an_owner_that_dies_costs_its_own_spans_only(lab, point):
    swarm = lab(num_peers=4, num_elements=256 * 12)
    killed = swarm.events[swarm.peers[3]]

    class KillAt(list):
        def append(self, event):
            super().append(event)
            if isinstance(event, point):
                swarm.network.kill(swarm.peers[3])

    swarm.events[swarm.peers[3]] = KillAt(killed)
    reports = survivors(await swarm.run())
    for peer, report in reports.items():
        assert set(report.held) == {0, 1, 2}
        assert set(report.lost) == {3}
        (lost,) = swarm.said(peer, SpanLost)
        assert (lost.span, lost.owner, lost.rule) == (3, swarm.peers[3], None)
    for span in range(3):
        assert len({report.held[span] for report in reports.values()}) == 1
        assert swarm.mean(0, span) == swarm.replay(span, reports[0].held[span].included)


async def test_an_unreachable_owner_is_reported_by_those_who_cannot_reach_it(lab):
    swarm = lab()
    swarm.network.inject(Unreachable(sender=swarm.peers[1], receiver=swarm.peers[0]))
    reports = await swarm.run()
    (lost,) = swarm.said(1, SpanLost)
    assert (lost.span, lost.owner) == (0, swarm.peers[0])
    assert "unreachable" in lost.why
    assert reports[2].held[0].included == (True, False, True)
    assert swarm.check_agreement(reports)[1:] == [(True,) * 3] * 2


async def test_an_owner_without_its_own_contribution_still_serves_the_others(lab):
    swarm = lab()
    swarm.contributions[1] = None
    reports = await swarm.run()
    assert set(reports[1].held) == {1}
    assert reports[0].held[1].included == (True, False, True)
    assert [(event.peer, event.rule) for event in swarm.said(1, MemberExcluded)] == [
        (swarm.peers[1], "no contribution")
    ]


async def test_a_span_to_which_nobody_with_weight_contributes_is_lost(lab):
    swarm = lab(num_peers=2, tokens=[0, 10], owners=[0])
    reports = await swarm.run(absent=[1])
    assert "no contribution" in reports[0].lost[0].why


async def test_cancelling_ends_every_stream_and_task(lab):
    swarm = four(lab, progress_timeout_s=30.0)
    swarm.settings = ExchangeSettings(frame_bytes=1000)
    running = asyncio.create_task(swarm.run(absent=[3]))
    await swarm.until(lambda: all(swarm.said(peer, FirstChunkSent) for peer in range(3)))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await swarm.until(lambda: not swarm.network._streams)
    assert all(not inbox._limit.num_open for inbox in swarm.inboxes.values())


async def test_qnt_14_of_three_the_mean_without_the_absent_one_is_over_two(lab):
    swarm = lab(codec_name="float32", tokens=[100, 100, 100], owners=[0, 1])
    for peer, value in enumerate((1.0, 2.0, 900.0)):
        swarm.values[peer][:] = value
        swarm.commit_to(peer, swarm.contribution(peer))
    swarm.network.kill(swarm.peers[2])
    assert swarm.check_agreement(await swarm.run(absent=[2])) == [(True, True, False)] * 2
    for span in range(2):
        assert set(np.frombuffer(swarm.mean(0, span), np.float32)) == {1.5}


async def test_chn_08_spans_agree_although_contributions_come_to_each_owner_in_another_order(lab):
    """The plan says in which order they are summed, neither the network nor a member's own count of steps."""
    swarm = lab(num_peers=4, progress_timeout_s=10.0)
    for late in range(4):
        swarm.network.inject(Delay(sender=swarm.peers[late], receiver=swarm.peers[(late + 1) % 4], delay_s=0.05))
    assert swarm.check_agreement(await swarm.run()) == [EVERYBODY] * 4
