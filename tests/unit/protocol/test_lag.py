"""When a node believes that it is behind, and how often it asks."""

from __future__ import annotations

from atoll.protocol.lag import FAR_BEHIND_ROUNDS, Lag


class World:
    """A clock, and what somebody can prove."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.newest: int | OSError = 0
        self.lag = Lag(self.prove, 1.0, lambda: self.now_s)

    async def prove(self) -> int:
        if isinstance(self.newest, OSError):
            raise self.newest
        return self.newest


async def test_a_claim_is_proven_once_before_it_is_believed() -> None:
    world = World()
    world.newest = 11 + FAR_BEHIND_ROUNDS
    assert world.lag.begins_proof(10, is_claimed=True)
    assert not world.lag.begins_proof(10, is_claimed=True), "the question is on its way"
    assert not world.lag.is_proven(10)
    assert await world.lag.prove(10) is None
    assert world.lag.is_proven(10)
    assert not world.lag.is_proven(11)


async def test_nobody_asks_without_a_claim() -> None:
    assert not World().lag.begins_proof(10, is_claimed=False)


async def test_fruitless_questions_are_asked_less_and_less_and_fruit_ends_that() -> None:
    world = World()
    for pause_s in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        assert world.lag.begins_proof(10, is_claimed=True)
        await world.lag.prove(10)
        world.now_s += pause_s - 0.1
        assert not world.lag.begins_proof(10, is_claimed=True)
        world.now_s += 0.1
    world.lag.pace(is_fruitful=True)
    assert world.lag.begins_proof(10, is_claimed=True)


async def test_a_failure_is_said_and_counts_as_fruitless() -> None:
    world = World()
    world.newest = OSError("no donor")
    assert world.lag.begins_proof(10, is_claimed=True)
    assert await world.lag.prove(10) == "no donor"
    assert not world.lag.may_ask
