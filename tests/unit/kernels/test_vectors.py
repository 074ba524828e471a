"""Every back end, and every variant of the compiled one that the processor can run, against the committed vectors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from atoll.kernels.back_ends import choices

VECTORS = Path(__file__).parents[2] / "vectors"
COMMITTED = json.loads((VECTORS / "kernels.json").read_text())


def load_generator():
    spec = importlib.util.spec_from_file_location("vectors_generate", VECTORS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()


def test_initial_values_equal_the_committed_ones(back_end):
    assert generate.normal("first", 16, 0.02).tobytes().hex() == COMMITTED["normal"]


@pytest.mark.parametrize("name", COMMITTED["edge_cases"])
def test_edge_case_equals_the_committed_bits(back_end, name):
    values = generate.edge_cases()[name]
    assert generate.short_case(values) == COMMITTED["edge_cases"][name]


def test_a_long_vector_equals_the_committed_digests(back_end):
    if back_end == "reference":
        pytest.skip("the generator did just this")
    assert generate.vectors()["long"] == COMMITTED["long"]


def test_no_edge_case_is_missing_from_the_file():
    assert list(generate.edge_cases()) == list(COMMITTED["edge_cases"])


def test_the_compiled_back_end_is_among_those_tested():
    assert any(choice.startswith("c-") for choice in choices()), "run `python setup.py build_ext --inplace`"
