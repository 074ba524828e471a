"""A newcomer's first minute: seconds to the first committed round, and the loss that 60 CPU-seconds buy.

Drives `atoll demo --json`, so everything counts: starting, finding each other, training, exchanging, evaluating.

    first_round_s         wall time from starting the command to its first committed round
    loss_at_60_cpu_s      validation loss (nats/byte) of the last round committed before the swarm's processes together
                          had used 60 CPU-seconds
    curve                 one line per round: CPU-seconds and wall seconds used, validation loss

The swarm is ended once the budget is spent. Usage: python benchmarks/demo.py [--nodes 3] [--cpu-s 60]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from _figures import report
from _processes import CpuMeter, atoll_command

CPU_BUDGET_S = 60.0
TIMEOUT_S = 300.0
MAX_ROUNDS = 500


@dataclass(frozen=True)
class Point:
    """Where the swarm stood when a round committed."""

    round: int
    wall_s: float
    cpu_s: float
    validation_loss: float | None


def rounds_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """The demo's JSON lines that report a round, as they come."""
    for line in process.stdout or ():
        record = json.loads(line)
        if "round" in record:
            yield record


def run_demo(num_nodes: int, budget_s: float) -> tuple[list[Point], int]:
    """Points of the rounds committed until the budget of CPU-seconds is spent, and the command's exit code.

    The exit code is 0 where this function ended the swarm itself.
    """
    started = time.monotonic()
    command = [atoll_command(), "demo", "--nodes", str(num_nodes), "--rounds", str(MAX_ROUNDS), "--json"]
    points: list[Point] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(TIMEOUT_S, process.terminate)
        deadline.start()
        meter = CpuMeter(process.pid)
        for record in rounds_of(process):
            seconds = time.monotonic() - started
            points.append(Point(record["round"], seconds, meter.read_s(), record.get("validation_loss")))
            if points[-1].cpu_s > budget_s:
                deadline.cancel()
                process.terminate()
                process.communicate()
                return points, 0
        deadline.cancel()
    return points, process.returncode


def loss_within(points: list[Point], cpu_s: float) -> Point | None:
    """The last evaluated round within a budget of CPU-seconds."""
    within = [point for point in points if point.cpu_s <= cpu_s and point.validation_loss is not None]
    return within[-1] if within else None


def main() -> None:
    """Run the demo once and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--cpu-s", type=float, default=CPU_BUDGET_S)
    arguments = parser.parse_args()

    points, exit_code = run_demo(arguments.nodes, arguments.cpu_s)
    if exit_code != 0 or not points:
        raise SystemExit(f"atoll demo failed with exit code {exit_code} after {len(points)} rounds")
    setting = {"nodes": arguments.nodes}
    report("first_round_s", points[0].wall_s, "s", **setting)
    if best := loss_within(points, arguments.cpu_s):
        report(
            f"loss_at_{arguments.cpu_s:.0f}_cpu_s",
            best.validation_loss or 0.0,
            "nats/byte",
            at_round=best.round,
            at_cpu_s=best.cpu_s,
            **setting,
        )
    for point in points:
        if point.validation_loss is not None:
            spent = {"cpu_s": round(point.cpu_s, 2), "wall_s": round(point.wall_s, 2)}
            report("curve", point.validation_loss, "nats/byte", round=point.round, **spent, **setting)


if __name__ == "__main__":
    main()
