"""The dashboard's page in a real browser, driven by made-up figures: what it shows, and what it withstands."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from atoll.node.dashboard import stream
from atoll.node.dashboard.server import DashboardServer
from atoll.node.reasons import Reason, State
from atoll.node.settings import NodeSettings
from atoll.node.snapshot import NodeInfo, PeerInfo, RunInfo, TrainingInfo
from atoll.node.status import StatusBoard

from . import feeder

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

EVIL = "<script>alert(1)</script>"
NASTY_NAMES = [
    EVIL,
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE peers; --",
    "x" * 10_000,
    "\u202eright to left\u202c",
    "🏝️ island 🏝️",
    "nul\x00byte",
    "",
]


@dataclass
class Shown:
    """A node without a daemon and the page that shows it."""

    page: Any
    board: StatusBoard
    server: DashboardServer
    folder: Path
    problems: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)

    def text(self, selector: str) -> Any:
        return expect(self.page.locator(selector))

    async def restart(self) -> None:
        """The same port again, as a node that comes back."""
        settings = NodeSettings(folder=self.folder, dashboard_port=self.server.port)
        self.server = DashboardServer(settings, self.board)
        await self.server.start()


@asynccontextmanager
async def shown(
    browser: Any, folder: Path, *, is_filled: bool = True, link: str = "", prefix: str = "", **page: Any
) -> AsyncIterator[Shown]:
    board, stops = StatusBoard(), list[str]()
    if is_filled:
        feeder.fill(board)
    settings = NodeSettings(folder=folder, dashboard_port=0, dashboard_prefix=prefix)
    server = DashboardServer(settings, board, on_stop=lambda: stops.append("stop"))
    await server.start()
    context = await browser.new_context(viewport={"width": 1440, "height": 900}, **page)
    node = Shown(await context.new_page(), board, server, folder, stops=stops)
    node.page.on("pageerror", lambda error: node.problems.append(str(error)))
    node.page.on("console", lambda message: node.problems.append(message.text) if message.type == "error" else None)
    node.page.on("dialog", lambda dialog: node.problems.append(f"dialog {dialog.message}"))
    try:
        await node.page.goto(server.url + link.format(token=server.access.token))
        await node.text("#live").to_have_text("live")
        yield node
    finally:
        await context.close()
        await node.server.close()


@pytest_asyncio.fixture(loop_scope="module")
async def node(browser: Any, tmp_path: Path) -> AsyncIterator[Shown]:
    async with shown(browser, tmp_path) as node:
        yield node


async def test_the_page_shows_state_sentence_round_peers_loss_and_exchange(node: Shown) -> None:
    await node.text("#chip").to_have_text("Exchanging")
    await node.text("#sentence").to_have_text(
        re.compile(r"Averaging round 12 with 2 other peers; new weights in about (3[0-2]|[12]?\d) s\.")
    )
    await node.text("#round-name").to_have_text("Round 12")
    await node.text("#count").to_have_text(re.compile(r"0:\d\d until new weights"))
    await node.text("#dots li").to_have_count(5)
    await node.text("#dots li.you").to_contain_text("petrel (you)")
    await node.text("#peer-table tbody tr").to_have_count(5)
    await node.text("#loss-sum").to_contain_text("validation 1.704 after round 11")
    await node.text("#exchange-bars svg").to_have_attribute("aria-label", "Sent 381 kB, at 32 bits it would be 1.49 MB")
    await node.text("#agreement-sum").to_have_text("all state hashes agree")
    assert await node.page.title() == "Exchanging · reef-1b · atoll"
    assert node.problems == []


async def test_the_peers_panel_shows_round_trips_and_whose_clock_is_wrong(node: Shown) -> None:
    cells = node.page.locator("#peer-table tbody tr td:nth-child(7)")
    assert sorted(await cells.all_text_contents()) == ["0.4 ms", "1.3 s", "184 ms", "31 ms", "–"]
    behind = node.page.locator("#peer-table tr", has_text="mangrove").locator("td:nth-child(7)")
    assert await behind.get_attribute("title") == "There and back to this peer; its clock is 310 ms behind"
    await expect(node.page.locator("#peer-table .tag", has_text="clock")).to_have_text(["clock 4.7 s ahead"])
    assert node.problems == []


async def test_an_ejected_node_shows_why_and_what_to_do(node: Shown) -> None:
    node.board.set_state(State.EJECTED, Reason.MISCONDUCT_PROVEN)
    await node.text("#chip").to_have_text("Ejected")
    await node.text("#sentence").to_have_text(re.compile("^Misconduct of this node was proven"))
    await node.text("#fix").to_have_text(re.compile("ask the operator to let in another identity"))
    await node.text("#round").to_be_hidden()
    assert node.problems == []


async def test_changes_appear_without_reloading(node: Shown) -> None:
    feeder.training(node.board, 13)
    node.board.add_loss("validation", 12, 1.655)
    node.board.log("round 12: committed")
    await node.text("#chip").to_have_text("Training")
    await node.text("#round-name").to_have_text("Round 13")
    await node.text("#loss-sum").to_contain_text("validation 1.655 after round 12")
    await node.text("#log-lines div >> nth=0").to_contain_text("round 12: committed")
    assert node.problems == []


async def test_names_of_peers_are_text_whatever_they_contain(node: Shown) -> None:
    peers = [
        PeerInfo(peer_id=f"12D3KooW{index:05d}", name=name, state="done") for index, name in enumerate(NASTY_NAMES)
    ]
    node.board.update(
        peers=(*peers, PeerInfo(peer_id="me", name=EVIL, is_self=True, state="late", note=EVIL)),
        node=NodeInfo(name=EVIL),
        run=RunInfo(name=EVIL, model=EVIL),
    )
    node.board.log(EVIL)
    await node.text("#peer-table tbody tr").to_have_count(len(peers) + 1)
    await node.text("#run-name").to_have_text("<script>alert(1)</script"[:23] + "…")
    await node.text("#log-lines div >> nth=0").to_contain_text(EVIL)
    longest = await node.page.locator("#peer-table td:first-child").evaluate_all(
        "cells => Math.max(...cells.map(cell => cell.firstChild.textContent.length))"
    )
    assert longest <= 24
    assert await node.page.locator("main script, main img").count() == 0
    assert await node.page.evaluate("document.documentElement.scrollWidth") <= 1440
    assert node.problems == []


async def test_the_content_security_policy_is_kept_and_stops_inline_scripts(node: Shown) -> None:
    await node.page.evaluate(
        """() => {
            window.violations = [];
            document.addEventListener('securitypolicyviolation', event => violations.push(event.effectiveDirective));
            const script = document.createElement('script');
            script.textContent = 'window.wasRun = true';
            document.body.append(script);
        }"""
    )
    await node.page.wait_for_function("violations.length > 0")
    assert await node.page.evaluate("window.wasRun") is None
    assert await node.page.evaluate("violations") == ["script-src-elem"]
    assert await node.page.locator("[style]").count() == 0


async def test_nothing_is_asked_of_any_other_host(browser: Any, tmp_path: Path) -> None:
    async with shown(browser, tmp_path) as node:
        asked: list[str] = []
        node.page.on("request", lambda request: asked.append(request.url))
        await node.page.reload()
        await node.text("#live").to_have_text("live")
        assert asked
        assert all(url.startswith(node.server.url) for url in asked)


async def test_values_that_are_not_finite_are_marked_and_counted_and_a_lone_point_is_drawn(node: Shown) -> None:
    node.board.update(training=TrainingInfo(loss=math.nan, tokens_per_s=math.inf))
    for value in (math.nan, 1.0, math.nan, math.inf):
        node.board.add_loss("local", 12.0, value)
    await node.text("#loss-warning").to_have_text("3 values were not finite, marked × below the curve.")
    await node.text("#loss-chart path[data-lost]").to_have_count(3)
    await node.text("#loss-chart circle").to_have_count(1)
    await node.text("#training-figures .n >> nth=0").to_contain_text("–")
    assert node.problems == []


async def test_a_stopped_node_is_said_to_be_stopped_and_a_restarted_one_is_live_again(node: Shown) -> None:
    await node.server.close()
    await node.text("#banner").to_contain_text("The node stopped at")
    await node.text("#chip").to_have_text("Stopped")
    await node.text("html").to_have_class("stale")
    await node.restart()
    node.board.log("back again")
    await node.text("#live").to_have_text("live")
    await node.text("#banner").to_be_hidden()
    await node.text("#chip").to_have_text("Exchanging")
    await node.text("#log-lines div >> nth=0").to_contain_text("back again")


async def test_a_silent_stream_makes_the_page_stale_and_the_next_event_makes_it_live(
    node: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PING_INTERVAL_S", 3600)
    await node.page.clock.install()
    await node.page.reload()
    await node.text("#live").to_have_text("live")
    await node.page.clock.fast_forward(8_000)
    await node.text("html").to_have_class("stale")
    await node.text("#live").to_have_text(re.compile(r"stale for \d+ s"))
    await node.text("#banner").to_contain_text("Nothing below is live.")
    await node.text("#sentence").to_have_text("Averaging round 12 with 2 other peers.")
    await node.text("#count").to_contain_text("unknown while stale")
    await node.page.clock.fast_forward(60_000)
    await node.text("#chip").to_have_text("No answer")
    await node.text("#banner").to_contain_text(re.compile(r"No answer for 1 min \d+ s\..* To see why: atoll status\."))
    node.board.log("still here")
    await node.text("#live").to_have_text("live")
    await node.text("#chip").to_have_text("Exchanging")


async def test_the_reader_is_told_why_when_the_node_refuses(browser: Any, tmp_path: Path) -> None:
    async with shown(browser, tmp_path) as node:
        await node.page.route(
            "**/api/v1/stream",
            lambda route: route.fulfill(
                status=401,
                content_type="application/problem+json",
                body='{"reason": "This needs the node’s token.", "fix": "Use the link of atoll dashboard."}',
            ),
        )
        await node.page.reload()
        await node.text("#banner").to_have_text("This needs the node’s token. Use the link of atoll dashboard.")
        await node.text("#live").to_have_text("refused")
        await node.text("#chip").to_have_text("No answer")


async def test_a_refused_page_asks_more_and_more_seldom(browser: Any, tmp_path: Path) -> None:
    async with shown(browser, tmp_path) as node:
        asked: list[str] = []

        async def refuse(route: Any) -> None:
            asked.append(route.request.url)
            await route.fulfill(
                status=403, content_type="application/problem+json", body='{"reason": "No.", "fix": ""}'
            )

        await node.page.route("**/api/v1/stream", refuse)
        await node.page.clock.install()
        await node.page.reload()
        await node.text("#live").to_have_text("refused")
        for _ in range(40):  # ten minutes
            await node.page.clock.run_for(15_000)
        assert 5 < len(asked) < 25


async def test_under_a_proxys_prefix_page_files_and_stream_all_work(browser: Any, tmp_path: Path) -> None:
    async with shown(browser, tmp_path, prefix="/node1") as node:
        assert node.page.url.endswith("/node1/")
        await node.text("#chip").to_have_text("Exchanging")
        assert node.problems == []


async def test_stopping_needs_the_token_of_the_link_and_a_second_click(browser: Any, tmp_path: Path) -> None:
    async with shown(browser, tmp_path, link="#token={token}") as node:
        assert "token" not in node.page.url
        await node.page.click("#stop")
        assert node.stops == []
        await node.text("#stop").to_have_text("Save and stop now?")
        async with node.page.expect_response("**/api/v1/stop") as response:
            await node.page.click("#stop")
        assert (await response.value).status == 202
        assert node.stops == ["stop"]


async def test_a_curve_without_tokens_offers_no_axis_of_tokens(browser: Any, tmp_path: Path) -> None:
    async with shown(browser, tmp_path, is_filled=False) as node:
        node.board.add_loss("local", 0.5, 2.0)
        await node.text("#loss-chart svg").to_be_visible()
        await node.text('#loss-axis button[data-axis="tokens"]').to_be_hidden()


async def test_without_the_token_there_is_nothing_to_click(node: Shown) -> None:
    await node.text("#stop").to_be_hidden()


async def test_an_empty_node_says_what_will_appear(browser: Any, tmp_path: Path) -> None:
    async with shown(browser, tmp_path, is_filled=False) as node:
        await node.text("#chip").to_have_text("Starting")
        await node.text("#loss-chart").to_have_text("No loss yet. The first point appears after the first inner steps.")
        await node.text("#peer-table").to_have_text("No peer is known yet. The first appears when a seed answers.")
        await node.text("#round").to_be_hidden()
        assert node.problems == []


async def test_training_alone_looks_and_reads_like_it(node: Shown) -> None:
    feeder.alone(node.board, 12)
    await node.text("#chip").to_have_text("Training alone")
    await node.text("#chip").to_have_class("chip sand")
    await node.text("#round-name").to_have_text("Round 12, provisional")
    await node.text("#count").to_have_text("commits nothing until peers answer")


async def test_a_phone_of_360_pixels_scrolls_in_one_direction_only(browser: Any, tmp_path: Path) -> None:
    async with shown(browser, tmp_path) as node:
        await node.page.set_viewport_size({"width": 360, "height": 740})
        await node.text("#loss-chart svg").to_have_attribute("width", re.compile(r"^3[0-3]\d$"))
        assert await node.page.evaluate("document.documentElement.scrollWidth") == 360


async def test_the_theme_follows_the_system_until_it_is_chosen_and_everything_is_repainted(
    browser: Any, tmp_path: Path
) -> None:
    async with shown(browser, tmp_path, color_scheme="dark") as node:
        line = node.page.locator("#loss-chart path.line-ink >> nth=0")
        stroke = "line => getComputedStyle(line).stroke"
        assert await line.evaluate(stroke) == "rgb(233, 242, 244)"
        await node.page.emulate_media(color_scheme="light")
        assert await line.evaluate(stroke) == "rgb(11, 31, 39)"
        await node.page.click("#theme")
        assert await line.evaluate(stroke) == "rgb(233, 242, 244)"
        await node.page.reload()
        await node.text("html").to_have_attribute("data-theme", "dark")


async def test_the_keyboard_reaches_everything_and_reads_the_curve(node: Shown) -> None:
    await node.page.keyboard.press("Tab")
    assert await node.page.evaluate("document.activeElement.className") == "skip"
    await node.page.focus("#loss-chart svg")
    await node.page.keyboard.press("ArrowLeft")
    await node.text("#loss-chart g text").to_have_text(
        re.compile(r"round \d+\.\d · local \d\.\d{3} · validation \d\.\d{3}")
    )
    await node.page.focus('#loss-axis button[data-axis="tokens"]')
    await node.page.keyboard.press("Enter")
    await node.text('#loss-axis button[data-axis="tokens"]').to_have_attribute("aria-pressed", "true")
    await node.text("#loss-chart svg").to_have_attribute("aria-label", re.compile("Loss by tokens"))


async def test_a_screen_reader_hears_a_new_state_once(node: Shown) -> None:
    await node.text("#announcer").to_contain_text("Exchanging. Averaging round 12")
    node.board.set_state(State.WAITING, Reason.WAITING_MIN_PEERS, num_peers=1, min_peers=3)
    await node.text("#announcer").to_have_text(
        "Waiting. Waiting for peers: 1 of 3 are here; training starts when enough are."
    )
    for chart in ("#round-bar svg", "#loss-chart svg", "#exchange-bars svg"):
        assert await node.page.locator(chart).get_attribute("role") == "img"
        assert await node.page.locator(chart).get_attribute("aria-label")


async def test_another_site_cannot_read_or_stop_the_node(browser: Any, tmp_path: Path, node: Shown) -> None:
    """A page of another origin asks with the browser's own rules; the node's answers do not reach it."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.route(
        "http://evil.example/**", lambda route: route.fulfill(content_type="text/html", body="<p>evil</p>")
    )
    await page.goto("http://evil.example/")
    ask = """async ([url, method]) => {
        try { return (await fetch(url, { method })).status; } catch (error) { return 'refused'; }
    }"""
    for path, method in (("api/v1/status", "GET"), ("api/v1/stop", "POST"), ("api/v1/stop", "DELETE")):
        assert await page.evaluate(ask, [node.server.url + path, method]) == "refused"
    assert node.stops == []
    await context.close()
