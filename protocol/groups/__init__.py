"""Two-tier rounds: more peers than one roster holds (`exchange.topology = "two_tier"`).

The roster's members are *delegates*; they hold the rounds, by the unchanged round machine. Every other peer *follows*
a delegate: it trains on a seat's part of the delegate's lease, reduces with the delegate's group, and hears of the
commit as any non-member does. The group's mean is, bytes unchanged, the delegate's contribution. Followers never vote.

Pure: `places` (whose samples), `seats` (who sits where), `choice` (which delegate), `mustering` (when and what a group
reduces), `counting` (whose work is in a commit), `fidelity` (whether a delegate contributes its group's mean),
`hand_down` (the result's way to followers), `circle` (who talks to whom). With I/O: `host` and `attempt` (a delegate's
side), `seating` and `seat_store`, `follower`, `ledger`, `probe` (measuring), `groups` (all, for the round driver).
"""

from __future__ import annotations
