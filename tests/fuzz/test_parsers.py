"""Every parser of untrusted bytes against bombs, mutations of valid inputs and noise, within a fixed budget.

Longer: ``make fuzz MINUTES=60``.
"""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from . import harness
from .harness import Target, Violation, check, give_back_free_memory
from .mutations import bombs, in_place, mutated
from .targets import TARGETS

SECONDS_EACH = 0.05
"""Of processor time for mutations, per parser; the bombs take about four times as long. Longer: `tests.fuzz`."""

every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@every_target
def test_valid_input_is_accepted(target: Target) -> None:
    for example in target.examples:
        assert check(target, example), f"{target.name}: {example[:200]!r}"


@every_target
def test_no_bomb_takes_more_than_the_bound(target: Target) -> None:
    for bomb in bombs(target.max_bytes):
        give_back_free_memory()
        check(target, bomb)


@every_target
def test_no_bomb_inside_a_valid_input_takes_more_than_the_bound(target: Target) -> None:
    rng = random.Random(target.name)
    for example in target.examples[:4]:
        for bomb in in_place(example, rng, target.max_bytes):
            give_back_free_memory()
            check(target, bomb)


@every_target
def test_no_mutation_of_a_valid_input_does_harm(target: Target) -> None:
    rng = random.Random(target.name)
    end_s, latest_s = time.process_time() + SECONDS_EACH, time.monotonic() + 10 * SECONDS_EACH
    while time.process_time() < end_s and time.monotonic() < latest_s:
        check(target, mutated(target.examples, target.tokens, rng, target.max_bytes))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_noise_does_harm(data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(TARGETS))
    check(
        target, data.draw(st.binary(max_size=300) | st.text(max_size=100).map(lambda t: t.encode("utf-8", "replace")))
    )


# --- that the harness sees what it is for -----------------------------------------------------------------------------


def broken(parse) -> Target:
    return Target("broken", parse, [], (), refusals=(ValueError,), memory_bytes=8 << 20)


def test_an_undeclared_error_is_a_violation() -> None:
    with pytest.raises(Violation, match="KeyError"):
        check(broken(lambda data: {}[data]), b"x")


def test_a_hang_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MAX_CPU_S", 0.1)

    def hang(_data: bytes) -> None:
        while True:
            pass

    with pytest.raises(Violation, match="CPU time"):
        check(broken(hang), b"x")


def test_memory_beyond_the_bound_is_a_violation() -> None:
    give_back_free_memory()
    with pytest.raises(Violation, match="MiB"):
        check(broken(lambda _: bytearray(b"x") * (64 << 20)), b"x")


def test_a_declared_refusal_is_none() -> None:
    assert not check(broken(int), b"x")
    assert check(broken(int), b"7")
