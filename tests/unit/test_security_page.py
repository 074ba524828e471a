"""Every row of the security page names tests that exist; and promises of it that are about the sources themselves."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from atoll.node.snapshot import PeerInfo

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
HEADER = "| threat | what stands against it | shown by |\n|---|---|---|\n"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
SOURCES = [path for package in ("node", "protocol", "training", "kernels") for path in (ROOT / package).rglob("*.py")]


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def rows() -> list[str]:
    table = PAGE.split(HEADER, 1)[1].split("\n\n", 1)[0]
    return table.splitlines()


@cache
def functions_of(path: str) -> frozenset[str]:
    if not (ROOT / path).exists():
        return frozenset()
    tree = parsed(ROOT / path)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip())
def test_every_threat_has_a_control_and_tests_that_exist(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 3
    assert all(cells)
    named = TEST.findall(cells[2])
    assert named, "which test shows it?"
    assert [f"{path}::{name}" for path, name in named if name not in functions_of(path)] == []


def test_every_test_that_the_page_names_anywhere_exists() -> None:
    assert len(rows()) > 30
    assert [f"{path}::{name}" for path, name in TEST.findall(PAGE) if name not in functions_of(path)] == []


def test_what_is_shown_of_other_peers_has_no_address() -> None:
    assert not [name for name in PeerInfo.model_fields if re.search(r"addr|host|\bip\b|_ip|port", name)]


CLIENTS = {"requests", "httpx", "urllib.request", "urllib3", "aiohttp.ClientSession", "huggingface_hub", "webbrowser"}
BROWSER_OF_THE_OWN_PAGE = {"node/commands/dashboard.py", "node/demo.py", "node/commands/demo.py"}


def client_uses(tree: ast.AST) -> set[str]:
    """Names in a module that could fetch an address."""
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imported |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return CLIENTS & (imported | used)


def test_nothing_in_the_product_fetches_urls() -> None:
    """NET-07 too: weights follow from the spec, so that no start downloads a model before the network is tried."""
    found = {path.relative_to(ROOT).as_posix(): client_uses(parsed(path)) for path in SOURCES}
    offenders = {name: uses for name, uses in found.items() if uses and name not in BROWSER_OF_THE_OWN_PAGE}
    assert offenders == {}, "an address from a peer or a spec must not become a request from the volunteer's network"


def test_the_scan_sees_clients() -> None:
    assert client_uses(ast.parse("import urllib.request\nasync def f():\n    aiohttp.ClientSession()\n")) == {
        "urllib.request",
        "aiohttp.ClientSession",
    }


def texts_of(tree: ast.Module) -> list[str]:
    """What a module may say to somebody: its strings without its docstrings."""
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)}
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text for text in texts if text not in docstrings]


def test_no_text_of_the_product_leads_to_a_web_site() -> None:
    links = [text for path in SOURCES for text in texts_of(parsed(path)) if re.search(r"https?://[\w-]+\.[a-z]", text)]
    assert links == []


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
