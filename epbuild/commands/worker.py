"""Worker of a cluster: the actions it offers to run, and the service itself."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection

from epbuild.catalog.catalog import CPU_EP, known_eps
from epbuild.cluster.abilities import list_possible_abilities
from epbuild.cluster.address import ClusterAddress
from epbuild.cluster.placement import PREPARES, Offer, list_own_labels
from epbuild.cluster.serve import Serving, ServingProgress, serve
from epbuild.core.errors import Argument, PlanError, Problem, suggest_nearest
from epbuild.engine.capacity import get_memory


def work(
    address: ClusterAddress,
    progress: ServingProgress,
    *,
    slots: int | None = None,
    memory: int | None = None,
    only: Collection[str] = (),
    insecure: bool = False,
) -> None:
    """Execute actions of a scheduler, at most `slots` at once, until the process is interrupted.

    `only` lists the EPs whose actions are accepted. The entry `prepare` stands for preparations. If `only` is empty, all actions
    are accepted. Raises EpbuildError.
    """
    for ep in only:
        if (ep not in known_eps() or ep == CPU_EP) and ep != PREPARES:
            hint = suggest_nearest(ep, known_eps()) or f"Known EPs: {', '.join(known_eps())}."
            raise PlanError(
                Problem("EPB536", f"the EP '{ep}' is unknown or does not compile ahead of time", Argument(f"--only {ep}"), hint)
            )
    offer = Offer(
        platform.node(),
        list_own_labels(list_possible_abilities(), only),
        slots or os.cpu_count() or 1,
        memory or get_memory() or 0,
    )
    serve(Serving(address, offer, insecure), progress)
