"""Parsers of spot checks: what members show of their optimizers, and what they say of each other."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from pydantic import TypeAdapter

from atoll.protocol import inner_states
from atoll.protocol.inner_states import InnerStateServer, NotShown
from atoll.protocol.parsing import Unreadable, parse_any
from atoll.protocol.suspicions import Suspicion
from atoll.protocol.swarm.streams import SwarmStream
from atoll.training.config import InnerConfig
from atoll.training.inner_state import InnerState, continuity, sizes

from . import examples as ex
from .harness import ON_STREAMS, Refused, Target, accepted, frames, on_stream, served
from .network_targets import Donor, executor, folder

_NUM_ELEMENTS = 1000
_SIZES = sizes(_NUM_ELEMENTS)
_VALUES = np.random.default_rng(1).random(_NUM_ELEMENTS).astype(np.float32)
_SHORT = InnerState().encode()
_LONG = InnerState(7, 2, {"exp_avg": _VALUES, "exp_avg_sq": _VALUES}).encode()
_SUSPICION: TypeAdapter[Suspicion] = TypeAdapter(Suspicion)
_DIGEST = blake3(_LONG).hexdigest()


class _Member(Donor):
    def __init__(self, stream: SwarmStream) -> None:
        super().__init__()
        self._stream = stream

    async def open(self, _peer: object, _protocol: str) -> SwarmStream:
        return self._stream


async def _fetch(stream: SwarmStream) -> None:
    path = folder() / f"{os.getpid()}.state"
    member: Any = _Member(stream)
    try:
        await inner_states.fetch(member, executor(), ex.ME.peer_id, _DIGEST, _SIZES, path)
    finally:
        path.unlink(missing_ok=True)


@cache
def _own_state() -> Path:
    path = folder() / "own.state"
    path.write_bytes(_LONG)
    return path


async def _show(stream: SwarmStream) -> None:
    donor: Any = Donor()
    server = InnerStateServer(donor, executor(), lambda: (ex.ME.peer_id,), _SIZES)
    server.show(_DIGEST, _own_state())
    await server._handle(stream)


def _suspect(data: bytes) -> None:
    suspicion = parse_any(_SUSPICION, data)
    accepted(suspicion.is_signed)


SPOT_TARGETS = (
    Target(
        "an inner state",
        lambda data: InnerState.decode(data, _NUM_ELEMENTS, InnerConfig()),
        [_SHORT, _LONG],
        ("training/inner_state.py:_taken_apart", "training/inner_state.py:_decoded"),
        refusals=(ValueError,),
        max_bytes=_SIZES[1],
    ),
    Target(
        "an inner state that is to go on from another one",
        lambda data: continuity(_LONG, data, _NUM_ELEMENTS),
        [_SHORT, _LONG],
        ("training/inner_state.py:_taken_apart",),
        refusals=(ValueError,),
        max_bytes=_SIZES[1],
    ),
    Target(
        "what a member shows of its inner state",
        on_stream(_fetch),
        [frames(inner_states.LONG, _LONG[:700], _LONG[700:])],
        tuple(f"protocol/inner_states.py:{name}" for name in ("fetch", "_announced", "_receive")),
        refusals=(*ON_STREAMS, NotShown),
        max_bytes=64 << 10,
        tokens=(frames(inner_states.SHORT, _SHORT), frames(b"N")),
    ),
    Target(
        "questions for an inner state",
        served(_show),
        [frames(bytes.fromhex(_DIGEST)), frames(bytes(32))],
        ("protocol/inner_states.py:InnerStateServer._handle",),
        refusals=ON_STREAMS,
        max_bytes=64 << 10,
    ),
    Target(
        "a suspicion",
        _suspect,
        [ex.SUSPICION.canonical()],
        ("protocol/suspicions.py:Suspicion.is_signed",),
        refusals=(Unreadable, Refused),
        max_bytes=64 << 10,
    ),
)
