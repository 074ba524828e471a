"""Writes kernels.json and codecs.json beside this file: what the kernels must make of some inputs, by the reference.

    python tests/vectors/generate.py

kernels.json has inputs, and all that becomes of them under int8; codecs.json the other codecs. The committed files
are the contract between machines and releases: a run's members must agree on these bits. A codec's name stands for its
bits for ever, so that a change of these files beyond an addition is a change of the protocol's version.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from blake3 import blake3

from atoll.kernels.back_ends import active, load, using
from atoll.kernels.codec import CODECS, NonFiniteError, codec
from atoll.kernels.initial import fill_normal, parameter_key
from atoll.kernels.outer_step import nesterov_step

FILE = Path(__file__).with_name("kernels.json")
CODECS_FILE = Path(__file__).with_name("codecs.json")
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


def further_cases() -> dict[str, np.ndarray]:
    """Inputs that decide between neighbouring codes of the codecs of a few bits, and between formats' extremes."""
    eighths = np.arange(-512, 513, dtype=F) / F(8)
    thresholds = np.array(
        [t for step in (0.5, 1.5, 3, 6, 12, 24, 48) for t in (np.nextafter(F(step), F(0)), F(step))], F
    )
    halves = np.array([65_504, 65_519, 2.0**-14, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 1 + 2.0**-11, 1 + 3 * 2.0**-11], F)
    return {
        "sevenths": np.concatenate([eighths[64:128], eighths[448:577]]),
        "thresholds of powers of two": np.concatenate([[F(64)], thresholds, -thresholds]),
        "all of one magnitude": np.where(np.arange(300) % 3, F(0.1), F(-0.1)),
        "two magnitudes": np.where(np.arange(300) % 5, F(0.01), F(-2.5)),
        "one large value among small ones": np.append(normal("small", 299, 1e-3), F(1000)),
        "edges of float16": halves,
        "rising": np.arange(5000, dtype=F) - F(17),
        "mostly zeros": np.where(np.arange(9000) // 256 % 5 == 1, normal("few", 9000), F(0)),
    }


def codec_case(name: str, values: np.ndarray) -> dict[str, object]:
    """What a codec makes of one input: the encoding in full where it is short, the rest as digests."""
    which = codec(name)
    data, decoded, mean = np.empty(which.nbytes(values.size), np.uint8), np.empty_like(values), np.empty_like(values)
    try:
        which.encode(values, data)
    except NonFiniteError as refusal:
        return {"refused": str(refusal)}
    which.decode(data, decoded)
    which.accumulate_many([data] * len(WEIGHTS), WEIGHTS, mean)
    encoded = data.tobytes()
    return {
        "encoded": encoded.hex() if len(encoded) <= 400 else blake3(encoded).hexdigest(),
        "decoded": blake3(decoded.tobytes()).hexdigest(),
        "mean": blake3(mean.tobytes()).hexdigest(),
        "squared_norm": which.squared_norm(data, values.size).hex(),
    }


def codec_vectors(name: str) -> dict[str, object]:
    """What a codec makes of every input."""
    inputs = edge_cases() | further_cases() | {"long": normal("long", NUM_LONG, 0.02)}
    return {what: codec_case(name, np.asarray(values, F)) for what, values in inputs.items()}


def write(path: Path, content: object) -> None:
    """Replace a committed file."""
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"{path}: written by the {active().name} back end")


if __name__ == "__main__":
    with using(load("reference")):
        write(FILE, vectors())
        write(CODECS_FILE, {name: codec_vectors(name) for name in CODECS})
