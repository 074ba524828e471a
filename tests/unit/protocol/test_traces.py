"""Traces as data: those that ship are sound, a wrong one is refused in one line that names the fault."""

from __future__ import annotations

import pytest

from atoll.protocol.simulator.ring import ring_all_reduce_s
from atoll.protocol.simulator.traces import Trace, names
from atoll.protocol.spec import SpecError

MINIMAL = 'description = "x"\n[[groups]]\nname = "a"\n'


@pytest.mark.parametrize("name", names())
def test_every_trace_that_ships_loads_and_deals_out_all_peers(name):
    trace = Trace.load(name)
    for num_peers in (1, 7, 12, 1000):
        assert sum(trace.counts(num_peers)) == num_peers


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("intellect1")])
def test_the_published_ring_takes_the_published_time_on_the_calibrated_links(name):
    trace = Trace.load(name)
    compute, published = trace.compute, trace.published
    assert ring_all_reduce_s(trace, trace.num_parameters) == pytest.approx(published.all_reduce_s, rel=0.005)
    train_s = compute.num_steps * compute.step_s
    assert train_s / (train_s + published.all_reduce_s) == pytest.approx(published.utilisation, abs=0.001)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("groups = [", "not a trace"),
        ('description = "x"\n', "groups is missing"),
        (f"{MINIMAL}speed = [1.0]\n", "unknown key groups.0.speed"),
        (f'{MINIMAL}behaviour = "rude"\n', "behaviour 'rude' is not one of"),
        (f"{MINIMAL}speeds = [0.0]\n", "speeds.0 = 0.0"),
        (f"{MINIMAL}speeds = []\n", "speeds: there must be at least one"),
        ('description = "x"\ngroups = []\n', "groups: there must be at least one"),
        (f'{MINIMAL}[[paths]]\nbetween = ["a", "b"]\nlatency_s = 0.1\n', "there is no group 'b'"),
        (f'{MINIMAL}[[groups]]\nname = "a"\n', "a name twice"),
        (f'{MINIMAL}[[events]]\nwhat = "explode"\nround = 1\n', "what = 'explode'"),
    ],
)
def test_a_wrong_trace_is_refused_with_file_and_field(text, fault):
    with pytest.raises(SpecError) as error:
        Trace.parse(text, "mine.toml")
    (line,) = error.value.lines
    assert line.startswith("mine.toml: ")
    assert fault in line


def test_an_unknown_name_lists_those_that_ship():
    with pytest.raises(SpecError, match=r"nowhere: there is no such trace.*homes"):
        Trace.load("nowhere")
