"""How every benchmark reports: one JSON line per figure, with what it ran on and how often."""

from __future__ import annotations

import json
import os
import platform
from functools import cache
from pathlib import Path


@cache
def machine() -> str:
    """The processor, its cores and the system, in one line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores, {platform.system()}"


def report(
    name: str, value: float, unit: str, *, reference: float | None = None, repeats: int = 1, **details: object
) -> None:
    """Print one figure.

    ``reference`` is what the same run measured for the thing compared with, in the same unit; the ratio is value over
    reference. ``repeats`` is how many measurements ``value`` was taken from; say in ``details`` how (median, best).
    """
    figure = {
        "name": name,
        "value": round(value, 6),
        "unit": unit,
        "reference": reference,
        "ratio": None if not reference else round(value / reference, 4),
        "machine": machine(),
        "repeats": repeats,
    }
    print(json.dumps(figure | details), flush=True)
