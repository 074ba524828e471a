"""Run specs from anybody: each is read or refused in one line per fault; nothing else happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.protocol.identity import Identity
from atoll.protocol.spec import SignedGenesis, SpecError, sign
from atoll.protocol.spec_text import read_text

OPERATOR = Identity.from_seed(b"p" * 32)
SPEC = f"""
name = "fuzz"
protocol_version = 1
initial_state = "{"0" * 64}"
operators = ["{OPERATOR.peer_id}"]
[model]
[membership]
roster = ["{OPERATOR.peer_id}"]
"""


def refusal(text: str) -> tuple[str, ...]:
    """The lines with which ``text`` is refused; none if it is a good spec."""
    try:
        SignedGenesis.parse(text)
    except SpecError as error:
        return tuple(error.lines)
    return ()


def refused_or_read(text: str) -> None:
    lines = refusal(text)
    assert all("\n" not in line and "\x1b" not in line and len(line) < 2000 for line in lines)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_refused_in_lines(text: str):
    refused_or_read(text)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(SPEC)), st.integers(0, 20), st.text(max_size=20))
def test_a_changed_spec_is_refused_in_lines(start: int, num_cut: int, inserted: str):
    signed = sign(SPEC, OPERATOR)
    refused_or_read(signed[:start] + inserted + signed[start + num_cut :])


@pytest.mark.parametrize(
    "addition",
    [
        "x = " + "[" * 50_000,
        "x = " + "[" * 500 + "]" * 500,
        "x = " + "{a=" * 50_000,
        "x." + "a." * 50_000 + "b = 1",
        "x." + "a." * 400 + "b = 1",
        "x = " + "9" * 5_000,
        "x = 1e999999",
        "x = nan",
        "x = -inf",
        "x = 1979-05-27T07:32:00Z",
        'x = "\\u0000\\u001b[31m"',
        "x = 0x" + "f" * 100_000,
        "\n".join(f"k{number} = 1" for number in range(5_000)),
    ],
    ids=lambda text: text[:12],
)
@pytest.mark.parametrize("place", ["top", "model"])
def test_deep_huge_and_odd_values_are_refused_or_read_in_time(addition: str, place: str):
    text = SPEC.replace("[model]", f"{addition}\n[model]" if place == "top" else f"[model]\n{addition}")
    refused_or_read(text)
    assert refusal(text), "it is not signed, at least"


def test_a_file_of_any_size_costs_a_megabyte(tmp_path: Path):
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SpecError, match="larger than 1 MiB"):
        read_text(path)


def test_what_is_no_file_is_refused(tmp_path: Path):
    for path in (tmp_path, tmp_path / "absent", Path("/proc/self/mem")):
        with pytest.raises(SpecError):
            read_text(path)
