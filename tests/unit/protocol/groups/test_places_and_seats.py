"""No two peers train on the same samples in a round, whatever becomes of them and of their delegate."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.groups.places import Place
from atoll.protocol.groups.seat_store import PartStore, SeatStore
from atoll.protocol.groups.seats import Seats
from atoll.protocol.standing import Standing

from .conftest import DIGEST, PEERS, A, B, C, D, E

STANDING = Standing(6, DIGEST, (D, E), data_cursor=1000)


def test_leases_of_all_seats_of_a_roster_are_the_whole_range_and_do_not_overlap() -> None:
    places = [Place(7, member, seat) for member in (D, E) for seat in range(4)]
    firsts = [place.first_sample(STANDING, 10, 4) for place in places]
    assert firsts == list(range(1000, 1080, 10))


def test_without_groups_a_member_s_place_is_its_block() -> None:
    assert Place(7, E).first_sample(STANDING, 10, 1) == 1010


def test_a_place_of_another_round_another_roster_or_beyond_the_seats_is_none() -> None:
    assert Place(8, D).first_sample(STANDING, 10, 4) is None
    assert Place(7, A, 1).first_sample(STANDING, 10, 4) is None
    assert Place(7, D, 4).first_sample(STANDING, 10, 4) is None


def test_a_seat_is_given_once_and_stays_with_its_follower() -> None:
    seats = Seats(0, 1, 3).given_to(A)
    assert seats is not None
    assert seats.given_to(A) is seats
    full = seats.given_to(B)
    assert full is not None
    assert (full.seat_of(A), full.seat_of(B)) == (1, 2)
    assert full.given_to(C) is None


def test_a_seat_is_free_again_in_the_next_round_if_its_follower_has_gone() -> None:
    seats = Seats(0, 1, 3).given_to(A).given_to(B).next_round(2, [B])  # type: ignore[union-attr]
    assert seats.seat_of(B) == 2
    assert seats.given_to(C).seat_of(C) == 1  # type: ignore[union-attr]
    assert seats.taken[2].since == 1


def test_seats_outlive_a_restart(tmp_path: Path) -> None:
    store = SeatStore(tmp_path / "seats.json")
    store.load(0, 1, 3)
    store.save(Seats(0, 2, 3).given_to(A))  # type: ignore[arg-type]
    again = SeatStore(tmp_path / "seats.json").load(0, 2, 3)
    assert again.seat_of(A) == 1
    assert again.given_to(B).seat_of(B) == 2  # type: ignore[union-attr]


def test_with_its_disk_a_delegate_loses_the_right_to_give_seats_in_that_round(tmp_path: Path) -> None:
    path = tmp_path / "seats.json"
    for _ in range(2):  # nor does another restart give it back
        seats = SeatStore(path).load(0, 5, 3)
        assert seats.given_to(A) is None
    assert seats.next_round(6, []).given_to(A) is not None
    path.write_bytes(b'{"round":5')
    assert SeatStore(path).load(0, 5, 3).is_closed


def test_a_new_lineage_begins_with_free_seats(tmp_path: Path) -> None:
    SeatStore(tmp_path / "seats.json").save(Seats(0, 9, 3).given_to(A))  # type: ignore[arg-type]
    seats = SeatStore(tmp_path / "seats.json").load(1, 4, 3)
    assert not seats.taken
    assert not seats.is_closed


@given(st.data())
def test_within_a_round_no_seat_has_two_followers_over_any_comings_goings_and_restarts(data: st.DataObject) -> None:
    seats, sat = Seats(0, 1, 4), {}
    for _ in range(data.draw(st.integers(1, 30))):
        if data.draw(st.booleans()):
            staying = data.draw(st.sets(st.sampled_from(PEERS)))
            seats = seats.next_round(seats.round + 1, staying)
        peer = data.draw(st.sampled_from(PEERS))
        seats = seats.given_to(peer) or seats
        for seat, seated in seats.taken.items():
            assert 1 <= seat < 4
            assert sat.setdefault((seats.round, seat), seated.peer) == seated.peer
        assert len(set(seats.peers)) == len(seats.peers)


def test_a_follower_remembers_who_has_had_its_work(tmp_path: Path) -> None:
    store = PartStore(tmp_path / "parts.json")
    store.note(3, D)
    store.note(4, E)
    again = PartStore(tmp_path / "parts.json")
    assert (again.delegate_of(3), again.delegate_of(4), again.delegate_of(5)) == (D, E, None)
    for number in range(5, 40):
        again.note(number, D)
    assert again.delegate_of(4) is None  # long decided
    assert (tmp_path / "parts.json").stat().st_size < 1024
