"""Writes kernels.json beside this file: inputs and what the kernels must make of them, by the reference back end.

    python tests/vectors/generate.py

The committed file is the contract between machines and releases: a run's members must agree on these bits, so a change
of the file is a change of the protocol's version.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from blake3 import blake3

from atoll.kernels.back_ends import active, load, using
from atoll.kernels.codec import codec
from atoll.kernels.initial import fill_normal, parameter_key
from atoll.kernels.outer_step import nesterov_step

FILE = Path(__file__).with_name("kernels.json")
WEIGHTS = [0.3, 0.7, 1e-3]
LR, BETA = 0.7, 0.9
NUM_LONG = 20_011
F = np.float32


def normal(name: str, num: int, std: float = 1.0) -> np.ndarray:
    """Deterministic bell-shaped values."""
    values = np.empty(num, F)
    fill_normal(values, parameter_key(7, name), 0, std)
    return values


def edge_cases() -> dict[str, np.ndarray]:
    """Inputs on which implementations of the codec have been seen to part."""
    limit, smallest = np.finfo(F).max, F(2.0**-126)
    ties = (np.arange(-127, 129, dtype=F) + F(0.5)).clip(-127, 127)
    mixed = normal("mixed", 256) * np.logspace(-44, 37, 256).astype(F)
    # Scales half-way between two bfloat16 numbers, and their neighbours: dividing by 127 differs here from multiplying.
    halves = [F(127) * (F(1) + F(k) / F(256)) for k in (1, 3, 255)]
    tops = [top for half in halves for top in (np.nextafter(half, F(0)), half, np.nextafter(half, F(999)))]
    return {
        "one value": np.array([-3.25], F),
        "partial last block": normal("partial", 300, 0.02),
        "zero block between others": np.concatenate([normal("a", 256), np.zeros(256, F), normal("b", 40)]),
        "negative zeros": np.array([-0.0, 0.0, -0.0, 1.0], F),
        "subnormals only": normal("subnormal", 300) * F(1e-39),
        "around the smallest scale": np.array([127 * smallest, 1e-40, -126 * smallest, 3 * smallest], F),
        "just below the smallest scale": np.array([126 * smallest, -smallest, smallest / 2], F),
        "largest float": np.array([limit, -limit, limit / 254, -limit / 255, 1.0], F),
        "exact ties": ties,
        # x · (1 / scale), not x / scale, decides these.
        "ties of a scale that is no power of two": ties * F(1 + 127 / 128),
        "tiny block beside a block of ones": np.concatenate([normal("tiny", 256, 1e-30), np.ones(256, F)]),
        "every magnitude in one block": mixed,
        "ties of the scale's rounding": np.concatenate([np.append(np.ones(255, F), top) for top in tops]),
    }


def run_all(values: np.ndarray) -> dict[str, bytes]:
    """Every kernel on `values`; what comes out, as bytes."""
    int8 = codec("int8")
    datas = [np.empty(int8.nbytes(values.size), np.uint8) for _ in WEIGHTS]
    for shift, data in enumerate(datas):
        int8.encode(np.roll(values, shift), data)
    decoded, one, many = np.empty_like(values), values.copy(), np.empty_like(values)
    int8.decode(datas[0], decoded)
    int8.accumulate(datas[1], WEIGHTS[0], one)
    int8.accumulate_many(datas, WEIGHTS, many)
    anchor, momentum = values.copy(), decoded.copy()
    nesterov_step(anchor, momentum, many, LR, BETA)
    norms = np.array([int8.squared_norm(data, values.size) for data in datas])
    results = {"encoded": datas[0], "decoded": decoded, "accumulated": one, "mean": many, "squared_norms": norms}
    return {name: array.tobytes() for name, array in (results | {"anchor": anchor, "momentum": momentum}).items()}


def short_case(values: np.ndarray) -> dict[str, str]:
    """Input and encoding in full, so that a difference can be read, the rest as digests."""
    results = run_all(values)
    digests = {name: blake3(data).hexdigest() for name, data in results.items() if name != "encoded"}
    return {"values": values.tobytes().hex(), "encoded": results["encoded"].hex()} | digests


def vectors() -> dict[str, object]:
    """The whole content of the file, by the active back end."""
    digests = {name: blake3(data).hexdigest() for name, data in run_all(normal("long", NUM_LONG, 0.02)).items()}
    return {
        "normal": normal("first", 16, 0.02).tobytes().hex(),
        "edge_cases": {name: short_case(values) for name, values in edge_cases().items()},
        "long": digests | {"values": blake3(normal("long", NUM_LONG, 0.02).tobytes()).hexdigest()},
    }


if __name__ == "__main__":
    with using(load("reference")):
        FILE.write_text(json.dumps(vectors(), indent=1) + "\n")
        print(f"{FILE}: written by the {active().name} back end")
