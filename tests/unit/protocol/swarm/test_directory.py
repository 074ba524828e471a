"""What a stranger may store in, or return from, the DHT."""

from __future__ import annotations

import pickle
import time

import msgpack
import pytest

from atoll.protocol import envelope, messages
from atoll.protocol.identity import Identity
from atoll.protocol.swarm._hivemind import DHTID, DHTRecord
from atoll.protocol.swarm.directory import (
    MAX_LIFETIME_S,
    MAX_RECORD_BYTES,
    SKEW_ALLOWANCE_S,
    RunRecordValidator,
)

RUN = "ab" * 32
A, B = (Identity.from_seed(bytes((number,)) * 32) for number in (1, 2))
NOW = time.time()


def heartbeat(
    identity: Identity, *, run_id: str = RUN, sequence: int = 1, expires: float = NOW + 60, name: str = ""
) -> bytes:
    body = messages.Heartbeat(round=0, state_hash="0" * 64, phase="training", name=name)
    header = envelope.Header(
        run_id=run_id, lineage=0, sender=identity.peer_id, sequence=sequence, expires_unix_s=expires
    )
    return envelope.seal(identity, header, body)


def record(raw: object, *, subkey: object = A.peer_id, expires: float = NOW + 60, run_id: str = RUN) -> DHTRecord:
    key = DHTID.generate(source=f"atoll/1/{run_id}/peers").to_bytes()
    return DHTRecord(key, msgpack.packb(subkey), msgpack.packb(raw), expires + SKEW_ALLOWANCE_S)


@pytest.fixture
def validator() -> RunRecordValidator:
    return RunRecordValidator(RUN, now=lambda: NOW)


def test_a_peers_own_signed_record_is_accepted(validator: RunRecordValidator) -> None:
    assert validator.validate(record(heartbeat(A)))


def test_a_record_under_another_peers_name_is_refused(validator: RunRecordValidator) -> None:
    """SEC-03."""
    assert not validator.validate(record(heartbeat(B), subkey=A.peer_id))


def test_a_record_without_a_subkey_is_refused(validator: RunRecordValidator) -> None:
    assert not validator.validate(record(heartbeat(A), subkey=None))


def test_a_forged_signature_is_refused(validator: RunRecordValidator) -> None:
    raw = bytearray(heartbeat(A))
    raw[-3] ^= 1
    assert not validator.validate(record(bytes(raw)))


def test_a_record_of_another_run_or_another_key_is_refused(validator: RunRecordValidator) -> None:
    assert not validator.validate(record(heartbeat(A, run_id="cd" * 32)))
    assert not validator.validate(record(heartbeat(A), run_id="cd" * 32))


def test_an_old_record_cannot_be_given_a_new_life(validator: RunRecordValidator) -> None:
    """SEC-03."""
    raw = heartbeat(A, expires=NOW - 10)
    assert validator.validate(record(raw, expires=NOW - 10))
    assert not validator.validate(record(raw, expires=NOW + 60))


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_an_hour_of_clock_skew_is_no_obstacle(validator: RunRecordValidator, skew_s: float) -> None:
    expires = NOW + skew_s + 60
    accepted = record(heartbeat(A, expires=expires), expires=expires)
    assert validator.validate(accepted)
    assert accepted.expiration_time > NOW  # the holder's DHT keeps it


def test_a_record_that_expired_beyond_all_skew_or_lives_too_long_is_refused(validator: RunRecordValidator) -> None:
    for expires in (NOW - SKEW_ALLOWANCE_S - 1, NOW + MAX_LIFETIME_S + SKEW_ALLOWANCE_S + 1):
        assert not validator.validate(record(heartbeat(A, expires=expires), expires=expires))


@pytest.mark.parametrize(
    "raw", [pickle.dumps(print), b"", b"\0" * (MAX_RECORD_BYTES + 1), "text", 5, None, {"a": 1}, ["x"] * 1000]
)
def test_anything_but_an_envelope_is_refused_without_an_exception(validator: RunRecordValidator, raw: object) -> None:
    assert not validator.validate(record(raw))


def test_broken_msgpack_is_refused_without_an_exception(validator: RunRecordValidator) -> None:
    good = record(heartbeat(A))
    for garbage in (b"\xc1", b"\xdf\xff\xff\xff\xff", b""):
        assert not validator.validate(DHTRecord(good.key, garbage, good.value, good.expiration_time))
        assert not validator.validate(DHTRecord(good.key, good.subkey, garbage, good.expiration_time))


def test_a_protocol_message_other_than_a_heartbeat_is_no_record(validator: RunRecordValidator) -> None:
    header = envelope.Header(run_id=RUN, lineage=0, sender=A.peer_id, sequence=1, expires_unix_s=NOW + 60)
    raw = envelope.seal(A, header, messages.CommitRequest(fragment=0, round=1))
    assert not validator.validate(record(raw))


def test_strangers_to_a_listed_run_take_no_members_place_in_the_directory() -> None:
    validator = RunRecordValidator(RUN, now=lambda: NOW, admits=lambda peer: peer == A.peer_id)
    for number in range(20):
        stranger = Identity.from_seed(bytes([100 + number]) * 32)
        assert not validator.validate(record(heartbeat(stranger), subkey=stranger.peer_id))
    assert validator.validate(record(heartbeat(A)))
    assert not validator.validate(record(heartbeat(B), subkey=B.peer_id))
