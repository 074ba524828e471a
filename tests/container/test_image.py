"""The image, built and run: who it is, what it may write, and how it ends. `make test-container` runs this."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from .image_lab import Buildah, Image, build_image, unpack

TOOLS = ("buildah", "debootstrap", "unshare", "setpriv")
LACKING = [tool for tool in TOOLS if not shutil.which(tool)]

pytestmark = [
    pytest.mark.container,
    pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces and debootstrap"),
]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    buildah = Buildah(tmp_path_factory.mktemp("buildah"))
    try:
        yield unpack(buildah, build_image(buildah))
    finally:
        buildah.clean_up()


@pytest.fixture
def data(image: Image, tmp_path: Path) -> Path:
    """An empty volume that belongs to the image's user."""
    folder = tmp_path / "data"
    folder.mkdir()
    os.chown(folder, int(image.user[0]), int(image.user[1]))
    tmp_path.chmod(0o755)
    return folder


def test_it_prints_its_version(image: Image, data: Path) -> None:
    import atoll

    finished = image.run(data, "version")
    assert finished.returncode == 0, finished.stderr
    assert f"atoll {atoll.__version__}" in finished.stdout


def test_it_carries_the_compiled_kernels_and_no_compiler_cache(image: Image, data: Path) -> None:
    code = "from atoll.kernels.codec import back_end; print(back_end())"
    finished = image.run(data, "-c", code, entrypoint=["python3", "-P"])
    assert finished.stdout.startswith("c-"), finished.stdout + finished.stderr
    assert not (image.root / "root" / ".cache" / "pip").exists()


def test_it_runs_as_a_user_without_rights(image: Image, data: Path) -> None:
    status = image.run(data, "/proc/self/status", entrypoint=["cat"]).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert set(fields["Uid"].split()) == {"10001"}
    assert int(fields["CapBnd"], 16) == 0
    assert int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"] == "1"


def test_it_writes_to_its_volume_and_nowhere_else(image: Image, data: Path) -> None:
    script = "touch /data/ok && for folder in / /opt/atoll /etc /run-spec; do ! touch $folder/no 2>/dev/null; done"
    assert image.run(data, "-ec", script, entrypoint=["sh"]).returncode == 0
    assert (data / "ok").exists()


def test_it_says_whose_the_volume_is_when_it_cannot_write_to_it(image: Image, data: Path) -> None:
    os.chown(data, 0, 0)
    data.chmod(0o755)
    finished = image.run(data, "version")
    assert finished.returncode == 78
    assert "/data is not writable: it belongs to 0:0 and this container runs as 10001:10001" in finished.stderr


def test_it_declares_volume_port_health_check_and_signal(image: Image) -> None:
    assert image.config["Volumes"].keys() == {"/data"}
    assert image.config["ExposedPorts"].keys() == {"4001/tcp", "4001/udp"}
    assert image.config["Healthcheck"]["Test"] == ["CMD", "healthcheck"]
    assert image.config["StopSignal"] == "SIGTERM"


@contextmanager
def running_node(image: Image, data: Path) -> Iterator[subprocess.Popen[str]]:
    """A lone node of a run of its own, in a container; ended by force if the test did not end it."""
    made = image.run(data, "/data/run.toml", "/ip4/127.0.0.1/tcp/4001", entrypoint=["tini", "--", "new-run"])
    assert made.returncode == 0, made.stdout + made.stderr
    process = image.start(data, "join", "/data/run.toml", "--yes")
    try:
        yield process
    finally:
        process.kill()  # --kill-child ends PID 1 and with it the whole PID namespace
        process.wait()
        if process.stdout:
            process.stdout.close()


def first_process(container: subprocess.Popen[str]) -> psutil.Process:
    """PID 1 of a running container, as this machine sees it. Fails with the container's output if it ended."""
    children = psutil.Process(container.pid).children() if container.poll() is None else []
    assert children, f"the container ended by itself:\n{container.communicate()[0]}"
    return children[0]


def is_healthy(container: subprocess.Popen[str]) -> bool:
    """The image's own health check, run inside the running container as an orchestrator does."""
    pid = first_process(container).pid
    enter = ["nsenter", "--target", str(pid), "--net", "--pid", "chroot", f"/proc/{pid}/root"]
    return subprocess.run([*enter, "/usr/local/bin/healthcheck"], capture_output=True, check=False).returncode == 0


def wait_until_healthy(container: subprocess.Popen[str], deadline_s: float = 120) -> None:
    end = time.monotonic() + deadline_s
    while not is_healthy(container):
        assert time.monotonic() < end, "the node in the container never became healthy"
        time.sleep(0.5)  # polling another process' socket: nothing here to wait on


WAITS_FOR_A_SIGNAL = """
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
if os.fork() == 0:          # a child that leaves an orphan behind, which nobody but PID 1 can reap
    os.fork()
    os._exit(0)
os.wait()
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
states = [path.read_text().split()[2] for path in pathlib.Path("/proc").glob("[0-9]*/stat")]
sys.exit(3 if "Z" in states else 7)
"""


def test_pid_1_passes_signals_on_reaps_orphans_and_ends_with_the_programs_own_code(image: Image, data: Path) -> None:
    init = image.config["Entrypoint"][0]
    with image.start(data, "-c", WAITS_FOR_A_SIGNAL, entrypoint=[init, "--", "python3"]) as container:
        assert container.stdout
        assert container.stdout.readline() == "ready\n"
        first_process(container).send_signal(signal.SIGTERM)
        assert container.wait(timeout=30) == 7


def test_stopping_it_saves_and_ends_within_the_grace_period(image: Image, data: Path) -> None:
    with running_node(image, data) as process:
        wait_until_healthy(process)
        first = first_process(process)
        assert first.name() == "tini", "PID 1 passes signals on and reaps"
        inside = first.children(recursive=True)
        first.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=40)
        assert process.returncode in (0, 143), output
        assert "Traceback" not in output
        assert not [child for child in inside if child.is_running()]
    assert (data / "node" / "identity.key").stat().st_mode & 0o777 == 0o600
    assert not (data / "node" / "endpoint.json").exists(), "a clean end takes its address back"
