from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from atoll.protocol.spec import GossipConfig

from .gossip_lab import PEOPLE, Lab, genesis_of


@pytest.fixture
async def lab_of(tmp_path: Path) -> AsyncIterator[Callable[..., Lab]]:
    labs: list[Lab] = []

    def make(num_peers: int, gossip: GossipConfig | None = None, **changes: object) -> Lab:
        labs.append(Lab(tmp_path, genesis_of(PEOPLE[:num_peers], gossip, **changes)))
        return labs[-1]

    yield make
    for lab in labs:
        await lab.close()
