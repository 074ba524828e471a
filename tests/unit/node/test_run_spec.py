"""A new run is valid as written, signed by one command, and every mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.node.run_spec import check_initial_state, load_run_spec, new_run_text, sign_text, validate_file
from atoll.protocol.identity import Identity
from atoll.protocol.spec import SpecError

OPERATOR = Identity.from_seed(bytes(32))
PEER = Identity.from_seed(bytes([1]) * 32)


def signed(path: Path, **options: object) -> Path:
    text = new_run_text(name="bible", roster=[PEER.peer_id], **options)  # type: ignore[arg-type]
    path.write_text(sign_text(text, OPERATOR))
    return path


def test_the_default_is_the_measured_recipe(tmp_path: Path) -> None:
    spec = load_run_spec(signed(tmp_path / "run.toml", num_rounds=10, seeds=["/ip4/127.0.0.1/tcp/1/p2p/x"]))
    assert spec.layout.num_elements == 139_584
    assert spec.training.inner.num_steps == 50
    assert (spec.training.outer.lr, spec.training.outer.momentum_warmup_rounds) == (0.7, 10)
    assert spec.genesis.stop.num_rounds == 10
    assert spec.genesis.membership.roster == (PEER.peer_id,)
    assert spec.signer == OPERATOR.peer_id


def test_settings_change_add_and_keep_their_comments(tmp_path: Path) -> None:
    settings = ["inner.num_steps=3", "data.validation_batches=1", "inner.optimizer=sgd", "limits.max_peers=4"]
    path = signed(tmp_path / "run.toml", settings=settings)
    spec = load_run_spec(path)
    assert (spec.training.inner.num_steps, spec.training.inner.optimizer) == (3, "sgd")
    assert (spec.training.data.validation_batches, spec.genesis.limits.max_peers) == (1, 4)
    assert "inner steps of a round" in path.read_text()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("inner.num_step=3", "unknown key inner.num_step; did you mean num_steps"),
        ("inner.lr=-1", r"inner\.lr = -1"),
        ("num_steps=3", "not section.key=value"),
        ("timing.heartbeat_interval_s=50.0", "must be shorter than"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_is_written(setting: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        new_run_text(name="x", roster=[PEER.peer_id], settings=[setting])


def test_an_unknown_model_field_in_a_signed_file_names_file_and_field(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = new_run_text(name="x", roster=[PEER.peer_id])
    with pytest.raises(SpecError, match=r"unknown key model\.depth"):
        sign_text(text.replace("dim = 64", "dim = 64\ndepth = 2", 1), OPERATOR, str(path))


def test_editing_the_model_before_signing_brings_the_initial_hash_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = new_run_text(name="x", roster=[PEER.peer_id])
    path.write_text(sign_text(text.replace("num_layers = 2", "num_layers = 1"), OPERATOR))
    genesis, training, is_signed = validate_file(path)
    assert is_signed
    assert training.model.num_layers == 1
    other = training.model_copy(update={"model": training.model.model_copy(update={"num_layers": 2})})
    with pytest.raises(SpecError, match="initial_state is not the hash"):
        check_initial_state(genesis, other, "run.toml")


def test_a_file_that_was_changed_after_signing_is_refused(tmp_path: Path) -> None:
    path = signed(tmp_path / "run.toml")
    path.write_text(path.read_text().replace("num_steps = 50", "num_steps = 51"))
    with pytest.raises(SpecError, match="was changed after it was signed"):
        load_run_spec(path)


def test_an_unsigned_file_is_valid_but_cannot_be_joined(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(new_run_text(name="x", roster=[PEER.peer_id]))
    assert validate_file(path)[2] is False
    with pytest.raises(SpecError, match=r"."):
        load_run_spec(path)


def test_signing_twice_gives_the_same_file_and_another_operator_is_refused(tmp_path: Path) -> None:
    once = sign_text(new_run_text(name="x", roster=[PEER.peer_id]), OPERATOR)
    assert sign_text(once, OPERATOR) == once
    with pytest.raises(SpecError, match="operators does not list"):
        sign_text(once, PEER)


@pytest.mark.parametrize(
    "setting",
    ["model.dim=128", "model.vocab_size=512", "model.num_layers=3", "model.tie_embeddings=true", "inner.num_steps=51"],
)
def test_ver_03_another_model_or_method_is_another_run_and_another_initial_state(tmp_path: Path, setting: str) -> None:
    """Who has it never meets the others: no envelope, stream or record of theirs has its run id."""
    one = load_run_spec(signed(tmp_path / "one.toml")).genesis
    other = load_run_spec(signed(tmp_path / "other.toml", settings=[setting])).genesis
    assert one.run_id != other.run_id
    assert (one.initial_state != other.initial_state) == setting.startswith("model.")
