"""Declares the C kernels; everything else about the package is in pyproject.toml."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
NATIVE = ROOT / "kernels" / "native"
LINKS = ("kernels", "node", "protocol", "training")


def refuse_broken_links() -> None:
    """An archive without symlinks turns .pkg/atoll/node into a text file, and the wheel would lack it silently."""
    for name in LINKS:
        path = ROOT / ".pkg" / "atoll" / name
        if not path.is_dir():
            sys.exit(f"error: {path} must be a link to {name}/ or a directory: get the source by git clone")


def native_files(suffix: str) -> list[str]:
    """C sources or headers, relative to this folder as setuptools wants them."""
    return sorted(path.relative_to(ROOT).as_posix() for path in NATIVE.glob(f"*{suffix}"))


def source_digest() -> str:
    """SHA-256 over names and contents of the C sources: a test compares it with the one inside the library."""
    digest = hashlib.sha256()
    for name in native_files(".c") + native_files(".h"):
        digest.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return digest.hexdigest()


def native_extension() -> Extension:
    """A plain shared library that ctypes loads: it needs a C compiler but no Python headers."""
    return Extension(
        "atoll.kernels._native",
        sources=native_files(".c"),
        depends=[*native_files(".h"), *native_files(".c")],
        define_macros=[("ATOLL_SOURCE_DIGEST", f'"{source_digest()}"')],
        extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden"],
        optional=True,  # no compiler: the numpy kernels serve
    )


if __name__ == "__main__":
    refuse_broken_links()
    setup(ext_modules=[native_extension()])
