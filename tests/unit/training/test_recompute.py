"""What a peer has trained can be recomputed from the anchor, the lease and a copy of its optimizer's state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.training.data import Lease
from atoll.training.flat import initial_state
from atoll.training.inner_loop import InnerLoop
from atoll.training.inner_state import NUM_KEPT, InnerState, InnerStates, continuity, cosine, sizes
from atoll.training.local import LocalReducer
from atoll.training.recompute import recompute
from atoll.training.reducer import Aborted, Committed, PseudoGradient
from atoll.training.session import Session


class Recorder(LocalReducer):
    """A swarm of one that remembers what it was given, and from which anchor it was trained."""

    given: list[tuple[np.ndarray, PseudoGradient, bytes]]
    states: InnerStates
    misses = 0
    aborts = 0

    def reduce(self, contribution):
        copy = PseudoGradient(
            contribution.round,
            contribution.delta.copy(),
            contribution.num_tokens,
            contribution.num_steps,
            0.0,
            inner_state=contribution.inner_state,
        )
        self.given.append((self.anchor.copy(), copy, self.states.path(contribution.round).read_bytes()))
        if self.aborts:
            self.aborts -= 1
            return Aborted(reason="nobody is there", generation=0)
        event = super().reduce(contribution)
        if self.misses and isinstance(event, Committed):
            self.misses -= 1
            return event.model_copy(update={"counted": False})
        return event


@pytest.fixture
def run(config, data, tmp_path):
    """Trains some rounds; returns (anchor, contribution, copy of the state that its steps began with) of each."""

    def run(num_rounds, **faults):
        anchor = initial_state(config.model)
        reducer = Recorder(config, ChunkGrid(anchor.size, 512, codec("int8")), num_rounds, anchor)
        reducer.given, reducer.states = [], InnerStates(tmp_path / "states", pytest.fail)
        vars(reducer).update(faults)
        Session(InnerLoop(config, data), reducer, inner_states=reducer.states).run()
        return reducer.given

    return run


def again(config, data, anchor, contribution, copy):
    count = config.inner.lease_samples
    lease = Lease((contribution.round - 1) * count, count)
    state = InnerState.decode(copy, anchor.size, config.inner)
    return recompute(InnerLoop(config, data), anchor, lease, contribution.num_steps, state)


def alike(config, one, other):
    grid = ChunkGrid(one.size, 512, codec("int8"))
    codes = [np.empty(grid.total_encoded, np.uint8) for _ in range(2)]
    grid.encode(one, codes[0])
    grid.encode(np.ascontiguousarray(other), codes[1])
    return cosine(grid, *(memoryview(code) for code in codes))


def test_every_contribution_of_an_honest_trainer_is_recomputed_up_to_the_copys_rounding(config, data, run):
    given = run(4)
    for anchor, contribution, copy in given:
        steps = again(config, data, anchor, contribution, copy)
        assert steps.num_tokens == contribution.num_tokens
        assert alike(config, contribution.delta, steps.delta) > 0.99
        norms = [float(np.linalg.norm(each)) for each in (contribution.delta, steps.delta)]
        assert norms[0] == pytest.approx(norms[1], rel=0.02)
    first = again(config, data, *given[0])
    np.testing.assert_array_equal(first.delta, given[0][1].delta)  # there is nothing in its copy to be rounded


def test_the_optimizer_goes_on_where_the_recomputed_steps_have_led(config, data, run):
    given = run(4)
    for earlier, (anchor, _, copy) in itertools.pairwise(given):
        end = again(config, data, *earlier).end.encode()
        value = continuity(end, copy, anchor.size)
        assert value is not None
        assert value > 0.99
        assert continuity(earlier[2], copy, anchor.size) in (None, 0.0)  # not where they began
    moments = {"exp_avg": np.random.default_rng(1).standard_normal(anchor.size).astype(np.float32)}
    invented = InnerState(12, 0, {**moments, "exp_avg_sq": moments["exp_avg"] ** 2}).encode()
    true_end = again(config, data, *given[2]).end.encode()
    assert continuity(true_end, invented, anchor.size) < 0.2
    assert continuity(true_end, InnerState().encode(), anchor.size) is None


def test_a_contribution_after_an_aborted_round_is_recomputed_as_a_whole(config, data, run):
    _, (anchor, longer, copy), *_ = run(1, aborts=1)
    assert longer.num_steps == 2 * config.inner.num_steps
    assert alike(config, longer.delta, again(config, data, anchor, longer, copy).delta) > 0.999


def test_a_merged_contribution_says_that_it_cannot_be_recomputed(run):
    shown = [contribution.inner_state for _, contribution, _ in run(4, misses=2)]
    assert [bool(digest) for digest in shown] == [True, False, False, True]


def test_only_the_newest_copies_stay_on_disk(run, tmp_path):
    run(5)
    assert len(list((tmp_path / "states").iterdir())) == NUM_KEPT


def test_a_copy_that_cannot_be_kept_is_said_and_none_is_shown(tmp_path):
    said = []
    (tmp_path / "file").write_text("in the way")
    assert InnerStates(tmp_path / "file" / "states", said.append).keep(3, InnerState()) == ""
    assert "round 3" in said[0]


def test_a_claimed_momentum_outweighs_no_gradient(config):
    """By Cauchy–Schwarz |m| ≤ C·√v for any gradients: a claim beyond that is brought back to it."""
    size = 600
    first = np.full(size, 1.0, np.float32)
    claim = InnerState(1000, 0, {"exp_avg": first, "exp_avg_sq": np.full(size, 1e-12, np.float32)}).encode()
    moments = InnerState.decode(claim, size, config.inner).moments
    assert (np.abs(moments["exp_avg"]) <= 1.2 * np.sqrt(moments["exp_avg_sq"])).all()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"xxxx" + data[4:],
        lambda data: data[:4] + b"\2" + data[5:],
        lambda data: data[:20],
        lambda data: data[:-1] + b"\x80",
        lambda data: data[:20] + b"\xff" * (len(data) - 20),
    ],
)
def test_what_is_no_state_is_refused(config, damage):
    values = np.linspace(0, 1, 600, dtype=np.float32)
    data = InnerState(3, 0, {"exp_avg": values, "exp_avg_sq": values}).encode()
    assert len(data) == sizes(600)[1]
    InnerState.decode(data, 600, config.inner)
    with pytest.raises(ValueError, match=r"."):
        InnerState.decode(damage(data), 600, config.inner)
