"""The run's genesis: the immutable, operator-signed rules that every peer of a run obeys.

A run spec file is TOML. `Genesis` validates it (frozen, no unknown keys), its canonical JSON is what the operator
signs, and the SHA-256 of those bytes is the run id. Comments and formatting of the file are free. The tables ``model``,
``data``, ``inner`` and ``outer`` belong to `atoll.training` and are opaque here; they are signed like everything else.

Defaults are part of protocol version 1: the canonical bytes hold every field, so changing a default changes run ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, Field, JsonValue, PrivateAttr, field_validator, model_validator

from .identity import Identity, PeerId, public_key_of, verify
from .parsing import canonical_json
from .spec_text import SpecError as SpecError
from .spec_text import parse_toml, read_text, to_toml, validated
from .values import Count, Digest, Frozen, Name, Peer

PROTOCOL_VERSION = 1
DOMAIN = b"atoll/genesis/1\0"
ALIGNMENT_ELEMENTS = 4096
"""Fragments, spans and chunks begin at multiples of this (architecture, the flat view of a model)."""

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Roster = Annotated[tuple[Peer, ...], Field(min_length=1, max_length=1024)]
Table: TypeAlias = dict[str, JsonValue]
M = TypeVar("M", bound=BaseModel)


class ExchangeConfig(Frozen):
    """How contributions travel."""

    topology: Literal["all", "two_tier", "gossip"] = "all"
    """``all``: every member with every other. ``two_tier``: groups, then between them. ``gossip``: in pairs, without a
    common state (`GossipConfig`)."""
    group_size: Annotated[int, Field(ge=2, le=128)] = 16
    """Of ``two_tier``: most peers of a group, its delegate included."""

    codec: Name = "int8"
    chunk_elements: Annotated[int, Field(ge=ALIGNMENT_ELEMENTS, le=2**20, multiple_of=ALIGNMENT_ELEMENTS)] = 65_536
    """Elements per chunk: the unit of hashing, sending, checking and reducing."""

    @property
    def num_seats(self) -> int:
        """Peers that share one place in the roster, and its lease."""
        return self.group_size if self.topology == "two_tier" else 1


class TimingConfig(Frozen):
    """Time limits of a round. An inner limit must be shorter than the one around it, or recovery never happens."""

    heartbeat_interval_s: Seconds = 2.0
    heartbeat_timeout_s: Seconds = 10.0
    """A peer not heard of for this long counts as dead for the round."""
    drop_after_s: Seconds = 60.0
    """A member not heard of for this long is left out of the next roster (never without a commit)."""
    ready_grace_s: Seconds = 30.0
    """How long a round waits for live stragglers once a quorum is ready."""
    progress_timeout_s: Seconds = 10.0
    """A stream without progress for this long is given up."""
    attempt_timeout_s: Seconds = 60.0
    """From plan to votes; then another member takes over."""
    quorum_timeout_s: Seconds = 600.0
    """Without a quorum for this long the round is given up and the operator is told."""

    @model_validator(mode="after")
    def _nested(self) -> Self:
        for inner, outer in _NESTED:
            inner_s, outer_s = getattr(self, inner), getattr(self, outer)
            if inner_s >= outer_s:
                raise ValueError(f"timing.{inner} ({inner_s:g}) must be shorter than timing.{outer} ({outer_s:g})")
        return self


_NESTED = (
    ("heartbeat_interval_s", "heartbeat_timeout_s"),
    ("heartbeat_timeout_s", "drop_after_s"),
    ("heartbeat_timeout_s", "attempt_timeout_s"),
    ("progress_timeout_s", "attempt_timeout_s"),
    ("ready_grace_s", "quorum_timeout_s"),
    ("attempt_timeout_s", "quorum_timeout_s"),
)


class MembershipConfig(Frozen):
    """Who takes part, and how many must agree."""

    mode: Literal["listed", "invite", "open"] = "listed"
    """``listed``: only ``roster`` and ``allowed`` are ever admitted. ``invite``: these, and whoever has a valid invite.
    ``open``: anybody who holds the state."""
    roster: Roster
    """Voters of round 1."""
    allowed: Annotated[tuple[Peer, ...], Field(max_length=4096)] = ()
    seeds: Annotated[tuple[Annotated[str, Field(max_length=256)], ...], Field(max_length=64)] = ()
    """Multiaddresses of peers to bootstrap from."""
    min_peers: Annotated[int, Field(ge=1, le=1024)] = 1
    """Contributions that a round needs at least."""
    fault_tolerance: Annotated[int, Field(ge=0, le=340)] | None = None
    """Misbehaving members that a certificate must survive; default a fifth of the roster, 0 = crashes only."""
    inviters: Annotated[tuple[Peer, ...], Field(max_length=64)] = ()
    """Keys that may sign invites, beside the operators'."""
    max_per_owner: Annotated[int, Field(ge=1, le=1024)] = 1
    """Members by invites of one owner."""
    accept_sybil_risk: bool = False
    """Strangers may fill an open run's roster, and then decide everything."""
    witnesses: Annotated[tuple[Peer, ...], Field(max_length=64)] = ()
    """Members of the first roster, more than half of whom must sign every commit, whoever else is in the roster."""

    @field_validator("roster", "allowed", "inviters", "witnesses")
    @classmethod
    def _peers(cls, peers: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        for peer in peers:
            public_key_of(peer)
        if len(set(peers)) != len(peers):
            raise ValueError("a peer is listed twice")
        return peers

    @model_validator(mode="after")
    def _sybil(self) -> Self:
        if self.mode == "open" and not (self.accept_sybil_risk or self.witnesses):
            raise ValueError(
                'membership.mode = "open" needs membership.witnesses, or membership.accept_sybil_risk = true, '
                'or use mode "listed"'
            )
        if not set(self.witnesses) <= set(self.roster):
            raise ValueError("membership.witnesses must be in membership.roster")
        return self

    def admits(self, peer: PeerId) -> bool:
        """Whether ``peer`` may ever enter a roster without an invite."""
        return self.mode == "open" or peer in self.roster or peer in self.allowed


class TrustConfig(Frozen):
    """How far a member is believed, and what one contribution can do to the mean."""

    clip_factor: Annotated[float, Field(ge=0, le=1e6)] = 2.0
    """A contribution's norm is cut to this many medians of the members' norms (`weights.py`). 0: not cut."""
    aggregation: Literal["mean", "agreement", "trimmed_mean", "centred_clip"] = "agreement"
    """What an owner makes of a chunk (`kernels/aggregation.py`). With fewer than five members always the mean."""
    max_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Largest share of the weight that one of three or more members has."""
    probation_rounds: Annotated[int, Field(ge=0, le=2**20)] = 0
    """A new member's contribution weighs nothing in this many rounds."""
    audited_chunks: Annotated[int, Field(ge=0, le=1024)] = 8
    """Most chunks of other owners' means that a member recomputes per round, chosen in private. 0: none."""
    audited_share: Annotated[float, Field(gt=0, le=1024)] = 0.25
    """What these may cost on average, as a share of the bytes of one encoded contribution."""
    copy_cosine: Annotated[float, Field(ge=0, lt=1)] = 0.98
    """A contribution that is so much like a recent one, beyond what all members have in common, is a copy
    (`admission.copies`); where honest ones are alike, closer to 1 in proportion. 0: not looked for."""
    spot_checks: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Chance per member and round that it recomputes another member's inner steps (`spot_checks.py`). 0: none."""
    min_cosine: Annotated[float, Field(ge=-1, le=1)] = 0.9
    """Between a contribution and the recomputed one, of a member that took the steps, whatever its hardware."""
    max_norm_ratio: Annotated[float, Field(ge=1, le=1e6)] = 1.15
    """Of their norms, either way."""
    min_continuity: Annotated[float, Field(ge=-1, le=1)] = 0.6
    """Cosine between where recomputed steps have led the inner optimizer and where its member goes on."""


class GossipConfig(Frozen):
    """Gossip rounds: pairs swap pseudo-gradients and weights. Replicas differ, and nobody certifies a state."""

    max_rounds_apart: Annotated[int, Field(ge=0, le=16)] = 2
    """Peers whose rounds are further apart do not pair; who is further behind than most starts anew, from others'
    weights."""
    max_distance: Annotated[float, Field(gt=0, le=1e6)] = 4.0
    """How far a partner's weights can pull, in medians of our own recent pseudo-gradients' norms."""
    num_donors: Annotated[int, Field(ge=1, le=16)] = 5
    """Peers whose weights a joiner asks for, if there are as many: of three or more it leaves out those that lie."""


class RecoveryConfig(Frozen):
    """Who may begin a new lineage without the operators, once a quorum is lost for ``timing.quorum_timeout_s``."""

    delegates: Annotated[tuple[Peer, ...], Field(max_length=16)] = ()
    """Nodes that sign a reset by themselves. None: only operators do, by hand."""
    threshold: Annotated[int, Field(ge=1, le=16)] = 1
    """How many of them must sign: more than half, so that delegates cut off from each other cannot sign two resets."""

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        number = len(set(self.delegates))
        if self.delegates and not number / 2 < self.threshold <= number:
            raise ValueError(f"recovery.threshold ({self.threshold}) must be more than half of {number} delegates")
        return self


class ArchiveConfig(Frozen):
    """Who keeps old states, so that a rollback finds one and the run survives everybody else's leaving."""

    peers: Annotated[tuple[Peer, ...], Field(max_length=16)] = ()
    every_rounds: Annotated[int, Field(ge=1, le=2**20)] = 10
    """They keep the state after every so many rounds."""
    num_states: Annotated[int, Field(ge=1, le=1024)] = 8
    """The newest so many of them."""
    max_bytes: Annotated[int, Field(ge=1, le=2**53)] = 2**37
    """Space that they take on an archivist's disk; always enough for the newest."""


class ControlConfig(Frozen):
    """What operators have ordered since the start, by amendments. A spec leaves it out."""

    paused: bool = False
    """No round is planned."""
    banned: Annotated[tuple[Peer, ...], Field(max_length=4096)] = ()
    required_protocol: Annotated[int, Field(ge=1, le=1 << 16)] = PROTOCOL_VERSION
    """A node that does not speak it takes no part."""


class LimitsConfig(Frozen):
    """Bounds on what a peer declares of itself."""

    max_tokens_per_round: Annotated[int, Field(ge=1, le=2**53)] = 2**40
    """A peer's contribution weighs no more than this; a group's, no more than its peers' together."""
    max_peers: Annotated[int, Field(ge=1, le=1024)] = 128
    served_bytes_per_s: Annotated[float, Field(ge=65_536, le=1e12)] = 64 * 2**20
    """Results, commits and state that a node gives to one peer, over any longer time."""


class StopConfig(Frozen):
    """When the run is finished."""

    num_rounds: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Last round; 0 = open-ended."""


class Genesis(Frozen):
    """The rules of a run. `run_id` identifies it in every message; it is also the parent of round 1."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    protocol_version: Literal[1]
    lineage: Count = 0
    initial_state: Digest
    """State hash of round 0; every node recomputes it from ``model`` and refuses to start on another."""
    operators: Annotated[tuple[Peer, ...], Field(min_length=1, max_length=16)]
    """Peer ids (hence public keys) that may sign this spec."""
    operator_threshold: Annotated[int, Field(ge=1, le=16)] = 1
    """Signatures of operators that an amendment needs."""
    model: Table
    data: Table = Field(default_factory=dict)
    inner: Table = Field(default_factory=dict)
    outer: Table = Field(default_factory=dict)
    exchange: ExchangeConfig = ExchangeConfig()
    timing: TimingConfig = TimingConfig()
    membership: MembershipConfig
    trust: TrustConfig = TrustConfig()
    gossip: GossipConfig = GossipConfig()
    limits: LimitsConfig = LimitsConfig()
    stop: StopConfig = StopConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    archive: ArchiveConfig = ArchiveConfig()
    control: ControlConfig = ControlConfig()
    _run_id: str | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _gossip_fits(self) -> Self:
        """What rests on a quorum's certificates has no place in a run without any."""
        if self.exchange.topology != "gossip":
            return self
        if self.membership.mode == "open":
            raise ValueError(
                'exchange.topology = "gossip" with membership.mode = "open": strangers could be partners of all, '
                'and no quorum outvotes them; use mode "listed" or "invite"'
            )
        if self.membership.witnesses or self.recovery.delegates or self.archive.peers:
            raise ValueError(
                'exchange.topology = "gossip" has no certificates: membership.witnesses, recovery.delegates and '
                "archive.peers have no meaning in it; leave them out"
            )
        return self

    @model_validator(mode="after")
    def _can_be_recomputed(self) -> Self:
        if self.trust.spot_checks and self.exchange.topology != "all":
            raise ValueError(
                f'trust.spot_checks with exchange.topology = "{self.exchange.topology}": a member sends more than its '
                "own inner steps there, so nobody can recompute it; set trust.spot_checks = 0"
            )
        return self

    @property
    def is_gossip(self) -> bool:
        """Whether replicas differ: no state of this run is certified, and no two need be equal (S4)."""
        return self.exchange.topology == "gossip"

    @cached_property
    def rules_id(self) -> str:
        """SHA-256 of the canonical bytes, hexadecimal: which rules are in force."""
        return self.content_id()

    @cached_property
    def member_limits(self) -> LimitsConfig:
        """`limits`, for the contribution of a roster's member: in two-tier rounds that is its whole group's."""
        most = min(self.limits.max_tokens_per_round * self.exchange.num_seats, 2**53)
        return self.limits.model_copy(update={"max_tokens_per_round": most})

    @property
    def run_id(self) -> str:
        """`rules_id` of the genesis as it was signed, whatever has been amended since."""
        return self._run_id or self.rules_id

    def amended(self, changes: Mapping[str, Any]) -> Self:
        """These rules with other values of some fields (as JSON has them), in the same run. Raises ValidationError."""
        amended = type(self).model_validate_json(canonical_json({**self.model_dump(mode="json"), **changes}))
        amended._run_id = self.run_id
        return amended

    def admits(self, peer: PeerId) -> bool:
        """Whether ``peer`` may ever enter a roster without an invite."""
        return self.membership.admits(peer) and peer not in self.control.banned

    @classmethod
    def parse(cls, text: str, source: str = "run spec") -> Self:
        """Genesis of a TOML text; an optional ``[signature]`` table is not looked at. Raises `SpecError`."""
        table = parse_toml(text, source)
        table.pop("signature", None)
        _check_version(table, source)
        return validated(cls, table, source)

    def to_toml(self) -> str:
        """A run spec file without signature; `parse` of it gives an equal value."""
        return to_toml(self.model_dump(mode="json", exclude_none=True))


class Signature(Frozen):
    """The ``[signature]`` table of a run spec file."""

    operator: Peer
    ed25519: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


class SignedGenesis(Frozen):
    """A genesis whose signature by one of its operators has been checked."""

    genesis: Genesis
    signature: Signature

    @classmethod
    def parse(cls, text: str, source: str = "run spec") -> Self:
        """Verify a signed TOML text. Raises `SpecError` if anything is wrong, unsigned included."""
        genesis = Genesis.parse(text, source)
        table = parse_toml(text, source).get("signature")
        if table is None:
            raise SpecError([f"{source}: not signed; the operator signs it with: atoll run sign {source}"])
        signature = validated(Signature, table, source, "signature.")
        if signature.operator not in genesis.operators:
            raise SpecError([f"{source}: signature.operator is not one of the run's operators; ask for the true file"])
        if not verify(signature.operator, bytes.fromhex(signature.ed25519), DOMAIN + genesis.canonical()):
            raise SpecError([f"{source}: signature.ed25519 does not match; the file was changed after it was signed"])
        return cls(genesis=genesis, signature=signature)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and verify a run spec file. Raises `SpecError`."""
        return cls.parse(read_text(path), str(path))


def sign(text: str, identity: Identity, source: str = "run spec") -> str:
    """``text`` with a ``[signature]`` table by ``identity`` at its end (replacing an older one); comments are kept.

    Raises `SpecError` if the spec is not valid or ``identity`` is not one of its operators.
    """
    genesis = Genesis.parse(text, source)
    if identity.peer_id not in genesis.operators:
        raise SpecError([f"{source}: operators does not list your identity {identity.peer_id}; add it, then sign"])
    signature = identity.sign(DOMAIN + genesis.canonical()).hex()
    body = _SIGNATURE_TABLE.sub("", text).rstrip("\n")
    return f'{body}\n\n[signature]\noperator = "{identity.peer_id}"\ned25519 = "{signature}"\n'


_SIGNATURE_TABLE = re.compile(r"^\[signature\][^\n]*\n(?:(?!\[)[^\n]*(?:\n|\Z))*", re.MULTILINE)


def _check_version(table: dict[str, Any], source: str) -> None:
    version = table.get("protocol_version")
    if isinstance(version, int) and version != PROTOCOL_VERSION:
        remedy = "upgrade atoll" if version > PROTOCOL_VERSION else "use the atoll release that the run was made with"
        raise SpecError([f"{source}: protocol_version is {version}, this atoll speaks {PROTOCOL_VERSION}; {remedy}"])
