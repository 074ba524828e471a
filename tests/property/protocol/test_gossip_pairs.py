"""Pairs of a gossip round: symmetric, nobody twice, and no views, however different, keep anybody waiting for ever."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.gossip import search
from atoll.protocol.gossip.pairing import Draw, Spot, matching, stands
from atoll.protocol.gossip.search import Alone, Dial, Rules, Search, Sight, Wait
from atoll.protocol.identity import Identity, PeerId

PEERS = [Identity.from_seed(bytes([number]) * 32).peer_id for number in range(9)]
DRAW = Draw("a" * 64, 0)
GRACE_S, LATENCY_S, SWAP_S = 5.0, 0.05, 0.4
RULES = Rules(DRAW, max_apart=2, grace_s=GRACE_S)

spots = st.dictionaries(
    st.sampled_from(PEERS), st.builds(Spot, st.integers(1, 6), st.booleans() | st.just(True)), min_size=1
)


@given(spots, st.integers(0, 3))
def test_a_matching_is_symmetric_names_nobody_twice_and_keeps_its_distance(there: dict[PeerId, Spot], apart: int):
    partners = matching(DRAW, there, apart)
    for peer, partner in partners.items():
        assert peer != partner
        assert partners[partner] == peer
        assert abs(there[peer].round - there[partner].round) <= apart
        assert there[peer].is_reachable or there[partner].is_reachable
    left = [peer for peer in there if peer not in partners]
    fits = [
        (a, b)
        for a in left
        for b in left
        if a < b and abs(there[a].round - there[b].round) <= apart and (there[a].is_reachable or there[b].is_reachable)
    ]
    assert not fits  # nobody is left over who could have another left over


@given(spots)
def test_everybody_with_the_same_view_computes_the_same_pairs_whatever_its_order(there: dict[PeerId, Spot]):
    assert matching(DRAW, there, 2) == matching(DRAW, dict(reversed(there.items())), 2)


def test_pairs_change_from_round_to_round_and_everybody_meets_everybody():
    met = {
        frozenset(pair)
        for number in range(1, 60)
        for pair in matching(DRAW, {peer: Spot(number) for peer in PEERS[:8]}, 2).items()
    }
    assert len(met) == 8 * 7 // 2


def test_a_peer_that_only_one_side_sees_disturbs_few_of_the_other_pairs():
    kept = total = 0
    for number in range(1, 101):
        fewer = matching(DRAW, {peer: Spot(number) for peer in PEERS[:8]}, 2)
        more = matching(DRAW, {peer: Spot(number) for peer in PEERS}, 2)
        kept += sum(more.get(peer) == partner for peer, partner in fewer.items())
        total += len(fewer)
    assert kept > total / 2


@given(st.sampled_from(PEERS), st.sampled_from(PEERS))
def test_of_two_offers_that_cross_exactly_one_stands(a: PeerId, b: PeerId):
    assert a == b or stands(a, b) != stands(b, a)


# --- searches with differing views ------------------------------------------------------------------------------------


@dataclass
class Peer:
    """A searcher of the little world below, with a view of its own."""

    me: PeerId
    round: int
    ready_s: float
    sees: frozenset[PeerId]
    search: Search | None = None
    partner: PeerId | None = None
    alone: str | None = None
    ended_s: float = math.inf


@dataclass
class World:
    """Searches against each other with delays: heartbeats tell phases late, offers and answers take a latency."""

    peers: dict[PeerId, Peer]
    lies: frozenset[PeerId]
    """Peers that look ready to everybody for ever, and answer no offer."""
    delay_s: float
    now_s: float = 0.0
    events: list[tuple[float, int, str, tuple[PeerId, ...]]] = field(default_factory=list)

    def at(self, delay_s: float, what: str, *who: PeerId) -> None:
        heapq.heappush(self.events, (self.now_s + delay_s, len(self.events) + int(1e6 * self.now_s), what, who))

    def sights(self, peer: Peer) -> Mapping[PeerId, Sight]:
        seen: dict[PeerId, Sight] = {}
        for other in self.peers.values():
            if other.me not in peer.sees or other.me == peer.me:
                continue
            told_s = self.now_s - self.delay_s
            doing: search.Doing = "training" if told_s < other.ready_s else "ready"
            if other.me not in self.lies and other.partner is not None and other.ended_s <= told_s + SWAP_S:
                doing = "taken"
            has_ended = other.me not in self.lies and other.ended_s <= told_s
            seen[other.me] = Sight(other.round + has_ended, "training" if has_ended else doing)
        return seen

    def run(self) -> None:
        for peer in self.peers.values():
            if peer.me not in self.lies:
                self.at(peer.ready_s, "ready", peer.me)
        while self.events:
            self.now_s, _, what, who = heapq.heappop(self.events)
            getattr(self, f"_{what}")(*(self.peers[peer] for peer in who))

    def _ready(self, peer: Peer) -> None:
        peer.search = Search(peer.me, peer.round, self.now_s)
        self._think(peer)

    def _think(self, peer: Peer) -> None:
        now = peer.search
        if now is None or now.partner is not None or now.dialled is not None:
            return
        match search.next_move(now, self.sights(peer), RULES, self.now_s):
            case Dial(other):
                peer.search = search.dialled(now, other)
                self.at(LATENCY_S, "offer", peer.me, other)
            case Wait(_, until_s):
                self.at(min(0.25, max(0.01, until_s - self.now_s)), "think", peer.me)
            case Alone(why):
                peer.search, peer.alone, peer.ended_s = None, why, self.now_s

    def _offer(self, sender: Peer, receiver: Peer) -> None:
        if receiver.me in self.lies:
            self.at(1.0, "timeout", sender.me, receiver.me)
            return
        sights = self.sights(receiver)
        why = search.refusal(receiver.search, sender.me, sender.round, sights, RULES, self.now_s)
        if why is None:
            assert receiver.search is not None
            receiver.search = search.engaged(receiver.search, sender.me)
        self.at(LATENCY_S, "yes" if why is None else "crossed" if why == "crossed" else "no", sender.me, receiver.me)

    def _yes(self, sender: Peer, receiver: Peer) -> None:
        assert sender.search is not None
        assert sender.search.dialled == receiver.me
        for one, other in ((sender, receiver), (receiver, sender)):
            assert one.partner is None, "nobody is in two pairs"
            one.search, one.partner, one.ended_s = None, other.me, self.now_s + SWAP_S

    def _no(self, sender: Peer, receiver: Peer) -> None:
        if sender.search is not None and sender.search.dialled == receiver.me:
            sender.search = search.declined(sender.search, receiver.me, RULES, self.now_s)
            self._think(sender)

    def _crossed(self, sender: Peer, receiver: Peer) -> None:
        self.at(1.0, "no", sender.me, receiver.me)  # unless its own offer is accepted meanwhile

    def _timeout(self, sender: Peer, receiver: Peer) -> None:
        if sender.search is not None and sender.search.dialled == receiver.me:
            sender.search = search.failed(sender.search, receiver.me)
            self._think(sender)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    there = draw(st.lists(st.sampled_from(PEERS), min_size=2, unique=True))
    views = st.frozensets(st.sampled_from(there), min_size=len(there) // 2)
    peers = {
        me: Peer(me, draw(st.integers(1, 3)), draw(st.floats(0, 8)), draw(views | st.just(frozenset(there))))
        for me in there
    }
    lies = draw(st.frozensets(st.sampled_from(there), max_size=2))
    return World(peers, lies, draw(st.sampled_from([0.0, 0.3, 2.0])))


@given(worlds())
def test_differing_views_end_in_pairs_or_alone_and_never_late(world: World):
    world.run()
    for peer in world.peers.values():
        if peer.me in world.lies:
            continue
        assert (peer.partner is None) != (peer.alone is None)
        waited_s = peer.ended_s - peer.ready_s
        # the grace, then one dial of everybody that it sees, each with its time limit, and a swap
        assert waited_s <= GRACE_S + (len(peer.sees) + 1) * 1.1 + SWAP_S
        if peer.partner is not None:
            assert world.peers[peer.partner].partner == peer.me
            assert abs(world.peers[peer.partner].round - peer.round) <= 2


def test_with_equal_views_and_all_ready_nobody_who_could_have_a_partner_goes_alone():
    for size in range(2, 10):
        everybody = frozenset(PEERS[:size])
        world = World({me: Peer(me, 7, 0.0, everybody) for me in everybody}, frozenset(), delay_s=0.0)
        for peer in world.peers.values():
            peer.ready_s = 0.0
        world.run()
        assert sum(peer.partner is not None for peer in world.peers.values()) == size - size % 2
        assert max(peer.ended_s for peer in world.peers.values()) < 1.5


def test_a_straggler_is_waited_for_by_its_partner_alone_and_no_longer_than_the_grace():
    everybody = frozenset(PEERS[:4])
    slow = PEERS[0]
    peers = {me: Peer(me, 3, 100.0 if me == slow else 0.0, everybody) for me in everybody}
    world = World(peers, frozenset(), delay_s=0.0)
    world.run()
    partner = matching(DRAW, {me: Spot(3) for me in everybody}, 2)[slow]
    for peer in world.peers.values():
        if peer.me == partner:
            assert peer.ended_s <= GRACE_S + 0.5
        elif peer.me != slow:
            assert peer.ended_s < 1.0


def test_who_dials_out_of_turn_is_declined_until_the_grace_is_over():
    seen = {peer: Sight(3, "ready") for peer in PEERS[1:4]}
    named = matching(DRAW, {peer: Spot(3) for peer in PEERS[:4]}, 2)[PEERS[0]]
    pushy = next(peer for peer in PEERS[1:4] if peer != named)
    own = Search(PEERS[0], 3, since_s=0.0)
    assert search.refusal(own, pushy, 3, seen, RULES, 1.0) == "expects another"
    assert search.refusal(own, named, 3, seen, RULES, 1.0) is None
    assert search.refusal(own, pushy, 3, seen, RULES, GRACE_S) is None


def test_offers_from_far_rounds_to_the_taken_and_to_the_training_are_declined():
    seen = {peer: Sight(3, "ready") for peer in PEERS[1:3]}
    own = Search(PEERS[0], 3, since_s=0.0)
    assert search.refusal(None, PEERS[1], 3, seen, RULES, 0.0) == "training"
    assert search.refusal(own, PEERS[1], 6, seen, RULES, 0.0) == "too far apart"
    assert search.refusal(search.engaged(own, PEERS[2]), PEERS[1], 3, seen, RULES, 0.0) == "taken"
    assert search.refusal(search.failed(own, PEERS[1]), PEERS[1], 3, seen, RULES, GRACE_S) == "expects another"


def test_a_straggler_that_will_not_make_it_by_its_own_word_is_not_waited_for():
    seen = {PEERS[1]: Sight(3, "training", remaining_s=60.0)}
    assert search.next_move(Search(PEERS[0], 3, 0.0), seen, RULES, 0.0) == Alone("nobody is free")
    seen = {PEERS[1]: Sight(3, "training", remaining_s=2.0)}
    assert search.next_move(Search(PEERS[0], 3, 0.0), seen, RULES, 0.0) == Wait(PEERS[1], GRACE_S)


def test_who_is_ahead_of_most_waits_for_them_and_who_is_not_goes_on_alone_at_once():
    seen = {PEERS[1]: Sight(3, "taken"), PEERS[2]: Sight(3, "taken")}
    assert search.next_move(Search(PEERS[0], 3, 0.0), seen, RULES, 0.0) == Alone("nobody is free")
    assert search.next_move(Search(PEERS[0], 4, 0.0), seen, RULES, 0.0) == Wait(None, GRACE_S)
    assert search.next_move(Search(PEERS[0], 9, 0.0), seen, RULES, GRACE_S) == Alone("no peer is near this round")


def test_a_pair_that_is_far_ahead_of_the_other_half_waits_for_it_although_its_partner_is_at_hand():
    seen = {PEERS[1]: Sight(9, "ready"), PEERS[2]: Sight(6, "ready"), PEERS[3]: Sight(6, "ready")}
    own = Search(PEERS[0], 9, 0.0)
    assert search.next_move(own, seen, RULES, 0.0) == Wait(None, GRACE_S)
    assert search.next_move(own, seen, RULES, GRACE_S) == Dial(PEERS[1])
    seen[PEERS[2]] = Sight(7, "ready")
    assert isinstance(search.next_move(own, seen, RULES, 0.0), Dial)
