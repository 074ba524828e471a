"""Limits of this process that the network needs."""

from __future__ import annotations

import sys

from .settings import SwarmError


def raise_open_file_limit(wanted: int) -> None:
    """Raise RLIMIT_NOFILE to ``wanted``. Raises `SwarmError` naming the remedy if the hard limit is far below."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, target), hard))
    if target < min(wanted, 512):
        raise SwarmError(f"only {target} open files are allowed and at least 512 are needed; run: ulimit -n {wanted}")
