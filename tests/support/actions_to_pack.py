"""Actions that only have an id, need others, and run on a platform: what is packed into jobs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st


@dataclass(frozen=True)
class Work:
    """An action that only has an id, and needs others."""

    id: str
    needs: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    source_models: tuple[()] = ()
    runs_in: None = None

    @property
    def steps(self) -> tuple[str, ...]:
        return (f"{self.id}/first", self.id)


@st.composite
def works(draw: st.DrawFn) -> dict[str, Work]:
    """Actions, each of which needs some of those before it."""
    found: dict[str, Work] = {}
    for number in range(draw(st.integers(0, 12))):
        needs = draw(st.sets(st.sampled_from(sorted(found)), max_size=2)) if found else set()
        found[f"a{number}"] = Work(f"a{number}", tuple(sorted(needs)))
    return found
