"""How many streams of one kind a peer may have open here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from .identity import PeerId
from .transport import RemoteProtocolError


class StreamLimit:
    """One count per peer; `hold` while serving a stream."""

    def __init__(self, max_per_peer: int) -> None:
        self._max_per_peer = max_per_peer
        self._num_open: Counter[PeerId] = Counter()

    @property
    def num_open(self) -> int:
        """Streams of all peers."""
        return self._num_open.total()

    @contextmanager
    def hold(self, peer: PeerId) -> Generator[None]:
        """Raises `RemoteProtocolError` if the peer has as many as it may."""
        if self._num_open[peer] >= self._max_per_peer:
            raise RemoteProtocolError(peer, "too many streams", f"{self._num_open[peer]} are open")
        self._num_open[peer] += 1
        try:
            yield
        finally:
            self._num_open[peer] -= 1
            if not self._num_open[peer]:
                del self._num_open[peer]
