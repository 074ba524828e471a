"""A joiner ends with the newest certified state or with none, whatever its donors do.

Cases CHN-02, CHN-04, CHN-05, MEM-01.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.protocol.memory import CorruptStream, Die, Unreachable
from atoll.protocol.state_sync import StateUnavailable
from atoll.protocol.transport import StreamClosed

LEAF = 1 << 20


async def test_a_joiner_loads_the_certified_state_from_several_donors(join, make_history, make_source, make_state):
    commits = make_history(3)
    sources = [make_source(commits) for _ in range(3)]
    for source in sources:
        join.donor(source)
    synced = await join.sync.load()
    assert synced.path.read_bytes() == make_state(3)
    assert (synced.manifest.round, synced.chain.head.round, synced.newer_commits) == (3, 3, ())
    assert sum(source.num_reads for source in sources) == 4
    assert sum(source.num_reads > 0 for source in sources) > 1
    assert (join.progress[-1].num_verified, join.progress[-1].num_leaves) == (4, 4)


async def test_a_long_chain_is_verified_in_several_answers(join, make_history, make_source):
    join.donor(make_source(make_history(70)))
    assert (await join.sync.update_chain()).head.round == 70


async def test_the_next_commit_certifies_a_snapshot_that_nobody_attested(join, make_history, make_source):
    commits = make_history(3)
    behind = make_source(commits, num_attests=0)
    behind.set_round(2)
    join.donor(behind)
    with pytest.raises(StateUnavailable, match="no quorum has attested the snapshot of round 2"):
        await join.sync.load()
    ahead = make_source(commits, num_attests=2)
    join.donor(ahead)
    synced = await join.sync.load()
    assert synced.manifest.round == 2
    assert [commit.record.plan.round for commit in synced.newer_commits] == [3]


async def test_where_others_are_older_than_the_lineage_an_archivist_gives_its_first_state(
    join, make_history, make_source, make_state
):
    commits = make_history(4)
    behind, archivist = make_source(commits), make_source(commits, num_attests=0)
    behind.set_round(1)
    archivist.keep(3)
    join.donor(behind)
    join.donor(archivist)  # it has gone on to round 4, which nobody attests
    record = commits[2].record
    start = (3, record.content_id(), commits[3].record.plan.parent_state)
    join.sync.certifier = replace(join.sync.certifier, signed=start)
    synced = await join.sync.load()
    assert synced.manifest.round == 3
    assert synced.path.read_bytes() == make_state(3)
    assert [commit.record.plan.round for commit in synced.newer_commits] == [4]


async def test_an_old_state_that_operators_have_not_signed_is_not_asked_for(join, make_history, make_source):
    source = make_source(make_history(4), num_attests=0)
    source.keep(3)
    join.donor(source)
    with pytest.raises(StateUnavailable, match="no quorum has attested the snapshot of round 4"):
        await join.sync.load()


async def test_a_stale_donor_is_not_listened_to(join, make_history, make_source, make_state):
    stale = make_source(make_history(2))
    join.donor(stale)
    join.donor(make_source(make_history(5)))
    synced = await join.sync.load()
    assert synced.manifest.round == 5
    assert synced.path.read_bytes() == make_state(5)
    assert stale.num_reads == 0


async def test_a_donor_that_dies_half_way_is_replaced(join, make_history, make_source, make_state):
    commits = make_history(2)
    dying = join.donor(make_source(commits))
    join.network.inject(Die(sender=dying, after_bytes=LEAF + LEAF // 2))
    other = join.donor(make_source(commits))
    synced = await join.sync.load()
    assert synced.path.read_bytes() == make_state(2)
    assert join.sync.received_bytes[other] >= 2 * LEAF
    assert "bytes" in join.sync.causes[dying]


async def test_without_another_donor_the_error_names_the_donor_and_the_bytes(join, make_history, make_source):
    dying = join.donor(make_source(make_history(2)))
    join.network.inject(Die(sender=dying, after_bytes=LEAF + LEAF // 2 + 20_000))
    with pytest.raises(StateUnavailable, match=dying[-5:]) as unavailable:
        await join.sync.load()
    assert f"after {join.sync.received_bytes[dying]} bytes" in unavailable.value.causes[dying]


async def test_a_download_goes_on_after_a_restart_of_the_joiner(join, make_history, make_source, make_state):
    """NET-07."""
    commits = make_history(2)
    dying = join.donor(make_source(commits))
    join.network.inject(Die(sender=dying, after_bytes=2 * LEAF + LEAF // 2 + 20_000))
    with pytest.raises(StateUnavailable):
        await join.sync.load()
    fresh = make_source(commits)
    join.donor(fresh)
    join.sync = join.client()
    assert (await join.sync.load()).path.read_bytes() == make_state(2)
    assert 0 < fresh.num_reads < 4


async def test_a_donor_whose_bytes_are_wrong_loses_only_itself(join, make_history, make_source, make_state):
    commits = make_history(2)
    liar_source = make_source(commits)
    liar = join.donor(liar_source)
    join.donor(make_source(commits))
    liar_source.read_leaf = lambda digest: bytes(LEAF)
    synced = await join.sync.load()
    assert synced.path.read_bytes() == make_state(2)
    assert (liar, "leaf does not match its digest") in join.misconduct


async def test_a_donor_that_has_lied_is_not_asked_again_on_its_other_stream(
    join, make_history, make_source, make_state
):
    """One stream gives a wrong leaf; the other one, which gives right ones, ends with it."""
    commits = make_history(2)
    source = make_source(commits)
    liar, read_leaf = join.donor(source), source.read_leaf
    join.donor(make_source(commits))
    wrong = iter([bytes(LEAF)])
    source.read_leaf = lambda digest: next(wrong, None) or read_leaf(digest)
    assert (await join.sync.load()).path.read_bytes() == make_state(2)
    assert join.misconduct == [(liar, "leaf does not match its digest")]
    assert source.num_reads <= 1  # what was on its way on the other stream
    assert await join.sync.load()
    assert source.num_reads <= 1


@pytest.mark.parametrize("change", ["certificate", "parent", "roster", "gap"])
async def test_a_donor_with_a_false_chain_is_not_believed(join, make_history, make_source, make_state, change):
    commits = make_history(3)
    plan = commits[2].record.plan
    false = {
        "certificate": commits[2].model_copy(update={"votes": ("01",)}),
        "parent": with_plan(commits[2], plan.model_copy(update={"parent": "f" * 64})),
        "roster": with_plan(commits[2], plan.model_copy(update={"roster": plan.roster[:1]})),
        "gap": with_plan(commits[2], plan.model_copy(update={"round": 4})),
    }[change]
    lying = make_source(commits)
    lying.commits = lambda first, count: [*commits[:2], false][first - 1 :]
    liar = join.donor(lying)
    join.donor(make_source(commits))
    synced = await join.sync.load()
    assert synced.path.read_bytes() == make_state(3)
    assert join.misconduct == [(liar, "invalid chain")]


async def test_of_a_false_chain_one_commit_is_read_not_the_whole_answer(join, make_history, make_source):
    lying = make_source(make_history(64))
    lying.commits = lambda first, count: [commit.model_copy(update={"votes": ("01",)}) for commit in lying._all]
    liar = join.donor(lying)
    await join.sync.update_chain()
    assert join.misconduct == [(liar, "invalid chain")]
    one_bytes = len(lying._all[0].canonical())
    assert join.sync.received_bytes[liar] < 3 * one_bytes


def with_plan(commit, plan):
    return commit.model_copy(update={"record": commit.record.model_copy(update={"plan": plan})})


@pytest.mark.parametrize(
    ("update", "cause"),
    [
        ({"round": 9, "record": "e" * 64}, "was not committed"),
        ({"num_bytes": 5, "leaves": ("a" * 64,)}, "where the run spec says"),
        ({"leaves": ("a" * 64,) * 4}, "no quorum has attested"),
        ({"context": "ff"}, "no quorum has attested"),
        ({"attests": ()}, "no quorum has attested"),
        ({"attests": ("00", "zz")}, "no quorum has attested"),
    ],
)
async def test_a_snapshot_that_nothing_certifies_is_not_loaded(join, make_history, make_source, update, cause):
    source = make_source(make_history(2))
    false = source.manifest().model_copy(update=update)
    source.manifest = lambda: false
    donor = join.donor(source)
    with pytest.raises(StateUnavailable) as unavailable:
        await join.sync.load()
    assert cause in unavailable.value.causes[donor]
    assert not join.path.exists()


async def test_a_target_that_moves_is_followed_and_unchanged_leaves_are_kept(
    join, make_history, make_source, make_state
):
    moving = make_source(make_history(4), moves_after=1)
    join.donor(moving)
    synced = await join.sync.load()
    assert synced.manifest.round == 4
    assert synced.path.read_bytes() == make_state(4)
    assert all(moving.reads.count(leaf) == 1 for leaf in synced.manifest.leaves[2:])


async def test_unreachable_donors_are_named(join, make_history, make_source):
    donor = join.donor(make_source(make_history(1)))
    join.network.inject(Unreachable(receiver=donor))
    with pytest.raises(StateUnavailable, match="no route"):
        await join.sync.load()
    join.donors.clear()
    join.sync.causes.clear()
    with pytest.raises(StateUnavailable, match="no donor is known"):
        await join.sync.load()


async def test_a_byte_that_changes_on_the_way_costs_the_donor_not_the_state(
    join, make_history, make_source, make_state
):
    commits = make_history(1)
    flipped = join.donor(make_source(commits))
    join.donor(make_source(commits))
    join.network.inject(CorruptStream(sender=flipped, offset=LEAF // 2))
    assert (await join.sync.load()).path.read_bytes() == make_state(1)


@pytest.mark.parametrize(
    "request_bytes", [b"\x80\x04pickle", b"{}", b'{"want":"commits","first":1,"count":65}', b"x" * 300]
)
async def test_a_donor_refuses_malformed_requests(join, make_history, make_source, request_bytes):
    donor = join.donor(make_source(make_history(1)))
    stream = await join.sync.transport.open(donor, "state")
    await stream.write(request_bytes)
    with pytest.raises(StreamClosed):
        await stream.read(100)


async def test_a_donor_limits_streams_per_peer(join, make_history, make_source):
    donor = join.donor(make_source(make_history(1)))
    streams = [await join.sync.transport.open(donor, "state") for _ in range(5)]
    with pytest.raises(StreamClosed):
        await streams[4].read(100)


def test_leaves_of_memory_that_has_moved_on_count_as_gone(make_history, make_source):
    """CHN-09: what is served is of one state, or not served."""
    source = make_source(make_history(1))
    digest = source.manifest().leaves[0]
    assert source.read_leaf(digest) is not None
    source.memory[17] ^= 1
    assert source.read_leaf(digest) is None
    assert source.read_leaf("0" * 64) is None
