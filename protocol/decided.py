"""A decided round, and there is no way around it: its bytes are fetched, and the replica takes them."""

from __future__ import annotations

import asyncio

from .messages import Commit
from .outcomes import Observe
from .record import Record
from .reduction import Reduction
from .replica import Replica
from .resync import Resync
from .spec import TimingConfig

_DISK_RETRY_S = 2.0


async def obtain(reduction: Reduction, record: Record, resync: Resync, timing: TimingConfig) -> memoryview | None:
    """The decided bytes; None if nobody gives them in time, or as soon as it is clear that nobody has to."""
    obtaining = asyncio.ensure_future(reduction.obtain(record, timing.attempt_timeout_s))
    try:
        while not obtaining.done() and not resync.is_shorter:
            await asyncio.wait({obtaining}, timeout=timing.heartbeat_interval_s)
        return obtaining.result() if obtaining.done() else None
    finally:
        obtaining.cancel()


async def apply_durably(replica: Replica, commit: Commit, mean: memoryview, observe: Observe) -> str:
    """The state hash after ``commit``. On a full disk, wait until it takes the commit, and say so."""
    while True:
        try:
            return await replica.apply(commit, mean)
        except OSError as error:
            observe("state.unwritable", {"why": error.strerror or str(error)})
            await asyncio.sleep(_DISK_RETRY_S)
