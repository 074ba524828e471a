"""What can be said of the image and the compose files without building anything."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


def services(name: str) -> dict[str, dict[str, Any]]:
    return yaml.safe_load((DOCKER / name).read_text())["services"]


EVERY_SERVICE = [
    pytest.param(service, id=f"{file}:{name}")
    for file in ("compose.yaml", "compose.worker.yaml")
    for name, service in services(file).items()
]


@pytest.mark.parametrize("service", EVERY_SERVICE)
def test_every_service_gives_up_what_it_does_not_need(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]
    assert not {"privileged", "cap_add", "pid", "ipc", "devices"} & service.keys()
    assert service.get("network_mode") != "host"


@pytest.mark.parametrize("service", EVERY_SERVICE)
def test_no_service_publishes_its_dashboard_beyond_this_host(service: dict[str, Any]) -> None:
    dashboards = [port for port in service.get("ports", []) if port.endswith(":8790")]
    assert all(port.startswith("127.0.0.1:") for port in dashboards)
    if service.get("environment", {}).get("ATOLL_DASHBOARD_HOST"):
        assert service["environment"]["ATOLL_DASHBOARD_TOKEN_FILE"].startswith("/data/")


@pytest.mark.parametrize("service", EVERY_SERVICE)
def test_a_node_gets_more_time_to_stop_than_it_takes(service: dict[str, Any]) -> None:
    if service.get("command", [""])[0] == "join":
        assert int(service["stop_grace_period"].removesuffix("s")) >= 30


def test_three_nodes_share_nothing_but_the_run_spec() -> None:
    nodes = {name: service for name, service in services("compose.yaml").items() if name.startswith("node")}
    assert len(nodes) == 3
    private = [volume for service in nodes.values() for volume in service["volumes"] if not volume.endswith(":ro")]
    assert sorted(private) == ["node1:/data", "node2:/data", "node3:/data"]


def test_the_image_ends_as_a_user_without_rights_with_a_volume_and_a_health_check() -> None:
    runtime = DOCKERFILE.partition(" AS runtime")[2]
    assert re.findall(r"^USER (.+)$", runtime, re.MULTILINE) == ["10001:10001"]
    assert "VOLUME /data" in runtime
    assert re.search(r'^HEALTHCHECK .*CMD \["healthcheck"\]$', runtime, re.MULTILINE)


def test_the_image_takes_its_base_as_an_argument_and_has_both_targets() -> None:
    assert re.search(r"^ARG BASE_IMAGE=", DOCKERFILE, re.MULTILINE)
    assert {"cpu", "cuda"} <= set(re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE))


def test_every_file_that_the_image_copies_is_let_through_by_the_ignore_file() -> None:
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {".pkg", "node", "protocol", "training", "kernels", "pyproject.toml", "setup.py", "README.md"} <= let_through
    copied = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in copied for source in line.split()[:-1]} - {"."}
    assert sources <= let_through
    assert all((ROOT / source).exists() for source in let_through)


def test_no_shell_stands_between_a_signal_and_the_node() -> None:
    assert 'ENTRYPOINT ["tini", "--", "entrypoint"]' in DOCKERFILE
    last = (DOCKER / "entrypoint").read_text().strip().splitlines()[-1]
    assert last == 'exec atoll "$@"'


def test_the_entrypoint_says_whose_a_volume_is_that_it_cannot_write(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    environment = {"PATH": "/usr/bin:/bin", "XDG_DATA_HOME": str(missing)}
    finished = subprocess.run(
        [DOCKER / "entrypoint", "version"], env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 78
    for words in (str(missing), "belongs to missing", "this container runs as"):
        assert words in finished.stderr


def test_the_entrypoint_becomes_the_command_and_makes_a_token_once(tmp_path: Path) -> None:
    stand_in = tmp_path / "bin" / "atoll"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\necho $$ "$@"\n')
    stand_in.chmod(0o755)
    token = tmp_path / "token"
    environment = {
        "PATH": f"{stand_in.parent}:/usr/local/bin:/usr/bin:/bin",
        "XDG_DATA_HOME": str(tmp_path),
        "ATOLL_DASHBOARD_TOKEN_FILE": str(token),
    }
    with subprocess.Popen(
        [DOCKER / "entrypoint", "join", "a b"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        output, _ = process.communicate(timeout=30)
    assert output.split() == [str(process.pid), "join", "a", "b"], "the same process: exec, not a child"
    assert token.stat().st_mode & 0o777 == 0o600
    first = token.read_text()
    assert len(first.strip()) >= 32
    subprocess.run([DOCKER / "entrypoint"], env=environment, capture_output=True, check=True)
    assert token.read_text() == first
    assert not list(tmp_path.glob(".writable*"))


def test_the_health_check_fails_where_nobody_answers() -> None:
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "ATOLL_DASHBOARD_PORT": "1"}
    finished = subprocess.run([DOCKER / "healthcheck"], env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert "/livez on port 1" in finished.stderr
