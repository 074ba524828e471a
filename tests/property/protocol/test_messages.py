"""Every message survives the wire; whatever else arrives is refused with `InvalidMessage` and nothing worse."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.protocol.envelope import DOMAIN, Envelope, Header, InvalidMessage, seal
from atoll.protocol.identity import Identity
from atoll.protocol.messages import (
    Attest,
    Commit,
    CommitRequest,
    Heartbeat,
    Message,
    Nack,
    Prepare,
    Ready,
    SpanFailed,
    Vote,
    round_of,
)
from atoll.protocol.parsing import canonical_json

RUN = "ab" * 32
ME = Identity.from_seed(bytes([1]) * 32)
HEADER = Header(run_id=RUN, lineage=0, sender=ME.peer_id, sequence=1, expires_unix_s=2e9)

digests = st.integers(0, 2**256 - 1).map("{:064x}".format)
rounds = st.integers(0, 2**40)
counts = st.integers(0, 2**53)
names = st.text(max_size=64)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        Heartbeat,
        name=names,
        round=rounds,
        state_hash=digests,
        phase=st.sampled_from(["training", "ready", "leaving"]),
        tokens_per_s=st.floats(0, 1e12),
        loss=st.none() | st.floats(0, 1e6),
        addresses=st.lists(st.text(max_size=40), max_size=3).map(tuple),
    ),
    st.builds(Ready, round=rounds, parent=digests, parent_state=digests, tokens=counts, commitment=digests),
    st.builds(SpanFailed, plan=digests, round=rounds, span=counts, why=st.text(max_size=200)),
    st.builds(Vote, fragment=counts, round=rounds, ballot=rounds, record=digests),
    st.builds(Prepare, fragment=counts, round=rounds, ballot=rounds),
    st.builds(Nack, fragment=counts, round=rounds, promised=rounds),
    st.builds(Attest, round=rounds, record=digests, state_hash=digests),
    st.builds(CommitRequest, fragment=counts, round=rounds),
)


def signed(content: bytes) -> bytes:
    """What a malicious but authenticated sender can produce."""
    return ME.sign(DOMAIN + content) + content


@given(messages)
def test_a_message_comes_out_of_its_envelope_as_it_went_in(message):
    envelope = Envelope.open(seal(ME, HEADER, message), run_id=RUN, now_unix_s=0)
    assert envelope.body == message
    assert envelope.header == HEADER
    assert round_of(envelope.body) == message.round


@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data):
    for raw in (data, signed(data)):
        with pytest.raises(InvalidMessage):
            Envelope.open(raw, run_id=RUN)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from(["heartbeat", "ready", "plan", "commit", "vote", "nonsense"]))
def test_signed_nonsense_is_refused(value, kind):
    body = {**value, "kind": kind} if isinstance(value, dict) else value
    content = json.dumps({"header": HEADER.model_dump(mode="json"), "body": body}).encode()
    with pytest.raises(InvalidMessage):
        Envelope.open(signed(content), run_id=RUN)


HEARTBEAT = Heartbeat(round=1, state_hash=RUN, phase="training").model_dump(mode="json")


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": -1},
        {"tokens": 1.5},
        {"tokens": "1"},
        {"tokens_per_s": 1e30},
        {"tokens_per_s": -1.0},
        {"loss": float("inf")},
        {"name": "x" * 5_000_000},
        {"state_hash": "AB" * 32},
        {"round": 2**60},
        {"round": True},
        {"phase": "ruling"},
        {"extra": 1},
    ],
)
def test_sec_04_progress_that_no_honest_peer_reports_is_refused(change):
    content = json.dumps({"header": HEADER.model_dump(mode="json"), "body": {**HEARTBEAT, **change}}).encode()
    with pytest.raises(InvalidMessage) as caught:
        Envelope.open(signed(content), run_id=RUN)
    assert len(str(caught.value)) < 400


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_sec_02_pickles_are_never_unpickled():
    for content in (pickle.dumps(Bomb()), json.dumps({"header": {}, "body": pickle.dumps(Bomb()).hex()}).encode()):
        with pytest.raises(InvalidMessage):
            Envelope.open(signed(content), run_id=RUN)


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"header": 1' + b"0" * 5000 + b"}", b'"\\ud800"', b'{"header": NaN, "body": {}}']
)
def test_json_that_breaks_parsers_is_refused(content):
    with pytest.raises(InvalidMessage):
        Envelope.open(signed(content), run_id=RUN)


def test_values_have_no_second_canonical_form():
    commit_id = CommitRequest(fragment=0, round=1).content_id()
    assert commit_id == CommitRequest.model_validate({"round": 1, "fragment": 0}).content_id()
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


def test_a_certificate_is_bounded():
    with pytest.raises(ValueError, match="votes"):
        Commit.model_validate({"record": {}, "ballot": 0, "votes": ("00",) * 1025})
