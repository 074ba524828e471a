"""Addresses of peers met earlier, so that a node finds its swarm again when every seed is dead."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..protocol.identity import PeerId, public_key_of
from ..protocol.peers import PeerInfo
from ..protocol.swarm import usable_address

MAX_PEERS = 256
MAX_ADDRESSES = 8


class KnownPeers:
    """A small JSON file, replaced atomically. A damaged file counts as empty: it only helps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.addresses = _read(path)

    def remember(self, addresses: Mapping[PeerId, tuple[str, ...]]) -> None:
        """Add or replace peers' addresses and write the file if anything changed. The newest `MAX_PEERS` are kept.

        Peers say of themselves what they like: what is no address is left out.
        """
        usable = {peer: _usable(peer, texts) for peer, texts in addresses.items()}
        merged = {peer: texts for peer, texts in usable.items() if texts}
        others = {peer: texts for peer, texts in self.addresses.items() if peer not in merged}
        kept = dict(list({**others, **merged}.items())[-MAX_PEERS:])
        if kept != self.addresses:
            self.addresses = kept
            self._write()

    def _write(self) -> None:
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            temporary.write_text(json.dumps(self.addresses))
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)  # a full disk: the file is a convenience


def _read(path: Path) -> dict[PeerId, tuple[str, ...]]:
    try:
        content: Any = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    entries = cast("dict[str, Any]", content).items()
    lists = {peer: cast("list[Any]", texts) for peer, texts in entries if isinstance(texts, list)}
    usable = {peer: _usable(PeerId(peer), list(map(str, texts))) for peer, texts in lists.items() if _is_peer(peer)}
    return {PeerId(peer): texts for peer, texts in list(usable.items())[-MAX_PEERS:] if texts}


def _usable(peer: PeerId, texts: Sequence[str]) -> tuple[str, ...]:
    found = (usable_address(peer, text) for text in texts[:MAX_ADDRESSES])
    return tuple(text for text in found if text)


def _is_peer(text: str) -> bool:
    try:
        public_key_of(text)
    except ValueError:
        return False
    return True


def addresses_of(peers: Mapping[PeerId, PeerInfo]) -> dict[PeerId, tuple[str, ...]]:
    """Plain addresses (without the peer id at their end) that peers state in their heartbeats."""
    found: dict[PeerId, tuple[str, ...]] = {}
    for peer, info in peers.items():
        if info.heartbeat is not None:
            found[peer] = tuple(text.rpartition("/p2p/")[0] or text for text in info.heartbeat.addresses)
    return found
