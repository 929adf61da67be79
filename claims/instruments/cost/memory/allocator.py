"""CUDA's caching allocator and the workspace of cuBLAS, as far as bytes go.

From PyTorch's sources: c10/cuda/CUDACachingAllocator.cpp (round_size, should_split) and
aten/src/ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize).
"""

from __future__ import annotations

import re

GRANULE = 512  # bytes; the allocator's unit (kMinBlockSize)
UNSPLIT = 2**20  # bytes; the most that it leaves in a large block without splitting it (kSmallSize)


def block_bytes(requested: int, granule: int = GRANULE) -> int:
    """The bytes of the block that a request is entitled to: the next multiple of `granule`."""
    return -(-requested // granule) * granule


def largest_block_bytes(requested: int) -> int:
    """The bytes of the largest block that a request may get, and that is counted in full.

    A free block is split for a request of at most 1 MiB whatever remains, and for a larger one
    where more than 1 MiB would remain. (With expandable segments it is always split, and every
    block has `block_bytes`.)
    """
    size = block_bytes(requested)
    return size if size <= UNSPLIT else size + UNSPLIT


def workspace_bytes(config: str) -> int:
    """The bytes that a CUBLAS_WORKSPACE_CONFIG stands for: pairs of :SIZE:COUNT, SIZE in KiB.

    PyTorch's own default is :4096:2:16:8, 8.125 MiB, and 32 MiB on GPUs of compute capability 9,
    10 and 12 (Hopper, Blackwell).

    Raises:
        ValueError: `config` is anything else. (PyTorch takes its default then, with a warning.)
    """
    if not re.fullmatch(r"(:\d+:\d+)+", config, re.ASCII):
        raise ValueError(
            f"'{config}' is no CUBLAS_WORKSPACE_CONFIG: it must be pairs of :SIZE:COUNT with SIZE "
            "in KiB, as in ':4096:2:16:8'"
        )
    numbers = [int(number) for number in config[1:].split(":")]
    sizes, counts = numbers[::2], numbers[1::2]
    return 2**10 * sum(size * count for size, count in zip(sizes, counts, strict=True))


WORKSPACE = workspace_bytes(":4096:2:16:8")
