"""``python -m tests.fuzz --minutes 60``: the parsers for as long as wanted, one after another, again and again.

With atheris (``pip install atheris``) each target's turn is guided by coverage, in a process of its own; without it the
turns are random mutations from a seed that is printed. A failing input is written to the folder of ``--failures``.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TURN_S = 20.0


def main() -> int:
    options = _options()
    if options.target is not None:
        _guided(options.target, options.minutes * 60, options.seed, options.corpus)
    end_s, num_failures, number = time.monotonic() + options.minutes * 60, 0, 0
    from .targets import TARGETS

    is_guided = importlib.util.find_spec("atheris") is not None and not options.random
    print(f"{len(TARGETS)} parsers, {'atheris' if is_guided else 'random mutations'}, seed {options.seed}", flush=True)
    while (left_s := end_s - time.monotonic()) > 0:
        turn, position = divmod(number, len(TARGETS))
        turn_s = min(TURN_S, left_s, max(1.0, options.minutes * 60 / len(TARGETS)))
        seed = options.seed + turn
        failed = _turn_guided(position, turn_s, seed) if is_guided else _turn_random(position, turn_s, seed)
        if failed is not None:
            num_failures += 1
            _keep(options.failures, TARGETS[position].name, failed)
        number += 1
    print(f"{number} turns, {num_failures} failures")
    return 1 if num_failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", action="store_true", help="do not use atheris")
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--target", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _turn_random(position: int, turn_s: float, seed: int) -> bytes | None:
    """The input that failed, if one did."""
    from .harness import Violation, check
    from .mutations import mutated
    from .targets import TARGETS

    target, rng, end_s = TARGETS[position], random.Random(f"{seed} {TARGETS[position].name}"), time.monotonic() + turn_s
    num_inputs = 0
    while time.monotonic() < end_s:
        num_inputs += 1
        try:
            check(target, mutated(target.examples, target.tokens, rng, target.max_bytes))
        except Violation as violation:
            print(f"FAILED {violation}", flush=True)
            return violation.data
    print(f"{num_inputs:8d} inputs  {target.name}", flush=True)
    return None


def _turn_guided(position: int, turn_s: float, seed: int) -> bytes | None:
    command = [sys.executable, "-m", "tests.fuzz", "--target", str(position), "--seed", str(seed)]
    with tempfile.TemporaryDirectory(prefix="atoll-corpus-") as place:  # libFuzzer cleans up nothing
        command += ["--minutes", str(turn_s / 60), "--corpus", place]
        settings = {**os.environ, "TMPDIR": place}
        finished = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=turn_s + 300, env=settings
        )
    from .targets import TARGETS

    last = [line for line in finished.stderr.splitlines() if "Done " in line or "DONE" in line]
    print(f"{last[-1] if last else finished.stderr[-1500:]}  {TARGETS[position].name}", flush=True)
    return None if finished.returncode == 0 else finished.stderr.encode()


def _guided(position: int, seconds: float, seed: int, corpus: Path) -> None:
    """Does not return: libFuzzer ends the process."""
    atheris: Any = importlib.import_module("atheris")

    with atheris.instrument_imports(include=["atoll"]):
        from .harness import check
        from .targets import TARGETS
    target = TARGETS[position]
    corpus = corpus / "corpus"
    corpus.mkdir()
    for number, example in enumerate(target.examples):
        (corpus / str(number)).write_bytes(example)
    limits = (f"-max_total_time={int(seconds) or 1}", "-timeout=10", f"-max_len={min(target.max_bytes, 65_536)}")
    atheris.Setup(
        [sys.argv[0], *limits, f"-seed={seed + 1}", f"-artifact_prefix={corpus}/", str(corpus)],
        lambda data: _discard(check(target, data)),
    )
    atheris.Fuzz()


def _discard(_answer: bool) -> None:
    return


def _keep(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.replace(' ', '-')}-{time.time_ns()}"
    path.write_bytes(data)
    print(f"kept as {path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
