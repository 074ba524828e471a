"""Without faults, every member ends with the same bytes, and they are the plain replay's (QNT-08, QNT-11)."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from atoll.protocol.exchange import FirstChunkReduced, FirstChunkSent, SpanHeld, SpanReduced


@pytest.mark.parametrize("codec_name", ["int8", "float32"])
@pytest.mark.parametrize("num_elements", [1, 255, 256, 257, 4096 * 3 + 5])
@pytest.mark.parametrize("num_peers", [1, 2, 3, 4, 7])
async def test_every_member_holds_the_plain_replay(lab, num_peers, num_elements, codec_name):
    swarm = lab(
        num_peers=num_peers,
        num_elements=num_elements,
        chunk_elements=256 if num_elements < 4096 else 4096,
        codec_name=codec_name,
        progress_timeout_s=10.0,
    )
    reports = await swarm.run()
    flags = swarm.check_agreement(reports)
    assert flags == [(True,) * num_peers] * len(swarm.plan.spans)
    assert all(set(report.held) == set(range(len(swarm.plan.spans))) for report in reports.values())
    assert all(not report.lost for report in reports.values())


async def test_one_peer_may_own_several_spans_and_others_none(lab):
    swarm = lab(num_peers=4, owners=[2, 0, 2], progress_timeout_s=10.0)
    assert swarm.check_agreement(await swarm.run()) == [(True,) * 4] * 3


@pytest.mark.parametrize(("num_peers", "values"), [(2, (120.0, 100.0)), (7, (127.0,) * 7), (7, (-127.0,) * 7)])
async def test_int8_sums_do_not_wrap(lab, num_peers, values):
    swarm = lab(num_peers=num_peers, tokens=[1] * num_peers, progress_timeout_s=10.0)
    for peer, value in enumerate(values):
        swarm.values[peer][:] = value
        swarm.commit_to(peer, swarm.contribution(peer))
    reports = await swarm.run()
    swarm.check_agreement(reports)
    mean = np.empty(256, np.float32)
    swarm.codec.decode(np.frombuffer(swarm.mean(0, 0)[: swarm.grid.encoded_bytes(0)], np.uint8), mean)
    np.testing.assert_allclose(mean, sum(values) / num_peers, rtol=0.02)


async def test_a_member_with_zero_tokens_is_included_and_weighs_nothing(lab):
    swarm = lab(tokens=[0, 50, 150], progress_timeout_s=10.0)
    assert swarm.check_agreement(await swarm.run()) == [(True, True, True)] * 3


async def test_chunks_larger_than_a_frame_are_split(lab):
    """NET-05."""
    swarm = lab(num_elements=5 * 2**20 // 4 + 3, chunk_elements=2**22, codec_name="float32", progress_timeout_s=10.0)
    swarm.settings = type(swarm.settings)(frame_bytes=1 << 20)
    swarm.check_agreement(await swarm.run())


async def test_the_driver_hears_of_each_step_once_and_in_order(lab):
    swarm = lab(progress_timeout_s=10.0)
    await swarm.run()
    for peer in range(3):
        kinds = [type(event) for event in swarm.events[swarm.peers[peer]]]
        assert kinds.count(FirstChunkSent) == kinds.count(FirstChunkReduced) == kinds.count(SpanReduced) == 1
        assert [event.span for event in swarm.said(peer, SpanReduced)] == [peer]
        assert sorted(event.span for event in swarm.said(peer, SpanHeld)) == [0, 1, 2]
        assert kinds.index(FirstChunkReduced) < kinds.index(SpanReduced)


async def test_counters_say_what_travelled_and_how_well_the_mean_was_encoded(lab):
    """QNT-12: what is counted is what was sent, and it is the codec's size."""
    swarm = lab(num_peers=4, num_elements=4096 * 8, chunk_elements=4096, progress_timeout_s=10.0)
    reports = await swarm.run()
    encoded, share = swarm.grid.total_encoded, 3 / 4
    for peer, report in reports.items():
        counters = report.counters
        sent, received = sum(counters.sent_bytes.values()), sum(counters.received_bytes.values())
        assert 2 * share * encoded < sent < 2.1 * share * encoded
        assert 2 * share * encoded <= received < 2.1 * share * encoded
        assert swarm.peers[peer] not in counters.sent_bytes
        assert 0.001 < counters.codec_error < 0.01
    exact = lab(codec_name="float32", progress_timeout_s=10.0)
    assert all(report.counters.codec_error == 0 for report in (await exact.run()).values())


async def test_a_stream_that_comes_before_its_plan_waits_for_it(lab):
    swarm = lab(progress_timeout_s=10.0)
    early = asyncio.create_task(swarm.run(absent=[0]))
    await swarm.until(lambda: bool(swarm.said(1, FirstChunkSent)))
    late = await swarm.run(absent=[1, 2])
    assert swarm.check_agreement(late | await early) == [(True, True, True)] * 3


async def test_a_lone_receiver_gets_all_means_and_the_others_send_one_vector_each(lab):
    """A group of a two-tier round: only its delegate needs the result."""
    swarm = lab(num_peers=4, num_elements=1 << 16, chunk_elements=4096, progress_timeout_s=10.0)
    swarm.receivers = frozenset(swarm.peers[:1])
    reports = await swarm.run()
    assert set(reports[0].held) == {0, 1, 2, 3}
    for peer in (1, 2, 3):
        assert set(reports[peer].held) == {peer}
        assert not reports[peer].lost
        assert swarm.mean(0, peer) == swarm.replay(peer, [True] * 4)
        sent, whole = sum(reports[peer].counters.sent_bytes.values()), swarm.grid.total_encoded
        assert whole <= sent < 1.1 * whole  # three quarters to owners, one to the receiver
