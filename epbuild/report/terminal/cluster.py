"""Work for a cluster, and the state of a worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from epbuild.cluster.placement import PLATFORM_LABEL, PREPARES, Offer, eps_of
from epbuild.core.errors import printable
from epbuild.core.units import about, counted
from epbuild.report.formatting import format_size
from epbuild.report.terminal.screen import print_line

if TYPE_CHECKING:
    from epbuild.commands.workload import Workload

_MAX_NAMED = 3


def print_workloads(loads: Sequence[Workload]) -> None:
    """Print the machines that can do the missing work, and how long they need."""
    for load in loads:
        device = ", on a real device" if load.real_device else ""
        print_line(f"{load.platform}  {', '.join(load.eps) or 'preparations'}{device}")
        print_line(f"    {counted(load.actions, 'action')}, {_time(load)}")
        for line in _notes(load):
            print_line(f"    {line}")
    if not loads:
        print_line("Nothing is missing.")


def _notes(load: Workload) -> Iterator[str]:
    """Return the machines that have not tried the work, or cannot do it."""
    if load.untried and load.eps:
        yield f"not tried yet: {', '.join(load.untried[:_MAX_NAMED])}{_more(len(load.untried))}"
    for other in load.others[:_MAX_NAMED]:
        yield printable(f"{other.machine} cannot: {other.why}")
    if len(load.others) > _MAX_NAMED:
        yield f"{len(load.others) - _MAX_NAMED} more cannot"


def _more(count: int) -> str:
    return f" and {count - _MAX_NAMED} more" if count > _MAX_NAMED else ""


def _time(load: Workload) -> str:
    work = f"{about(load.seconds)} of work"
    if load.likely_seconds is None:
        return f"{work}: no machine of the cluster offers this"
    return f"{work} on {counted(len(load.machines), 'machine')}, {load.slots} at once = {about(load.likely_seconds)}"


class WorkerReport:
    """Printer of a worker's state."""

    def connected(self, address: str, offer: Offer) -> None:
        eps = sorted({ep.partition("@")[0].partition("/")[0] for ep in eps_of(offer.labels)})
        platform = next((label.removeprefix(PLATFORM_LABEL) for label in offer.labels if label.startswith(PLATFORM_LABEL)), "")
        memory = f", {format_size(offer.memory)}" if offer.memory else ""
        self._print(f"working for {address}: {platform}, {offer.slots} at once{memory}")
        self._print(f"  {', '.join([*eps, *(['preparations'] if PREPARES in offer.labels else [])])}")

    def waiting(self, address: str, reason: str) -> None:
        self._print(f"waiting for {address}: {reason}")

    def _print(self, line: str) -> None:
        print_line(f"epbuild: {line}", sys.stderr)
        sys.stderr.flush()
