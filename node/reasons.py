"""The node's states and the reasons for them: one sentence each, what would fix it, and how a script reads it.

A sentence says what is, why, and until when: present tense, "you", at most about 90 characters, numbers instead of
adjectives. Templates name their values in braces. ``{eta}`` (``in about 32 s``) and ``{about}`` (``about 32 s``)
come from the time at which the reason ends; a reason that may have no known end has a second sentence that says
what ends it. `explain` is pure and never raises on a missing value: it writes ``–``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from .figures import UNKNOWN, about_text, in_about_text

Severity = Literal["info", "warning", "error"]
Tone = Literal["calm", "sea", "lagoon", "sand", "coral"]

EXIT_CONTRIBUTING = 0
EXIT_WAITING = 3
EXIT_PAUSED = 4
EXIT_DEGRADED = 5
EXIT_STOPPED = 6


class State(StrEnum):
    """What the node is doing. The value is what the API and the journal carry."""

    STARTING = "starting"
    PREFLIGHT = "preflight"
    CONNECTING = "connecting"
    SYNCING = "syncing"
    WAITING = "waiting"
    TRAINING = "training"
    EXCHANGING = "exchanging"
    APPLYING = "applying"
    PAUSED = "paused"
    FINISHING = "finishing"
    DEGRADED = "degraded"
    EJECTED = "ejected"
    STOPPED = "stopped"
    FAILED = "failed"


class Reason(StrEnum):
    """Why the node does not contribute, or contributes less than it could."""

    SEEDS_UNREACHABLE = "seeds_unreachable"
    SEEDS_DISAGREE = "seeds_disagree"
    CLOCK_SKEW = "clock_skew"
    NOT_AUTHORISED = "not_authorised"
    DUPLICATE_IDENTITY = "duplicate_identity"
    SPEC_SIGNATURE = "spec_signature"
    PROTOCOL_MISMATCH = "protocol_mismatch"
    DOES_NOT_FIT = "does_not_fit"
    DOWNLOADING_STATE = "downloading_state"
    STATE_DISAGREES = "state_disagrees"
    WAITING_ROUND_BOUNDARY = "waiting_round_boundary"
    WAITING_SEAT = "waiting_seat"
    WAITING_MIN_PEERS = "waiting_min_peers"
    ALONE = "alone"
    PROVISIONAL = "provisional"
    ON_PROBATION = "on_probation"
    STRAGGLER = "straggler"
    REDUCER_FAILED = "reducer_failed"
    ROUND_SKIPPED = "round_skipped"
    UPDATE_REJECTED = "update_rejected"
    USER_PAUSED = "user_paused"
    SNOOZED = "snoozed"
    ON_BATTERY = "on_battery"
    USER_ACTIVE = "user_active"
    SCHEDULE = "schedule"
    DEVICE_BUSY = "device_busy"
    DEVICE_LOST = "device_lost"
    THERMAL = "thermal"
    POWER = "power"
    TRANSFER_QUOTA = "transfer_quota"
    NETWORK_OFFLINE = "network_offline"
    WOKE_FROM_SLEEP = "woke_from_sleep"
    P2P_RESTARTING = "p2p_restarting"
    NOT_REACHABLE = "not_reachable"
    RUN_PAUSED = "run_paused"
    RUN_FINISHED = "run_finished"
    EJECTED = "ejected"
    MISCONDUCT_PROVEN = "misconduct_proven"
    REPEATED_FAILURES = "repeated_failures"


@dataclass(frozen=True)
class StateText:
    """How a state is shown when no reason applies. ``without_end`` is used if its end is unknown."""

    tone: Tone
    exit_code: int
    text: str
    without_end: str = ""


@dataclass(frozen=True)
class ReasonText:
    """A reason's sentence, its remedy, and what it means to a script."""

    text: str
    without_end: str = ""
    fix: str = ""
    severity: Severity = "info"
    is_normal: bool = True
    exit_code: int | None = None
    """Overrides the state's exit code."""


@dataclass(frozen=True)
class Explanation:
    """One answer for the log, the API, the page and the exit code."""

    sentence: str
    live_sentence: str
    """The same with ``{eta}`` or ``{about}`` left in, for a reader that counts down by itself."""
    timeless_sentence: str
    """The same without a time, for a reader that no longer knows what time it is."""
    fix: str
    severity: Severity
    is_normal: bool
    tone: Tone
    exit_code: int


STATES: Mapping[State, StateText] = {
    State.STARTING: StateText("calm", EXIT_WAITING, "Starting; the first checks finish {eta}.", "Starting this node."),
    State.PREFLIGHT: StateText("calm", EXIT_WAITING, "Checking this machine; done {eta}.", "Checking this machine."),
    State.CONNECTING: StateText(
        "calm", EXIT_WAITING, "Looking for the run’s peers; next try {eta}.", "Looking for the run’s peers."
    ),
    State.SYNCING: StateText(
        "sea",
        EXIT_WAITING,
        "Loading the current weights; training starts {eta}.",
        "Loading the current weights; training starts when they are verified.",
    ),
    State.WAITING: StateText("calm", EXIT_WAITING, "Waiting for round {round}; {about}.", "Waiting for round {round}."),
    State.TRAINING: StateText(
        "lagoon",
        EXIT_CONTRIBUTING,
        "Training for round {round} on {device}; the next exchange starts {eta}.",
        "Training for round {round} on {device}.",
    ),
    State.EXCHANGING: StateText(
        "sea",
        EXIT_CONTRIBUTING,
        "Averaging round {round} with {num_others} other peers; new weights {eta}.",
        "Averaging round {round} with {num_others} other peers.",
    ),
    State.APPLYING: StateText(
        "sea", EXIT_CONTRIBUTING, "Applying round {round}; done {eta}.", "Applying round {round}."
    ),
    State.PAUSED: StateText("calm", EXIT_PAUSED, "This node is paused; it resumes {eta}.", "This node is paused."),
    State.FINISHING: StateText(
        "calm",
        EXIT_CONTRIBUTING,
        "Finishing round {round}, then this node stops, {eta}.",
        "Finishing round {round}, then this node stops.",
    ),
    State.DEGRADED: StateText("sand", EXIT_DEGRADED, "This node contributes less than it could."),
    State.EJECTED: StateText("coral", EXIT_DEGRADED, "The run does not accept this node’s updates any more."),
    State.STOPPED: StateText("calm", EXIT_STOPPED, "This node is stopped."),
    State.FAILED: StateText("coral", EXIT_STOPPED, "This node stopped because of a failure: {why}."),
}

REASONS: Mapping[Reason, ReasonText] = {
    Reason.SEEDS_UNREACHABLE: ReasonText(
        "No seed of {num_seeds} answers ({causes}); next try {eta}.",
        "No seed of {num_seeds} answers ({causes}); it goes on when one does.",
        "To fix: check this machine’s network and the seeds in the run spec, then atoll join again.",
        "error",
        False,
    ),
    Reason.SEEDS_DISAGREE: ReasonText(
        "The seeds name different states for round {round}; you wait until a majority agrees.",
        fix="To fix: ask the run’s operator which seeds are right.",
        severity="error",
        is_normal=False,
    ),
    Reason.CLOCK_SKEW: ReasonText(
        "This machine’s clock is {skew} the other peers’; training goes on, times are shown wrongly.",
        fix="To fix: set the clock, for example with timedatectl set-ntp true.",
        severity="warning",
        is_normal=False,
    ),
    Reason.NOT_AUTHORISED: ReasonText(
        "The run accepts listed peers only, and this node is not on the list.",
        fix="To fix: send the operator the id that atoll identity show prints.",
        severity="error",
        is_normal=False,
    ),
    Reason.DUPLICATE_IDENTITY: ReasonText(
        "Another node runs with this identity, so this one waits until that one stops.",
        fix="To fix: stop the other node, or start this one with another --folder.",
        severity="error",
        is_normal=False,
    ),
    Reason.SPEC_SIGNATURE: ReasonText(
        "The run spec’s signature is not that of the operator {signer}, so nothing was started.",
        fix="To fix: get the spec from the operator again.",
        severity="error",
        is_normal=False,
    ),
    Reason.PROTOCOL_MISMATCH: ReasonText(
        "The run speaks protocol {wanted}, this version speaks {found}.",
        fix="To fix: install the version of atoll that the run names.",
        severity="error",
        is_normal=False,
    ),
    Reason.DOES_NOT_FIT: ReasonText(
        "The run needs {needed} of {resource}, this machine has {available}.",
        fix="To fix: free some {resource}, or choose another --folder or --device.",
        severity="error",
        is_normal=False,
    ),
    Reason.DOWNLOADING_STATE: ReasonText(
        "Downloading the current weights from {num_donors} peers, {percent} % done; training starts {eta}.",
        "Downloading the current weights from {num_donors} peers, {percent} % done.",
    ),
    Reason.STATE_DISAGREES: ReasonText(
        "Your weights differ from the swarm’s after round {round}; the right ones are being loaded.",
        severity="warning",
        is_normal=False,
        exit_code=EXIT_WAITING,
    ),
    Reason.WAITING_ROUND_BOUNDARY: ReasonText(
        "Waiting for the start of round {round} to join it; {about}.",
        "Waiting for the start of round {round} to join it, when the running round commits.",
    ),
    Reason.WAITING_SEAT: ReasonText(
        "Looking for a group with a free seat; a delegate that has one lets this node train from its next round on.",
    ),
    Reason.WAITING_MIN_PEERS: ReasonText(
        "Waiting for peers: {num_peers} of {min_peers} are here; training starts when enough are.",
    ),
    Reason.ALONE: ReasonText(
        "No other peer answers, so you train alone; your work joins the swarm when one does.",
        fix="At most one round of work is carried over when it does.",
        severity="warning",
        is_normal=False,
        exit_code=EXIT_DEGRADED,
    ),
    Reason.PROVISIONAL: ReasonText(
        "{num_peers} of {num_members} members are here, {num_needed} commit a round; you train on provisionally.",
        fix="It ends when enough members answer again. At most one round of work is carried over.",
        severity="warning",
        is_normal=False,
        exit_code=EXIT_DEGRADED,
    ),
    Reason.ON_PROBATION: ReasonText(
        "Training for round {round}; this node is new here, and its work counts from round {counts_from} on.",
    ),
    Reason.STRAGGLER: ReasonText(
        "Waiting for {peer}, {behind_s} s behind; the round goes on without it {eta} at the latest.",
        "Waiting for {peer}, {behind_s} s behind; the round goes on without it when the grace is over.",
    ),
    Reason.REDUCER_FAILED: ReasonText(
        "{peer} dropped out while averaging; others average its part again, {about}.",
        "{peer} dropped out while averaging; others average its part again.",
        severity="warning",
    ),
    Reason.ROUND_SKIPPED: ReasonText(
        "Round {round} was not committed; nothing is lost, your work counts in the next one.",
    ),
    Reason.UPDATE_REJECTED: ReasonText(
        "Your update to round {round} was left out: {rule}.",
        fix="To fix: nothing, if it happens once. If it comes back: atoll status.",
        severity="warning",
        is_normal=False,
    ),
    Reason.USER_PAUSED: ReasonText(
        "You paused this node; it resumes by itself {eta}.", "You paused this node; it resumes when you say so."
    ),
    Reason.SNOOZED: ReasonText("Snoozed; this node resumes by itself {eta}.", "Snoozed until you resume it."),
    Reason.ON_BATTERY: ReasonText("On battery, so training rests; it starts again on mains power."),
    Reason.USER_ACTIVE: ReasonText("You use this machine, so training rests; it goes on when you are idle."),
    Reason.SCHEDULE: ReasonText(
        "Outside your schedule; training starts again {eta}.", "Outside your schedule; training starts again in it."
    ),
    Reason.DEVICE_BUSY: ReasonText("Another program uses {device}; training goes on when it is free."),
    Reason.DEVICE_LOST: ReasonText(
        "{device} was lost, so you contribute without it until the node restarts.",
        fix="To fix: atoll stop, then atoll join again.",
        severity="error",
        is_normal=False,
    ),
    Reason.THERMAL: ReasonText(
        "{device} reached {temperature} °C and rests until it is below {resume_below} °C.", severity="warning"
    ),
    Reason.POWER: ReasonText("{device} drew more than {limit_w} W and rests until it is below.", severity="warning"),
    Reason.TRANSFER_QUOTA: ReasonText(
        "The month’s {quota} are used; it resumes {eta}, or raise the limit.",
        "The month’s {quota} are used; it resumes next month, or raise the limit.",
    ),
    Reason.NETWORK_OFFLINE: ReasonText(
        "This machine is offline; inner training goes on, and the exchange when the network is back.",
        severity="warning",
        is_normal=False,
    ),
    Reason.WOKE_FROM_SLEEP: ReasonText("This machine slept for {slept}; the node catches up with round {round}."),
    Reason.P2P_RESTARTING: ReasonText(
        "The network process ended and is started again; connected {eta}.",
        "The network process ended and is started again.",
        severity="warning",
        is_normal=False,
        exit_code=EXIT_DEGRADED,
    ),
    Reason.NOT_REACHABLE: ReasonText(
        "Not reachable: {measured}.",
        fix="{remedy}",
        severity="warning",
    ),
    Reason.RUN_PAUSED: ReasonText("The operator paused the run; it goes on when the operator says so."),
    Reason.RUN_FINISHED: ReasonText("The run is finished after round {round}; its last weights are in your folder."),
    Reason.EJECTED: ReasonText(
        "The run does not accept this node’s updates any more: {rule}.",
        fix="To fix: write to the run’s operator.",
        severity="error",
        is_normal=False,
    ),
    Reason.MISCONDUCT_PROVEN: ReasonText(
        "Misconduct of this node was proven to the run’s members, and they take nothing of it any more.",
        fix="To fix: check its memory and its copy of atoll, then ask the operator to let in another identity.",
        severity="error",
        is_normal=False,
    ),
    Reason.REPEATED_FAILURES: ReasonText(
        "{what} failed {num_failures} times ({why}); next try {eta}.",
        "{what} failed {num_failures} times ({why}), so this node gave up.",
        "To fix: see the last lines of the log, then atoll join again.",
        "error",
        False,
    ),
}

CONTRIBUTING = frozenset({State.TRAINING, State.EXCHANGING, State.APPLYING, State.FINISHING})
_UNREADY = frozenset({State.STARTING, State.PREFLIGHT, State.STOPPED, State.FAILED, State.EJECTED})


class _Values(dict[str, object]):
    """Template values; a missing one is shown as unknown."""

    def __missing__(self, key: str) -> str:
        return UNKNOWN


def _fill(template: str, values: Mapping[str, object], eta_s: float | None) -> str:
    if eta_s is not None:
        values = {**values, "eta": in_about_text(eta_s), "about": about_text(eta_s)}
    return template.format_map(_Values(values))


def _fill_except_eta(template: str, values: Mapping[str, object]) -> str:
    return template.format_map(_Values({**values, "eta": "{eta}", "about": "{about}"}))


def _choose(text: str, without_end: str, eta_s: float | None) -> str:
    return without_end if eta_s is None and without_end else text


def explain(
    state: State, reason: Reason | None = None, values: Mapping[str, object] | None = None, eta_s: float | None = None
) -> Explanation:
    """The sentence and its companions. ``eta_s`` is the time until the state or reason ends, if that is known."""
    values = {key: UNKNOWN if value is None else value for key, value in (values or {}).items()}
    of_state = STATES[state]
    of_reason = REASONS[reason] if reason else None
    about = of_reason or of_state
    template = _choose(about.text, about.without_end, eta_s)
    fix = of_reason.fix if of_reason else ""
    failed = state in (State.FAILED, State.EJECTED)
    return Explanation(
        sentence=_fill(template, values, eta_s),
        live_sentence=_fill_except_eta(template, values),
        timeless_sentence=_fill_except_eta(about.without_end or about.text, values),
        fix=_fill(fix, values, None),
        severity=of_reason.severity if of_reason else "error" if failed else "info",
        is_normal=of_reason.is_normal if of_reason else not failed,
        tone="sand" if reason is Reason.ALONE else of_state.tone,
        exit_code=of_state.exit_code if of_reason is None or of_reason.exit_code is None else of_reason.exit_code,
    )


def is_ready(state: State, reason: Reason | None) -> bool:
    """Whether the node contributes or rightly waits (``/readyz``)."""
    if state in CONTRIBUTING:
        return True
    return state not in _UNREADY and (reason is None or REASONS[reason].is_normal)
