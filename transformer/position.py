"""Four ways to tell attention where a token stands.

Two add a vector to every token before the first block (learned, sinusoidal); two leave the tokens
alone and act on the scores (rotary turns queries and keys, ALiBi subtracts a distance).
"""

import torch
from torch import Tensor, nn

from .size import check_even, check_positive


class LearnedPositions(nn.Module):
    """One learned vector per position, added to the token; there is none past the table's end."""

    def __init__(self, n_positions: int, d_model: int) -> None:
        super().__init__()
        check_positive(n_positions=n_positions, d_model=d_model)
        self.table = nn.Embedding(n_positions, d_model)

    def forward(self, n: int) -> Tensor:
        """The vectors of positions 0..n-1, (n, d). Raises ValueError for more than there are."""
        check_positive(n=n)
        if n > self.table.num_embeddings:
            raise ValueError(
                f"{n} positions were asked for, but the table holds {self.table.num_embeddings}"
            )
        return self.table.weight[:n]


def sinusoidal_positions(
    n: int,
    d_model: int,
    base: float = 10_000.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """(n, d): sines on the even features and cosines on the odd ones (Vaswani et al. 2017, 3.5).

    PE[t, 2j] = sin(t / base^(2j/d)) and PE[t, 2j+1] = cos(t / base^(2j/d)): computed, never
    learned, and defined at every position. Raises ValueError for an odd d_model.
    """
    check_positive(n=n, d_model=d_model)
    check_even("sinusoidal", "d_model", d_model)
    t = torch.arange(n, dtype=torch.float64, device=device)
    angles = _angles(t, d_model, base)                                   # (n, d/2)
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1)            # (n, d/2, 2)
    return pairs.flatten(-2).to(dtype)                                   # (n, d)


def rotate(x: Tensor, positions: Tensor | None = None, base: float = 10_000.0) -> Tensor:
    """Rotary positions (Su et al. 2021, eq. 34): turn each pair of features by its position.

    x (..., T, d_head) -> the same shape. Features 2j and 2j+1 form a pair (the INTERLEAVED
    convention of the paper, not the one that pairs j with j + d_head/2), turned by the angle
    t * base^(-2j/d_head). The product of a query turned by t and a key turned by i depends on
    t - i alone. ``positions`` (T,) gives t for each row, 0..T-1 by default. Raises ValueError for
    an odd d_head and for positions of another length than x.
    """
    if x.dim() < 2 or x.shape[-1] % 2:
        raise ValueError(f"x must be (..., T, d_head) with an even d_head, got {tuple(x.shape)}")
    T, d_head = x.shape[-2:]
    if positions is None:
        positions = torch.arange(T, device=x.device)
    if positions.shape != (T,):
        raise ValueError(f"positions must be ({T},) to fit x, got {tuple(positions.shape)}")

    # A float32 angle at position 10,000 is off by up to 5e-4: the angles are float64, the rest not.
    angles = _angles(positions.to(torch.float64), d_head, base)          # (T, d_head/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]                               # (..., T, d_head/2)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2)                                            # (..., T, d_head)


def _angles(t: Tensor, width: int, base: float) -> Tensor:
    """t * base^(-2j/width) for j = 0..width/2-1: frequencies in geometric steps; (T, width/2)."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=t.device) / width
    return t[:, None] * base**-exponents


def alibi_slopes(n_heads: int) -> Tensor:
    """(h,) float32: one slope per head (Press et al. 2022, section 3, and the authors' code).

    On the CPU whatever the default device, for they are computed as Python numbers. For h a power
    of two the slopes are 2^(-8/h), 2^(-16/h), ..., 2^-8: for 8 heads 1/2 to 1/256.
    Otherwise the slopes of the power of two below h come first, and every second slope of the
    power of two above it fills up.
    """
    check_positive(n_heads=n_heads)
    below = 1 << (n_heads.bit_length() - 1)
    slopes = _geometric_slopes(below) + _geometric_slopes(2 * below)[0::2]
    return torch.tensor(slopes[:n_heads], dtype=torch.float32, device="cpu")


def _geometric_slopes(n_heads: int) -> list[float]:
    return [2.0 ** (-8 * head / n_heads) for head in range(1, n_heads + 1)]


def alibi_bias(
    n_heads: int, n: int, m: int | None = None, device: torch.device | str | None = None
) -> Tensor:
    """(h, n, m) float32: -slope * |t - i|, to be added to the scores of n queries and m keys.

    Aligned to the lower right as ``causal_mask``: the last query stands at the last key. Raises
    ValueError for more queries than keys.
    """
    m = n if m is None else m
    check_positive(n=n, m=m)
    if n > m:
        raise ValueError(f"{n} queries cannot be the last ones of {m} keys: n must not exceed m")
    t = torch.arange(m - n, m, device=device)[:, None]                   # (n, 1)
    i = torch.arange(m, device=device)                                   # (m,)
    slopes = alibi_slopes(n_heads).to(i.device, non_blocking=True)       # (h,)
    return -slopes[:, None, None] * (t - i).abs()                        # (h, n, m)
