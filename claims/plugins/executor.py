"""`--executor dask://HOST:PORT`: where runs are trained; by default on this machine."""

from __future__ import annotations

import pytest
from torch import Tensor

from claims.harness import machine
from claims.harness.options import asks_for_gpu
from claims.harness.stash import IMPLEMENTATION
from claims.training.dask_executor import Cluster, NoCluster, address_of, check, connected, sendable
from claims.training.pool import Place, Pool, cores


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("claims").addoption(
        "--executor",
        metavar="dask://HOST:PORT",
        help="train on the workers of a Dask scheduler (default: on all cores of this machine)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (executor := config.getoption("executor")) is None:
        return
    try:
        address_of(executor)
    except NoCluster as error:
        raise pytest.UsageError(str(error)) from error
    if config.getoption("dist", "no") != "no":
        raise pytest.UsageError(
            "--executor with xdist: one process hands out the runs of all claims; run without -n"
        )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Every fault of the cluster that can be known before anything runs."""
    config = session.config
    if (executor := config.getoption("executor")) is None or config.option.collectonly:
        return
    on_gpu = config.getoption("budget") == "document" or asks_for_gpu(config)
    device = "cuda" if on_gpu and config.getoption("device") != "cpu" else "cpu"
    try:
        sendable(config.stash[IMPLEMENTATION])
        with connected(executor) as client:
            check(client, device)
    except NoCluster as error:
        raise pytest.UsageError(str(error)) from error


def workers_of(config: pytest.Config, place: Place, ids: Tensor | None) -> Pool | Cluster:
    """Who trains. Raises NoCluster."""
    if (executor := config.getoption("executor", None)) is not None:
        return Cluster(executor, place, ids)
    return Pool(place, ids, 1 if place.device == "cuda" else cores())


def gpu_fault(config: pytest.Config) -> str:
    """Why no runs can be trained on a GPU; empty where they can."""
    return machine.gpu_fault() if config.getoption("executor", None) is None else ""
