"""Under random faults members may lose spans, but never disagree about one. The seed in the test's name replays it."""

from __future__ import annotations

import random

import pytest

from atoll.protocol.memory import CorruptStream, CutStream, Die, StallStream


def faults(seed: int, peers, span_bytes: int):
    chance = random.Random(seed)
    for _ in range(chance.randint(1, 4)):
        sender, receiver = chance.sample(peers, 2)
        at = chance.randrange(2 * span_bytes)
        yield chance.choice(
            [
                CutStream(sender=sender, receiver=receiver, after_bytes=at),
                StallStream(sender=sender, receiver=receiver, after_bytes=at),
                CorruptStream(sender=sender, receiver=receiver, offset=at),
                Die(sender=sender, after_bytes=at),
            ]
        )


@pytest.mark.parametrize("seed", range(16))
async def test_holders_of_a_span_always_agree_and_hold_the_plain_replay(lab, seed):
    swarm = lab(num_peers=4, num_elements=256 * 12, progress_timeout_s=0.2)
    swarm.network.inject(*faults(seed, swarm.peers, swarm.grid.total_encoded // 4))
    reports = await swarm.run()
    for span in range(4):
        results = {report.held[span] for report in reports.values() if span in report.held}
        assert len(results) <= 1
        for result in results:
            expected = swarm.replay(span, result.included)
            for peer, report in reports.items():
                if span in report.held:
                    assert swarm.mean(peer, span) == expected
    for report in reports.values():
        assert set(report.held) | set(report.lost) <= set(range(4))
