"""The machine: the facts in the report's header, and whether its GPU can be used."""

from __future__ import annotations

import functools
import os
import subprocess

import torch


@functools.cache
def gpu_fault() -> str:
    """Why no CUDA GPU can be used here; empty when one can.

    This touches CUDA, so only GPU claims may ask.
    """
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return f"this torch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f" (CUDA_VISIBLE_DEVICES='{hidden}')" if hidden is not None else ""
        return f"torch {torch.__version__} finds no CUDA device{why}"
    try:
        # A driver that is too old, or a GPU that this build has no kernels for, fails only at a
        # launch.
        torch.ones(1, device="cuda").add(1).item()
    except RuntimeError as error:
        return f"the CUDA device fails at its first kernel: {str(error).splitlines()[0]}"
    return ""


def description() -> dict[str, str]:
    """The facts that a measured value depends on, without touching CUDA."""
    cuda = torch.version.cuda
    return {
        "torch": torch.__version__ + (f", CUDA {cuda}" if cuda else ", no CUDA"),
        "device": "cpu",
        "threads": str(torch.get_num_threads()),
        "tf32": "on" if torch.backends.cuda.matmul.allow_tf32 else "off",
    }


def gpu() -> dict[str, str]:
    """The facts of a usable GPU and of its driver."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory": f"{properties.total_memory} bytes",
        "driver": _driver(),
        "cuda": torch.version.cuda or "none",
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "default"),
    }


def _driver() -> str:
    """The driver's version as its own tool says it; torch does not know it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (said.stdout.split() or ["unknown"])[0]
