"""The only import of hivemind, reduced to the two parts that atoll uses: `P2P` and `DHTNode`.

``import hivemind`` runs package files that import its averager, optimizer and mixture of experts, hence torch: 2.0-2.5
CPU-seconds and 277 MB. Registering empty package modules for ``hivemind``, ``hivemind.dht`` and ``hivemind.utils``
first makes Python import only the files that P2P and DHTNode need: 0.15 s and 37 MB, without torch. Safe because the
version is pinned (1.1.12 needs only the four names filled in below from ``hivemind.utils``), and because nothing else
in atoll imports hivemind. If the full package is loaded already, it is used as it is.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import importlib.machinery
import logging
import sys
import types
from pathlib import Path
from typing import Any, cast

log = logging.getLogger("atoll.protocol.swarm")


class _ToDebug(logging.Handler):
    """Shows hivemind's and p2pd's own messages, warnings and tracebacks included, at our debug level only."""

    def emit(self, record: logging.LogRecord) -> None:
        log.debug("%s: %s", getattr(record, "caller", record.name), record.getMessage())


def _find_package() -> Path:
    spec = importlib.machinery.PathFinder.find_spec("hivemind")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("hivemind is not installed; reinstall atoll with its dependencies")
    return Path(next(iter(spec.submodule_search_locations)))


def _register(name: str, folder: Path) -> Any:
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def _import_lightly() -> None:
    folder = _find_package()
    _register("hivemind", folder)
    _register("hivemind.dht", folder / "dht")
    utils = _register("hivemind.utils", folder / "utils")
    from hivemind.utils.logging import get_logger
    from hivemind.utils.serializer import MSGPackSerializer, SerializerBase
    from hivemind.utils.timed_storage import get_dht_time

    utils.get_logger = get_logger
    utils.MSGPackSerializer, utils.SerializerBase, utils.get_dht_time = MSGPackSerializer, SerializerBase, get_dht_time


def _quieten() -> None:
    from hivemind.utils.logging import use_hivemind_log_handler

    use_hivemind_log_handler("nowhere")
    logging.addLevelName(logging.WARNING, "WARNING")  # hivemind renames it to WARN for the whole process
    logger = logging.getLogger("hivemind")
    logger.handlers = [_ToDebug()]
    logger.propagate = False


if "hivemind" not in sys.modules:
    _import_lightly()
_quieten()

from hivemind.dht.node import DHTNode as _DHTNode  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.dht.validation import DHTRecord, RecordValidatorBase  # noqa: E402
from hivemind.p2p import P2P  # noqa: E402
from hivemind.p2p import P2PDaemonError as _P2PDaemonError  # noqa: E402
from hivemind.p2p import PeerID as Libp2pPeerId  # noqa: E402
from hivemind.p2p import p2p_daemon as _p2p_daemon  # noqa: E402

P2PD_BINARY = _find_package() / "hivemind_cli" / "p2pd"
DHTNode = cast("Any", _DHTNode)
P2PDaemonError = cast("type[Exception]", _P2PDaemonError)


def _binary_path(_package: object, _name: str) -> contextlib.nullcontext[Path]:
    return contextlib.nullcontext(P2PD_BINARY)


# `importlib.resources.path` warns of its deprecation on every start.
_p2p_daemon.path = cast("Any", _binary_path)
# Becomes p2pd's GOLOG_LOG_LEVEL unless the user sets that variable; at INFO every stream costs us a parsed JSON line.
_p2p_daemon.loglevel = "ERROR"

__all__ = [
    "DHTID",
    "P2P",
    "P2PD_BINARY",
    "DHTNode",
    "DHTRecord",
    "Libp2pPeerId",
    "P2PDaemonError",
    "RecordValidatorBase",
    "log",
]
