"""This node's copy of what the swarm has agreed on: anchor, outer momentum, and the commit that they belong to.

The anchor lives in the memory that the trainer reads (`training.shared_buffers`); the state hash is computed by
reading that memory again after every outer step. A commit is applied and saved before the node says so; a crash in
between leaves the last checkpoint, from which the node catches up.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import hash_tree
from ..protocol.messages import Commit
from ..protocol.spec import Genesis
from ..training.checkpoint import CheckpointStore, Saved, SaveFailed
from ..training.flat import initial_state
from ..training.outer import ChunkLayout, OuterConfig, apply_mean
from ..training.shared_buffers import SharedBuffers


def state_context(round_number: int, data_cursor: int) -> bytes:
    """What a state hash binds besides the vectors."""
    return f"round={round_number};data_cursor={data_cursor}".encode()


def state_hash_of(anchor: NDArray[np.float32], momentum: NDArray[np.float32], round_number: int, cursor: int) -> str:
    """State hash (hexadecimal) over the anchor's and the momentum's bytes; reads both again."""
    leaves = hash_tree.leaf_digests([memoryview(anchor).cast("B"), memoryview(momentum).cast("B")])
    return hash_tree.root(leaves, state_context(round_number, cursor))
