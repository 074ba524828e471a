"""Faults that tests plant into one node, run as ``python -P -m`` with this module on the path.

A patch is a function that changes the program before its command line runs: the product itself has no switch for it.
"""

from __future__ import annotations

import importlib
import os
import sys

VARIABLE = "ATOLL_TEST_PATCH"


def flip_one_bit_of_the_anchor() -> None:
    """After each outer step the lowest bit of one weight is another one."""
    replica = importlib.import_module("atoll.node.replica")
    original = replica.apply_mean

    def apply_mean(anchor, momentum, mean, grid, settings) -> None:  # type: ignore[no-untyped-def]
        original(anchor, momentum, mean, grid, settings)
        anchor.view("uint32")[7] ^= 1

    replica.apply_mean = apply_mean


def nan_in_the_second_contribution() -> None:
    """The trainer's pseudo-gradient of round 2 has a NaN, once."""
    inner_loop = importlib.import_module("atoll.training.inner_loop")
    original = inner_loop.InnerLoop.pseudo_gradient
    calls = []

    def pseudo_gradient(self, anchor):  # type: ignore[no-untyped-def]
        delta = original(self, anchor)
        calls.append(1)
        if len(calls) == 2:
            delta[3] = float("nan")
        return delta

    inner_loop.InnerLoop.pseudo_gradient = pseudo_gradient


def say_everything_twice() -> None:
    """Every message to another peer is sent a second time, as it was signed."""
    transport = importlib.import_module("atoll.protocol.swarm.libp2p_transport").Libp2pTransport
    original = transport.send

    async def send(self, peer, message) -> None:  # type: ignore[no-untyped-def]
        await original(self, peer, message)
        await original(self, peer, message)

    transport.send = send


if __name__ == "__main__":
    globals()[os.environ[VARIABLE]]()
    from atoll.node.cli import main

    sys.exit(main())
