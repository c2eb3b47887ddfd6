"""EPs that a first recipe can be for, with what they can do on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from msgspec import Struct

from epbuild.catalog.catalog import entries_for, known_eps
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import Limitation, Start


class StarterKind(Struct, frozen=True):
    """An EP in one packaging, and what a first recipe for it holds."""

    entry: EpEntry
    start: Start

    @property
    def asks(self) -> bool:
        return self.start.option is not None or self.start.metadata is not None

    @property
    def static(self) -> bool:
        return self.entry.static_shapes is not None

    def obstacle(self, platform: str = sys.platform) -> str | None:
        """Why nothing can be compiled with it here, as a clause; None where something can, as far as anybody knows."""
        return next((f"cannot {row.what} here: {row.why}" for row in _limits(self, platform) if row.stops), None)

    def condition(self, platform: str = sys.platform) -> str | None:
        """What the machine has to have, as a clause; None where nothing is known of that."""
        rows = (
            row for row in _limits(self, platform) if not row.stops and row.during is None and row.what.startswith(_CONDITIONS)
        )
        return next((f"cannot {row.what}: {row.why}" for row in rows), None)

    def runs_here(self, value: str, platform: str = sys.platform) -> bool:
        """Whether what is compiled for a target of that value can be run here, as far as anybody knows."""
        options = {**self.start.options, **({self.start.option: value} if self.start.option else {})}
        rows = (row for row in _limits(self, platform, options) if row.during == "load" and row.when)
        return self.obstacle(platform) is None and not any(rows)


_CONDITIONS = ("compile without", "be installed")


def _limits(kind: StarterKind, platform: str, options: Mapping[str, str] | None = None) -> Iterator[Limitation]:
    device = kind.start.device.get("type")
    for row in kind.entry.cannot:
        if row.limit_of == "machine" and row.holds(platform, str(device) if device else None, options or kind.start.options):
            yield row


def _kinds() -> Mapping[str, StarterKind]:
    found = {entry.start.name: StarterKind(entry, entry.start) for ep in known_eps() for entry in entries_for(ep) if entry.start}
    # What compiles on any machine comes first; its name decides among those.
    return dict(sorted(found.items(), key=lambda item: (item[1].entry.output_depends_on_host, item[0])))


def without_recipe() -> dict[str, list[str]]:
    """Why there is no first recipe for some EPs, as a clause, with the EPs that it is so for."""
    found: dict[str, list[str]] = {}
    for ep in known_eps():
        entries = entries_for(ep)
        if not any(entry.start for entry in entries):
            rows = [row for entry in entries for row in entry.cannot if row.stops and not row.platforms]
            why = f"cannot {rows[0].what}" if rows else "its recipe has to be written by hand"
            found.setdefault(why, []).append(ep)
    return found


KINDS: Mapping[str, StarterKind] = _kinds()
