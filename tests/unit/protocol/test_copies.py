"""What is sent again is recognised, and honest members that are alike are not taken for copies of each other."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernels.codec import codec
from atoll.protocol.admission import Earlier, Present, copies
from atoll.protocol.chunks import ChunkGrid, Contribution
from atoll.protocol.identity import Identity
from atoll.protocol.quotas import RECENT_BYTES
from atoll.protocol.recent import MIN_ELEMENTS, NUM_ROUNDS, PastSpan, Recent
from atoll.protocol.record import Member, Plan, Span
from atoll.protocol.spec import TrustConfig

from . import test_round_driver as drivers
from .test_round_driver import PEOPLE, Swarm, genesis_of

COPY_COSINE = TrustConfig().copy_cosine
PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(1, 11)]
NUM_SAMPLES = 1024


class Round:
    """Ten honest contributions: a common direction, noise of each one's own, and some of its noise of the round before,
    as momentum leaves it."""

    def __init__(self, seed: int, common: float = 1.0, kept: float = 0.0, before: Round | None = None) -> None:
        random = np.random.default_rng(seed)
        fresh = random.standard_normal((len(PEERS), NUM_SAMPLES))
        self.noise = fresh if before is None else kept * before.noise + (1 - kept**2) ** 0.5 * fresh
        direction = common * np.random.default_rng(99).standard_normal(NUM_SAMPLES)
        self.rows = (direction + self.noise).astype(np.float32)

    @property
    def past(self) -> np.ndarray:
        """As an owner remembers it: everybody's, then the mean."""
        return np.vstack([self.rows, self.rows.mean(axis=0)])


def found(before: Round, now: Round, order=None, num_members=10, tokens=lambda _: 100):
    rows = now.rows[:num_members]
    members = [Member(peer=peer, tokens=tokens(i), commitment="0" * 64) for i, peer in enumerate(PEERS[:num_members])]
    earlier = Earlier(7, (*PEERS[:num_members], None), np.delete(before.past, slice(num_members, len(PEERS)), 0), rows)
    return copies(Present(members, rows, order or [0] * num_members), [earlier], COPY_COSINE)


def said(before: Round, now: Round, **options) -> dict[int, str]:
    return {member: copy.refusal.of for member, copy in found(before, now, **options).items()}


@pytest.mark.parametrize(
    ("row", "words"), [(3, "its own of round 7"), (5, "another's of round 7"), (-1, "the mean of round 7")]
)
@pytest.mark.parametrize("scale", [0.01, 1.0, 40.0])
def test_what_was_in_the_last_round_is_recognised_at_any_scale_and_with_a_little_noise(row, words, scale):
    before, now = Round(1), Round(2)
    original = before.past[row]
    noise = np.random.default_rng(3).standard_normal(NUM_SAMPLES) * np.linalg.norm(original) / NUM_SAMPLES**0.5
    now.rows[3] = scale * (original + 0.03 * noise)
    copy = found(before, now)[3]
    assert said(before, now) == {3: f" like {words}"}
    assert copy.refusal.value > copy.refusal.limit > COPY_COSINE * 0.99
    assert copy.original == (0, row % len(before.past))


def test_enough_noise_makes_a_copy_pass():
    before, now = Round(1), Round(2)
    noise = np.random.default_rng(3).standard_normal(NUM_SAMPLES)
    now.rows[3] = before.rows[5] + 0.6 * noise * np.linalg.norm(before.rows[5]) / NUM_SAMPLES**0.5
    assert found(before, now) == {}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 3.0, 30.0]), st.sampled_from([0.0, 0.5, 0.95]))
def test_honest_members_are_never_copies_however_alike_they_are(seed, common, kept):
    before = Round(2 * seed, common)
    assert found(before, Round(2 * seed + 1, common, kept, before)) == {}


@pytest.mark.parametrize("kept", [0.5, 0.95])
def test_members_whose_optimizers_remember_are_compared_with_members_like_them(kept):
    before = Round(1)
    now = Round(2, kept=kept, before=before)
    now.rows[3] = 2 * before.rows[3]
    assert said(before, now) == {3: " like its own of round 7"}


def test_of_two_that_send_one_work_who_was_heard_of_first_stays():
    now = Round(2)
    now.rows[8] = 1.5 * now.rows[2] + 0.01 * Round(3).rows[0]
    assert said(Round(1), now) == {8: " like another's of this round"}
    assert said(Round(1), now, order=[0, 0, 1, 0, 0, 0, 0, 0, 0, 0]) == {2: " like another's of this round"}


def test_three_of_ten_that_send_one_old_work_are_all_recognised():
    before, now = Round(1), Round(2)
    for member in (1, 4, 7):
        now.rows[member] = before.rows[9]
    assert found(before, now).keys() == {1, 4, 7}


def test_fast_members_have_more_in_common_and_are_no_copies():
    before, now = Round(1, common=5.0), Round(2, common=5.0)
    further = np.random.default_rng(4).standard_normal(NUM_SAMPLES)
    speeds = [1, 2, 4, 6] * 3
    for member in range(10):
        for each in (before, now):
            each.rows[member] += 2 * np.log(speeds[member]) * further
            each.rows[member] += each.noise[member] * (speeds[member] ** -0.5 - 1)
    assert found(before, now, tokens=lambda member: 100 * speeds[member]) == {}
    now.rows[3] = before.rows[3]
    assert found(before, now, tokens=lambda member: 100 * speeds[member]).keys() == {3}


def test_among_three_nobody_is_judged_and_among_four_a_copy_is():
    before, now = Round(1), Round(2)
    now.rows[2] = before.rows[2]
    assert found(before, now, num_members=3) == {}
    assert found(before, now, num_members=4).keys() == {2}


def test_equal_and_all_zero_contributions_of_everybody_are_no_reason_to_refuse_anybody():
    for row in (np.ones(NUM_SAMPLES), np.zeros(NUM_SAMPLES)):
        before, now = Round(1), Round(2)
        before.rows[:] = now.rows[:] = row
        assert found(before, now) == {}


# --- memory -----------------------------------------------------------------------------------------------------------

GRID = ChunkGrid(3 * MIN_ELEMENTS, MIN_ELEMENTS, codec("float32"))


def plan_of(number: int, lineage: int = 0, commitments=("a", "b")) -> Plan:
    roster = (PEERS[0], PEERS[1])
    return Plan(
        lineage=lineage,
        fragment=0,
        round=number,
        ballot=0,
        leader=roster[0],
        parent="0" * 64,
        parent_state="0" * 64,
        members=tuple(Member(peer=p, tokens=1, commitment=c * 64) for p, c in zip(roster, commitments, strict=True)),
        spans=(Span(first_chunk=0, num_chunks=3, owner=roster[0]),),
        roster=roster,
        next_roster=roster,
        data_cursor=0,
        rules="0" * 64,
        attempt_timeout_s=1.0,
    )


def remember(recent: Recent, number: int, num_samples: int = 4, lineage: int = 0) -> None:
    plan = plan_of(number, lineage)
    recent.begin(plan)
    recent.offer(plan, PastSpan(number, (None,), {0: np.zeros((1, num_samples), np.float32)}))
    recent.decide(plan)


def test_only_rounds_that_were_committed_are_remembered_and_only_the_last_few():
    recent = Recent(GRID)
    for number in range(1, 10):
        attempt = plan_of(number)
        recent.begin(attempt)
        recent.offer(plan_of(number, commitments=("c", "d")), PastSpan(number, (None,), {}))  # is never decided
        remember(recent, number)
    assert [past.round for past in recent.past] == list(range(10 - NUM_ROUNDS, 10))
    assert all(past.rows for past in recent.past)


def test_another_lineage_may_do_the_same_work_again():
    recent = Recent(GRID)
    remember(recent, 5)
    recent.begin(plan_of(5, lineage=1))
    assert recent.past == ()


def test_memory_is_bounded_in_bytes():
    recent = Recent(GRID)
    for number in range(1, 4):
        remember(recent, number, num_samples=RECENT_BYTES // 8)
    assert [past.round for past in recent.past] == [2, 3]


def test_who_commits_to_something_else_at_a_later_ballot_comes_after_those_that_were_shown_before():
    recent = Recent(GRID)
    recent.begin(plan_of(1, commitments=("a", "b")))
    again = plan_of(1, commitments=("c", "b"))
    recent.begin(again)
    first, second = recent.order(again)
    assert first > second


def test_samples_are_at_the_same_secret_places_every_time():
    values = np.arange(MIN_ELEMENTS, dtype=np.float32)
    places = [Recent(GRID).sampler.pick(1, values) for _ in range(8)]
    assert {len(each) for each in places} == {1024}
    assert len({float(each[0]) for each in places}) > 1
    recent = Recent(GRID)
    np.testing.assert_array_equal(recent.sampler.sample(1, values.tobytes()), recent.sampler.pick(1, values))


# --- whole drivers ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def swarm(tmp_path, monkeypatch):
    """Five nodes, each of which owns a chunk that is large enough to judge by, and audits all others."""
    num_elements = 5 * MIN_ELEMENTS
    monkeypatch.setattr(drivers, "NUM_ELEMENTS", num_elements)
    monkeypatch.setattr(drivers, "GRID", ChunkGrid(num_elements, MIN_ELEMENTS, codec("float32")))
    genesis = genesis_of(PEOPLE[:5])
    patient = {
        "heartbeat_timeout_s": 3.0,
        "ready_grace_s": 10.0,
        "progress_timeout_s": 10.0,
        "attempt_timeout_s": 100.0,
    }
    timing = genesis.timing.model_copy(update=patient | {"quorum_timeout_s": 200.0})
    trust = genesis.trust.model_copy(update={"audited_chunks": 5, "audited_share": 1024.0})
    swarm = Swarm(tmp_path, genesis.model_copy(update={"timing": timing, "trust": trust}))
    swarm.network.progress_timeout_s = 10.0
    for person in PEOPLE[:5]:
        await swarm.start(person)
    yield swarm
    await swarm.close()


async def contribute(swarm: Swarm, number: int, values: list[np.ndarray]):
    calls = []
    for person, each in zip(PEOPLE, values, strict=False):
        encoded = each.astype(np.float32).tobytes()
        contribution = Contribution.of(drivers.GRID, encoded, round_number=number, tokens=100)
        calls.append(swarm.nodes[person.peer_id].driver.contribute(contribution))
    return await asyncio.wait_for(asyncio.gather(*calls), 60)


async def test_a_stale_contribution_is_in_no_mean_its_sender_hears_why_and_audits_accuse_nobody(swarm):
    random = np.random.default_rng(0)
    common = random.standard_normal(drivers.NUM_ELEMENTS)
    rounds = [[common + random.standard_normal(drivers.NUM_ELEMENTS) for _ in range(5)] for _ in range(2)]
    first = await contribute(swarm, 1, rounds[0])
    assert all(all(outcome.included_spans) for outcome in first)
    rounds[1][4] = 1.3 * rounds[0][4]
    second = await contribute(swarm, 2, rounds[1])
    assert [any(outcome.included_spans) for outcome in second] == [True, True, True, True, False]
    assert len({outcome.state_hash for outcome in second}) == 1
    thief = swarm.nodes[PEOPLE[4].peer_id]
    np.testing.assert_allclose(thief.replica.mean, np.mean(rounds[1][:4], axis=0), rtol=1e-4, atol=1e-5)
    for node in swarm.nodes.values():
        told = [e.fields for e in node.events if e.point == "exchange.excluded" and e.fields["rule"] == "copy"]
        assert {each["peer"] for each in told} == {PEOPLE[4].peer_id}
        assert all(each["value"] > each["limit"] for each in told)
        assert not {"peer.proven", "audit.lie", "audit.refused", "peer.rejected"} & set(node.points())
    heard = [e.fields["why"] for e in thief.events if e.point == "exchange.excluded" and e.fields["rule"] == "self"]
    assert len(heard) == 4
    assert all(why.startswith("copy: ") and "its own of round 1" in why for why in heard)
