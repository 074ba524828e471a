"""Every back end, and every variant of the compiled one that the processor can run, against the committed vectors."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from atoll.kernels.back_ends import choices, load, using
from atoll.kernels.codec import CODECS

VECTORS = Path(__file__).parents[2] / "vectors"
COMMITTED_CODECS = json.loads((VECTORS / "codecs.json").read_text())
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


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_gives_the_committed_bits(back_end, name):
    if back_end == "reference":
        pytest.skip("the generator did just this")
    assert generate.codec_vectors(name) == COMMITTED_CODECS[name]


@pytest.mark.parametrize("name", CODECS)
def test_the_specification_gives_the_committed_bits_of_the_short_cases(name):
    short = {what: values for what, values in generate.further_cases().items() if values.size <= 300}
    with using(load("reference")):
        found = {what: generate.codec_case(name, np.asarray(values, np.float32)) for what, values in short.items()}
    assert found == {what: COMMITTED_CODECS[name][what] for what in short}


def test_no_codec_is_missing_from_the_file():
    assert list(CODECS) == list(COMMITTED_CODECS)


def test_no_edge_case_is_missing_from_the_file():
    assert list(generate.edge_cases()) == list(COMMITTED["edge_cases"])


def test_the_compiled_back_end_is_among_those_tested():
    assert any(choice.startswith("c-") for choice in choices()), "run `python setup.py build_ext --inplace`"
