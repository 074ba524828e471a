"""What a peer sends is checked before it is used; whoever breaks a rule is left out with the rule's name (SEC-01)."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest

from atoll.protocol.chunks import chunk_digest
from atoll.protocol.commitments import Leaf, Tree
from atoll.protocol.exchange import MemberExcluded, SelfExcluded, check_plan
from atoll.protocol.exchange.wire import ACKNOWLEDGED
from atoll.protocol.memory import CorruptStream
from atoll.protocol.record import SpanResult
from atoll.protocol.signed_results import signed
from atoll.protocol.transport import RemoteProtocolError, StreamClosed


def rules(swarm, owner):
    return {(event.peer, event.rule, event.misconduct) for event in swarm.said(owner, MemberExcluded)}


class Disguised(Tree):
    """Other leaves than those of the root that it names."""

    root = None


def recommit(swarm, peer, encoded):
    """Let a peer commit to, and send, arbitrary bytes of the right length, with the norms of its honest ones."""
    mine, grid = swarm.contributions[peer], swarm.grid
    digests = (chunk_digest(encoded[grid.encoded_range(chunk)]) for chunk in range(grid.num_chunks))
    leaves = [dataclasses.replace(leaf, digest=digest) for leaf, digest in zip(mine.leaves, digests, strict=True)]
    swarm.commit_to(peer, dataclasses.replace(mine, encoded=memoryview(encoded), tree=Tree(leaves)))


async def test_a_chunk_that_was_changed_on_the_way_is_refused(lab):
    swarm = lab(num_peers=4, owners=[0, 1, 2])
    offset = len(swarm.header(3, 1).encode()) + 300
    swarm.network.inject(CorruptStream(sender=swarm.peers[3], receiver=swarm.peers[1], offset=offset))
    reports = await swarm.run()
    assert swarm.check_agreement(reports) == [(True,) * 4, (True, True, True, False), (True,) * 4]
    assert rules(swarm, 1) == {(swarm.peers[3], "chunk does not match its digest", True)}


async def test_digests_that_are_not_the_committed_ones_are_refused(lab):
    swarm = lab(num_peers=4, owners=[0, 1, 2])
    mine = swarm.contributions[3]
    disguised = Disguised([Leaf(bytes(32), 1.0), *mine.leaves[1:]])
    disguised.root = mine.tree.root
    swarm.contributions[3] = dataclasses.replace(mine, tree=disguised)
    assert swarm.check_agreement(await swarm.run()) == [(True, True, True, False)] * 3
    assert rules(swarm, 0) == {(swarm.peers[3], "leaves do not match the commitment", True)}


async def test_a_norm_that_is_stated_too_small_is_refused_by_the_spans_owner(lab):
    swarm = lab(num_peers=4, owners=[0, 1, 2])
    mine, owned = swarm.contributions[3], swarm.plan.spans[1].first_chunk
    leaves = list(mine.leaves)
    leaves[owned] = dataclasses.replace(leaves[owned], squared_norm=leaves[owned].squared_norm / 4)
    swarm.commit_to(3, dataclasses.replace(mine, tree=Tree(leaves)))
    flags = swarm.check_agreement(await swarm.run())
    assert flags == [(True,) * 4, (True, True, True, False), (True,) * 4]
    assert rules(swarm, 1) == {(swarm.peers[3], "squared norm is not the committed one", True)}


async def test_a_norm_in_the_plan_that_is_not_the_sum_of_the_leaves_is_refused(lab):
    swarm = lab(num_peers=4, owners=[0, 1, 2])
    members = list(swarm.plan.members)
    members[3] = members[3].model_copy(update={"squared_norm": members[3].squared_norm / 2})
    swarm.plan = swarm.plan.model_copy(update={"members": tuple(members)})
    assert swarm.check_agreement(await swarm.run()) == [(True, True, True, False)] * 3
    assert rules(swarm, 0) == {(swarm.peers[3], "leaves do not match the commitment", True)}


@pytest.mark.parametrize("scale", [0x7F80, 0x7FC0, 0xBF80, 0x0001], ids=["inf", "nan", "negative", "subnormal"])
async def test_an_impossible_scale_is_refused_even_if_committed_to(lab, scale):
    swarm = lab(num_peers=4, owners=[0, 1, 2])
    encoded = bytearray(swarm.contributions[3].encoded)
    encoded[0:2] = scale.to_bytes(2, "little")
    recommit(swarm, 3, encoded)
    flags = swarm.check_agreement(await swarm.run())
    assert flags == [(True, True, True, False), (True,) * 4, (True,) * 4]
    assert rules(swarm, 0) == {(swarm.peers[3], "invalid encoding", True)}


async def test_a_nan_in_a_float32_contribution_is_refused(lab):
    swarm = lab(num_peers=4, owners=[0, 1, 2], codec_name="float32")
    encoded = np.frombuffer(bytes(swarm.contributions[3].encoded), np.float32).copy()
    encoded[7] = np.nan
    recommit(swarm, 3, encoded.tobytes())
    flags = swarm.check_agreement(await swarm.run())
    assert flags == [(True, True, True, False), (True,) * 4, (True,) * 4]


@pytest.mark.parametrize(
    ("frame", "rule"),
    [(b"x" * 300_000, "frame too long"), (b"", "empty frame inside a payload")],
    ids=["oversize", "empty"],
)
async def test_frames_of_wrong_length_are_refused(lab, frame, rule):
    swarm = lab(num_peers=3, owners=[0, 1])
    others = asyncio.create_task(swarm.run(absent=[2]))
    for span in range(2):
        stream = await swarm.transports[swarm.peers[2]].open(swarm.peers[span], "span")
        await stream.write(swarm.header(2, span).encode())
        await stream.write(frame)
    assert swarm.check_agreement(await others) == [(True, True, False)] * 2
    assert rules(swarm, 0) == {(swarm.peers[2], rule, True)}


@pytest.mark.parametrize("header", [b"", b"GET / HTTP/1.1\r\n", b"\x80\x04pickle", bytes(232)])
async def test_a_malformed_header_ends_the_stream_and_nothing_else(lab, header):
    swarm = lab(num_peers=3, owners=[0])
    stream = await swarm.transports[swarm.peers[1]].open(swarm.peers[0], "span")
    await stream.write(header)
    with pytest.raises(StreamClosed):
        await stream.read(100)
    assert swarm.check_agreement(await swarm.run()) == [(True, True, True)]


async def test_only_members_are_heard_and_once_per_span(lab):
    swarm = lab(num_peers=3, owners=[0], progress_timeout_s=5.0)
    swarm.plan = swarm.plan.model_copy(update={"members": swarm.plan.members[:2]})
    swarm.tokens.pop()
    header = swarm.header(2, 0).encode()
    owner = asyncio.create_task(swarm.run(absent=[1, 2]))
    for _ in range(2):
        stranger = await swarm.transports[swarm.peers[2]].open(swarm.peers[0], "span")
        await stranger.write(header)
        with pytest.raises(StreamClosed):
            await stranger.read(100)
    member = await swarm.run(absent=[0, 2])
    assert swarm.check_agreement(await owner | member) == [(True, True)]


async def test_streams_per_peer_are_limited(lab):
    swarm = lab(num_peers=2, owners=[0])
    swarm.settings = dataclasses.replace(swarm.settings, max_streams_per_peer=2)
    swarm.inboxes[swarm.peers[0]]._settings = swarm.settings
    transport = swarm.transports[swarm.peers[1]]
    for _ in range(2):
        await transport.open(swarm.peers[0], "span")
    refused = await transport.open(swarm.peers[0], "span")
    with pytest.raises(StreamClosed):
        await refused.read(100)


class Liar:
    """An owner that answers its members with made-up frames."""

    def __init__(self, swarm, *frames):
        self.swarm = swarm
        self.frames = frames
        swarm.transports[swarm.peers[0]].serve("span", self)

    async def __call__(self, stream):
        for frame in self.frames:
            await stream.write(frame)
        while True:
            if await stream.read(1 << 20) == ACKNOWLEDGED:
                return


def chunk(position):
    return b"C" + position.to_bytes(4, "little")


def final(swarm, digest, signer=0, **changes):
    result = SpanResult(plan=swarm.plan.content_id(), span=0, included=(True, True), digest=digest)
    return b"F" + bytes(4) + signed(swarm.identities[signer], result.model_copy(update=changes)).canonical()


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        (lambda swarm, mean: [chunk(0), mean, final(swarm, "0" * 64)], "mean does not match its digest"),
        (lambda swarm, mean: [final(swarm, "0" * 64)], "final frame before the last chunk"),
        (lambda swarm, mean: [chunk(1)], "chunk out of order"),
        (lambda swarm, mean: [chunk(0), b"\xff" * len(mean)], "invalid encoding"),
        (lambda swarm, mean: [chunk(0), mean + b"x"], "frame too long"),
        (lambda swarm, mean: [b"R" + bytes(4)] * 3, "more resets than members"),
        (lambda swarm, mean: [b"?" + bytes(4)], "unknown control frame"),
        (lambda swarm, mean: [b"K"], "malformed control frame"),
        (lambda swarm, mean: [b"F" + bytes(4) + b"\x80\x04pickle"], "malformed span result"),
        (lambda swarm, mean: [final(swarm, "0" * 64, span=1)], "span result of another plan"),
        (lambda swarm, mean: [final(swarm, "0" * 64, included=(True,))], "span result of another plan"),
        (
            lambda swarm, mean: [chunk(0), mean, final(swarm, "0" * 64, signer=1)],
            "span result without its owner's signature",
        ),
        (lambda swarm, mean: [bytes(1 << 16)], "frame too long"),
    ],
)
async def test_a_lying_owner_loses_its_span_with_the_rules_name(lab, frames, rule):
    swarm = lab(num_peers=2, owners=[0], num_elements=256)
    Liar(swarm, *frames(swarm, bytes(swarm.contributions[0].encoded)))
    reports = await swarm.run(absent=[0])
    assert reports[1].lost[0].rule == rule
    assert reports[1].lost[0].owner == swarm.peers[0]
    assert not reports[1].held


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda plan: {"spans": plan.spans[1:]}, "spans do not cover the grid"),
        (lambda plan: {"members": plan.members + plan.members[:1]}, "member named twice"),
        (
            lambda plan: {"members": tuple(m.model_copy(update={"tokens": 0}) for m in plan.members)},
            "plan without tokens",
        ),
    ],
)
async def test_a_plan_that_no_honest_leader_makes_is_refused(lab, change, rule):
    swarm = lab()
    plan = swarm.plan.model_copy(update=change(swarm.plan))
    with pytest.raises(RemoteProtocolError) as refused:
        check_plan(plan, swarm.grid)
    assert (refused.value.peer, refused.value.rule) == (plan.leader, rule)


async def test_a_copy_that_is_seen_when_everything_is_here_is_in_no_chunk_of_the_span(lab):
    swarm = lab(num_peers=5, owners=[0, 1], num_elements=6 * 4096 * 2, chunk_elements=4096, progress_timeout_s=5.0)
    swarm.settings = dataclasses.replace(swarm.settings, frame_bytes=1 << 20)
    first = await swarm.run()
    assert swarm.check_agreement(first) == [(True,) * 5] * 2
    for peer in (0, 1):
        swarm.hosts[swarm.peers[peer]].recent.decide(swarm.plan)
    swarm.plan = swarm.plan.model_copy(update={"round": 2})
    for peer in range(5):
        before = swarm.values[peer]
        fresh = np.random.default_rng(100 + peer).standard_normal(before.size).astype(np.float32)
        swarm.values[peer] = before * np.float32(0.7) if peer == 3 else fresh
        swarm.commit_to(peer, swarm.contribution(peer))
    assert swarm.check_agreement(await swarm.run()) == [(True, True, True, False, True)] * 2
    for owner in (0, 1):
        (event,) = swarm.said(owner, MemberExcluded)
        assert (event.peer, event.rule) == (swarm.peers[3], "copy")
        assert event.value > event.limit > 0.95
    reasons = [event.why for event in swarm.said(3, SelfExcluded)]
    assert len(reasons) == 2
    assert all("like its own of round 1" in reason for reason in reasons)
