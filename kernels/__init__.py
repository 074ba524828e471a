"""Numeric kernels that give the same bits on every machine: codecs, the outer step, initial values, the state hash.

All follow one rule (architecture, invariant 2): IEEE float32, a written order of operations, round to nearest even, no
fused multiply-add, no flush to zero, no libm. `reference/` is the specification in plain Python; `vector/` (numpy, and
torch on any device), `native/` (C, loaded with ctypes by `compiled.py`) and `gpu/` (Triton) give the same bits faster.
Importing this package loads nothing.
"""
