"""What every parser of untrusted bytes must keep, whatever it is given: only its own errors, its time, its memory.

A parser is a `Target` of `targets.TARGETS`; `check` runs it on one input. Memory is the process' peak of resident
memory above what it was before (Linux resets that peak on request), so that what C and Rust take counts too.
"""

from __future__ import annotations

import asyncio
import ctypes
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType

from atoll.protocol.identity import Identity, PeerId
from atoll.protocol.swarm.streams import SwarmStream
from atoll.protocol.transport import RemoteProtocolError, StreamClosed, Traffic

MIB = 1 << 20
MAX_CPU_S = 3.0
"""For one input; the slowest honest one takes a twentieth."""
PEER: PeerId = Identity.from_seed(bytes([1]) * 32).peer_id
ON_STREAMS = (RemoteProtocolError, StreamClosed)


class Violation(AssertionError):
    """A parser that broke its promise, with the input that made it."""

    def __init__(self, target: str, what: str, data: bytes) -> None:
        super().__init__(
            f"{target}: {what}; input of {len(data)} bytes: {data[:400]!r}{'…' if len(data) > 400 else ''}"
        )
        self.data = data


@dataclass(frozen=True)
class Target:
    """One parser."""

    name: str
    parse: Callable[[bytes], object]
    examples: Sequence[bytes]
    """Valid inputs: each is accepted, and mutations begin from them."""
    covers: Sequence[str]
    """Functions of the product that it reaches, ``path.py:Class.function``."""
    refusals: tuple[type[BaseException], ...] = ()
    """The declared errors. Anything else that is raised is a fault of the product."""
    max_bytes: int = MIB
    """The longest input that its caller lets through."""
    memory_bytes: int = 24 * MIB
    """Upper bound of what one input of `max_bytes` may take, the input itself not counted."""
    tokens: Sequence[bytes] = field(default=())
    """Pieces of the format that random bytes would not find."""


class Refused(Exception):
    """For parsers that say no by what they return."""


def accepted(answer: object) -> None:
    """Raise `Refused` for the answer of a parser that says no without raising."""
    if answer is None or answer is False:
        raise Refused


class _TookTooLong(BaseException):
    pass


def _give_up(_signal: int, _frame: FrameType | None) -> None:
    raise _TookTooLong


@contextmanager
def _cpu_limit() -> Iterator[None]:
    """Processor time, not wall time: the machine may be busy."""
    former = signal.signal(signal.SIGPROF, _give_up)
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)


def _status_bytes(field_name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field_name):
            return int(line.split()[1]) * 1024
    raise LookupError(field_name)


@cache
def can_measure_memory() -> bool:
    """Whether the system resets the peak of resident memory on request."""
    try:
        _reset_peak()
        return _status_bytes("VmHWM:") >= 0
    except (OSError, LookupError):
        return False


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def give_back_free_memory() -> None:
    """What earlier inputs have left in the allocator would hide what the next one takes."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def check(target: Target, data: bytes) -> bool:
    """Parse ``data``; whether it was accepted. Raises `Violation`."""
    if not can_measure_memory():
        return _run(target, data)
    _reset_peak()
    before_bytes = _status_bytes("VmRSS:")
    is_accepted = _run(target, data)
    taken_bytes = _status_bytes("VmHWM:") - before_bytes
    if taken_bytes > target.memory_bytes:
        raise Violation(target.name, f"took {taken_bytes / MIB:.1f} MiB", data)
    return is_accepted


def _run(target: Target, data: bytes) -> bool:
    try:
        with _cpu_limit():
            target.parse(data)
    except target.refusals as error:
        if len(str(error)) > 2_000:
            raise Violation(target.name, f"an error of {len(str(error))} characters", data) from None
        return False
    except _TookTooLong:
        raise Violation(target.name, f"not done within {MAX_CPU_S:g} s of CPU time", data) from None
    except Exception as error:
        raise Violation(target.name, f"{type(error).__name__}: {str(error)[:300]}", data) from error
    return True


# --- streams ----------------------------------------------------------------------------------------------------------


class _Discard:
    """Takes all that is written: the other half of a stream whose peer has said everything in advance."""

    transport: _Discard

    def __init__(self) -> None:
        self.transport = self

    def write(self, _data: bytes) -> None:
        return

    async def drain(self) -> None:
        return

    def close(self) -> None:
        return

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


def stream_of(data: bytes) -> SwarmStream:
    """A real stream on which ``data`` has arrived, frame headers and all, and after which the peer is gone."""
    reader = asyncio.StreamReader(loop=_loop())
    reader.feed_data(data)
    reader.feed_eof()
    return SwarmStream(PEER, reader, _Discard(), Traffic(), progress_timeout_s=60.0)  # type: ignore[arg-type]


def frames(*payloads: bytes) -> bytes:
    """Wire form of whole frames."""
    return b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def on_stream(work: Callable[[SwarmStream], Awaitable[object]]) -> Callable[[bytes], object]:
    """A parser of the bytes of a whole stream."""

    async def run(data: bytes) -> object:
        return await work(stream_of(data))

    return lambda data: run_async(run(data))


def served(work: Callable[[SwarmStream], Awaitable[object]]) -> Callable[[bytes], object]:
    """A server of a stream: that its peer leaves in the end is no fault."""

    async def until_the_end(stream: SwarmStream) -> None:
        with suppress(StreamClosed):
            await work(stream)

    return on_stream(until_the_end)


def run_async(work: Awaitable[object]) -> object:
    """Result of ``work``, which must end by itself: nothing of it may run on."""
    loop = _loop()
    try:
        return loop.run_until_complete(asyncio.wait_for(work, 60.0))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
