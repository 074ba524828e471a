"""A node's settings: defaults, then the TOML file, then ``ATOLL_*`` variables, then flags; each overrides the former.

XDG folders: the file is ``$XDG_CONFIG_HOME/atoll/config.toml``, data live below ``$XDG_DATA_HOME/atoll``. Nothing
secret is a setting: keys and tokens are files, named here at most.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from .errors import EXIT_USAGE, UserError

Port = Annotated[int, Field(ge=0, le=65_535)]
Rate = Annotated[float, Field(ge=0.1, le=1e6)]
LogLevel = Literal["debug", "info", "warning", "error"]

DEFAULT_DASHBOARD_PORT = 8790
ENVIRONMENT_PREFIX = "ATOLL_"


_FLAGS = {
    "listen_host": "--host",
    "listen_port": "--port",
    "num_threads": "--threads",
    "seeds": "--seed",
    "max_upload_mbit_s": "--max-upload",
    "max_download_mbit_s": "--max-download",
}
"""Flags that are shorter than their setting."""


def data_home(environ: Mapping[str, str] | None = None) -> Path:
    """``$XDG_DATA_HOME/atoll``."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "atoll"


def config_file(environ: Mapping[str, str] | None = None) -> Path:
    """``$XDG_CONFIG_HOME/atoll/config.toml``; need not exist."""
    environ = os.environ if environ is None else environ
    return Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "atoll" / "config.toml"


class NodeSettings(BaseModel):
    """Everything that may differ between two nodes of one run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(max_length=64)] = ""
    """What others see beside the peer id. Empty: the last characters of the peer id."""
    folder: Path = Field(default_factory=lambda: data_home() / "node")
    """Identity, votes, checkpoints, journal and the running node's address. One node per folder."""
    identity_file: Path | None = None
    """Key file; None: ``identity.key`` in the folder."""

    listen_host: str = ""
    """Address that other peers connect to. Empty: all addresses, of IPv4 and, where the machine has it, IPv6."""
    listen_port: Port = 0
    """Port for other peers; 0 takes a free one."""
    quic: bool = False
    """Listen on QUIC (UDP) too. TCP alone punches holes as well, at a third of the CPU per byte."""
    behind_router: bool | None = None
    """Whether nobody can dial this node, so that it goes through relays. None: peers measure it."""
    direct_port: Literal["auto", "off"] | Port = "auto"
    """TCP port for bulk data beside libp2p. ``auto``: ``listen_port`` plus 10,000, or a free one; ``off``: libp2p
    carries everything."""
    max_upload_mbit_s: Rate | None = None
    """Cap of what this node sends; its traffic stays within 5 % of it. None: no cap."""
    max_download_mbit_s: Rate | None = None
    """Cap of what this node receives."""
    announce: tuple[str, ...] = ()
    """Multiaddresses under which others reach this node, if it cannot see them itself."""
    seeds: tuple[str, ...] = ()
    """Multiaddresses of peers to try beside the seeds of the run spec."""

    dashboard_host: str = "localhost"
    """``localhost`` answers on both loopback addresses. Anything else needs ``dashboard_token_file``."""
    dashboard_port: Port | None = None
    """None: 8790, or a free port if that one is taken; 0: a free port; a number: that port or an error."""
    dashboard_token_file: Path | None = None
    """File with the bearer token (16 characters or more, mode 0600). None: a new token at each start."""
    dashboard_allowed_hosts: tuple[str, ...] = ()
    """Further names under which the dashboard may be asked for, for example behind a proxy."""
    dashboard_prefix: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    """Path under which a proxy that keeps its prefix serves the dashboard, for example ``/node1``."""

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """``auto``, ``cpu``, ``cuda`` or ``cuda:N``."""
    num_threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of the trainer on a CPU; 0: all cores."""
    num_checkpoints: Annotated[int, Field(ge=1, le=1000)] = 3
    """Checkpoints kept."""
    stop_grace_s: Annotated[float, Field(gt=0, le=3600)] = 20.0
    """Longest time to save and leave after SIGTERM; a container's ``--stop-timeout`` must be above it."""
    log_level: LogLevel = "info"

    @property
    def identity_path(self) -> Path:
        return self.identity_file or self.folder / "identity.key"

    @property
    def journal_path(self) -> Path:
        return self.folder / "journal.sqlite"

    @property
    def endpoint_path(self) -> Path:
        """Where the running node records its dashboard's address and token."""
        return self.folder / "endpoint.json"


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> NodeSettings:
    """Settings for one start. A flag that is None was not given. Raises `UserError` naming place and remedy.

    A config file that is named but missing is an error; the default one need not exist.
    """
    environ = os.environ if environ is None else environ
    values = _from_file(config or config_file(environ), is_required=config is not None)
    sources = dict.fromkeys(values, str(config or config_file(environ)))
    for name, (variable, value) in _from_environment(environ).items():
        values[name], sources[name] = value, variable
    for name, value in (flags or {}).items():
        if value is not None:
            values[name], sources[name] = value, _FLAGS.get(name) or f"--{name.replace('_', '-')}"
    if "folder" not in values:
        values["folder"] = data_home(environ) / "node"
    try:
        settings = NodeSettings.model_validate(values)
    except ValidationError as error:
        raise _refused(error, sources) from None
    return settings.model_copy(update={"folder": settings.folder.expanduser().absolute()})


def _from_file(path: Path, *, is_required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not is_required:
            return {}
        raise _bad_file(path, "does not exist", "check the path given with --config") from None
    except OSError as error:
        raise _bad_file(path, error.strerror or "cannot be read", "make it readable for this user") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad_file(path, f"is not TOML ({error})", "correct it or move it away") from None


def _bad_file(path: Path, why: str, todo: str) -> UserError:
    return UserError(f"settings file {why}", str(path), todo, code="settings", exit_code=EXIT_USAGE)


def _from_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """Setting -> (variable, value). Lists are separated by commas. Other ``ATOLL_*`` variables are not settings."""
    found: dict[str, tuple[str, Any]] = {}
    for name, field in NodeSettings.model_fields.items():
        variable = ENVIRONMENT_PREFIX + name.upper()
        text = environ.get(variable)
        if text is None or text == "":
            continue
        is_list = get_origin(field.annotation) is tuple and get_args(field.annotation)[0] is str
        found[name] = (variable, tuple(filter(None, text.split(","))) if is_list else text)
    return found


def _refused(error: ValidationError, sources: Mapping[str, str]) -> UserError:
    first = error.errors()[0]
    field = str(first["loc"][0])
    where = f"{field} in {sources.get(field, 'the defaults')}"
    if first["type"] == "extra_forbidden":
        return UserError(
            "unknown setting", where, "remove it or correct its name", code="settings", exit_code=EXIT_USAGE
        )
    value = str(first["input"])[:60]
    todo = f"{first['msg'][0].lower()}{first['msg'][1:]}, but it is {value!r}"
    return UserError("setting cannot be used", where, todo, code="settings", exit_code=EXIT_USAGE)
