"""Weights are a pure function of the plan, and bound what one member can do to the mean, whatever it sends (S7)."""

from __future__ import annotations

import math
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.kernels.aggregation import RULES
from atoll.kernels.chunk_grid import ChunkGrid
from atoll.kernels.codec import codec
from atoll.protocol.admission import refusals
from atoll.protocol.aggregation import reduce_chunk
from atoll.protocol.chunks import Contribution
from atoll.protocol.identity import Identity
from atoll.protocol.record import Member, Newcomer, Plan, Span
from atoll.protocol.spec import LimitsConfig, TrustConfig
from atoll.protocol.weights import MAX_TOKENS_FACTOR, capped_shares, weights

PEERS = [Identity.from_seed(bytes([1 + i]) * 32).peer_id for i in range(12)]
LIMITS = LimitsConfig(max_tokens_per_round=1_000_000)
TOKENS = st.integers(0, 2**53)
NORMS = st.floats(0, 1e12)


def plan_of(tokens, norms=None, commitments=None, newcomers=()):
    norms = norms or [1.0] * len(tokens)
    commitments = commitments or [f"{i:064x}" for i in range(len(tokens))]
    return Plan(
        lineage=0,
        fragment=0,
        round=5,
        ballot=0,
        leader=PEERS[0],
        parent="0" * 64,
        parent_state="0" * 64,
        members=tuple(
            Member(peer=PEERS[i], tokens=t, commitment=c, squared_norm=float(n) ** 2)
            for i, (t, n, c) in enumerate(zip(tokens, norms, commitments, strict=True))
        ),
        spans=(Span(first_chunk=0, num_chunks=1, owner=PEERS[0]),),
        roster=tuple(PEERS),
        next_roster=tuple(PEERS),
        data_cursor=0,
        newcomers=newcomers,
        rules="0" * 64,
        attempt_timeout_s=60.0,
    )


@st.composite
def members(draw, least=1):
    """Tokens, norms and inclusion flags."""
    num = draw(st.integers(least, 10))
    each = [draw(st.lists(kind, min_size=num, max_size=num)) for kind in (TOKENS, NORMS, st.booleans())]
    return tuple(each)


@given(members())
def test_weights_are_never_negative_sum_to_at_most_one_and_are_zero_for_the_excluded(case):
    tokens, norms, included = case
    each = weights(plan_of(tokens, norms), included, TrustConfig(), LIMITS)
    assert all(weight >= 0 for weight in each)
    assert math.fsum(each) <= 1 + 1e-12
    assert all(weight == 0 for weight, is_in in zip(each, included, strict=True) if not is_in)
    assert any(each) == any(t > 0 and is_in for t, is_in in zip(tokens, included, strict=True))


@given(members(least=4), st.integers(0, 9), TOKENS)
def test_whatever_tokens_a_member_claims_its_weight_stays_below_the_cap(case, liar, claim):
    tokens, _, _ = case
    tokens = [max(1, count) for count in tokens]
    tokens[liar % len(tokens)] = claim
    each = weights(plan_of(tokens), [True] * len(tokens), TrustConfig(max_share=0.4), LIMITS)
    assert max(each) <= max(0.4, 1 / sum(count > 0 for count in tokens)) + 1e-12


@given(st.lists(st.integers(1, 100), min_size=3, max_size=10), st.integers(0, 9))
def test_a_claim_of_any_size_counts_as_a_few_medians(tokens, liar):
    liar %= len(tokens)
    each = weights(plan_of([*tokens[:liar], 2**53, *tokens[liar + 1 :]]), [True] * len(tokens), TrustConfig(), LIMITS)
    others = tokens[:liar] + tokens[liar + 1 :]
    highest = MAX_TOKENS_FACTOR * max(others)
    assert each[liar] <= highest / (highest + min(others) * len(others)) + 1e-12


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 5), st.floats(-12, 12), st.sampled_from([1.0, 2.0, 3.0]), TOKENS)
def test_a_member_moves_the_mean_by_at_most_its_share_times_the_clipped_norm(seed, attacker, exponent, clip, claim):
    """S7, on encoded vectors: the mean with the attacker against its own part taken out."""
    random, grid = np.random.default_rng(seed), ChunkGrid(600, 600, codec("int8"))
    values = random.standard_normal((6, 600)).astype(np.float32)
    values[attacker] *= np.float32(10.0**exponent)
    contributions = [contribution_of(grid, row) for row in values]
    norms = [math.sqrt(contribution.squared_norm) for contribution in contributions]
    tokens = [100] * 6
    tokens[attacker] = claim
    plan = plan_of(tokens, norms, [contribution.commitment for contribution in contributions])
    each = weights(plan, [True] * 6, TrustConfig(clip_factor=clip), LIMITS)
    datas = [contribution.encoded for contribution in contributions]
    mean = reduce_chunk(grid, 0, datas, each).values
    without = reduce_chunk(grid, 0, datas, [0 if i == attacker else w for i, w in enumerate(each)]).values
    moved = float(np.linalg.norm(mean.astype(np.float64) - without))
    share = min(claim, MAX_TOKENS_FACTOR * 100) / (500 + min(claim, MAX_TOKENS_FACTOR * 100))
    bought = max(1, min(claim / 100, MAX_TOKENS_FACTOR))
    counted = norms if claim else [norm for i, norm in enumerate(norms) if i != attacker]
    assert moved <= share * clip * median_low(counted) * bought * (1 + 1e-5)


def contribution_of(grid, values):
    encoded = np.empty(grid.total_encoded, np.uint8)
    grid.encode(values, encoded)
    return Contribution.of(grid, encoded.data, round_number=5, tokens=100)


def test_equal_speeds_and_norms_weigh_what_their_tokens_say():
    each = weights(plan_of([100, 200, 300, 400]), [True] * 4, TrustConfig(), LIMITS)
    assert each == pytest.approx((0.1, 0.2, 0.3, 0.4))


def test_a_norm_beyond_the_clip_is_scaled_and_the_rest_is_given_to_nobody():
    each = weights(plan_of([1] * 4, [1, 1, 1, 8]), [True] * 4, TrustConfig(clip_factor=2.0), LIMITS)
    assert each == pytest.approx((0.25, 0.25, 0.25, 0.0625))
    assert weights(plan_of([1] * 4, [1, 1, 1, 8]), [True] * 4, TrustConfig(clip_factor=0), LIMITS) == (0.25,) * 4


@pytest.mark.parametrize("norms_of", [{1: 1.3, 2: 4.1, 4: 9.4, 6: 12.1}, {1: 1.2, 2: 2.0, 4: 4.6, 6: 9.4}])
def test_honest_speeds_of_one_to_six_are_not_clipped(norms_of):
    """Norms as measured in rounds 1 and 6 of a run."""
    tokens = [1, 2, 4, 6, 1, 2, 4, 6, 1, 2]
    norms = [norms_of[count] for count in tokens]
    each = weights(plan_of(tokens, norms), [True] * 10, TrustConfig(), LIMITS)
    assert each == pytest.approx([count / sum(tokens) for count in tokens])


def test_newcomers_weigh_nothing_before_their_round_and_then_count():
    """A hundred new identities do not move the mean: they are barred by the plan that made them members."""
    newcomers = (Newcomer(peer=PEERS[1], counts_from=6), Newcomer(peer=PEERS[2], counts_from=5))
    each = weights(plan_of([10, 10, 10], newcomers=newcomers), [True] * 3, TrustConfig(), LIMITS)
    assert each == pytest.approx((0.5, 0.0, 0.5))


def test_newcomers_have_no_say_in_the_median_either():
    newcomers = tuple(Newcomer(peer=PEERS[i], counts_from=9) for i in range(2, 8))
    each = weights(plan_of([10] * 8, [1, 1] + [1e6] * 6, newcomers=newcomers), [True] * 8, TrustConfig(), LIMITS)
    assert each == (0.5, 0.5, 0, 0, 0, 0, 0, 0)


def test_copies_of_one_contribution_count_as_one():
    commitments = ["a" * 64, "a" * 64, "b" * 64]
    each = weights(plan_of([10] * 3, commitments=commitments), [True] * 3, TrustConfig(), LIMITS)
    assert each == pytest.approx((0.25, 0.25, 0.5))
    alone = weights(plan_of([10] * 3, commitments=commitments), [True, False, True], TrustConfig(), LIMITS)
    assert alone == pytest.approx((0.5, 0.0, 0.5)), "a thief that cannot deliver costs its victim nothing"


@given(st.lists(st.integers(0, 2**53), min_size=1, max_size=12).filter(any), st.floats(0.05, 1))
def test_capped_shares_sum_to_one(tokens, max_share):
    shares = capped_shares(tokens, max_share)
    assert math.fsum(shares) == pytest.approx(1.0)
    assert all(share == 0 for share, count in zip(shares, tokens, strict=True) if count == 0)
    assert max(shares) <= max(max_share, 1 / sum(count > 0 for count in tokens)) + 1e-9


def test_an_empty_and_an_absurd_contribution_are_refused_with_rule_value_and_limit():
    refused = refusals(plan_of([1] * 5, [1.0, 0.0, 1.5, 1e6, 2.0]).members)
    assert {i: (r.rule, r.value, r.limit) for i, r in refused.items() if i == 3} == {3: ("absurd norm", 1e6, 150.0)}
    assert {i: r.rule for i, r in refused.items()} == {1: "empty contribution", 3: "absurd norm"}


def test_a_round_in_which_nobody_moved_anything_is_no_ones_fault():
    assert refusals(plan_of([1] * 3, [0.0] * 3).members) == {}


def test_of_two_members_neither_is_absurd():
    assert refusals(plan_of([1] * 2, [1.0, 1e9]).members) == {}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_that_the_spec_knows_is_one_of_the_kernels(rule):
    assert TrustConfig.model_validate({"aggregation": rule}).aggregation == rule
