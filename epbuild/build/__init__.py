"""Decides what is out of date and why, schedules actions, runs them, publishes. Says what happens as events, and never prints."""

from typing import TYPE_CHECKING

from epbuild.build.events import (
    Event,
    Fetched,
    Fetching,
    Listener,
    OutputRemoved,
    RunFinished,
    RunStarted,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    ToolchainReady,
    ToolchainStarted,
    Warned,
    shown_path,
)
from epbuild.build.logs import logged_steps, read_log
from epbuild.build.removal import Cleaned
from epbuild.build.session import Request, read_plan, run, survey, workspace_of
from epbuild.build.status import StepStatus, Survey
from epbuild.late import late

if TYPE_CHECKING:
    from epbuild.build.cleaning import Forgotten, check_idle, clean, remove_workspace
    from epbuild.build.explanation import Explanation, explain
    from epbuild.build.upkeep import Damage, Stock, Tidied, Verification, stock, tidy, verify

__all__ = [
    "Cleaned",
    "Damage",
    "Event",
    "Explanation",
    "Fetched",
    "Fetching",
    "Forgotten",
    "Listener",
    "OutputRemoved",
    "Request",
    "RunFinished",
    "RunStarted",
    "StepFailed",
    "StepFinished",
    "StepOutput",
    "StepStarted",
    "StepStatus",
    "Stock",
    "Survey",
    "Tidied",
    "ToolchainReady",
    "ToolchainStarted",
    "Verification",
    "Warned",
    "check_idle",
    "clean",
    "explain",
    "logged_steps",
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
