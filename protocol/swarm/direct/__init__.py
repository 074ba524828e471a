"""Streams beside libp2p, over mutual TLS: see `path`."""

from __future__ import annotations

from .path import DirectPath
from .stream import DirectStream

__all__ = ["DirectPath", "DirectStream"]
