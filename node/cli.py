"""The command line. Commands are loaded when they are run, so that ``atoll --help`` loads nothing heavy.

Whatever a user can cause ends as one line on standard error: ``atoll: <what>: <where>; <what to do>`` (with ``--json``
as one JSON object). A traceback means a fault of atoll.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from .errors import EXIT_ERROR, EXIT_USAGE, UserError

COMMANDS = {
    "demo": "Start a swarm on this machine and watch it train.",
    "join": "Take part in a run.",
    "train": "Train a run on this machine alone, without a swarm.",
    "status": "Say what the running node does, and why.",
    "stop": "Save, leave the swarm and end the running node.",
    "dashboard": "Print the link of the running node's dashboard.",
    "identity": "This node's key.",
    "receipts": "Prove what this node has given, or check what another one claims.",
    "ledger": "Who was left out or rejected, by which rule, and by how much.",
    "run": "Make, check and sign run specs.",
    "simulate": "Play a run spec over simulated peers and links.",
    "version": "Print the versions in use.",
}
"""Name -> help. The module of a command has its name and holds a typer app named ``app``."""

EXIT_INTERRUPTED = 130


class _LazyGroup(TyperGroup):
    """Lists commands from `COMMANDS`, imports one when it is asked for."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Any = dict.fromkeys(COMMANDS)  # keys only: typer suggests from them

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__package__}.commands.{cmd_name}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    name="atoll",
    cls=_LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root() -> None:
    """Train a language model with others over the internet: no server, no coordinator, no account."""


def _print_error(error: UserError, *, as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(error.as_json(), ensure_ascii=False), file=sys.stderr)
    else:
        print(f"atoll: {' '.join(str(error).split())}", file=sys.stderr)


def _fail(error: UserError, arguments: Sequence[str]) -> int:
    _print_error(error, as_json="--json" in arguments)
    return error.exit_code


def _as_user_errors(error: Exception, arguments: Sequence[str]) -> list[UserError] | None:
    """What a user can cause, in our words; None for a fault of atoll."""
    if isinstance(error, UserError):
        return [error]
    usage: Callable[[], str] | None = getattr(error, "format_message", None)
    if usage is not None:  # typer's usage errors; their class moved between its versions
        is_unknown = usage().startswith("No such command")  # then what precedes it has the list
        known = [word for word in arguments[:2] if word.isidentifier()][: -1 if is_unknown else None]
        words = ["atoll", *known, "--help"]
        return [UserError(usage().rstrip("."), "", f"see {' '.join(words)}", code="usage", exit_code=EXIT_USAGE)]
    if isinstance(error, OSError):
        where = str(error.filename or "")
        todo = "check the path, the free space and the rights of this user"
        return [UserError(error.strerror or str(error), where, todo, code="os")]
    return _of_parts(error)


def _of_parts(error: Exception) -> list[UserError] | None:
    """Errors of the layers below. Compared by name, so that looking at one loads none of them."""
    name = type(error).__name__
    if name == "SpecError":
        lines: Sequence[str] = getattr(error, "lines", (str(error),))
        return [_from_line("run spec", line, code="spec") for line in lines]
    if name in ("IdentityError", "DataError"):
        return [_from_line({"IdentityError": "identity", "DataError": "data"}[name], str(error), code="identity")]
    return None


def _from_line(what: str, line: str, *, code: str) -> UserError:
    """A message that already says where and, behind a semicolon, what to do."""
    where, _, todo = line.partition("; ")
    return UserError(what, where, todo or "correct it and try again", code=code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; see the module for what is printed."""
    try:
        result = app(args=list(arguments) or ["--help"], standalone_mode=False, prog_name="atoll")
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe has left, which is its right
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except Exception as error:
        found = _as_user_errors(error, arguments)
        if found is None:
            raise
        return max(_fail(each, arguments) for each in found)
    return result if isinstance(result, int) else 0


def main() -> NoReturn:
    """Entry point of the ``atoll`` script and of ``python -m atoll.node.cli``."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
