"""Two-tier rounds among real drivers: three delegates with three followers each."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.protocol.identity import Identity

from .groups_swarm import TwoTierSwarm, two_tier_genesis

PEOPLE = [Identity.from_seed(bytes([number]) * 32) for number in range(1, 13)]
DELEGATES, FOLLOWERS = PEOPLE[:3], PEOPLE[3:]


@pytest.fixture
async def swarm(tmp_path: Path):
    swarm = TwoTierSwarm(tmp_path, two_tier_genesis(DELEGATES, FOLLOWERS, group_size=4))
    for person in PEOPLE:
        await swarm.start(person)
    yield swarm
    await swarm.close()


async def test_the_work_of_all_twelve_is_in_every_round_and_all_states_are_equal(swarm):
    for index, person in enumerate(PEOPLE):
        swarm.put_to_work(person, 1.0 + index, until_round=4)
    await swarm.until_round(5)
    assert len({node.replica.state_hash for node in swarm.nodes.values()}) == 1
    chain = swarm.nodes[DELEGATES[0].peer_id].replica.chain
    # In round 1 no delegate gives seats yet: with an empty disk it does not know whether it has given any.
    assert [sum(member.tokens for member in commit.record.plan.members) for commit in chain[1:]] == [1200] * 3
    await swarm.until(lambda: all(set(work.counted) >= {2, 3, 4} for work in swarm.work.values()))
