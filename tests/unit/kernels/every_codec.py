"""What tests of all codecs share: how to use one, and how far off its decoded values may be."""

from __future__ import annotations

import numpy as np

from atoll.kernels.codec import CODECS, codec
from atoll.kernels.formats import FORMATS, BlockFormat

LIMITS = {
    "float32": 0.0,
    "float16": 0.0005,
    "bfloat16": 0.004,
    "int8": 0.0071,
    "int4": 0.11,
    "e3m0": 0.2,
    "stat2": 0.35,
    "rows256": 0.0071,
}
"""Relative error ‖decoded − x‖ / ‖x‖ on normal data."""
BLOCK_CODECS = [name for name in CODECS if isinstance(FORMATS.get(name), BlockFormat)]


def encode(name, values):
    data = np.full(codec(name).nbytes(values.size), 0xAA, np.uint8)
    codec(name).encode(values, data)
    return data


def decode(name, data, num):
    out = np.full(num, np.nan, np.float32)
    codec(name).decode(data, out)
    return out


def normal(num, seed=0, std=1.0):
    return (np.random.default_rng(seed).standard_normal(num) * std).astype(np.float32)


def relative_error(name, values):
    decoded = decode(name, encode(name, values), values.size).astype(np.float64)
    return np.linalg.norm(decoded - values) / np.linalg.norm(values.astype(np.float64))
