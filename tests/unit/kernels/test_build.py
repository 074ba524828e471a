"""setup.py: a source tree whose links were lost is refused, and the extension names everything it depends on."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="not in a source tree")


@pytest.fixture
def tree(tmp_path):
    """A source tree with all links in place and nothing else."""
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / ".pkg" / "atoll").mkdir(parents=True)
    for name in ("kernels", "node", "protocol", "training"):
        (tmp_path / name).mkdir()
        (tmp_path / ".pkg" / "atoll" / name).symlink_to(f"../../{name}")
    return tmp_path


def refuse(tree):
    done = subprocess.run([sys.executable, "setup.py", "--name"], cwd=tree, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip().splitlines()


def test_links_pass(tree):
    assert refuse(tree)[0] == 0


def test_directories_pass_as_in_a_source_distribution(tree):
    (tree / ".pkg" / "atoll" / "node").unlink()
    (tree / ".pkg" / "atoll" / "node").mkdir()
    assert refuse(tree)[0] == 0


@pytest.mark.parametrize("replacement", ["text file", "dangling link", "nothing"])
def test_a_lost_link_is_refused_with_one_line(tree, replacement):
    link = tree / ".pkg" / "atoll" / "node"
    link.unlink()
    if replacement == "text file":
        link.write_text("../../node")
    elif replacement == "dangling link":
        link.symlink_to("../../nowhere")
    code, lines = refuse(tree)
    assert code == 1
    assert len(lines) == 1
    assert "must be a link to node/ or a directory" in lines[0]


def test_the_extension_depends_on_every_source_and_header():
    extension = runpy.run_path(str(ROOT / "setup.py"))["native_extension"]()
    native = {
        f"kernels/native/{path.name}" for path in (ROOT / "kernels" / "native").iterdir() if path.suffix in (".c", ".h")
    }
    assert native == set(extension.depends)
    assert {name for name in native if name.endswith(".c")} == set(extension.sources)


def test_nothing_may_be_fused_or_flushed():
    flags = runpy.run_path(str(ROOT / "setup.py"))["native_extension"]().extra_compile_args
    assert "-ffp-contract=off" in flags
    assert not {"-ffast-math", "-Ofast", "-march=native"} & set(flags)
