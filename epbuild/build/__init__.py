"""Decides what is out of date and why, schedules actions, runs them, publishes. Says what happens as events, and never prints."""

from epbuild.build.events import (
    Event,
    Fetched,
    Fetching,
    Listener,
    RunFinished,
    RunStarted,
    StepFailed,
    StepFinished,
    StepOutput,
    StepStarted,
    ToolchainReady,
    ToolchainStarted,
    Warned,
)
from epbuild.build.logs import logged_steps, read_log
from epbuild.build.session import Request, read_plan, run, survey, workspace_of
from epbuild.build.status import StepStatus, Survey

__all__ = [
    "Event",
    "Fetched",
    "Fetching",
    "Listener",
    "Request",
    "RunFinished",
    "RunStarted",
    "StepFailed",
    "StepFinished",
    "StepOutput",
    "StepStarted",
    "StepStatus",
    "Survey",
    "ToolchainReady",
    "ToolchainStarted",
    "Warned",
    "logged_steps",
    "read_log",
    "read_plan",
    "run",
    "survey",
    "workspace_of",
]
