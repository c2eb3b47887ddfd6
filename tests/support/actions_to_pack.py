"""Actions to pack into jobs. They have only an id, needs and a platform."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st


@dataclass(frozen=True)
class Work:
    """An action that has only an id and needs."""

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
    """Return actions, each of which needs some of those before it."""
    found: dict[str, Work] = {}
    for number in range(draw(st.integers(0, 12))):
        needs = draw(st.sets(st.sampled_from(sorted(found)), max_size=2)) if found else set()
        found[f"a{number}"] = Work(f"a{number}", tuple(sorted(needs)))
    return found
