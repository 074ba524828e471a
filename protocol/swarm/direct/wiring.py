"""A node's direct path as its swarm settings want it."""

from __future__ import annotations

from collections.abc import Callable

from ...identity import Identity, PeerId
from .. import addresses
from ..settings import SwarmEvent, SwarmSettings
from .negotiation import PROTOCOL
from .path import DirectLinks, DirectOptions, DirectPath, DirectTransport


def direct_path(
    identity: Identity,
    settings: SwarmSettings,
    transport: DirectTransport,
    admits: Callable[[PeerId], bool],
    is_reachable: Callable[[], bool],
    emit: Callable[[SwarmEvent], None],
) -> DirectPath | None:
    """None if the settings switch it off."""
    if not settings.direct_ports:
        return None

    def on_change(peer: PeerId, reason: str) -> None:
        way = f"over libp2p: {reason}" if reason else "over encrypted TCP"
        emit(SwarmEvent("path", f"bulk data to …{peer[-5:]} go {way}", peer))

    places = (addresses.endpoint(text) for text in settings.listen)
    hosts = tuple(dict.fromkeys(where.host for where in places if where is not None and where.transport == "tcp"))
    limits = settings.direct_dial_timeout_s, settings.progress_timeout_s
    options = DirectOptions(settings.run_id, hosts, settings.direct_ports, *limits)
    return DirectPath(identity, options, DirectLinks(transport, PROTOCOL, admits, is_reachable, on_change))
