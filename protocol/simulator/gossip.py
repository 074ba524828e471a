"""Gossip rounds among many peers, with transfers added up (NoLoCo, arXiv 2506.10911).

There is no roster and no quorum: in every round a seeded permutation pairs the peers, each pair swaps its
pseudo-gradients and weights and takes the mean, and nobody waits for anybody but its partner. Replicas differ
therefore, and the run says by how much: each replica is a point that a round moves by independent unit noise (what
different data does) and then averages with its partner. An average of random pairs halves the variance between
replicas in expectation, so it settles at twice the noise's; `Gossip.contraction` is what the pairs of this run did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .population import Population

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .traces import Trace
    from .trainers import InnerLoop

_DIMENSIONS = 16
"""Of the point that stands for a replica: enough that the variance is measured to a few per cent."""


@dataclass(frozen=True)
class Gossip:
    """Figures of a run."""

    num_peers: int
    num_rounds: int
    round_s: float
    """Mean over peers and rounds."""
    utilisation: float
    sent_bytes_per_peer_and_round: float
    unpaired: float
    """Share of the peers without a partner in a round: odd numbers, peers away, pairs that cannot dial each other."""
    contraction: float
    """Variance between replicas after the averaging over that before it, mean over rounds; 0.5 is ideal."""
    spread: float
    """Variance between replicas at the end, in units of the variance that one round's training adds."""

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"topology": "gossip", **vars(self)}


def gossip(
    trace: Trace, loop: InnerLoop, *, num_peers: int, num_rounds: int, contribution_bytes: float, seed: int
) -> Gossip:
    """Run it. The exchange is of weights and pseudo-gradient, two vectors each way, as the outer step needs both."""
    random = np.random.default_rng(seed)
    peers = Population.of(trace, num_peers, random)
    ready_s, busy_s, alone = np.zeros(num_peers), np.zeros(num_peers), 0
    replicas, contractions = random.normal(size=(num_peers, _DIMENSIONS)), list[float]()
    num_bytes, latency_s = 2 * contribution_bytes, float(np.mean(trace.network.latency_s))
    for _ in range(num_rounds):
        drift = random.uniform(1 - trace.compute.drift, 1 + trace.compute.drift, num_peers)
        train_s = loop.num_steps * loop.step_s / (peers.speed * drift)
        busy_s += train_s
        ready_s += train_s + loop.encode_s
        a, b = _pairs(peers, random, trace.churn.leaving_per_round)
        alone += num_peers - 2 * len(a)
        rate_bps = np.minimum.reduce([peers.up_bps[a], peers.down_bps[a], peers.up_bps[b], peers.down_bps[b]])
        ready_s[a] = ready_s[b] = np.maximum(ready_s[a], ready_s[b]) + 8 * num_bytes / rate_bps + 2 * latency_s
        replicas += random.normal(size=replicas.shape)
        before = replicas.var(axis=0).sum()
        replicas[a] = replicas[b] = (replicas[a] + replicas[b]) / 2
        contractions.append(float(replicas.var(axis=0).sum() / before))
    return Gossip(
        num_peers=num_peers,
        num_rounds=num_rounds,
        round_s=float(ready_s.mean() / num_rounds),
        utilisation=float(busy_s.sum() / ready_s.sum()),
        sent_bytes_per_peer_and_round=num_bytes * (1 - alone / num_peers / num_rounds),
        unpaired=alone / num_peers / num_rounds,
        contraction=float(np.mean(contractions)),
        spread=float(replicas.var(axis=0).mean()),
    )


def _pairs(peers: Population, random: np.random.Generator, leaving: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Who meets whom: a random matching of those that are there, without pairs of which nobody can be dialled."""
    order = random.permutation(np.flatnonzero(random.random(len(peers)) >= leaving))
    half = len(order) // 2
    a, b = order[:half], order[half : 2 * half]
    meets = ~(peers.is_dial_out_only[a] & peers.is_dial_out_only[b])
    return a[meets], b[meets]
