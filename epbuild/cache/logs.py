"""Names and log files of actions in a workspace."""

from __future__ import annotations

import re
from pathlib import Path

from epbuild.core.defaults import DEFAULT_RECIPE


def action_name(action: str, recipe: str) -> str:
    """Return the name of an action that is unique among all recipes in its folder."""
    # Names in recipes have no '+', so no two actions have the same name.
    return action if recipe == DEFAULT_RECIPE else f"{action}+{recipe}"


def log_file(workspace: Path, action: str, recipe: str = DEFAULT_RECIPE) -> Path:
    """Return the path of the log of an action's last run in a workspace."""
    return workspace / "logs" / f"{re.sub(r'[^A-Za-z0-9._-]', '+', action_name(action, recipe))}.log"
