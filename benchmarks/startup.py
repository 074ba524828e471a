"""What starting costs: CPU-seconds of the commands that a user types often, beyond the interpreter's own start.

    help_cpu_s            `atoll --help`
    status_cpu_s          `atoll status` where no node runs
    interpreter_cpu_s     `python -c pass`, the same interpreter (the reference of the two, already subtracted)

Each is the best of several runs: noise only ever adds. Usage: python benchmarks/startup.py [--repeats 9]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from _figures import report
from _processes import atoll_command, cpu_of_finished_children_s


def cpu_s_of(command: list[str], home: str) -> float:
    """CPU-seconds of one run of a command in an empty home folder; its output is thrown away."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ATOLL_"))}
    before_s = cpu_of_finished_children_s()
    finished = subprocess.run(command, env=environment | {"HOME": home}, cwd=home, capture_output=True, check=False)
    if b"Traceback" in finished.stderr:
        raise SystemExit(f"{' '.join(command)} failed:\n{finished.stderr.decode()}")
    return cpu_of_finished_children_s() - before_s


def main() -> None:
    """Measure each command and print its figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats

    atoll = atoll_command()
    with tempfile.TemporaryDirectory() as home:
        best = {
            name: min(cpu_s_of(command, home) for _ in range(repeats))
            for name, command in {
                "interpreter": [sys.executable, "-c", "pass"],
                "help": [atoll, "--help"],
                "status": [atoll, "status"],
            }.items()
        }
    report("interpreter_cpu_s", best["interpreter"], "s", repeats=repeats, taken="best")
    report("help_cpu_s", best["help"] - best["interpreter"], "s", repeats=repeats, taken="best")
    report("status_cpu_s", best["status"] - best["interpreter"], "s", repeats=repeats, taken="best")


if __name__ == "__main__":
    main()
