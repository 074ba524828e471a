"""Parsers of gossip runs: greetings, a partner's vectors, a donor's weights, the file of those on probation."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from atoll.protocol import payload
from atoll.protocol.gossip import swap, wire
from atoll.protocol.gossip.fetching import Fetch
from atoll.protocol.gossip.probation import Probation
from atoll.protocol.gossip.swap import Swap
from atoll.protocol.gossip.vectors import Grids, Inbox, Vectors
from atoll.protocol.identity import PeerId
from atoll.protocol.parsing import Unreadable
from atoll.protocol.state_sync.snapshot import SnapshotManifest
from atoll.protocol.swarm.streams import SwarmStream

from . import examples as ex
from .file_targets import in_file
from .harness import ON_STREAMS, PEER, Target, frames, on_stream
from .network_targets import CHUNKS, STREAM_BYTES, Donor, executor, folder

GRIDS = Grids.of(ex.GRID)
WEIGHTS = np.linspace(-1, 1, ex.GRID.num_elements, dtype=np.float32)
OWN = Vectors.of(ex.CONTRIBUTION, WEIGHTS.data, GRIDS, lineage=0)
NONCE = "ab" * 16
_numbers = itertools.count()


def _leaves(tree: object) -> bytes:
    return b"".join(leaf.encode() for leaf in tree.leaves)  # type: ignore[attr-defined]


async def _swap(stream: SwarmStream) -> None:
    """With a partner that has committed to the same vectors as we have."""
    inbox = Inbox(GRIDS, folder())
    await Swap(stream, OWN, OWN.terms, GRIDS, inbox, executor(), lambda _: None).run()


async def _greet(stream: SwarmStream) -> None:
    await swap.decline(stream, await swap.read_offer(stream), "training")


STATE = ex.STATE
MANIFEST = SnapshotManifest(round=1, record=ex.RUN, context="00", num_bytes=len(STATE), leaves=(ex.STATE_LEAF,))


def _fetch(data: bytes) -> Fetch:
    donor = Donor(data)
    announced = ((1, MANIFEST.state_hash),)
    return Fetch(donor, executor(), len(STATE), lambda _: b"\0", lambda _: announced)  # type: ignore[arg-type]


async def _download(data: bytes) -> None:
    path = folder() / f"{next(_numbers)}.partial"
    try:
        await _fetch(data).run(PEER, path)
    finally:
        path.unlink(missing_ok=True)


def _download_all(data: bytes) -> object:
    from .harness import run_async

    return run_async(_download(data))


def _read_probation(path: Path) -> int:
    return Probation(path, (), 2).counts_from(PeerId(PEER))


GOSSIP_TARGETS = (
    Target(
        "an offer to swap",
        on_stream(_greet),
        [frames(wire.Offer(nonce=NONCE, terms=OWN.terms).canonical())],
        ("protocol/gossip/wire.py:read_offer", "protocol/gossip/swap.py:_read"),
        refusals=ON_STREAMS,
        max_bytes=wire.MAX_GREETING_BYTES,
    ),
    Target(
        "an answer to an offer",
        wire.read_answer,
        [
            wire.Answer(echo=NONCE, nonce=NONCE, terms=OWN.terms).canonical(),
            wire.Answer(echo=NONCE, nonce=NONCE, why="taken").canonical(),
        ],
        ("protocol/gossip/wire.py:read_answer",),
        refusals=(Unreadable,),
        max_bytes=wire.MAX_GREETING_BYTES,
    ),
    Target(
        "a confirmation",
        wire.read_confirm,
        [wire.Confirm(echo=NONCE).canonical()],
        ("protocol/gossip/wire.py:read_confirm",),
        refusals=(Unreadable,),
        max_bytes=wire.MAX_GREETING_BYTES,
    ),
    Target(
        "a partner's verdict",
        wire.read_verdict,
        [wire.verdict(None), wire.verdict("absurd norm")],
        ("protocol/gossip/wire.py:read_verdict",),
        refusals=(Unreadable,),
        max_bytes=wire.MAX_VERDICT_BYTES,
    ),
    Target(
        "a partner's vectors",
        on_stream(_swap),
        [
            frames(
                _leaves(OWN.delta_tree),
                *CHUNKS,
                _leaves(OWN.weights_tree),
                *(bytes(OWN.weights[GRIDS.weights.encoded_range(c)]) for c in range(GRIDS.weights.num_chunks)),
                wire.TAKEN,
            )
        ],
        (
            "protocol/gossip/swap.py:Swap._receive_leaves",
            "protocol/gossip/swap.py:Swap._checked_leaves",
            "protocol/gossip/swap.py:Swap._receive_chunk",
        ),
        refusals=(*ON_STREAMS, swap.Abandoned),
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "the weights of a joiner's donor",
        _download_all,
        [frames(payload.YES, MANIFEST.canonical(), payload.YES, STATE)],
        ("protocol/gossip/fetching.py:Fetch._manifest", "protocol/gossip/fetching.py:Fetch._leaf"),
        refusals=ON_STREAMS,
        max_bytes=STREAM_BYTES,
    ),
    Target(
        "a file of peers on probation",
        in_file("known.json", _read_probation),
        [f'{{"{PEER}": 3}}'.encode()],
        ("protocol/gossip/probation.py:_read",),
    ),
)
