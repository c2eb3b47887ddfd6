"""Decides what is out of date and why, schedules actions, runs them, publishes. Says what happens as events, and never prints."""

from typing import TYPE_CHECKING

from epbuild.build.events import (
    ChangedFile,
    ComparisonFinished,
    ComparisonStarted,
    Event,
    Fetched,
    Fetching,
    Listener,
    ModelCovered,
    OutputCompared,
    OutputRemoved,
    Progress,
    RunFinished,
    RunStarted,
    SharingSaved,
    StepCompared,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    ToolchainLocked,
    ToolchainReady,
    ToolchainStarted,
    Warned,
    shown_path,
)
from epbuild.build.logs import logged_steps, read_log
from epbuild.build.removal import Cleaned
from epbuild.build.session import Request, cover, read_plan, run, survey, workspace_of
from epbuild.build.status import StepStatus, Survey
from epbuild.late import late

if TYPE_CHECKING:
    from epbuild.build.cleaning import Forgotten, check_idle, clean, remove_workspace
    from epbuild.build.explanation import Explanation, explain
    from epbuild.build.locking import Locking, Upgrade, make_lock, write_lock
    from epbuild.build.upkeep import Damage, Stock, Tidied, Verification, stock, tidy, verify

__all__ = [
    "ChangedFile",
    "Cleaned",
    "ComparisonFinished",
    "ComparisonStarted",
    "Damage",
    "Event",
    "Explanation",
    "Fetched",
    "Fetching",
    "Forgotten",
    "Listener",
    "Locking",
    "ModelCovered",
    "OutputCompared",
    "OutputRemoved",
    "Progress",
    "Request",
    "RunFinished",
    "RunStarted",
    "SharingSaved",
    "StepCompared",
    "StepFailed",
    "StepFinished",
    "StepOutput",
    "StepStarted",
    "StepStatus",
    "Stock",
    "Survey",
    "Tidied",
    "ToolchainLocked",
    "ToolchainReady",
    "ToolchainStarted",
    "Upgrade",
    "Verification",
    "Warned",
    "check_idle",
    "clean",
    "cover",
    "explain",
    "logged_steps",
    "make_lock",
    "read_log",
    "read_plan",
    "remove_workspace",
    "run",
    "shown_path",
    "stock",
    "survey",
    "tidy",
    "verify",
    "workspace_of",
    "write_lock",
]

__getattr__ = late(
    __name__,
    {
        "cleaning": (
            "Forgotten",
            "check_idle",
            "clean",
            "remove_workspace",
        ),
        "explanation": (
            "Explanation",
            "explain",
        ),
        "locking": (
            "Locking",
            "Upgrade",
            "make_lock",
            "write_lock",
        ),
        "upkeep": (
            "Damage",
            "Stock",
            "Tidied",
            "Verification",
            "stock",
            "tidy",
            "verify",
        ),
    },
)
