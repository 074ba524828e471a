"""A run by invites with real nodes: whoever has one joins, over libp2p and from round one; nobody else starts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .lab import Node, eventually, hashes_by_round, journalled_commits, rounds, run_atoll, swarm
from .test_joining import SETTINGS, admission_round, first_counted

pytestmark = pytest.mark.e2e


def without_list(text: str) -> str:
    """The spec lists nobody but its founders."""
    return re.sub(r"^allowed = .*$", "allowed = []", text, flags=re.MULTILINE)


def test_an_invited_node_joins_and_counts_and_a_second_by_the_same_invite_does_not(tmp_path: Path) -> None:
    settings = (*SETTINGS, "membership.mode=invite")
    with swarm(tmp_path, 4, num_founders=2, num_rounds=0, settings=settings, edit=without_list) as nodes:
        founders, guest, second = nodes[:2], nodes[2], nodes[3]
        operator = ("--folder", str(tmp_path / "operator"), "--node", str(founders[0].folder))
        invite = tmp_path / "invite.json"
        run_atoll("run", "invite", str(tmp_path / "run.toml"), "--owner", "anna", "--out", str(invite), *operator)
        refused = run_atoll("join", str(guest.spec_path), "--folder", str(guest.folder), "--yes", check=False)
        assert "ask the operator for an invite" in refused.stderr
        for node in founders:
            node.start()
        founders[0].wait_for_round(2, 90)
        guest.start("--invite", str(invite))
        first = guest.wait_for("its first counted round", first_counted, 90)["round"]
        second.start("--invite", str(invite))
        last = guest.wait_for_round(first + 3, 90)["round"]
        assert admission_round(founders[0], guest) < first
        guests = journalled_commits(founders[0])[-1].record.plan.guests
        assert [(known.peer, known.owner) for known in guests] == [(guest.peer_id, "anna")]
        eventually("the reason", lambda: has_point(second, "invite.refused"), 90)
        assert not rounds(second.events)
        for node in (*founders, guest):
            node.wait_for_round(last, 60)
        assert all(len(hashes) == 1 for hashes in hashes_by_round([*founders, guest]).values())


def has_point(node: Node, point: str) -> bool:
    """Whether a node that may only just be starting has journalled it."""
    return (node.folder / "journal.sqlite").exists() and point in node.points()
