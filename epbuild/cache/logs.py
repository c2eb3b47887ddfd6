"""Names and log files of actions in a workspace."""

from __future__ import annotations

import re
from pathlib import Path

from epbuild.core.defaults import DEFAULT_RECIPE


def action_name(action: str, recipe: str) -> str:
    """The name of an action of a recipe file among those of all recipes in its folder."""
    # No name in a recipe has a '+', so that no two actions have one name.
    return action if recipe == DEFAULT_RECIPE else f"{action}+{recipe}"


def log_file(workspace: Path, action: str, recipe: str = DEFAULT_RECIPE) -> Path:
    """The file that keeps the log of the last run here of an action of a recipe file."""
    return workspace / "logs" / f"{re.sub(r'[^A-Za-z0-9._-]', '+', action_name(action, recipe))}.log"
