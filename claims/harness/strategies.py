"""Hypothesis strategies for tensors.

Numbers are finite, bounded and no subnormals, which a flush-to-zero mode would turn into zeros.
Their width is float32's, so that a float64 case can be repeated in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from torch import Tensor


@st.composite
def tensors(
    draw: st.DrawFn,
    *sizes: int | st.SearchStrategy[int],
    dtype: torch.dtype = torch.float32,
    magnitude: float = 8.0,
) -> Tensor:
    """Tensors of the given shape; a size that is a strategy is drawn."""
    shape = tuple(size if isinstance(size, int) else draw(size) for size in sizes)
    element = st.floats(-magnitude, magnitude, width=32, allow_subnormal=False, allow_nan=False)
    array: np.ndarray[Any, Any] = draw(
        numpy_strategies.arrays(np.float32, shape, elements=element, fill=st.nothing())
    )
    return torch.from_numpy(array).to(dtype)


def lengths(largest: int = 12) -> st.SearchStrategy[int]:
    """Numbers of tokens, one included."""
    return st.integers(1, largest)


def permutations(n: int) -> st.SearchStrategy[Tensor]:
    """Orders of n positions, as an index tensor."""
    return st.permutations(range(n)).map(torch.tensor)
