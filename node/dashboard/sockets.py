"""Listening sockets: both loopback addresses on one port, and a clear error for a port that is taken."""

from __future__ import annotations

import errno
import socket
from contextlib import suppress

from ..errors import EXIT_USAGE, UserError
from ..settings import DEFAULT_DASHBOARD_PORT

_NUM_TRIES = 20
_NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}
BACKLOG = 64


def _addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """IPv4 first. ``localhost`` and the wildcard mean both families, whatever the resolver says (NET-08, NET-09)."""
    pairs = {"localhost": ("127.0.0.1", "::1"), "": ("0.0.0.0", "::"), "0.0.0.0": ("0.0.0.0", "::")}
    if host in pairs:
        v4, v6 = pairs[host]
        return [(socket.AF_INET, v4), (socket.AF_INET6, v6)]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UserError(
            f"dashboard address cannot be used ({error.strerror})",
            f"dashboard_host {host}",
            "use localhost or an address of this machine",
            code="dashboard_host",
            exit_code=EXIT_USAGE,
        ) from None
    wanted = (socket.AF_INET, socket.AF_INET6)
    return sorted({(family, str(address[0])) for family, _, _, _, address in found if family in wanted})


def _bind(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # so that [::] and 0.0.0.0 can have the same port
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_all(addresses: list[tuple[socket.AddressFamily, str]], port: int) -> list[socket.socket]:
    """All addresses on one port; families that this machine lacks are left out as long as one remains."""
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            try:
                listeners.append(_bind(family, address, port))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error
                continue
            port = listeners[0].getsockname()[1]
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    if not listeners and missing:
        raise missing
    return listeners


def listen(host: str, port: int | None) -> list[socket.socket]:
    """Listening sockets, all on the same port. ``port``: None prefers 8790, 0 takes a free one.

    Raises `UserError` naming the port and the option if a port that was asked for cannot be had.
    """
    addresses = _addresses(host)
    if port:
        try:
            return _bind_all(addresses, port)
        except OSError as error:
            raise _refused(host, port, error) from None
    if port is None:
        with suppress(OSError):
            return _bind_all(addresses, DEFAULT_DASHBOARD_PORT)
    for _ in range(_NUM_TRIES):  # a port that is free for IPv4 may be taken for IPv6
        with suppress(OSError):
            return _bind_all(addresses, 0)
    raise _refused(host, 0, OSError(errno.EADDRINUSE, "no free port"))


def _refused(host: str, port: int, error: OSError) -> UserError:
    causes = {errno.EADDRINUSE: "port is in use", errno.EACCES: "port is not allowed for this user"}
    what = f"dashboard {causes.get(error.errno or 0, f'cannot listen ({error.strerror})')}"
    todo = "choose another with --dashboard-port, or 0 for a free one"
    return UserError(what, f"{host}:{port}", todo, code="port_in_use", exit_code=EXIT_USAGE)
