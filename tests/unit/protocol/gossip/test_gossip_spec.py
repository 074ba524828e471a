"""What a gossip run's spec may say, and which samples its peers get."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from atoll.node.run_spec import new_run_text, parse_unsigned
from atoll.protocol.gossip.joining import NotFinite, choose
from atoll.protocol.gossip.leases import first_sample
from atoll.protocol.gossip.views import is_behind, next_round
from atoll.protocol.spec import MembershipConfig, RecoveryConfig
from atoll.protocol.spec_text import SpecError

from .gossip_lab import PEOPLE, genesis_of

ROSTER = tuple(person.peer_id for person in PEOPLE[:3])


def test_a_gossip_run_cannot_be_open():
    with pytest.raises(ValidationError, match="strangers could be partners of all"):
        genesis_of(PEOPLE[:3], membership=MembershipConfig(roster=ROSTER, mode="open", accept_sybil_risk=True))


def test_what_rests_on_certificates_is_refused_with_the_reason():
    with pytest.raises(ValidationError, match="has no certificates"):
        genesis_of(PEOPLE[:3], recovery=RecoveryConfig(delegates=ROSTER[:1]))


def test_a_new_gossip_run_gets_its_outer_method_and_says_what_it_is():
    text = new_run_text(name="g", roster=ROSTER, settings=['exchange.topology="gossip"'])
    genesis, training = parse_unsigned(text, "g")
    assert genesis.is_gossip
    assert training.outer.optimizer == "noloco"
    assert "never equal, and nobody certifies them" in text


@pytest.mark.parametrize(
    "settings",
    [['outer.optimizer="noloco"', "outer.momentum=0.5"], ['exchange.topology="gossip"', "outer.optimizer=sgd"]],
)
def test_topology_and_outer_method_belong_together(settings: list[str]):
    with pytest.raises(SpecError, match=r"belong together|consensus belongs"):
        new_run_text(name="g", roster=ROSTER, settings=settings)


def test_no_sample_is_leased_twice_to_listed_peers_whatever_rounds_they_are_in():
    genesis = genesis_of(PEOPLE[:3], membership=MembershipConfig(roster=ROSTER, allowed=(PEOPLE[3].peer_id,)))
    firsts = [first_sample(genesis, person.peer_id, r, 40) for person in PEOPLE[:4] for r in range(1, 200)]
    assert len(set(firsts)) == len(firsts)
    assert all(first % 40 == 0 for first in firsts)


def test_guests_draw_blocks_of_their_own_and_collide_seldom():
    genesis = genesis_of(PEOPLE[:3])
    guests = [person.peer_id for person in PEOPLE[3:5]]
    listed = {first_sample(genesis, peer, r, 40) for peer in ROSTER for r in range(1, 200)}
    a, b = ([first_sample(genesis, peer, r, 40) for r in range(1, 200)] for peer in guests)
    assert listed.isdisjoint({*a, *b})
    assert sum(x == y for x, y in zip(a, b, strict=True)) < 50  # one in eight


def test_a_liar_among_three_donors_is_left_out_and_the_mean_is_over_the_rest():
    generator = np.random.default_rng(0)
    middle = generator.normal(size=70_000).astype(np.float32)
    noise = generator.normal(size=(2, middle.size))
    honest = [(middle + 0.01 * each).astype(np.float32) for each in noise]
    out = np.empty_like(middle)
    start = choose([honest[0], (middle + 1).astype(np.float32), honest[1]], out)
    assert start.kept == (0, 2)
    np.testing.assert_allclose(out, np.mean(honest, axis=0), rtol=1e-5, atol=1e-6)


def test_of_two_donors_nobody_can_tell_who_lies_and_nan_is_never_taken():
    out = np.empty(5, np.float32)
    assert choose([np.zeros(5, np.float32), np.ones(5, np.float32)], out).kept == (0, 1)
    with pytest.raises(NotFinite):
        choose([np.full(5, np.nan, np.float32)], out)


def test_a_swap_ends_as_the_later_round_as_far_as_the_others_are():
    assert next_round(4, 6, heads=[5, 5, 3], last_round=0) == 4
    assert next_round(4, 6, heads=[4, 4, 4], last_round=0) == 5
    assert next_round(4, 6, heads=[6, 6, 5], last_round=0) == 6
    assert next_round(4, 10**9, heads=[10**9, 3, 3], last_round=0) == 4
    assert next_round(4, 6, heads=[9, 9, 9], last_round=5) == 5


def test_who_is_behind_most_others_starts_anew_and_one_liar_among_three_decides_nothing():
    assert is_behind(1, [9], max_apart=2)
    assert is_behind(1, [9, 9], max_apart=2)
    assert not is_behind(1, [10**9, 1], max_apart=2)
    assert not is_behind(7, [9, 9], max_apart=2)
