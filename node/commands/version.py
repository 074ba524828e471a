"""``atoll version``: what is installed."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from ..version import VERSION
from .options import AsJson, command_app, print_json

app = command_app()

_PROTOCOL_VERSION = 1
_PARTS = ("torch", "hivemind", "aiohttp", "numpy")


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@app.command()
def show(as_json: AsJson = False) -> None:
    """Print the versions in use."""
    parts = {"python": platform.python_version(), **{name: _installed(name) for name in _PARTS}}
    if as_json:
        print_json({"version": VERSION, "protocol_version": _PROTOCOL_VERSION, **parts})
        return
    print(f"atoll {VERSION}, protocol {_PROTOCOL_VERSION}")
    print(", ".join(f"{name} {found or 'not installed'}" for name, found in parts.items()))
