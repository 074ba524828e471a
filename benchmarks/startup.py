"""What starting and waiting cost.

    help_cpu_s            CPU-seconds of `atoll --help`, beyond the interpreter's own start
    status_cpu_s          the same of `atoll status` where no node runs
    interpreter_cpu_s     `python -c pass`, the same interpreter (already subtracted from the two)
    idle_cpu_fraction     CPU-seconds per second of a node that waits for peers: daemon and p2pd, without the trainer
    idle_rss_mb           what these have resident, in MB; libraries that they share are counted in each

The first three are the best of several runs: noise only ever adds. The idle node is one of a run of two whose other
peer never comes; it is measured once its trainer has nothing to do.
Usage: python benchmarks/startup.py [--repeats 9] [--idle-s 30]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from _figures import report
from _processes import atoll_command, cpu_of_finished_children_s

from atoll.node.run_spec import new_run_text, sign_text
from atoll.protocol.identity import Identity

SETTLE_S = 15.0
"""Long enough for the first inner step, the first dials and their retries."""


def cpu_s_of(command: list[str], home: str) -> float:
    """CPU-seconds of one run of a command in an empty home folder; its output is thrown away."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ATOLL_"))}
    before_s = cpu_of_finished_children_s()
    finished = subprocess.run(command, env=environment | {"HOME": home}, cwd=home, capture_output=True, check=False)
    if b"Traceback" in finished.stderr:
        raise SystemExit(f"{' '.join(command)} failed:\n{finished.stderr.decode()}")
    return cpu_of_finished_children_s() - before_s


def write_run(folder: Path) -> Path:
    """A signed run for two of which only one is here; its first round is one inner step."""
    me, absent = Identity.create(folder / "identity.key"), Identity.create(folder / "absent.key")
    roster = [me.peer_id, absent.peer_id]
    text = new_run_text(name="idle", roster=roster, settings=["inner.num_steps=1", "membership.min_peers=2"])
    path = folder / "run.toml"
    path.write_text(sign_text(text, absent))
    return path


def wait_until_alone(process: subprocess.Popen[str]) -> None:
    """Read the node's events until it says that nobody else is here."""
    for line in process.stdout or ():
        if json.loads(line).get("reason") in ("alone", "waiting_min_peers"):
            return
    raise SystemExit(f"the node ended with exit code {process.wait()}")


def of_daemon(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The node's processes without its trainer."""
    root = psutil.Process(process.pid)
    return [each for each in [root, *root.children(recursive=True)] if "atoll.training.trainer" not in each.cmdline()]


def cpu_s(processes: list[psutil.Process]) -> float:
    """CPU-seconds that these have used."""
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def report_idle(atoll: str, idle_s: float) -> None:
    """Start a node, let it settle, and measure what waiting costs."""
    with tempfile.TemporaryDirectory() as home:
        spec = write_run(Path(home))
        command = [atoll, "join", str(spec), "--folder", home, "--host", "127.0.0.1", "--dashboard-port", "0"]
        with subprocess.Popen(
            [*command, "--yes", "--json", "--log-level", "error"], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                wait_until_alone(process)
                time.sleep(SETTLE_S)
                processes, before_s = of_daemon(process), time.monotonic()
                used_before_s = cpu_s(processes)
                time.sleep(idle_s)
                fraction = (cpu_s(processes) - used_before_s) / (time.monotonic() - before_s)
                rss_mb = {each.name(): round(each.memory_info().rss / 1e6, 1) for each in processes}
            finally:
                process.terminate()
                process.communicate()
    report("idle_cpu_fraction", fraction, "of one core", seconds=idle_s)
    report("idle_rss_mb", sum(rss_mb.values()), "MB", of=rss_mb)


def report_commands(atoll: str, repeats: int) -> None:
    """What each command takes at its best."""
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


def main() -> None:
    """Measure everything and print one line per figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--idle-s", type=float, default=30.0)
    arguments = parser.parse_args()
    report_commands(atoll_command(), arguments.repeats)
    report_idle(atoll_command(), arguments.idle_s)


if __name__ == "__main__":
    main()
