"""Run specs: what an operator signs, and one clear line for everything that can be wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.protocol.identity import Identity
from atoll.protocol.spec import Genesis, SignedGenesis, SpecError, sign

OPERATOR = Identity.from_seed(bytes([1]) * 32)
STRANGER = Identity.from_seed(bytes([2]) * 32)

TEXT = f"""# The demo run. This comment must survive signing.
name = "demo"
protocol_version = 1
initial_state = "{"ab" * 32}"
operators = ["{OPERATOR.peer_id}"]

[model]
architecture = "llama"  # opaque to the protocol
dim = 64
[inner]
lr = 4e-3
betas = [0.9, 0.95]
[timing]
ready_grace_s = 5
[membership]
roster = ["{OPERATOR.peer_id}"]
"""


def fault_of(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        SignedGenesis.parse(text, "run.toml")
    assert len(caught.value.lines) == 1
    return caught.value.lines[0]


def test_a_signed_spec_is_verified_and_keeps_its_comments():
    signed = sign(TEXT, OPERATOR)
    assert signed.startswith(TEXT.rstrip())
    assert SignedGenesis.parse(signed).genesis == Genesis.parse(TEXT)


def test_the_run_id_depends_on_values_only_not_on_formatting():
    assert Genesis.parse(TEXT).run_id == Genesis.parse(TEXT.replace("  # opaque to the protocol", "")).run_id
    assert Genesis.parse(TEXT).run_id != Genesis.parse(TEXT.replace("dim = 64", "dim = 65")).run_id


def test_signing_again_replaces_the_signature_only():
    once = sign(TEXT, OPERATOR)
    assert sign(once, OPERATOR) == once
    assert sign(once + "\n[stop]\nnum_rounds = 3\n", OPERATOR).count("[signature]") == 1
    assert SignedGenesis.parse(sign(once + "\n[stop]\nnum_rounds = 3\n", OPERATOR)).genesis.stop.num_rounds == 3


def test_to_toml_is_read_back_as_the_same_genesis():
    genesis = Genesis.parse(TEXT.replace('"llama"', '"q\\"uo\\\\te\\u00e9"'))
    assert Genesis.parse(genesis.to_toml()) == genesis


def test_an_unknown_key_is_refused_with_the_closest_known_one():
    assert fault_of(TEXT.replace("ready_grace_s", "redy_grace_s")) == (
        "run.toml: unknown key timing.redy_grace_s; did you mean ready_grace_s?"
    )


def test_a_wrong_type_names_field_and_value():
    assert fault_of(TEXT.replace("ready_grace_s = 5", 'ready_grace_s = "5"')).startswith(
        "run.toml: timing.ready_grace_s = '5': input should be a valid number"
    )


def test_a_missing_field_is_named():
    assert fault_of(TEXT.replace('name = "demo"\n', "")) == "run.toml: name is missing; add it"


def test_another_protocol_version_is_refused_before_anything_else():
    """VER-01."""
    text = TEXT.replace("protocol_version = 1", "protocol_version = 2\nnew_key = 1")
    assert fault_of(text) == "run.toml: protocol_version is 2, this atoll speaks 1; upgrade atoll"


def test_str_02_limits_nested_in_the_wrong_order_are_refused_naming_both():
    text = TEXT.replace("ready_grace_s = 5", "progress_timeout_s = 90")
    assert fault_of(text) == (
        "run.toml: timing.progress_timeout_s (90) must be shorter than timing.attempt_timeout_s (60)"
    )


def test_a_change_after_signing_is_refused():
    assert "was changed after it was signed" in fault_of(sign(TEXT, OPERATOR).replace("dim = 64", "dim = 128"))


def test_a_signature_by_a_stranger_is_refused():
    signed = sign(TEXT, OPERATOR)
    head, tail = signed.split("[signature]")
    assert "not one of the run's operators" in fault_of(
        head + "[signature]" + tail.replace(OPERATOR.peer_id, STRANGER.peer_id)
    )


def test_a_stranger_cannot_sign():
    with pytest.raises(SpecError, match="operators does not list your identity"):
        sign(TEXT, STRANGER)


def test_an_unsigned_spec_is_refused_with_the_command_that_signs_it():
    assert "atoll run sign run.toml" in fault_of(TEXT)


def test_broken_toml_is_one_line():
    assert fault_of(TEXT + "\n[oops").startswith("run.toml: not valid TOML")


def test_values_that_json_cannot_hold_are_refused():
    assert "no place in a run spec" in fault_of(TEXT.replace("dim = 64", "dim = nan"))
    assert "no place in a run spec" in fault_of(TEXT.replace("dim = 64", "dim = 2026-01-01"))


def test_a_peer_that_is_no_ed25519_id_is_refused():
    assert "not an Ed25519 peer id" in fault_of(
        TEXT.replace(f'roster = ["{OPERATOR.peer_id}"]', f'roster = ["{"Q" * 46}"]')
    )


def test_open_membership_must_accept_its_risk():
    assert "accept_sybil_risk" in fault_of(TEXT.replace("[membership]", '[membership]\nmode = "open"'))


def test_a_missing_file_is_one_line(tmp_path: Path):
    with pytest.raises(SpecError, match=r"none\.toml: No such file"):
        SignedGenesis.load(tmp_path / "none.toml")


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path):
    (tmp_path / "x.toml").write_bytes(b"\x80\x04\x95")
    with pytest.raises(SpecError, match="not UTF-8"):
        SignedGenesis.load(tmp_path / "x.toml")


@pytest.mark.parametrize("topology", ["two_tier", "gossip"])
def test_spot_checks_are_refused_where_members_send_more_than_their_own_steps(topology: str):
    text = TEXT + f'[trust]\nspot_checks = 0.1\n[exchange]\ntopology = "{topology}"\n'
    fault = fault_of(text)
    assert "nobody can recompute it" in fault
    assert topology in fault
