"""Two homes behind routers train with two public nodes: real nodes, in network namespaces with address translation."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..integration.nat_lab import Internet, why_no_translation
from .lab import ATOLL, Node, _end_all, _write_spec, eventually, hashes_by_round, journalled_commits, swarm

pytestmark = pytest.mark.e2e
NUM_ROUNDS = 5
OPEN_ENDED = 0


@contextmanager
def two_homes_and_two_seeds(folder: Path) -> Iterator[list[Node]]:
    """Prepared nodes: two public seeds, then a home behind a cone router and one behind a symmetric router."""
    internet = Internet()
    try:
        hosts = [
            (internet.public_host(1), "45.45.45.1"),
            (internet.public_host(2), "45.45.45.2"),
            (internet.home(11, "cone"), ""),
            (internet.home(12, "symmetric"), ""),
        ]
        nodes = [
            Node(name=f"node-{index}", folder=folder / f"node-{index}", host=host, port=4001, namespace=namespace)
            for index, (namespace, host) in enumerate(hosts)
        ]
        for node in nodes:
            node.create_identity()
        seeds = f"membership.seeds={json.dumps([node.address for node in nodes[:2]])}"
        _write_spec(folder, nodes, nodes, OPEN_ENDED, (seeds, "inner.num_steps=10"), lambda text: text)
        try:
            yield nodes
        finally:
            _end_all(nodes)
    finally:
        internet.remove()


def status_of(node: Node) -> dict[str, Any]:
    """What `atoll status --json` says on the node's own machine."""
    command = ["ip", "netns", "exec", str(node.namespace), *ATOLL, "status", "--folder", str(node.folder), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)


def meets_the_other(home: Node) -> bool:
    """Whether a home is relayed, and has met the other home that way."""
    snapshot = status_of(home)
    reach = [peer["reach"] for peer in snapshot["peers"] if not peer["is_self"]]
    return snapshot["network"]["is_relayed"] and sorted(filter(None, reach)) == ["direct", "direct", "relayed"]


def test_net_01_two_homes_behind_routers_train_with_two_public_nodes(tmp_path: Path) -> None:
    if missing := why_no_translation():
        pytest.skip(f"NOT TESTED, homes behind routers: {missing}")
    with two_homes_and_two_seeds(tmp_path) as nodes:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait_for_round(NUM_ROUNDS, 60)
        homes = nodes[2:]
        # rounds may be faster than the relays are found
        eventually("the homes meet through relays", lambda: all(meets_the_other(home) for home in homes), 60)
        shown = [status_of(home) for home in homes]
        commits = journalled_commits(nodes[0])
    assert all(len(hashes) == 1 for hashes in hashes_by_round(nodes).values())
    home_ids = {home.peer_id for home in homes}
    owners = {span.owner for commit in commits for span in commit.record.plan.spans}
    assert not owners & home_ids, "a home that nobody can dial owns a span"
    for home in homes:
        included = [
            commit
            for commit in commits
            for index, member in enumerate(commit.record.plan.members)
            if member.peer == home.peer_id and all(result.included[index] for result in commit.record.results)
        ]
        assert len(included) >= 3, f"{home.name} counted in {len(included)} of {len(commits)} rounds"
    for home, snapshot in zip(homes, shown, strict=True):
        network = snapshot["network"]
        assert network["is_reachable"] is False
        assert "TCP port 4001 of your router (45.45.45.1" in network["reachability"]
        assert network["reachability_fix"].startswith("To fix: forward TCP port 4001 to this machine in the router")
        assert set(network["measured_by"]) == {node.peer_id for node in nodes[:2]}
        assert network["is_relayed"]
        assert [alert["code"] for alert in snapshot["alerts"]] == ["not_reachable"]
        reach = {peer["peer_id"]: peer["reach"] for peer in snapshot["peers"] if not peer["is_self"]}
        assert [reach[node.peer_id] for node in nodes[:2]] == ["direct", "direct"]
        assert [reach[other.peer_id] for other in homes if other is not home] == ["relayed"]


@pytest.mark.skipif(not os.environ.get("ATOLL_NAT"), reason="long, and told by the machines' tests; set ATOLL_NAT=1")
def test_chn_10_three_nodes_that_nobody_can_dial_say_so_soon_and_go_on_training(tmp_path: Path) -> None:
    reason = "no reachable reducer: none of "
    with swarm(tmp_path, 3, num_rounds=2, settings=("inner.num_steps=5",)) as nodes:
        for node in nodes:
            node.start("--behind-router")
        for node in nodes:
            eventually(f"{node.name} says the reason", lambda node=node: reason in node.log_tail(50), 30)
            assert "round.aborted" in node.points()
            assert not journalled_commits(node)
