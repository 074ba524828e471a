"""CPU and disk work outside the event loop, so that control traffic never waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def off_loop(executor: Executor, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Result (or exception) of ``work``, run in ``executor``. Cancelling the caller does not stop the work."""
    return await asyncio.get_running_loop().run_in_executor(executor, lambda: work(*args, **kwargs))
