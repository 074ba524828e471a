"""One key per node: created once, kept private, and never replaced when it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.protocol.identity import Identity, IdentityError, base58_decode, base58_encode, public_key_of, verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "identity.key"


def test_a_key_is_created_once_and_loaded_ever_after(path: Path):
    assert Identity.load_or_create(path).peer_id == Identity.load_or_create(path).peer_id
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Identity.create(path)


def test_the_peer_id_is_the_public_key_in_libp2p_form():
    identity = Identity.from_seed(bytes(32))
    assert identity.peer_id == "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"  # libp2p's own for this seed
    assert verify(identity.peer_id, identity.sign(b"text"), b"text")
    assert not verify(identity.peer_id, identity.sign(b"text"), b"test")


@pytest.mark.parametrize("num_bytes", [0, 1, 34, 67, 69])
def test_idn_03_a_truncated_key_file_is_an_error_and_stays_as_it_is(path: Path, num_bytes: int):
    Identity.create(path)
    data = (path.read_bytes() + b"\0")[:num_bytes]
    path.write_bytes(data)
    with pytest.raises(IdentityError, match=r"identity\.key is damaged.*restore it from a backup"):
        Identity.load_or_create(path)
    assert path.read_bytes() == data


def test_a_key_whose_halves_do_not_match_is_damaged(path: Path):
    Identity.create(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(IdentityError, match="does not belong"):
        Identity.load(path)


def test_a_key_that_others_can_read_is_refused_with_the_remedy(path: Path):
    Identity.create(path)
    path.chmod(0o640)
    with pytest.raises(IdentityError, match="chmod 600"):
        Identity.load(path)


def test_the_private_key_is_not_in_the_repr():
    assert "private" not in repr(Identity.from_seed(bytes(32)))


def test_base58_is_reversible():
    for data in (b"", b"\0", b"\0\0abc", bytes(range(40))):
        assert base58_decode(base58_encode(data)) == data


@pytest.mark.parametrize("text", ["", "Q" * 46, "0OIl", "1" * 100, "🦊" * 46])
def test_what_is_no_ed25519_peer_id_has_no_public_key(text: str):
    with pytest.raises(ValueError, match="not an Ed25519 peer id"):
        public_key_of(text)
    assert not verify(text, b"", b"")
