"""How figures are written for people: durations, bytes, counts and ids, by one set of rules.

The rules are those of the dashboard, so that a sentence in the terminal and on the page reads the same. Unknown is
``–``, and zero is ``0``.
"""

from __future__ import annotations

import math

UNKNOWN = "–"
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_COUNT_UNITS = ("", "k", "M", "B", "T")


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _scaled(value: float, units: tuple[str, ...]) -> tuple[float, str]:
    """``value`` in the largest unit (steps of 1,000) that keeps three significant digits below 1,000."""
    index = 0
    while abs(value) >= 999.5 and index + 1 < len(units):
        value, index = value / 1000, index + 1
    return value, units[index]


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    decimals = 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    return f"{value:.{decimals}f}"


def bytes_text(num_bytes: float | None) -> str:
    """Bytes on a wire or disk in powers of 1,000: ``1.09 GB``."""
    if num_bytes is None or not _is_known(num_bytes):
        return UNKNOWN
    value, unit = _scaled(float(num_bytes), _BYTE_UNITS)
    return f"{value:.0f} B" if unit == "B" else f"{_three_digits(value)} {unit}"


def count_text(count: float | None) -> str:
    """A number of tokens: ``81.2 M``; below 1,000 the integer itself."""
    if count is None or not _is_known(count):
        return UNKNOWN
    value, unit = _scaled(float(count), _COUNT_UNITS)
    return f"{value:.0f}" if not unit else f"{_three_digits(value)} {unit}"


def duration_text(seconds: float | None) -> str:
    """``2.1 s``, ``46 s``, ``28 min 12 s``, ``3 h 05 min``."""
    if seconds is None or not _is_known(seconds):
        return UNKNOWN
    seconds = max(0.0, float(seconds))
    if 0 < seconds < 0.05:
        return "< 0.1 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def about_text(seconds: float) -> str:
    """An estimate: rounded to 1 s below a minute, 1 min below an hour, 5 min beyond; at 0 ``any moment``."""
    if seconds < 0.5:
        return "any moment"
    if seconds < 59.5:
        return f"about {seconds:.0f} s"
    if seconds < 3570:
        return f"about {seconds / 60:.0f} min"
    minutes = round(seconds / 300) * 5
    hours, rest = divmod(minutes, 60)
    return f"about {hours} h {rest:02d} min" if rest else f"about {hours} h"


def in_about_text(seconds: float) -> str:
    """``in about 32 s``, or ``any moment`` when the time is over."""
    text = about_text(seconds)
    return text if text == "any moment" else f"in {text}"


def short_id(peer_id: str) -> str:
    """The last five characters of a peer id."""
    return peer_id[-5:]


def short_hash(digest: str | None) -> str:
    """``b4d0…19f3``."""
    return f"{digest[:4]}…{digest[-4:]}" if digest else UNKNOWN
