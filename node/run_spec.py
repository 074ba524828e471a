"""Where protocol and training meet: a run spec as both understand it, and the text of a new one.

`protocol.spec` owns the file, its signature and the run id, and treats the training tables as opaque;
`training.config` owns these tables. A run spec that passes here is one that a node can start with, but for the state
hash of round 0, which the node recomputes when it has made the initial state.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..protocol.amendments import Amendment, InvalidAmendment, RunRules
from ..protocol.identity import Identity
from ..protocol.spec import Genesis, SignedGenesis, SpecError
from ..protocol.spec import sign as sign_genesis
from ..protocol.spec_text import explain, read_text
from ..training.config import TrainingConfig
from ..training.flat import FlatLayout, initial_state
from .amendment_store import companion, read_companion

_NO_OPERATORS = re.compile(r"^operators = \[\]", re.MULTILINE)


@dataclass(frozen=True)
class RunSpec:
    """A verified run spec. ``signer`` is the operator whose signature it carries."""

    genesis: Genesis
    signer: str
    training: TrainingConfig
    layout: FlatLayout
    amendments: tuple[Amendment, ...] = ()
    """Those beside the file that have all their signatures, as far as they follow each other."""

    @property
    def rules(self) -> RunRules:
        """Genesis and amendments of the file."""
        return RunRules(self.genesis).extended(self.amendments)


def load_run_spec(path: Path) -> RunSpec:
    """Read, verify and understand a signed run spec. Raises `SpecError`: per fault a line with file, field, remedy."""
    signed = SignedGenesis.load(path)
    training = training_config(signed.genesis, str(path))
    layout, amendments = FlatLayout.of(training.model), sound_amendments(signed.genesis, path)
    return RunSpec(signed.genesis, signed.signature.operator, training, layout, amendments)


def sound_amendments(genesis: Genesis, path: Path) -> tuple[Amendment, ...]:
    """The amendments beside a spec file, but for a last one that still lacks signatures. Raises `SpecError`."""
    try:
        found, rules = read_companion(path), RunRules(genesis)
        for amendment in found:
            is_partial = amendment is found[-1] and rules.is_partial(amendment)
            rules = rules if is_partial else rules.extended([amendment])
    except InvalidAmendment as error:
        raise SpecError([f"{companion(path)}: {error}; get the file from the operator again"]) from None
    return rules.amendments


def training_config(genesis: Genesis, source: str) -> TrainingConfig:
    """The training tables of a genesis. Raises `SpecError`."""
    tables = {"model": genesis.model, "data": genesis.data, "inner": genesis.inner, "outer": genesis.outer}
    try:
        training = TrainingConfig.model_validate(tables)
    except ValidationError as error:
        raise SpecError(explain(error, TrainingConfig, source)) from None
    if genesis.is_gossip != (training.outer.optimizer == "noloco"):
        raise SpecError(
            [f'{source}: outer.optimizer = "noloco" and exchange.topology = "gossip" belong together; set both or none']
        )
    return training


def parse_unsigned(text: str, source: str) -> tuple[Genesis, TrainingConfig]:
    """A spec before it is signed: ``operators`` may still be empty. Raises `SpecError`."""
    placeholder = f'operators = ["{Identity.from_seed(bytes(32)).peer_id}"]'
    genesis = Genesis.parse(_NO_OPERATORS.sub(placeholder, text), source)
    return genesis, training_config(genesis, source)


def check_initial_state(genesis: Genesis, training: TrainingConfig, source: str) -> None:
    """Raises `SpecError` if the spec's hash of round 0 is not that of its model."""
    if genesis.initial_state != initial_state_hash(training):
        line = f"{source}: initial_state is not the hash of this model's initial weights"
        raise SpecError([f"{line}; after changing [model], run: atoll run sign {source}"])


def initial_state_hash(training: TrainingConfig) -> str:
    """State hash of round 0: the model's initial weights, no momentum, nothing read of the data."""
    from . import replica

    return replica.initial_state_hash(initial_state(training.model))


def sign_text(text: str, identity: Identity, source: str = "run spec") -> str:
    """``text`` signed by ``identity``. An empty list of operators becomes that identity; comments are kept.

    The hash of round 0 is brought up to date first, so that an operator may edit ``[model]``. Raises `SpecError`.
    """
    text = _NO_OPERATORS.sub(f'operators = ["{identity.peer_id}"]', text)
    _, training = parse_unsigned(text, source)
    fresh = f'initial_state = "{initial_state_hash(training)}"'
    text = re.sub(r'^initial_state = "[0-9a-f]{64}"', fresh, text, count=1, flags=re.MULTILINE)
    return sign_genesis(text, identity, source)


def validate_file(path: Path) -> tuple[Genesis, TrainingConfig, bool]:
    """Everything that can be checked before a node starts; the last value says whether the file is signed.

    Raises `SpecError`. An unsigned file is fully checked too.
    """
    text = read_text(path)
    if re.search(r"^\[signature\]", text, re.MULTILINE):
        spec = load_run_spec(path)
        check_initial_state(spec.genesis, spec.training, str(path))
        return spec.genesis, spec.training, True
    genesis, training = parse_unsigned(text, str(path))
    return genesis, training, False


# --- the text of a new run --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    key: str
    value: Any
    comment: str = ""

    def __str__(self) -> str:
        text = f"{self.key} = {_toml(self.value)}"
        if len(text) > 60 and self.comment:
            return f"# {self.comment}\n{text}"
        return f"{text:<34}  # {self.comment}" if self.comment else text


@dataclass(frozen=True)
class _Section:
    name: str
    comment: str
    lines: tuple[_Line, ...] = field(default=())

    def __str__(self) -> str:
        return "\n".join([f"\n[{self.name}]  # {self.comment}", *map(str, self.lines)])


_RECIPE = (
    _Section(
        "model",
        "a Llama-type decoder over bytes",
        (
            _Line("architecture", "llama"),
            _Line("vocab_size", 256),
            _Line("dim", 64),
            _Line("num_layers", 2),
            _Line("num_heads", 4),
            _Line("num_kv_heads", 4),
            _Line("hidden_dim", 192),
            _Line("sequence_length", 64),
            _Line("tie_embeddings", False),
        ),
    ),
    _Section(
        "data",
        "every peer draws its own samples from the same text",
        (
            _Line("source", "builtin:kjv", "or file:PATH, a UTF-8 text that every peer has"),
            _Line("tokenizer", "bytes"),
            _Line("validation_fraction", 0.03, "held out at the end of the text"),
            _Line("seed", 0),
        ),
    ),
    _Section(
        "inner",
        "what a peer does between two exchanges",
        (
            _Line("optimizer", "adamw"),
            _Line("lr", 0.004),
            _Line("betas", [0.9, 0.95]),
            _Line("weight_decay", 0.1),
            _Line("clip_norm", 1.0),
            _Line("warmup_steps", 20),
            _Line("batch_size", 8),
            _Line("num_steps", 50, "inner steps of a round"),
            _Line("adaptive_steps", True, "slow peers take fewer of them, fast ones more"),
        ),
    ),
    _Section(
        "outer",
        "what is done with the mean of the pseudo-gradients",
        (
            _Line("optimizer", "nesterov"),
            _Line("lr", 0.7),
            _Line("momentum", 0.9),
            _Line("momentum_warmup_rounds", 10, "rises from 0 to momentum over these rounds"),
        ),
    ),
    _Section(
        "exchange",
        "how contributions travel",
        (
            _Line("topology", "all", '"two_tier": groups, for more than about 64 peers; or "gossip": pairs'),
            _Line("codec", "int8", "or float32: four times the traffic"),
            _Line("chunk_elements", 65_536),
        ),
    ),
    _Section(
        "timing",
        "time limits; generous for links of 10 Mbit/s",
        (
            _Line("heartbeat_interval_s", 2.0),
            _Line("heartbeat_timeout_s", 10.0, "a silent peer counts as dead for the round"),
            _Line("drop_after_s", 60.0, "then it is left out of the next roster"),
            _Line("ready_grace_s", 30.0, "longest wait for stragglers once a quorum is ready"),
            _Line("progress_timeout_s", 10.0, "a stream that stands still is given up"),
            _Line("attempt_timeout_s", 60.0, "then another peer leads the round"),
            _Line("quorum_timeout_s", 600.0, "then the round is given up"),
        ),
    ),
)


_GOSSIP_RECIPE = {
    "outer": _Section(
        "outer",
        "what a pair does with its two pseudo-gradients and weights (NoLoCo)",
        (
            _Line("optimizer", "noloco"),
            _Line("lr", 0.7),
            _Line("momentum", 0.5),
            _Line("consensus", 0.7, "how strongly the weights of a pair pull at each other"),
        ),
    ),
    "exchange": _Section(
        "exchange",
        "gossip: every peer keeps weights of its own; they are near each other, never equal, and nobody certifies them",
        (
            _Line("topology", "gossip", "in each round a peer swaps with one other"),
            _Line("codec", "int8", "of pseudo-gradients; weights travel as float32"),
            _Line("chunk_elements", 65_536),
        ),
    ),
}
"""Sections of a run whose topology is set to ``gossip``."""

_TWO_TIER_RECIPE = {
    "exchange": _Section(
        "exchange",
        "two tiers, for more peers than one roster: groups average first, then their delegates, who hold the rounds",
        (
            _Line("topology", "two_tier", "delegates are the first limits.max_peers that others can dial"),
            _Line("group_size", 16, "most peers of a group, its delegate included"),
            _Line("codec", "int8", "or float32: four times the traffic"),
            _Line("chunk_elements", 65_536),
        ),
    ),
    "limits": _Section("limits", "bounds on what a peer declares of itself", (_Line("max_peers", 64, "delegates"),)),
}
"""Sections of a run whose topology is set to ``two_tier``."""
_SPECIAL = {"gossip": _GOSSIP_RECIPE, "two_tier": _TWO_TIER_RECIPE}


def _recipe(settings: Sequence[str]) -> list[_Section]:
    wanted = [text.strip() for path, _, text in (s.partition("=") for s in settings) if path == "exchange.topology"]
    special = _SPECIAL.get(str(_value(wanted[-1])), {}) if wanted else {}
    usual = {section.name: section for section in _RECIPE}
    return list({**usual, **special}.values())


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def new_run_text(
    *,
    name: str,
    roster: Sequence[str],
    num_rounds: int = 0,
    seeds: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> str:
    """The TOML of a new, unsigned run with comments: the measured recipe, changed by ``settings``.

    ``settings`` are ``section.key=value`` with a TOML value (bare words are taken as text). ``num_rounds`` 0 is
    open-ended. Raises `SpecError` if the result is not a valid run.
    """
    membership = _Section(
        "membership",
        "who takes part, and how many must agree",
        (
            _Line("mode", "listed", '"invite": also who has an invite (atoll run invite); or "open"'),
            _Line("roster", list(roster), "peer ids (atoll identity show) of the first round's voters"),
            _Line("allowed", [], "further peer ids that may join later"),
            _Line("seeds", list(seeds), "addresses to bootstrap from: /ip4/…/tcp/…/p2p/…"),
            _Line("min_peers", 1),
        ),
    )
    stop = _Section("stop", "when the run ends", (_Line("num_rounds", num_rounds, "0: open-ended"),))
    sections = [*_recipe(settings), membership, stop]
    for setting in settings:
        sections = _with_setting(sections, setting)
    body = "\n".join(map(str, sections))
    _, training = parse_unsigned(_head(name, "0" * 64) + body, "new run")
    return _head(name, initial_state_hash(training)) + body + "\n"


def _head(name: str, initial_hash: str) -> str:
    return (
        "# An atoll run. Every peer obeys this file. Edit it, then: atoll run sign FILE\n\n"
        f"name = {_toml(name)}\n"
        "protocol_version = 1\n"
        "operators = []  # filled in by atoll run sign\n"
        f'initial_state = "{initial_hash}"  # from [model]; kept up to date by atoll run sign\n'
    )


def _with_setting(sections: Sequence[_Section], setting: str) -> list[_Section]:
    path, has_value, text = setting.partition("=")
    name, _, key = path.strip().partition(".")
    if not has_value or not key:
        raise SpecError([f"--set {setting}: not section.key=value; for example --set inner.num_steps=20"])
    line = _Line(key, _value(text.strip()))
    if not any(section.name == name for section in sections):
        return [*sections, _Section(name, "added with --set", (line,))]
    return [_with_line(section, line) if section.name == name else section for section in sections]


def _with_line(section: _Section, line: _Line) -> _Section:
    others = section.lines
    if any(old.key == line.key for old in others):
        lines = tuple(replace(old, value=line.value) if old.key == line.key else old for old in others)
    else:
        lines = (*others, line)
    return replace(section, lines=lines)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
