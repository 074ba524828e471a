"""The page against a live swarm: two real nodes train, and one of them has a hostile name."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from atoll.node.endpoint import Endpoint, read_endpoint

from ..e2e.lab import Node, swarm

pytestmark = [pytest.mark.browser, pytest.mark.e2e]

EVIL = "<script>alert(1)</script>"
SETTINGS = ("inner.num_steps=8", "data.validation_batches=1")
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Node]]:
    """Two nodes that have committed a round."""
    with swarm(tmp_path_factory.mktemp("live"), 2, num_rounds=0, settings=SETTINGS) as nodes:
        nodes[1].name = EVIL
        for node in nodes:
            node.start()
        nodes[0].wait_for_round(1, 120)
        yield nodes


def endpoint(node: Node) -> Endpoint:
    found = read_endpoint(node.folder / "endpoint.json")
    assert found is not None
    return found


@pytest.mark.asyncio(loop_scope="module")
async def test_the_page_follows_a_live_swarm_and_shows_a_hostile_name_as_text(browser: Any, nodes: list[Node]) -> None:
    problems: list[str] = []
    page = await browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
    await page.goto(endpoint(nodes[0]).url)

    async def shows(selector: str, text: str | re.Pattern[str]) -> None:
        await expect(page.locator(selector)).to_contain_text(text, timeout=PATIENCE_MS)

    await shows("#live", "live")
    await shows("#log-lines", re.compile(r"round \d+ committed by 2 peers"))
    await shows("#loss-sum", re.compile(r"validation \d\.\d+ after round \d+"))
    await expect(page.locator("#loss-chart svg")).to_be_visible(timeout=PATIENCE_MS)
    await shows("#peer-table", EVIL[:23])
    shown = await shown_round(page)
    await page.wait_for_function(
        "before => Number(document.querySelector('#round-name').textContent.match(/\\d+/)[0]) >= before + 2",
        arg=shown,
        timeout=PATIENCE_MS,
    )
    assert await page.locator("main script").count() == 0
    assert problems == []
    await page.close()


async def shown_round(page: Any) -> int:
    found = re.search(r"\d+", await page.locator("#round-name").text_content())
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize(
    ("method", "resource", "headers", "status"),
    [
        ("GET", "/", {"Host": "evil.example"}, 403),
        ("GET", "/api/v1/status", {"Host": "evil.example:8790"}, 403),
        ("POST", "/api/v1/stop", {"Content-Type": "application/json"}, 401),
        ("POST", "/api/v1/stop", {"Content-Type": "application/json", "Authorization": "Bearer wrong"}, 401),
    ],
)
def test_a_live_node_refuses_foreign_hosts_and_writes_without_its_token(
    nodes: list[Node], method: str, resource: str, headers: dict[str, str], status: int
) -> None:
    where = urlsplit(endpoint(nodes[0]).url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=20)
    connection.request(method, resource, "{}" if method == "POST" else None, headers)
    response = connection.getresponse()
    assert response.status == status
    assert json.loads(response.read())["reason"]
    connection.close()
    assert nodes[0].process is not None
    assert nodes[0].process.poll() is None
