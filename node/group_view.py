"""What people are told of the groups of a two-tier run. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..protocol.identity import PeerId
from ..protocol.messages import Group
from ..protocol.spec import Genesis
from .figures import short_id
from .snapshot import GroupInfo, clip_name


def group_info(me: PeerId, group: Group | None, names: Mapping[PeerId, str], rules: Genesis) -> GroupInfo:
    """The group that this node is in."""
    if group is None:
        return GroupInfo()
    return GroupInfo(
        role="delegate" if group.delegate == me else "follower",
        delegate=group.delegate,
        delegate_name=clip_name(names.get(group.delegate, short_id(group.delegate))),
        num_peers=group.num_peers,
        size=rules.exchange.group_size,
    )


def role_of(peer: PeerId, group: Group | None, names: Mapping[PeerId, str]) -> str:
    """A peer's part in its group, as it says itself; empty without groups."""
    if group is None:
        return ""
    if group.delegate == peer:
        return f"delegate of {group.num_peers}"
    return clip_name(f"follows {names.get(group.delegate, short_id(group.delegate))}")


def group_text(group: Mapping[str, Any]) -> str:
    """For ``atoll status``; empty for a node that is in no group."""
    if group.get("role") is None:
        return ""
    peers = f"{group['num_peers']} of at most {group['size']} peers"
    whose = "this node is its delegate" if group["role"] == "delegate" else f"{group['delegate_name']}’s"
    return f"{whose}, {peers}"
