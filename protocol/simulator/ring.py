"""What a published system's ring all-reduce takes on a trace's links: the yardstick that links are calibrated by."""

from __future__ import annotations

from .traces import PeerGroup, Trace


def ring_all_reduce_s(trace: Trace, num_parameters: float) -> float:
    """Seconds of a ring over the peers of ``trace.published``, in the order of the groups.

    Of its 2 (n - 1) steps each sends 1/n of the vector from every peer to the next, and is as slow as the slowest hop.
    The low ends of the groups' rates count. Raises ValueError without a published system.
    """
    published = trace.published
    if published is None:
        raise ValueError("the trace names no published system")
    counts = trace.counts(published.num_peers)
    ring = [group for group, count in zip(trace.groups, counts, strict=True) for _ in range(count)]
    bits = num_parameters * published.bits_per_value / len(ring)
    hops = zip(ring, [*ring[1:], ring[0]], strict=True)
    slowest_s = max(_hop_s(trace, sender, receiver, bits, published.efficiency) for sender, receiver in hops)
    return 2 * (len(ring) - 1) * slowest_s


def _hop_s(trace: Trace, sender: PeerGroup, receiver: PeerGroup, bits: float, efficiency: float) -> float:
    between = {sender.name, receiver.name}
    path = next((path for path in trace.paths if set(path.between) == between), None)
    rate_bps = min(sender.up_bps[0], receiver.down_bps[0], float("inf") if path is None else path.bps)
    return bits / (rate_bps * efficiency) + (0.0 if path is None else path.latency_s)
