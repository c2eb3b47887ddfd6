"""Options of the cluster, for the commands that use one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

from epbuild.cli import arguments

if TYPE_CHECKING:
    from epbuild.cluster.address import ClusterAddress

EXECUTOR = "EPBUILD_EXECUTOR"
CERTIFICATES = "EPBUILD_CLUSTER_TLS"
_LOCAL = "local"

Executor = Annotated[
    str | None,
    arguments.option(
        "--executor", metavar="ADDRESS", help=f"Have other machines compile: dask://host:8786, or local; default: ${EXECUTOR}."
    ),
]
ExecutorOfPlan = Annotated[
    str | None,
    arguments.option(
        "--executor", metavar="ADDRESS", help="Show which machines of a cluster can make what is missing, and how long."
    ),
]
Certificates = Annotated[
    str | None,
    arguments.option("--tls", metavar="DIR", help=f"The folder with this machine's certificates; default: ${CERTIFICATES}."),
]
Insecure = Annotated[bool, arguments.option("--insecure", help="Allow a scheduler or a cache on another machine without TLS.")]


def cluster(executor: str | None, certificates: str | None, *, insecure: bool) -> ClusterAddress | None:
    """Return the scheduler of the machines that compile, by option or EPBUILD_EXECUTOR; None: this machine compiles.

    EPBUILD_CLUSTER_TLS names the certificates where no option does. Raises PlanError.
    """
    text = executor if executor is not None else os.environ.get(EXECUTOR, "")
    if text in ("", _LOCAL):
        return None
    from epbuild.cluster.address import cluster_address

    where = f"--executor {text}" if executor is not None else EXECUTOR
    return cluster_address(text, certificates or os.environ.get(CERTIFICATES), insecure=insecure, where=where)


def served(text: str, certificates: str | None) -> ClusterAddress:
    """Return the scheduler that a worker serves. Raises PlanError."""
    from epbuild.cluster.address import worker_address

    return worker_address(text, certificates or os.environ.get(CERTIFICATES), where=text)
