"""A founder that has lost its disk in round 1 asks the others, and does not vote a second time (S1)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from atoll.protocol.envelope import Header, seal
from atoll.protocol.first_words import FirstWords
from atoll.protocol.identity import Identity
from atoll.protocol.messages import Heartbeat
from atoll.protocol.outcomes import Committed
from atoll.protocol.quorum import quorum_of
from atoll.protocol.recollection import Recollection, Verdict, is_of_earlier_life
from atoll.protocol.votes import VoteStore

from .test_round_driver import PEOPLE, MeanReplica, Swarm, genesis_of

ME, SECOND, THIRD, STRANGER = PEOPLE[:4]
GENESIS = genesis_of([ME, SECOND, THIRD])
IDS = [person.peer_id for person in (ME, SECOND, THIRD)]


def words(sequence: int, by: Identity = ME, run_id: str = GENESIS.run_id) -> bytes:
    header = Header(run_id=run_id, lineage=0, sender=by.peer_id, sequence=sequence, expires_unix_s=0)
    return seal(by, header, Heartbeat(round=0, state_hash="ab" * 32, phase="training"))


def recollection(num_people: int = 3) -> Recollection:
    """Of a life whose messages are numbered 100 to 199; patient until second 10."""
    genesis = genesis_of(PEOPLE[:num_people], fault_tolerance=0)
    quorum = quorum_of(genesis, genesis.membership.roster, 1)

    def is_earlier(raw: bytes) -> bool:
        return is_of_earlier_life(raw, ME.peer_id, GENESIS.run_id, range(100, 200))

    return Recollection(ME.peer_id, quorum, is_earlier, began_s=0.0, patience_s=10.0)


def test_it_votes_once_all_have_answered_that_they_know_of_nothing():
    asked = recollection()
    assert asked.verdict(IDS, 1.0) is Verdict.UNSURE
    assert asked.unasked(IDS) == (SECOND.peer_id, THIRD.peer_id)
    asked.note(SECOND.peer_id, None)
    assert asked.verdict(IDS, 1.0) is Verdict.UNSURE
    asked.note(THIRD.peer_id, words(150))  # of this life
    assert asked.verdict(IDS, 1.0) is Verdict.NEW


def test_words_of_an_earlier_life_in_its_own_signature_make_it_abstain():
    asked = recollection()
    asked.note(SECOND.peer_id, words(7))
    assert asked.verdict(IDS, 1.0) is Verdict.FORGOT


def test_a_clock_that_was_set_back_hides_nothing():
    asked = recollection()
    asked.note(SECOND.peer_id, words(100_000))
    assert asked.verdict(IDS, 1.0) is Verdict.FORGOT


@pytest.mark.parametrize("lie", [b"", b"nonsense", words(7, by=SECOND), words(7, run_id="00" * 32)])
def test_nobody_can_make_it_abstain_by_a_lie(lie):
    asked = recollection()
    asked.note(SECOND.peer_id, lie)
    asked.note(THIRD.peer_id, None)
    assert asked.verdict(IDS, 1.0) is Verdict.NEW


def test_who_does_not_live_is_waited_for_only_so_long_and_the_rest_must_be_a_quorum():
    asked = recollection()
    assert asked.verdict([], 11.0) is Verdict.UNSURE  # alone it could decide nothing anyway
    asked.note(SECOND.peer_id, None)
    assert asked.verdict(IDS[:2], 9.0) is Verdict.UNSURE
    assert asked.verdict(IDS[:2], 10.0) is Verdict.NEW
    assert asked.verdict(IDS, 10.0) is Verdict.UNSURE  # the third lives, and has not answered


def test_a_lone_founder_asks_nobody():
    assert recollection(1).verdict([], 0.0) is Verdict.NEW


# --- the disk ---------------------------------------------------------------------------------------------------------


def test_a_founder_abstains_in_round_one_until_it_knows_also_over_a_restart(tmp_path: Path):
    store = VoteStore(tmp_path, 0)
    store.open(1, IDS, IDS[0], 0)
    assert store.forgot(1)
    again = VoteStore(tmp_path, 0)
    again.open(1, IDS, IDS[0], 0)
    assert again.forgot(1)
    assert again.forgot(2)  # it may have voted in later rounds, too, whatever it has learnt of them meanwhile
    again.recollect(len(IDS), has_forgotten=False)
    assert not again.forgot(1)
    assert not again.forgot(2)
    assert not VoteStore(tmp_path, 0).forgot(1)


def test_what_it_said_before_a_restart_in_doubt_is_no_sign_of_votes(tmp_path: Path):
    """Or founders that are stopped in their first seconds and started again could never decide round 1."""
    VoteStore(tmp_path, 0).open(1, IDS, IDS[0], 99)
    again = VoteStore(tmp_path, 0)
    again.open(1, IDS, IDS[0], 149)
    assert again.is_unsure
    own = range(again.opened_life + 1, 200)
    assert not is_of_earlier_life(words(120), ME.peer_id, GENESIS.run_id, own)
    assert is_of_earlier_life(words(99), ME.peer_id, GENESIS.run_id, own)


def test_what_was_forgotten_stays_forgotten(tmp_path: Path):
    store = VoteStore(tmp_path, 0)
    store.open(1, IDS, IDS[0], 0)
    store.recollect(len(IDS), has_forgotten=True)
    again = VoteStore(tmp_path, 0)
    assert not again.is_unsure
    assert again.is_abstaining
    assert again.forgot(1)
    assert again.forgot(2)  # until a commit with its work shows that the rounds it may have voted in are over
    again.end_abstention(2)
    assert not VoteStore(tmp_path, 0).forgot(3)


def test_a_commit_with_its_work_ends_its_doubt_too(tmp_path: Path):
    store = VoteStore(tmp_path, 0)
    store.open(1, IDS, IDS[0], 0)
    assert store.is_abstaining
    store.end_abstention(1)
    assert store.forgot(1)
    assert not VoteStore(tmp_path, 0).forgot(2)
    assert not store.is_unsure


# --- what others remember ---------------------------------------------------------------------------------------------


def test_first_words_survive_a_restart_and_stay_the_first(tmp_path: Path):
    first_words = FirstWords(tmp_path, IDS, GENESIS.run_id)
    first_words.note(ME.peer_id, words(7))
    first_words.note(ME.peer_id, words(8))
    first_words.note(STRANGER.peer_id, words(7))
    again = FirstWords(tmp_path, IDS, GENESIS.run_id)
    assert again.of(ME.peer_id) == words(7)
    assert again.of(SECOND.peer_id) is None
    assert again.of(STRANGER.peer_id) is None


def test_first_words_on_a_damaged_disk_are_heard_anew(tmp_path: Path):
    FirstWords(tmp_path, IDS, GENESIS.run_id).note(ME.peer_id, words(7))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    again = FirstWords(tmp_path, IDS, GENESIS.run_id)
    assert again.of(ME.peer_id) is None
    again.note(ME.peer_id, words(9))
    assert FirstWords(tmp_path, IDS, GENESIS.run_id).of(ME.peer_id) == words(9)


# --- drivers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others_restart", [False, True])
async def test_a_founder_whose_disk_is_lost_in_round_one_does_not_vote_in_it_again(tmp_path: Path, others_restart):
    swarm = Swarm(tmp_path, GENESIS)
    try:
        for person in (ME, SECOND, THIRD):
            await swarm.start(person)
        nodes = swarm.nodes
        others = [nodes[peer.peer_id].driver._memories for peer in (SECOND, THIRD)]
        await swarm.until(lambda: all(memories._first_words.of(ME.peer_id) for memories in others))
        await swarm.kill(ME)
        shutil.rmtree(tmp_path / ME.peer_id)
        for person in (SECOND, THIRD) if others_restart else ():
            await swarm.kill(person)
            await swarm.start(person, MeanReplica(GENESIS))
        node = await swarm.start(ME, MeanReplica(GENESIS))
        await swarm.until(lambda: "votes.abstaining" in node.points())
        outcomes = await asyncio.gather(*(swarm.contribute(person, 1.0) for person in (ME, SECOND, THIRD)))
        assert all(isinstance(outcome, Committed) for outcome in outcomes)
        assert outcomes[0].counted  # it contributes; only its vote is not given
        assert "round.voted" not in node.points()
        await asyncio.gather(*(swarm.contribute(person, 1.0) for person in (ME, SECOND, THIRD)))
        await swarm.until(lambda: "round.voted" in node.points())  # in round 2
    finally:
        await swarm.close()
