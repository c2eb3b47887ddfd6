"""A worker's life, as lines on standard error."""

from __future__ import annotations

import sys

from epbuild.cluster.executor import Offer
from epbuild.cluster.labels import PLATFORM_LABEL, PREPARES, eps_of
from epbuild.report.amounts import amount
from epbuild.report.terminal.screen import print_line


class WorkerReport:
    """Prints what becomes of a worker."""

    def connected(self, address: str, offer: Offer) -> None:
        eps = sorted({ep.partition("@")[0].partition("/")[0] for ep in eps_of(offer.labels)})
        platform = next((label.removeprefix(PLATFORM_LABEL) for label in offer.labels if label.startswith(PLATFORM_LABEL)), "")
        memory = f", {amount(offer.memory)}" if offer.memory else ""
        self._print(f"working for {address}: {platform}, {offer.slots} at once{memory}")
        self._print(f"  {', '.join([*eps, *(['preparations'] if PREPARES in offer.labels else [])])}")

    def waiting(self, address: str, reason: str) -> None:
        self._print(f"waiting for {address}: {reason}")

    def _print(self, line: str) -> None:
        print_line(f"epbuild: {line}", sys.stderr)
        sys.stderr.flush()
