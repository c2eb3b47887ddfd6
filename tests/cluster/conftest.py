"""Workers and schedulers in the test's process, with the same limits on reads as in processes of their own."""

from __future__ import annotations

import pytest

from epbuild.cluster.dask import guard
from epbuild.cluster.dask_preload import dask_setup


@pytest.fixture(scope="session", autouse=True)
def _in_process_workers() -> None:
    dask_setup(None)
    guard("dask._expr.Expr._reconstruct", "dask._expr.LLGExpr", "dask._expr.HLGExpr")  # of a scheduler in the process
