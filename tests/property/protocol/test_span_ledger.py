"""Whatever order chunks, failures and reductions come in, a complete span is over exactly the members it names (S5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.exchange.ledger import SpanLedger

NUM_CHUNKS = 3
steps = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["exclude", "refuse"]), st.integers(0, 3)),
        st.tuples(st.just("reduce"), st.booleans()),
    ),
    max_size=60,
)


@given(st.lists(st.integers(0, 9), min_size=4, max_size=4), steps)
def test_a_complete_span_is_over_exactly_the_members_that_are_in(tokens, steps):
    ledger = SpanLedger(4, NUM_CHUNKS, lambda included: [t * i for t, i in zip(tokens, included, strict=True)])
    reduced_over: list[tuple[int, ...]] = []
    for action, value in steps:
        if action == "receive" and value in ledger.members and not ledger.is_delivered(value):
            ledger.receive(value)
        elif action in ("exclude", "refuse"):
            was_delivered, generation, was_complete = ledger.is_delivered(value), ledger.generation, ledger.is_complete
            changed = getattr(ledger, action)(value, "rule")
            assert not (changed and (was_complete or (was_delivered and action == "exclude")))
            assert ledger.generation == generation + changed
            if changed:
                reduced_over.clear()
        elif action == "reduce" and ledger.next_chunk is not None:
            stale = bool(value)
            assert ledger.reduce(ledger.generation - stale) == (not stale)
            if not stale:
                reduced_over.append(tuple(ledger.members))
        assert len(reduced_over) == ledger.num_reduced
        assert set(reduced_over) <= {tuple(ledger.members)}
        assert all(ledger.num_received[member] >= ledger.num_reduced for member in ledger.members)
    if ledger.is_complete:
        assert all(ledger.is_delivered(member) for member in ledger.members)
        assert ledger.included == tuple(member in ledger.members for member in range(4))
        assert any(tokens[member] for member in ledger.members)


def test_a_member_cannot_deliver_more_than_the_span():
    ledger = SpanLedger(1, 1, lambda included: [1.0])
    ledger.receive(0)
    with pytest.raises(ValueError, match="already"):
        ledger.receive(0)
    assert ledger.reduce(0)
    assert not ledger.reduce(0)
