"""Preload of a Dask worker: the pickles that it may read.

Dask imports this module by its name before the worker listens, and calls `dask_setup` before the scheduler knows of it. Nothing else
imports it: the scheduler imports the functions that it forwards, and must read the pickles of its clients.
"""

from __future__ import annotations

from epbuild.cluster.dask import guard
from epbuild.cluster.dask_worker import cancel_request, run_request

guard()


def dask_setup(_: object) -> None:
    """Allow what the scheduler sends to a worker: tasks, the functions that clients call, and its plugin."""
    own = (f"{function.__module__}.{function.__name__}" for function in (run_request, cancel_request))
    guard("dask._task_spec.Task", "distributed.shuffle._worker_plugin.ShuffleWorkerPlugin", *own)
