"""Which samples a peer trains on in a gossip round: a function of run, peer and round, without anybody's word. Pure.

A round has a block of the data for every *listed* peer (the genesis' roster, then ``allowed``), in that order, and for
guests (by invite, or listed later by an amendment) as many blocks again, at least `MIN_GUEST_BLOCKS`. A guest's block
is drawn from them by run, peer and round. So no sample index is ever leased twice to listed peers, in whatever rounds
they are; two guests share a block by chance, each pair in one of so many rounds. Blocks of peers that are away, or have
skipped the round, stay unused in that pass over the data.
"""

from __future__ import annotations

from blake3 import blake3

from ..identity import PeerId
from ..spec import Genesis

MIN_GUEST_BLOCKS = 8
_DOMAIN = b"atoll/gossip/lease/1\0"


def first_sample(genesis: Genesis, peer: PeerId, round_number: int, lease_samples: int) -> int:
    """Global index of the first of ``lease_samples`` samples. ``genesis``: as it was signed, not as amended."""
    listed = (*genesis.membership.roster, *genesis.membership.allowed)
    num_guests = max(MIN_GUEST_BLOCKS, len(listed))
    block = listed.index(peer) if peer in listed else len(listed) + _draw(genesis, peer, round_number) % num_guests
    return ((round_number - 1) * (len(listed) + num_guests) + block) * lease_samples


def _draw(genesis: Genesis, peer: PeerId, round_number: int) -> int:
    text = f"{genesis.run_id} {peer} {round_number}".encode()
    return int.from_bytes(blake3(_DOMAIN + text).digest(8), "little")
