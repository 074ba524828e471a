"""Builds the image with buildah and runs it in namespaces of its own, where docker and podman cannot run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BASE_PACKAGES = "python3,python3-venv,gcc,libc6-dev,tini,ca-certificates"
BUILD_TIMEOUT_S = 1500


def run(*command: str | Path, check: bool = True, timeout_s: float = BUILD_TIMEOUT_S) -> str:
    """Standard output of a command; an error carries the end of what it printed."""
    finished = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if check and finished.returncode != 0:
        raise AssertionError(f"{command[:3]} failed:\n{finished.stdout[-3000:]}{finished.stderr[-3000:]}")
    return finished.stdout.strip()


class Buildah:
    """buildah with a storage of its own, so that nothing of the machine's is touched or left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._command = ("buildah", "--root", folder / "storage", "--runroot", folder / "run")

    def __call__(self, *arguments: str | Path) -> str:
        return run(*self._command, *arguments)

    def clean_up(self) -> None:
        """Unmount and remove every container and image."""
        for command in (("umount", "--all"), ("rm", "--all"), ("rmi", "--all", "--force")):
            run(*self._command, *command, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def debian_codename() -> str:
    """Debian's name for this machine's release, where it is a Debian."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return release.get("VERSION_CODENAME", "bookworm") if release.get("ID") == "debian" else "bookworm"


def base_image(buildah: Buildah) -> str:
    """A minimal Debian with Python as a local image, or the one named in ``BASE_IMAGE``."""
    if named := os.environ.get("BASE_IMAGE"):
        return named
    root = buildah.folder / "debian"
    run("debootstrap", "--variant=minbase", f"--include={BASE_PACKAGES}", debian_codename(), root)
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, root)
    buildah("commit", "--quiet", "--rm", container, "localhost/atoll-base")
    shutil.rmtree(root)
    return "localhost/atoll-base"


def package_sources() -> list[Path]:
    """Files and folders that pip's configuration on this machine names, its own files included.

    Building inside the image uses the same package sources as the machine (a mirror, a folder of wheels).
    """
    pip = [sys.executable, "-m", "pip", "config"]
    files = re.findall(r"^\s*(/\S+), exists: True", run(*pip, "debug"), re.MULTILINE)
    values = re.findall(r"(?:file://)?(/[^\s'\"]+)", run(*pip, "list"))
    paths = {Path(name) for name in [*files, *values]}
    # an index in a folder links to files beside itself
    paths = {path.parent if path.name == "simple" else path for path in paths}
    return sorted(path for path in paths if path.exists())


def build_image(buildah: Buildah, target: str = "cpu") -> str:
    """Name of the built image."""
    mounts = [word for path in package_sources() for word in ("--volume", f"{path}:{path}:ro")]
    arguments = {"BASE_IMAGE": base_image(buildah), "TORCH_INDEX": os.environ.get("TORCH_INDEX", "")}
    build_arguments = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    tag = f"localhost/atoll:{target}"
    common = ("bud", "--isolation", "chroot", "--format", "docker", "--target", target, "--tag", tag)
    buildah(*common, *build_arguments, *mounts, "--file", ROOT / "docker" / "Dockerfile", ROOT)
    return tag


# Read-only root, private /tmp and /proc, one volume, the image's user, no capability: what the compose files ask for.
_START = """
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount --rbind /dev "$ROOT/dev"
mount --bind "$DATA" "$ROOT/data"
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=1777,size=64m tmpfs "$ROOT/tmp"
mount -o remount,bind,ro "$ROOT"
ip link set lo up
exec chroot "$ROOT" /usr/bin/setpriv --reuid "$USER_ID" --regid "$GROUP_ID" --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all -- "$@"
"""


@dataclass(frozen=True)
class Image:
    """A built image, unpacked, and what it says of itself."""

    root: Path
    config: dict[str, Any]

    @property
    def user(self) -> tuple[str, str]:
        user, _, group = self.config["User"].partition(":")
        return user, group

    def command(self, *arguments: str, entrypoint: Sequence[str] | None = None) -> list[str]:
        """The whole command line of a container: PID 1 in its own PID, mount and network namespaces."""
        words = [*(self.config["Entrypoint"] if entrypoint is None else entrypoint), *arguments]
        unshare = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"]
        return [*unshare, "sh", "-euc", _START, "start", *words]

    def environment(self, data: Path, **variables: str) -> dict[str, str]:
        """What the image sets, and what starting needs."""
        own = dict(entry.split("=", 1) for entry in self.config["Env"])
        user, group = self.user
        start = {"ROOT": str(self.root), "DATA": str(data), "USER_ID": user, "GROUP_ID": group}
        return own | {"PATH": own["PATH"] + ":/usr/sbin:/sbin"} | start | variables

    def run(self, data: Path, *arguments: str, entrypoint: Sequence[str] | None = None) -> subprocess.CompletedProcess:
        """Run one command in a fresh container and wait for its end."""
        command = self.command(*arguments, entrypoint=entrypoint)
        environment = self.environment(data)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def start(self, data: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start a container; its PID 1 is the only child of the process returned."""
        pipe = subprocess.PIPE
        command = self.command(*arguments)
        return subprocess.Popen(command, env=self.environment(data), stdout=pipe, stderr=subprocess.STDOUT, text=True)


def unpack(buildah: Buildah, tag: str) -> Image:
    """Mount an image's root file system and read its configuration."""
    container = buildah("from", "--pull-never", tag)
    described = json.loads(buildah("inspect", "--type", "image", tag))
    return Image(Path(buildah("mount", container)), described["Docker"]["config"])
