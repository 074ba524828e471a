"""TLS between two known peers: certificates of their own Ed25519 keys, each pinned by the other. No authority.

A certificate is worth what its public key is: that key is the peer id. The other side's certificate arrives over the
libp2p stream, its key is compared with the id that libp2p authenticated, and then it is the only one that the
connection trusts. TLS 1.3 proves that the peer holds the key; nothing older is spoken.
"""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile
from dataclasses import dataclass, field
from typing import Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ...identity import Identity, PeerId, peer_id_of

MAX_CERTIFICATE_BYTES = 320
"""DER; ours have 200."""
# Clocks of volunteers are wrong by hours and sometimes by years, and a key's age is no concern of this protocol.
_NOT_BEFORE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)

Role = Literal["dials", "accepts"]


@dataclass(frozen=True)
class Credentials:
    """This node's certificate and key, as OpenSSL reads them."""

    peer_id: PeerId
    certificate: bytes
    """DER."""
    _pem: bytes = field(repr=False)

    @classmethod
    def of(cls, identity: Identity) -> Credentials:
        """A self-signed certificate of the node's own key."""
        nobody = x509.Name([])  # who it is, the key says
        builder = x509.CertificateBuilder().subject_name(nobody).issuer_name(nobody).serial_number(1)
        builder = builder.public_key(identity.private_key.public_key())
        builder = builder.not_valid_before(_NOT_BEFORE).not_valid_after(_NOT_AFTER)
        certificate = builder.sign(identity.private_key, None)
        key = identity.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        pem = key + certificate.public_bytes(Encoding.PEM)
        return cls(identity.peer_id, certificate.public_bytes(Encoding.DER), pem)

    def context(self, role: Role, pinned: bytes) -> ssl.SSLContext:
        """Settings of one connection to the holder of ``pinned``, a checked certificate in DER."""
        is_server = role == "accepts"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=pinned)
        if is_server:
            context.num_tickets = 0  # no resumption: every connection proves both keys
        _load_key(context, self._pem)
        return context


def _load_key(context: ssl.SSLContext, pem: bytes) -> None:
    """OpenSSL takes keys from files only, so it gets one in memory where there is such a thing."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("atoll", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
            return
        except OSError:  # no /proc here
            pass
        finally:
            os.close(descriptor)
    with tempfile.NamedTemporaryFile(prefix="atoll-") as file:  # mode 0600
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def peer_of(certificate: bytes) -> PeerId:
    """The peer id of a certificate's key. Raises ValueError for anything else than an Ed25519 certificate in DER."""
    if len(certificate) > MAX_CERTIFICATE_BYTES:
        raise ValueError(f"a certificate of {len(certificate)} bytes")
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"not a certificate: {str(error)[:100]}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("a certificate of another kind of key than Ed25519")
    return peer_id_of(key.public_bytes_raw())


def check(certificate: bytes, peer: PeerId) -> None:
    """Raise ValueError unless the certificate is ``peer``'s."""
    found = peer_of(certificate)
    if found != peer:
        raise ValueError(f"a certificate of …{found[-5:]}, not of …{peer[-5:]}")
