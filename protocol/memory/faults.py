"""What can go wrong between two peers, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..identity import PeerId


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that goes wrong between two peers; ``None`` means any peer."""

    sender: PeerId | None = None
    receiver: PeerId | None = None

    def concerns(self, sender: PeerId, receiver: PeerId) -> bool:
        return self.sender in (None, sender) and self.receiver in (None, receiver)


@dataclass(frozen=True, kw_only=True)
class Drop(Fault):
    """Control messages that are lost: those numbered ``first`` to ``first + count - 1`` of the ones that match."""

    first: int = 0
    count: int | None = None
    """``None``: all from ``first`` on."""
    matches: Callable[[bytes], bool] = lambda _: True


@dataclass(frozen=True, kw_only=True)
class Delay(Fault):
    """Control messages and frames arrive later by ``delay_s`` of the network's ``sleep``."""

    delay_s: float


@dataclass(frozen=True, kw_only=True)
class Unreachable(Fault):
    """``sender`` can neither open streams nor send messages to ``receiver``; open streams go on."""


@dataclass(frozen=True, kw_only=True)
class CutStream(Fault):
    """A stream ends before the frame that takes ``sender`` over ``after_bytes`` on it."""

    after_bytes: int = 0
    protocol: str | None = None


@dataclass(frozen=True, kw_only=True)
class StallStream(Fault):
    """Like `CutStream`, but the connection stays open and nothing of ``sender`` passes any more."""

    after_bytes: int = 0
    protocol: str | None = None


@dataclass(frozen=True, kw_only=True)
class CorruptStream(Fault):
    """Flips the lowest bit of the byte at ``offset`` of what ``sender`` writes on a stream (framing not counted)."""

    offset: int
    protocol: str | None = None


@dataclass(frozen=True, kw_only=True)
class Die(Fault):
    """``sender`` is killed at the moment when it has put more than ``after_bytes`` into all its streams together."""

    after_bytes: int = 0
