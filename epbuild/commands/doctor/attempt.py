"""Attempts to compile and open a small model with an EP, as builds do."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from epbuild.catalog.entries import EpEntry
from epbuild.compile.probing import NAME, compile_probe, plan_probe, write_probe_model
from epbuild.core.errors import EpbuildError, Position
from epbuild.plan.ability import Ability
from epbuild.plan.planner import make_plan
from epbuild.plan.steps import SessionGroup
from epbuild.recipe.model import CompileSettings, Expectation, GroupMember, GroupSpec, ModelSpec, Recipe, Reference
from epbuild.toolchain.environment import Environment
from epbuild.verify.live.session import open_target_session
from epbuild.verify.live.worker import Load, run_models

_OPEN_SECONDS = 60.0
"""Maximum number of seconds for opening a model."""


class CompileAttempt(Struct, frozen=True):
    """Outcome of compiling and opening a small model."""

    target: str
    """Name of the target in the recipe, or the catalog's example target."""
    seconds: float | None = None
    """Duration of the compile in seconds, or None if it failed."""
    opened: bool = False
    why: str = ""
    """Reason why compiling or opening the model failed, as a clause."""
    unfit: bool = False
    """True if this machine lacks the device or the driver."""


class AttemptSetup(Struct, frozen=True):
    """Environment and empty folder for an attempt. The event `cancelled` stops the attempt."""

    environment: Environment
    folder: Path
    cancelled: threading.Event


def attempt_target(recipe: Recipe, target: str, setup: AttemptSetup) -> CompileAttempt:
    """Compile and open a small model for a target of a recipe. Raises EpbuildError, OSError, and Cancelled."""
    source = setup.folder / f"{NAME}.onnx"
    write_probe_model(source)
    where = Position(str(recipe.file), 1, 1)
    member = GroupMember(NAME, Reference(NAME, where), CompileSettings(), Expectation(fallback_nodes="any"))
    group = GroupSpec(NAME, where, (member,), (Reference(target, where),), share_weights=False)
    model = ModelSpec(NAME, where, str(source), where)
    [planned] = make_plan(replace(recipe, models={NAME: model}, groups={NAME: group}, outputs=())).session_groups.values()
    return _compile_and_open(target, planned, setup)


def attempt_entry(entry: EpEntry, setup: AttemptSetup) -> CompileAttempt | None:
    """Compile and open a small model for the catalog's example target. Return None if the catalog has no example for the EP."""
    if entry.start is None:
        return None
    return _compile_and_open(entry.start.example, plan_probe(Ability(entry), setup.environment, setup.folder), setup)


def _compile_and_open(target: str, group: SessionGroup, setup: AttemptSetup) -> CompileAttempt:
    opened = setup.folder / "opened"
    opened.mkdir()
    begin = time.monotonic()
    found, compiled = compile_probe(group, setup.environment, setup.folder, setup.cancelled)
    seconds = time.monotonic() - begin
    if compiled is None:
        return CompileAttempt(target, why=found.why, unfit=found.outcome == "cannot")
    session = open_target_session(group.target, setup.environment, group.custom_ops, _OPEN_SECONDS)
    try:
        failure = run_models([Load(NAME, compiled)], session, opened, setup.cancelled).failure
    except EpbuildError as error:
        return CompileAttempt(target, seconds, why=error.problems[0].message)
    return CompileAttempt(target, seconds, failure is None, failure.message.rstrip(".") if failure is not None else "")
