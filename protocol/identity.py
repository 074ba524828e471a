"""A node's identity: one Ed25519 key that is its libp2p peer id and signs everything the node says.

The key file is libp2p's private-key protobuf (bytes ``08 01 12 40``, 32 bytes of private seed, 32 bytes of public
key), so that p2pd loads it as it is; the peer id is the identity multihash of the public key's protobuf (libp2p
peer-id specification). A key file is created once with mode 0600 and never replaced: a short, wrong or
group-readable file is an error that names the file and the remedy.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NewType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PeerId = NewType("PeerId", str)
"""Base58 text of a libp2p peer id, for example ``12D3KooW…``."""

_KEY_FILE_PREFIX = bytes((0x08, 0x01, 0x12, 0x40))
_KEY_FILE_BYTES = len(_KEY_FILE_PREFIX) + 64
# identity multihash (00), 36 bytes, of protobuf {type: Ed25519 (08 01), data: 32 bytes (12 20)}
_PEER_ID_PREFIX = bytes((0x00, 0x24, 0x08, 0x01, 0x12, 0x20))
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class IdentityError(ValueError):
    """The key file cannot be used; the message names the file and what to do."""


def base58_encode(data: bytes) -> str:
    """Base58 (Bitcoin alphabet) of ``data``."""
    number = int.from_bytes(data, "big")
    digits: list[str] = []
    while number:
        number, remainder = divmod(number, 58)
        digits.append(_BASE58[remainder])
    num_leading_zeros = len(data) - len(data.lstrip(b"\0"))
    return "1" * num_leading_zeros + "".join(reversed(digits))


def base58_decode(text: str) -> bytes:
    """Inverse of `base58_encode`; raises ValueError on a character outside the alphabet."""
    number = 0
    for character in text:
        number = number * 58 + _BASE58.index(character)
    num_leading_ones = len(text) - len(text.lstrip("1"))
    return b"\0" * num_leading_ones + number.to_bytes((number.bit_length() + 7) // 8, "big")


def peer_id_of(public_key: bytes) -> PeerId:
    """Peer id of a raw 32-byte Ed25519 public key."""
    return PeerId(base58_encode(_PEER_ID_PREFIX + public_key))


def public_key_of(peer_id: str) -> bytes:
    """Raw Ed25519 public key inside a peer id; raises ValueError for anything that is not an Ed25519 peer id."""
    if len(peer_id) > 64:
        raise ValueError(f"not an Ed25519 peer id: {peer_id[:16]!r}… is too long")
    try:
        data = base58_decode(peer_id)
    except ValueError:
        raise ValueError(f"not an Ed25519 peer id: {peer_id!r} is not base58") from None
    if len(data) != len(_PEER_ID_PREFIX) + 32 or not data.startswith(_PEER_ID_PREFIX):
        raise ValueError(f"not an Ed25519 peer id: {peer_id!r}")
    return data[len(_PEER_ID_PREFIX) :]


def verify(peer_id: str, signature: bytes, message: bytes) -> bool:
    """Whether ``signature`` over ``message`` was made by the key behind ``peer_id``. Never raises."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer_id)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Identity:
    """A loaded key pair. `repr` shows the peer id only."""

    peer_id: PeerId
    _private_key: Ed25519PrivateKey = field(repr=False)

    @property
    def private_key(self) -> Ed25519PrivateKey:
        """For certificates; whoever has it is this node."""
        return self._private_key

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature, 64 bytes."""
        return self._private_key.sign(message)

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Identity of a 32-byte private seed (tests and throw-away demo keys)."""
        private_key = Ed25519PrivateKey.from_private_bytes(seed)
        return cls(peer_id_of(private_key.public_key().public_bytes_raw()), private_key)

    @classmethod
    def load(cls, path: Path) -> Identity:
        """Read a key file. Raises `IdentityError` if it is missing, truncated, foreign or readable by others."""
        try:
            data = path.read_bytes()
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            raise IdentityError(f"identity file {path}: {error.strerror}") from error
        if len(data) != _KEY_FILE_BYTES or not data.startswith(_KEY_FILE_PREFIX):
            raise IdentityError(
                f"identity file {path} is damaged: {len(data)} bytes instead of {_KEY_FILE_BYTES} of an Ed25519 key; "
                "restore it from a backup, or move it away to start with a new identity"
            )
        if mode & 0o077:
            raise IdentityError(f"identity file {path} can be read by others (mode {mode:04o}); run: chmod 600 {path}")
        seed, public_key = data[4:36], data[36:]
        identity = cls.from_seed(seed)
        if identity.peer_id != peer_id_of(public_key):
            raise IdentityError(f"identity file {path} is damaged: its public key does not belong to its private key")
        return identity

    @classmethod
    def create(cls, path: Path) -> Identity:
        """Write a new key file with mode 0600. Raises `FileExistsError` rather than replacing anything."""
        private_key = Ed25519PrivateKey.generate()
        data = _KEY_FILE_PREFIX + private_key.private_bytes_raw() + private_key.public_key().public_bytes_raw()
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside and linked into place, so that a crash never leaves half a key and never replaces one.
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        finally:
            temporary.unlink()
        return cls.load(path)

    @classmethod
    def load_or_create(cls, path: Path) -> Identity:
        """The identity at ``path``, created if the file does not exist. A damaged file is an error, never replaced."""
        return cls.load(path) if path.exists() else cls.create(path)
