"""The outer optimizer's step on the flat vector: Nesterov momentum as DiLoCo uses it (Douillard et al. 2023, §2)."""

from __future__ import annotations

from .arguments import fits_float32, is_plain, require_float32, require_output
from .back_ends import active
from .codec import Float32Array


def nesterov_step(anchor: Float32Array, momentum: Float32Array, mean: Float32Array, lr: float, beta: float) -> None:
    """Take one outer step in place, from the mean pseudo-gradient (anchor minus trained weights, hence minus below).

        momentum ← beta · momentum + mean
        anchor   ← anchor − lr · (mean + beta · momentum)

    Every operation is a float32 one, rounded to nearest even, none fused; `lr` and `beta` are rounded to float32 first.
    beta = 0 is plain SGD. The arrays are 1-D, equally long, contiguous (TypeError, ValueError) and do not overlap; any
    range of the flat vector may be done alone. The step cannot fail half-way: all checks come before the first write.
    """
    arrays = {"anchor": anchor, "momentum": momentum, "mean": mean}
    for what, array in arrays.items():
        if not is_plain(require_float32(array, what)) or array.shape != (anchor.size,):
            raise ValueError(f"{what} must be contiguous with shape ({anchor.size},), not {array.shape}")
    require_output(anchor, "anchor")
    require_output(momentum, "momentum")
    if not (fits_float32(lr) and fits_float32(beta)):
        raise ValueError(f"lr and beta must be finite, not {lr} and {beta}")
    active().nesterov_step(anchor, momentum, mean, lr, beta)
