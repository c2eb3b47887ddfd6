"""Platforms on which an action can run."""

from __future__ import annotations

from collections.abc import Iterable

from epbuild.plan.possible import find_obstacle
from epbuild.plan.steps import Action, InTarget
from epbuild.toolchain.platforms import PYTHON_SYSTEMS


def list_possible_platforms(action: Action, here: str, system: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return the platforms on which an action can run, best first: `here`, then `others`.

    `system` is the `sys.platform` of `here`. A platform is excluded if, according to the catalog, an EP of the target cannot compile
    on it. `here` is also excluded if the recipe lists only other platforms for the toolchain.
    """
    others = tuple(other for other in others if other != here)
    toolchain = action.runs_in.toolchain if action.runs_in is not None else None
    is_meant = toolchain is None or not toolchain.platforms or here in toolchain.platforms or not others
    systems = {**({here: system} if is_meant else {}), **{other: PYTHON_SYSTEMS[other] for other in others}}
    return tuple(
        name for name, of in systems.items() if not isinstance(action, InTarget) or find_obstacle(action.target, of) is None
    )
