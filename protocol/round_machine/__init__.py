"""One round as a pure state machine: ``advance(state, event, now) -> (state, actions)``.

Theory of operation
-------------------
A round decides one `Record` (a plan and its span results) by single-decree Paxos among the roster that the parent
commit names (S1). Every member is contributor, acceptor and learner; whoever owns the highest ballot leads.

    member:   TRAINING ─Contributed→ READY ─PlanMessage→ REDUCING ─Proposal + ResultsHeld→ IN_DOUBT ─Commit→ DECIDED
    leader:   (none) ─take over→ Preparing ─quorum of Promise→ Gathering ─all ready→ Reducing ─all SpanDone→ Proposing
                                     └─ a promise carries an accepted record ──────────────────────────────→ ┘
              Proposing ─quorum of Vote→ Commit.   Ballot 0 starts at Gathering.

| event            | phase                  | effect                                                                |
|------------------|------------------------|-----------------------------------------------------------------------|
| Contributed      | TRAINING               | Ready to the roster (READY); in any other phase `IllegalTransition`   |
| Ready            | not DECIDED            | counted; the leader plans when all live are ready, or grace is over   |
| PlanMessage      | any, ballot ≥ promised | cancel a lower attempt, start this exchange (REDUCING)                |
| SpanReduced      | owner in this attempt  | SpanDone to the leader                                                |
| SpanLost         | in this attempt        | SpanFailed to the leader, who takes a new ballot without that owner   |
| ExchangeEnded    | in this attempt        | a proposal that still lacks results here is fetched                   |
| Prepare          | ballot ≥ promised      | persist the promise, then Promise (with what was accepted, if any)    |
| Proposal         | ballot ≥ promised      | results durable here: persist, then Vote (IN_DOUBT); else fetch first |
| ResultsHeld      | proposal waiting       | persist, then Vote (IN_DOUBT)                                         |
| Prepare/Plan/…   | ballot < promised      | Nack                                                                  |
| Commit           | any                    | certificate valid: Decide (DECIDED); else `RemoteProtocolError`       |
| Distrusted       | in this attempt        | SpanFailed to the leader, who takes a new ballot without that owner   |
| Proven           | not DECIDED            | the peer counts as gone; no vote, and no attempt, with spans of its   |
| Tick             | no quorum for too long | GiveUp (TRAINING), never IN_DOUBT                                     |
| any              | DECIDED                | ignored                                                               |

A leader fails over in three ways: its heartbeats stop (the next live reachable member of the permutation takes over
at once), it lives but the attempt's time passes (the others follow in staggered order), or it gives way to a higher
ballot (`Nack`). A leader that restarts never leads a ballot again that it led before (`Acceptor.led` is on disk), so
one ballot never carries two records.

What this package does not know: torch, sockets, files, clocks, and who performs its actions.
"""

from .events import (
    Action,
    CancelExchange,
    Contributed,
    Decide,
    Distrusted,
    Event,
    ExchangeEnded,
    FetchResults,
    GiveUp,
    Persist,
    Proven,
    Received,
    ResultsHeld,
    Send,
    SpanLost,
    SpanReduced,
    StartExchange,
    Step,
    Tick,
    Woke,
)
from .machine import advance, begin, is_routine
from .validity import check_commit, check_plan, check_record
from .values import Acceptor, IllegalTransition, PeerView, Phase, RoundState, Rules
from .views import expected_leader, grace_s, is_live, live_roster, pace_of, provisional

__all__ = [
    "Acceptor",
    "Action",
    "CancelExchange",
    "Contributed",
    "Decide",
    "Distrusted",
    "Event",
    "ExchangeEnded",
    "FetchResults",
    "GiveUp",
    "IllegalTransition",
    "PeerView",
    "Persist",
    "Phase",
    "Proven",
    "Received",
    "ResultsHeld",
    "RoundState",
    "Rules",
    "Send",
    "SpanLost",
    "SpanReduced",
    "StartExchange",
    "Step",
    "Tick",
    "Woke",
    "advance",
    "begin",
    "check_commit",
    "check_plan",
    "check_record",
    "expected_leader",
    "grace_s",
    "is_live",
    "is_routine",
    "live_roster",
    "pace_of",
    "provisional",
]
