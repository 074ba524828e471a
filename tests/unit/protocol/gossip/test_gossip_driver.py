"""Gossip rounds between real drivers in memory: pairs form, replicas stay near, and nobody holds anybody up."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from atoll.protocol.amendments import Amendment, RunRules
from atoll.protocol.changes import Ban, Change, Pause, Resume, Rollback
from atoll.protocol.gossip import wire
from atoll.protocol.memory import CutStream, StallStream
from atoll.protocol.messages import CommitRequest
from atoll.protocol.outcomes import Aborted
from atoll.protocol.spec import MembershipConfig, TrustConfig

from .gossip_lab import NUM_ELEMENTS, PEOPLE, Lab, Node, SmallReplica

LabOf = Callable[..., Lab]
NUM_SLOW = 7
"""Rounds of the slowest peer, where there is one."""


def gradient(node: Node, generator: np.random.Generator) -> np.ndarray:
    """Of Σ (w − 1)²/2, with noise of the peer's own."""
    return 0.3 * (node.replica.values - 1) + 0.05 * generator.normal(size=NUM_ELEMENTS)


async def rounds(node: Node, num_rounds: int, number: int) -> list[float]:
    """Distance to the optimum, per element, after each round."""
    generator, left = np.random.default_rng(number), list[float]()
    for _ in range(num_rounds):
        await asyncio.sleep(0.05)  # training
        await node.swapped(gradient(node, generator))
        left.append(float(np.linalg.norm(node.replica.values - 1)) / np.sqrt(NUM_ELEMENTS))
    return left


def amended(lab: Lab, change: Change, from_round: int) -> Amendment:
    return RunRules(lab.genesis).next(change, from_round).signed(PEOPLE[0])


def outcomes(lab: Lab) -> list:
    return [e.fields["outcome"] for node in lab.nodes.values() for e in node.points("round.applied")]


async def test_four_peers_train_in_pairs_and_their_replicas_stay_together(lab_of: LabOf):
    lab = lab_of(4)
    await lab.start(0, 1, 2, 3)
    await lab.meet()
    left = await asyncio.gather(*(rounds(node, 8, number) for number, node in lab.nodes.items()))
    assert all(distances[-1] < 0.2 < distances[0] for distances in left)
    assert sum(outcome.partner is None for outcome in outcomes(lab)) <= 8
    assert max(o.distance_in_rounds for o in outcomes(lab) if o.partner) < lab.genesis.gossip.max_distance
    assert not any(node.points("swap.refused") for node in lab.nodes.values())


async def test_a_pair_says_the_same_of_its_swap(lab_of: LabOf):
    lab = lab_of(2)
    a, b = await lab.start(0, 1)
    await lab.meet()
    generator = np.random.default_rng(0)
    one, other = await asyncio.gather(a.swapped(gradient(a, generator)), b.swapped(gradient(b, generator)))
    assert (one.partner, other.partner) == (PEOPLE[1].peer_id, PEOPLE[0].peer_id)
    assert one.distance == other.distance == 0.0  # both began at the genesis' weights
    assert [m.commitment for m in one.commit.record.plan.members] == [
        m.commitment for m in reversed(other.commit.record.plan.members)
    ]
    assert one.commit.votes == ()
    np.testing.assert_array_equal(a.replica.values, b.replica.values)


async def test_a_lone_peer_steps_alone_at_once(lab_of: LabOf):
    lab = lab_of(3)
    (node,) = await lab.start(0)
    started_s = time.monotonic()
    outcome = await node.swapped(np.ones(NUM_ELEMENTS))
    assert outcome.partner is None
    assert outcome.why_alone == "no peer is near this round"
    assert time.monotonic() - started_s < 0.5


async def test_when_a_peer_dies_the_others_go_on_within_the_grace(lab_of: LabOf):
    lab = lab_of(4)
    await lab.start(0, 1, 2, 3)
    await lab.meet()
    await asyncio.gather(*(rounds(node, 2, number) for number, node in lab.nodes.items()))
    lab.network.kill(PEOPLE[3].peer_id)
    await lab.nodes.pop(3).driver.close()
    started_s = time.monotonic()
    await asyncio.gather(*(rounds(node, 3, number) for number, node in lab.nodes.items()))
    assert time.monotonic() - started_s < 1.0 + 3 * 1.5
    assert {node.replica.head_round for node in lab.nodes.values()} >= {5}


@pytest.mark.parametrize("kind", [CutStream, StallStream])
async def test_a_swap_that_breaks_off_has_no_effect_and_the_round_ends_all_the_same(lab_of: LabOf, kind: type):
    lab = lab_of(2)
    a, b = await lab.start(0, 1)
    await lab.meet()
    fault = kind(sender=PEOPLE[1].peer_id, receiver=PEOPLE[0].peer_id, after_bytes=20_000, protocol=wire.PROTOCOL)
    lab.network.inject(fault)
    generator = np.random.default_rng(0)
    one, other = await asyncio.gather(a.swapped(gradient(a, generator)), b.swapped(gradient(b, generator)))
    assert one.partner is None
    assert other.partner is None
    assert a.points("swap.lost")
    assert a.replica.used == b.replica.used == [None]
    lab.network.remove(fault)
    one, other = await asyncio.gather(a.swapped(gradient(a, generator)), b.swapped(gradient(b, generator)))
    assert one.partner == PEOPLE[1].peer_id


async def test_a_partner_out_of_all_proportion_is_refused_with_rule_value_and_limit_and_shunned(lab_of: LabOf):
    lab = lab_of(2)
    a, b = await lab.start(0, 1)
    await lab.meet()
    generator = np.random.default_rng(0)
    huge = 1e6 * gradient(b, generator)
    one, _ = await asyncio.gather(a.swapped(gradient(a, generator)), b.swapped(huge))
    assert one.partner is None
    (refused,) = a.points("swap.refused")
    assert refused.fields["rule"] == "absurd norm"
    assert refused.fields["value"] > refused.fields["limit"] > 0
    assert a.points("peer.shunned")[0].fields == {"peer": PEOPLE[1].peer_id, "num_rounds": 1}


async def test_a_larger_norm_than_usual_is_cut_and_so_is_the_pull_of_far_weights(lab_of: LabOf):
    lab = lab_of(2)
    a, b = await lab.start(0, 1)
    await lab.meet()
    b.replica.values += 5  # many rounds away
    delta = np.full(NUM_ELEMENTS, 0.1)
    measure = float(np.linalg.norm(delta))
    before = a.replica.values.copy()
    one, _ = await asyncio.gather(a.swapped(delta), b.swapped(30 * delta))
    used = a.replica.used[0]
    assert used is not None
    assert used.delta_factor == pytest.approx(2 / 30, rel=0.01)
    assert used.pull_factor == pytest.approx(lab.genesis.gossip.max_distance / one.distance_in_rounds, rel=0.01)
    moved = float(np.linalg.norm(a.replica.values - before + 0.35 * delta))
    bound = 0.35 * 2 * measure + 0.35 * lab.genesis.gossip.max_distance * measure
    assert moved <= 1.01 * bound


async def test_fast_and_slow_peers_stay_within_a_few_rounds_of_each_other(lab_of: LabOf):
    lab = lab_of(4)
    for number in range(4):
        await lab.start(number, sync=lab.load_weights(number))
    await lab.meet()
    num_given = Counter[int]()

    async def train(node: Node, number: int) -> None:
        """Number 0 trains half as fast as the others, whatever the machine does meanwhile."""
        generator, is_slow = np.random.default_rng(number), number == 0
        while num_given[number] < (NUM_SLOW if is_slow else 2 * NUM_SLOW):
            if not is_slow and num_given[number] > 2 * num_given[0]:
                await asyncio.sleep(0.01)
                continue
            await asyncio.sleep(0.1 if is_slow else 0.05)
            await node.contribute(gradient(node, generator))
            num_given[number] += 1

    await asyncio.gather(*(train(node, number) for number, node in lab.nodes.items()))
    heads = [node.replica.head_round for node in lab.nodes.values()]
    assert max(heads) - min(heads) <= 2 * lab.genesis.gossip.max_rounds_apart < NUM_SLOW
    met = Counter(outcome.partner for outcome in outcomes(lab))
    assert met[PEOPLE[0].peer_id] >= 3  # the slow one has partners too
    numbers = [e.round for e in lab.nodes[0].points("round.applied")]
    assert all(earlier < later for earlier, later in pairwise(numbers))


async def test_who_is_left_behind_is_told_to_load_others_weights_and_does_no_round_before(lab_of: LabOf):
    lab = lab_of(3)
    await lab.start(0, 1)
    await lab.meet()
    await asyncio.gather(*(rounds(node, 4, number) for number, node in lab.nodes.items()))
    asked = asyncio.Event()

    async def load() -> None:
        asked.set()
        await asyncio.sleep(60)

    (late,) = await lab.start(2, sync=load)
    await lab.meet()
    while not late.driver.is_behind:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    outcome = await late.contribute(np.ones(NUM_ELEMENTS))
    assert isinstance(outcome, Aborted)
    assert "loaded first" in outcome.reason
    await asked.wait()
    assert late.points("state.syncing")
    assert set(late.driver.donors) == {PEOPLE[0].peer_id, PEOPLE[1].peer_id}


async def test_one_peer_that_claims_to_be_far_ahead_neither_carries_the_others_away_nor_makes_them_start_anew(
    lab_of: LabOf,
):
    class Boaster(SmallReplica):
        head_round = 10**6

    lab = lab_of(3)
    await lab.start(0, 1)
    await lab.start(2, replica=Boaster)
    await lab.meet()
    honest = [lab.nodes[0], lab.nodes[1]]
    await asyncio.gather(*(rounds(node, 3, number) for number, node in enumerate(honest)))
    assert [node.replica.head_round for node in honest] == [3, 3]
    assert not any(node.driver.is_behind for node in honest)


async def test_a_newcomer_on_probation_gets_a_partners_work_and_gives_none(lab_of: LabOf):
    membership = MembershipConfig(roster=(PEOPLE[0].peer_id,), allowed=(PEOPLE[1].peer_id,))
    lab = lab_of(1, membership=membership, trust=TrustConfig(probation_rounds=2))
    founder, newcomer = await lab.start(0, 1)
    await lab.meet()
    generator = np.random.default_rng(0)
    for _ in range(4):
        work = (founder.swapped(gradient(founder, generator)), newcomer.swapped(gradient(newcomer, generator)))
        await asyncio.gather(*work)
    assert [used is None for used in founder.replica.used] == [True, True, False, False]
    assert all(used is not None for used in newcomer.replica.used)
    included = [e.fields["outcome"].commit.record.results[0].included for e in founder.points("round.applied")]
    assert included == [(True, False), (True, False), (True, True), (True, True)]


async def test_a_pause_holds_contributions_and_a_resume_lets_them_go_on(lab_of: LabOf):
    lab = lab_of(2)
    a, b = await lab.start(0, 1)
    await lab.meet()
    pause = amended(lab, Pause(), 1)
    a.driver.amend([pause])
    while not (a.driver.genesis.control.paused and b.driver.genesis.control.paused):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    generator = np.random.default_rng(0)
    work = [asyncio.create_task(node.swapped(gradient(node, generator))) for node in (a, b)]
    await asyncio.sleep(0.3)
    assert not any(task.done() for task in work)
    resume = RunRules(lab.genesis, (pause,)).next(Resume(), 1).signed(PEOPLE[0])
    b.driver.amend([resume])
    one, _ = await asyncio.gather(*work)
    assert one.partner == PEOPLE[1].peer_id


async def test_a_banned_peer_is_nobodys_partner(lab_of: LabOf):
    lab = lab_of(3)
    a, b, _ = await lab.start(0, 1, 2)
    await lab.meet()
    a.driver.amend([amended(lab, Ban(peers=(PEOPLE[2].peer_id,)), 1)])
    while not all(node.driver.genesis.control.banned for node in (a, b)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    generator = np.random.default_rng(0)
    one, other = await asyncio.gather(a.swapped(gradient(a, generator)), b.swapped(gradient(b, generator)))
    assert one.partner == PEOPLE[1].peer_id
    assert other.partner == PEOPLE[0].peer_id


async def test_there_is_nothing_to_roll_back_to(lab_of: LabOf):
    lab = lab_of(2)
    (a,) = await lab.start(0)
    back = Rollback(lineage=1, round=0, record="a" * 64, state_hash="b" * 64, roster=(PEOPLE[0].peer_id,))
    a.driver.amend([amended(lab, back, 1)])
    while not a.points("amendment.refused"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert "no common state" in a.points("amendment.refused")[0].fields["why"]


async def test_messages_of_other_topologies_are_rejected(lab_of: LabOf):
    lab = lab_of(2)
    a, b = await lab.start(0, 1)
    await lab.meet()
    b.driver._contact.mail.post((PEOPLE[0].peer_id,), CommitRequest(fragment=0, round=1))
    while not a.points("peer.rejected"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert "no meaning in a gossip run" in a.points("peer.rejected")[0].fields["detail"]


async def test_too_few_peers_wait_where_the_run_wants_more(lab_of: LabOf):
    roster = tuple(person.peer_id for person in PEOPLE[:2])
    lab = lab_of(2, membership=MembershipConfig(roster=roster, min_peers=2))
    (a,) = await lab.start(0)
    work = asyncio.create_task(a.swapped(np.ones(NUM_ELEMENTS)))
    await asyncio.sleep(0.3)
    assert not work.done()
    (b,) = await lab.start(1)
    one, _ = await asyncio.gather(work, b.swapped(np.ones(NUM_ELEMENTS)))
    assert one.partner == PEOPLE[1].peer_id
