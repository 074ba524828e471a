"""What a user installs: the wheel holds everything, works away from the sources, and a broken checkout builds none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("node", "protocol", "training", "kernels")
TOP_LEVEL = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "__init__.py", ".pkg", *PACKAGES)
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")


def copy_of_the_sources(folder: Path) -> Path:
    """What a clean checkout holds of the files that building reads; links stay links."""
    folder.mkdir()
    for name in TOP_LEVEL:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=IGNORED)
        elif source.exists():
            shutil.copy2(source, folder / name)
    return folder


def build(kind: str, source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(target), str(source)]
    return subprocess.run(command, cwd=target.parent, capture_output=True, text=True, check=False)


def built(kind: str, source: Path, target: Path) -> Path:
    finished = build(kind, source, target)
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    (path,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return built("wheel", copy_of_the_sources(folder / "atoll"), folder / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a clean virtual environment with the wheel in it.

    It sees the packages of the running one (torch and the rest) through a `.pth` file; the editable atoll among them
    stays invisible, since it is itself a `.pth` file, and those are not followed from there.
    """
    venv = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (site_packages / "already_installed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "--no-deps", "--no-index"]
    finished = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return venv


def run(venv: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HOME": str(cwd)}
    program = [str(venv / "bin" / command[0]), *command[1:]]
    return subprocess.run(program, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_and_every_file_that_the_program_reads(wheel: Path) -> None:
    suffixes = {".py", ".html", ".css", ".js", ".svg", ".xz", ".toml", ".typed"}
    expected = {
        f"atoll/{path.relative_to(ROOT)}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    }
    assert expected | {"atoll/__init__.py", "atoll/py.typed"} <= names_in(wheel)


def test_the_wheel_installs_nothing_beside_atoll(wheel: Path) -> None:
    assert {name.partition("/")[0].partition("-")[0] for name in names_in(wheel)} == {"atoll"}


def test_the_installed_package_is_the_wheels_not_the_sources(installed: Path, tmp_path: Path) -> None:
    finished = run(installed, "python", "-c", "import atoll.kernels; print(atoll.kernels.__file__)", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert Path(finished.stdout.strip()).is_relative_to(installed)


@pytest.mark.skipif(not (ROOT / "node" / "cli.py").exists(), reason="no command line yet")
def test_the_command_runs_from_another_folder(installed: Path, tmp_path: Path) -> None:
    import atoll

    version = run(installed, "atoll", "version", cwd=tmp_path)
    assert version.returncode == 0, version.stderr
    assert atoll.__version__ in version.stdout
    assert run(installed, "atoll", "--help", cwd=tmp_path).returncode == 0


@pytest.mark.skipif(not (ROOT / "setup.py").exists() or not shutil.which("gcc"), reason="no C compiler, or no C")
def test_the_wheel_carries_the_compiled_kernels(wheel: Path, installed: Path, tmp_path: Path) -> None:
    assert any(name.startswith("atoll/kernels/") and name.endswith(".so") for name in names_in(wheel))
    code = "from atoll.kernels.codec import back_end; print(back_end())"
    finished = run(installed, "python", "-c", code, cwd=tmp_path)
    assert finished.stdout.startswith("c-"), finished.stdout + finished.stderr


def test_the_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = built("sdist", copy_of_the_sources(tmp_path / "atoll"), tmp_path / "sdist")
    unpacked = tmp_path / "unpacked"
    shutil.unpack_archive(sdist, unpacked)
    (source,) = unpacked.iterdir()
    assert names_in(built("wheel", source, tmp_path / "dist")) == names_in(wheel)


@pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the guard lives in setup.py")
def test_a_checkout_whose_links_became_text_files_is_refused_in_one_line(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path / "atoll")
    link = source / ".pkg" / "atoll" / "kernels"
    target = str(link.readlink())
    link.unlink()
    link.write_text(target)  # what git makes of a link where core.symlinks is false
    finished = build("wheel", source, tmp_path / "dist")
    assert finished.returncode != 0
    lines = (finished.stdout + finished.stderr).splitlines()
    assert any("kernels" in line and "link" in line for line in lines), lines
    assert not list((tmp_path / "dist").glob("*.whl"))
