"""The documentation's commands exist and do what it says; its links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "docker", "runs")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))])


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


ATOLL = Path(sysconfig.get_path("scripts")) / "atoll"

# commands that neither start a node nor wait for one, run in this order as the page shows them
HARMLESS = (
    "version",
    "identity show",
    "run new",
    "run sign",
    "run validate",
    "run amend",
    "run amendments",
    "run invite",
    "status",
)
EXIT_CODES = {"status": {6}}  # nothing runs in an empty home: stopped

needs_command_line = pytest.mark.skipif(
    not (ROOT / "node" / "cli.py").exists() or not ATOLL.exists(), reason="atoll is not installed here (make setup)"
)


@dataclass(frozen=True)
class Shown:
    """A command as a page shows it."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def console_lines(page: Path) -> list[str]:
    """Lines after `$ ` in the page's console blocks, with continuation lines joined and prompts removed."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def inline_commands(page: Path) -> list[str]:
    """`atoll …` between backticks in running text and tables."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`(atoll [^`…\[\]]+)`", text)


def shown(program: str, *, inline: bool = False) -> list[Shown]:
    found: dict[Shown, None] = {}
    for page in PAGES:
        for line in console_lines(page) + (inline_commands(page) if inline else []):
            words = tuple(shlex.split(line, comments=True))
            if words and words[0] == program:
                found[Shown(page_id(page), words[1:])] = None
    return list(found)


def atoll(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ATOLL_", "PYTHONPATH"))}
    mark = {"ATOLL_TEST_RUN": os.environ.get("ATOLL_TEST_RUN", "")}
    environment = kept | mark | {"HOME": str(cwd), "NO_COLOR": "1"}
    command = [str(ATOLL), *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60)


def provide_specs(words: tuple[str, ...], home: Path) -> None:
    """A command that reads a spec which no earlier line made gets an example, as the page tells its reader to."""
    spec = next((word for word in words if word.endswith(".toml")), words[-1])
    if words[0] == "run" and words[1] != "new" and not (home / spec).exists():
        (home / spec).write_text(filled_in(ROOT / "runs" / "bible.toml", home))


def filled_in(example: Path, home: Path) -> str:
    """An example spec with this home's peer id in place of the placeholder."""
    peer_id = atoll("identity", "show", cwd=home).stdout.strip()
    return example.read_text(encoding="utf-8").replace("12D3KooW…", peer_id)


def name_of(words: tuple[str, ...]) -> str:
    """The harmless command that the words are a use of, or an empty string."""
    return next((name for name in HARMLESS if " ".join(words).startswith(name)), "")


def test_the_pages_show_commands_at_all() -> None:
    assert len(shown("atoll")) >= 5
    assert {"demo", "test"} <= {command.words[0] for command in shown("make")}


@needs_command_line
@pytest.mark.parametrize("command", shown("atoll", inline=True), ids=str)
def test_each_command_that_the_pages_show_exists_with_its_options(command: Shown, tmp_path: Path) -> None:
    # --help is answered only after the words and options before it were understood
    finished = atoll(*command.words, "--help", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "Usage: atoll" in finished.stdout


@needs_command_line
@pytest.mark.parametrize("page", [page for page in PAGES if console_lines(page)], ids=page_id)
def test_the_harmless_commands_of_a_page_work_in_an_empty_home_in_the_order_shown(page: Path, tmp_path: Path) -> None:
    for line in console_lines(page):
        words = tuple(shlex.split(line, comments=True))
        if words and words[0] == "atoll" and (name := name_of(words[1:])):
            provide_specs(words[1:], tmp_path)
            finished = atoll(*words[1:], cwd=tmp_path)
            assert finished.returncode in EXIT_CODES.get(name, {0}), f"{line}\n{finished.stdout}{finished.stderr}"
            assert "Traceback" not in finished.stderr


@needs_command_line
@pytest.mark.parametrize("example", sorted((ROOT / "runs").glob("*.toml")), ids=lambda example: example.name)
def test_each_example_run_is_valid_and_can_be_signed_once_a_peer_id_is_in_it(example: Path, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(filled_in(example, tmp_path))
    for command in ("validate", "sign", "validate"):
        finished = atoll("run", command, "my.toml", cwd=tmp_path)
        assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
@pytest.mark.parametrize("command", shown("make"), ids=str)
def test_each_make_target_that_the_pages_show_exists(command: Shown) -> None:
    finished = subprocess.run(
        ["make", "--dry-run", *command.words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []


def test_the_changelog_speaks_of_this_version() -> None:
    import atoll

    assert f"## {atoll.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
