"""Faults that comparable projects have shipped are each named by a test here that would fail with them.

The numbers are those of a survey of their issues: numerics, outer step, churn, stragglers, clocks, networks, identity,
security, versions. A test names its cases in its name or docstring (``SEC-02``, ``test_sec_02_…``).
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
NUM_CASES = {"QNT": 15, "AVG": 6, "CHN": 11, "STR": 4, "CLK": 3, "NET": 10, "IDN": 3, "SEC": 7, "VER": 4}


def named_cases() -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    kinds = "|".join(NUM_CASES)
    pattern = re.compile(rf"(?<![a-z])({kinds})[-_](\d\d)(?!\d)", re.IGNORECASE)
    return {f"{kind.upper()}-{number}" for text in texts for kind, number in pattern.findall(text)}


def test_every_case_is_named_by_a_test() -> None:
    cases = {f"{kind}-{number:02}" for kind, num in NUM_CASES.items() for number in range(1, num + 1)}
    assert sorted(cases - named_cases()) == []
