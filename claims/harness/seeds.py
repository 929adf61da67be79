"""Randomness as an argument: every draw comes from (base seed, claim, salt).

The claim is named by its id, so that a claim that moves to another module draws the same.

Draws are float32 or float64 on the CPU, and are cast and moved afterwards, because half-precision
and CUDA generators change between releases and GPUs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

DEFAULT_BASE_SEED = 17
_T = TypeVar("_T")

# torch.randn fills 16 numbers at a time: lengths that are multiples of 16 share their prefix.
_BLOCK = 16


def seed_of(*parts: object) -> int:
    """A 63-bit seed, a hash of the parts."""
    text = "|".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Draws:
    """The `rng` fixture: named random streams of one claim."""

    def __init__(self, base_seed: int, name: str) -> None:
        """`name` is the claim's id, with the parameters of its test where it has some."""
        self.base_seed = base_seed
        self._name = name

    def seed(self, salt: str = "") -> int:
        """The seed of (base seed, claim, salt)."""
        return seed_of(self.base_seed, self._name, salt)

    def generator(self, salt: str = "") -> torch.Generator:
        """A fresh CPU generator; equal salts give equal streams."""
        return torch.Generator().manual_seed(self.seed(salt))

    def normal(self, *shape: int, salt: str = "", dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers; a larger leading dimension keeps the earlier rows."""
        _demand_full_precision(dtype)
        size = torch.Size(shape).numel()
        blocks = -(-size // _BLOCK)
        flat = torch.randn(blocks * _BLOCK, generator=self.generator(salt), dtype=dtype)
        return flat[:size].reshape(shape)

    def integers(self, low: int, high: int, *shape: int, salt: str = "") -> Tensor:
        """Integers, low <= i < high, as int64."""
        return torch.randint(low, high, shape, generator=self.generator(salt))

    def permutation(self, n: int, salt: str = "") -> Tensor:
        return torch.randperm(n, generator=self.generator(salt))

    def build(self, make: Callable[[], _T], salt: str = "") -> _T:
        """`make()` under the seeded global generator, which is left as it was.

        torch initialises modules from the global generator, and offers no other way.
        """
        with recipe(self.seed(salt)):
            return make()


def _demand_full_precision(dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"draws are float32 or float64, cast afterwards; {dtype} was asked for")


@contextmanager
def recipe(seed: int) -> Iterator[None]:
    """`with recipe(0): ...` is torch.manual_seed(0) for the block, on the CPU; the global generator
    is restored.

    For the recipes behind printed digits, which name their seed.
    """
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed keeps a stack for each kind of GPU that is not in use, at every call.
        torch.default_generator.manual_seed(seed)
        yield


def parse_base_seeds(text: str) -> list[int]:
    """'17' or '0..99' (both ends included).

    Raises:
        ValueError: anything else, with what is allowed.
    """
    first, dots, last = text.partition("..")
    if first.isdecimal() and (last.isdecimal() if dots else not last):
        seeds = list(range(int(first), int(last or first) + 1))
        if seeds:
            return seeds
    raise ValueError(
        f"--base-seed takes a number such as 17 or a range such as 0..99, not '{text}'"
    )
