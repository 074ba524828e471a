"""Options that several commands share, and the settings they make."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..settings import NodeSettings, load_settings

Folder = Annotated[
    Path | None, typer.Option("--folder", help="The node's folder: identity, checkpoints, journal.", show_default=False)
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file (TOML).", show_default="~/.config/atoll/config.toml"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, errors included.")]
SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="Run spec (TOML).", show_default=False)]


def command_app() -> typer.Typer:
    """An app for one command module."""
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def settings_for(folder: Path | None, config: Path | None = None, **flags: Any) -> NodeSettings:
    """Settings with the flags that were given. Raises `UserError`."""
    return load_settings({"folder": folder, **flags}, config=config)


def print_json(value: Any) -> None:
    """One line of strictly valid JSON on standard output."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str), flush=True)


def uses_colour() -> bool:
    """Whether standard output may be coloured (``NO_COLOR``, https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if uses_colour() else text
