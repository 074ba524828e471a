"""Take the picture at the top of the README: the dashboard of one node of a live demo, in a moment of training.

    .venv/bin/python docs/make_screenshot.py [--nodes 4] [--after-round 20] [--out docs/images/dashboard.png]

Starts `atoll demo`, waits for the round, opens the page in headless Chromium (the distribution's, or Playwright's own)
and photographs what is there. Nothing is staged. The demo is ended afterwards.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

DEFAULT_OUT = Path(__file__).parent / "images" / "dashboard.png"
WIDTH, HEIGHT = 1440, 1150
PATIENCE_S = 120.0
INNER_STEP = re.compile(r"(\d+) of (\d+)")


@contextmanager
def demo(num_nodes: int) -> Iterator[subprocess.Popen[str]]:
    """A running `atoll demo`, whose output is a line per fact; ended at the end."""
    command = [sys.executable, "-P", "-m", "atoll.node.cli", "demo", "--nodes", str(num_nodes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def wait_for(process: subprocess.Popen[str], pattern: str) -> str:
    """The first group of the first line that matches."""
    for line in process.stdout or ():
        if found := re.match(pattern, line):
            return found.group(1)
    raise SystemExit(f"the demo ended before it said {pattern}")


def is_good_moment(page: Page) -> bool:
    """In the second half of a round's inner steps, with everything live."""
    step = INNER_STEP.search(page.locator("#training-figures").inner_text())
    is_training = page.locator("#chip-word").inner_text() == "Training"
    is_live = page.locator("#live-word").inner_text() == "live"
    return is_training and is_live and step is not None and 0.5 < int(step.group(1)) / int(step.group(2)) < 0.75


def photograph(url: str, out: Path) -> None:
    """Open the page and press the button at the right time."""
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark")
        page.goto(url)
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_good_moment(page) and time.monotonic() < deadline_s:
            page.wait_for_timeout(50)
        page.screenshot(path=out)
        browser.close()


def main() -> None:
    """Run the demo and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--after-round", type=int, default=20)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    arguments = parser.parse_args()
    with demo(arguments.nodes) as process:
        url = wait_for(process, r"node-0: dashboard (\S+)")
        wait_for(process, rf"round ({arguments.after_round}):")
        photograph(url, arguments.out)


if __name__ == "__main__":
    main()
