"""A function that takes bytes apart is in the registry, or says why nobody else's bytes reach it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from .exempt import EXEMPT
from .targets import TARGETS

ROOT = Path(__file__).parents[2]
PACKAGES = ("node", "protocol", "training", "kernels")
DECODERS = {
    "b64decode", "decode_all", "from_bytes", "frombuffer", "fromhex", "iter_unpack", "literal_eval", "load_file",
    "loads", "model_validate", "model_validate_json", "read", "read_bytes", "read_text", "readexactly", "readinto",
    "readline", "readuntil", "recv", "unpack", "unpack_from", "unpackb", "validate_json",
}  # fmt: skip
"""Attributes by which bytes become values, whether called here or handed to somebody who calls them."""
READERS = {"parse", "parse_any", "read_answer", "read_lines", "read_payload", "split_canonical"}
"""Functions of the product that do the same."""


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Top-level functions and methods, with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def takes_bytes_apart(function: ast.AST) -> bool:
    attributes = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    names = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return bool(attributes & DECODERS or names & READERS)


@cache
def product() -> dict[str, bool]:
    """``path.py:Class.function`` of each in the product -> whether it takes bytes apart."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    trees = [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]
    return {f"{source}:{name}": takes_bytes_apart(node) for source, tree in trees for name, node in functions(tree)}


def parsers() -> set[str]:
    return {name for name, is_parser in product().items() if is_parser}


def defined() -> set[str]:
    return set(product())


def covered() -> set[str]:
    return {name for target in TARGETS for name in target.covers}


def test_every_parser_is_fuzzed_or_says_why_not() -> None:
    missing = sorted(parsers() - covered() - EXEMPT.keys())
    assert not missing, (
        "these take bytes apart: name them in a Target (tests/fuzz), or in tests/fuzz/exempt.py with the reason:\n"
        + "\n".join(missing)
    )


def test_no_exemption_outlives_its_reason() -> None:
    assert sorted(EXEMPT.keys() - parsers()) == []


def test_what_targets_say_that_they_cover_exists() -> None:
    assert sorted(covered() - defined()) == []


def test_names_of_targets_are_unique() -> None:
    names = [target.name for target in TARGETS]
    assert len(set(names)) == len(names)


def test_the_scan_sees_a_new_parser() -> None:
    source = "class New:\n    def read(self, stream):\n        return json.loads(stream)\ndef other():\n    return 1\n"
    found = [name for name, node in functions(ast.parse(source)) if takes_bytes_apart(node)]
    assert found == ["New.read"]
