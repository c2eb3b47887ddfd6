"""Preload module that restricts the pickles that a Dask worker reads.

Dask imports this module by name before the worker listens, and calls `dask_setup` before the scheduler knows the worker. No other module
may import this one. Otherwise, the scheduler, which imports the modules of the functions that it forwards, could no longer read its
clients' pickles.
"""

from __future__ import annotations

from epbuild.cluster.dask import guard
from epbuild.cluster.dask_worker import cancel_request, run_request

guard()


def dask_setup(_: object) -> None:
    """Allow pickles from the scheduler to refer to Dask's `Task`, the functions that clients call, and the scheduler's plugin."""
    own = (f"{function.__module__}.{function.__name__}" for function in (run_request, cancel_request))
    guard("dask._task_spec.Task", "distributed.shuffle._worker_plugin.ShuffleWorkerPlugin", *own)
