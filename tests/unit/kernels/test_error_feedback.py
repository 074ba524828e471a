"""Error feedback makes up for what any codec leaves out, and changes its mind only when a contribution counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import CODECS, NonFiniteError, codec
from atoll.kernels.error_feedback import ErrorFeedback

from .every_codec import normal

NUM = 2 * 4096 + 700
LOSSY = [name for name in CODECS if name != "float32"]
each_lossy_codec = pytest.mark.parametrize("name", LOSSY)


def feedback_of(name, decay=1.0):
    return ErrorFeedback(ChunkGrid(NUM, 4096, codec(name)), decay)


def send(feedback, values, *, counted=True):
    """What a round's members decode."""
    data, decoded = np.empty(feedback.grid.total_encoded, np.uint8), np.empty(NUM, np.float32)
    feedback.encode(values, data)
    feedback.settle(counted=counted)
    feedback.grid.decode(data, decoded)
    return decoded


@each_lossy_codec
def test_what_was_sent_and_what_is_owed_are_what_was_put_in(name):
    feedback, given_in, sent = feedback_of(name), np.zeros(NUM), np.zeros(NUM)
    for seed in range(6):
        values = normal(NUM, seed)
        given_in += values
        sent += send(feedback, values)
    assert np.allclose(sent + feedback.residual, given_in, atol=1e-4)


@each_lossy_codec
def test_the_mean_of_many_rounds_comes_close_to_a_constant_input(name):
    feedback, values = feedback_of(name), normal(NUM)
    values *= np.float32(3)
    rounds = 150 if "topk" in name else 24
    total = sum(send(feedback, values).astype(np.float64) for _ in range(rounds))
    with_feedback = np.linalg.norm(total / rounds - values)
    alone = np.linalg.norm(send(feedback_of(name), values) - values)
    assert with_feedback < alone * (0.45 if "topk" in name else 0.2)


@each_lossy_codec
def test_what_is_owed_stays_bounded(name):
    feedback = feedback_of(name, decay=0.95)
    norms = []
    for seed in range(60):
        send(feedback, normal(NUM, seed))
        norms.append(np.linalg.norm(feedback.residual))
    assert max(norms[30:]) < 1.25 * max(norms[:30])


def test_a_contribution_that_did_not_count_leaves_no_trace():
    feedback = feedback_of("stat2")
    send(feedback, normal(NUM))
    before = feedback.residual.copy()
    first = send(feedback, normal(NUM, 1), counted=False)
    assert feedback.residual.tobytes() == before.tobytes()
    assert send(feedback, normal(NUM, 1)).tobytes() == first.tobytes()
    assert feedback.residual.tobytes() != before.tobytes()


def test_a_value_that_is_not_finite_leaves_no_trace_and_is_not_sent_later():
    feedback, values = feedback_of("stat2"), normal(NUM)
    send(feedback, values)
    before = feedback.residual.copy()
    values[5000] = np.nan
    with pytest.raises(NonFiniteError):
        send(feedback, values)
    feedback.settle(counted=True)
    assert feedback.residual.tobytes() == before.tobytes()
    assert np.isfinite(send(feedback, normal(NUM, 2))).all()


def test_settling_twice_or_without_a_contribution_does_nothing():
    feedback = feedback_of("int4")
    feedback.settle(counted=True)
    assert not feedback.residual.any()
    send(feedback, normal(NUM))
    before = feedback.residual.copy()
    feedback.settle(counted=True)
    assert feedback.residual.tobytes() == before.tobytes()


def test_a_second_encoding_takes_the_place_of_the_first():
    twice, once = feedback_of("int4"), feedback_of("int4")
    twice.encode(normal(NUM, 5), np.empty(twice.grid.total_encoded, np.uint8))
    assert send(twice, normal(NUM)).tobytes() == send(once, normal(NUM)).tobytes()
    assert twice.residual.tobytes() == once.residual.tobytes()


def test_a_decay_forgets():
    values = normal(NUM)
    forgetful, never = feedback_of("topk64", decay=0.0), feedback_of("topk64", decay=1.0)
    first, second = send(forgetful, values), send(forgetful, values)
    assert first.tobytes() == second.tobytes()
    send(never, values)
    assert send(never, values).tobytes() != first.tobytes()


def test_a_checkpoint_continues_where_it_was():
    whole, resumed = feedback_of("stat2", 0.95), feedback_of("stat2", 0.95)
    send(whole, normal(NUM))
    resumed.restore(whole.residual)
    assert send(whole, normal(NUM, 1)).tobytes() == send(resumed, normal(NUM, 1)).tobytes()


@pytest.mark.parametrize("residual", [np.zeros(3, np.float32), np.full(NUM, np.inf, np.float32)])
def test_a_spoilt_checkpoint_is_refused(residual):
    with pytest.raises(ValueError, match="finite values"):
        feedback_of("stat2").restore(residual)


def test_the_residual_cannot_be_written_from_outside():
    with pytest.raises(ValueError, match="read-only"):
        feedback_of("stat2").residual[0] = 1


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan")])
def test_a_decay_outside_0_to_1_is_refused(decay):
    with pytest.raises(ValueError, match="between 0 and 1"):
        feedback_of("int8", decay)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["int4", "stat2", "topk64", "rows256"]), st.lists(st.booleans(), max_size=6), st.integers(0, 99))
def test_any_order_of_outcomes_owes_just_what_counted(name, outcomes, seed):
    feedback, counted_in, sent = feedback_of(name), np.zeros(NUM), np.zeros(NUM)
    for i, counted in enumerate(outcomes):
        values = normal(NUM, seed + i)
        decoded = send(feedback, values, counted=counted)
        if counted:
            counted_in += values
            sent += decoded
    assert np.allclose(sent + feedback.residual, counted_in, atol=1e-4)
