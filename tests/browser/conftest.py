"""Headless Chromium for the page's tests: the distribution's if there is one, else Playwright's own.

Without any browser these tests are skipped, and say so; with ``CI`` set in the environment they fail instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

ARGUMENTS = [
    "--no-sandbox",  # tests may run as root, where Chromium's sandbox refuses to start
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


PATIENCE_MS = 30_000
"""Limit of an expectation: a machine that does ten other things is slow, not wrong."""


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def _without_browser(why: str) -> None:
    message = f"no browser for the dashboard's tests ({why}); install chromium or run: playwright install chromium"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Any]:
    """One browser for all tests of a module; each test opens pages of its own."""
    try:
        from playwright.async_api import Error, async_playwright, expect
    except ImportError as error:
        _without_browser(str(error))
        return
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        try:
            browser = await playwright.chromium.launch(executable_path=_chromium(), args=ARGUMENTS)
        except Error as error:
            _without_browser(str(error).splitlines()[0])
            return
        yield browser
        await browser.close()
