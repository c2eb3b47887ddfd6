"""The command `bisect`: search the model of a compile step for what fails."""

from __future__ import annotations

import re
import threading
from typing import cast

from msgspec.structs import replace

from epbuild.commands.bisect.case import Case, open_case
from epbuild.commands.bisect.compiling import explain_failure, explain_fallback
from epbuild.commands.bisect.numbers import compare_outputs
from epbuild.commands.bisect.probing import Prober, is_fault
from epbuild.commands.bisect.values import Bisection, BisectRequest
from epbuild.core.errors import EpbuildError, PlanError, Problem, StepId, suggest_nearest
from epbuild.core.units import format_count
from epbuild.engine.events import Progress
from epbuild.plan.made import Made
from epbuild.plan.member import Member
from epbuild.plan.steps import Plan, SessionGroup
from epbuild.plan.verification import CheckedMember, Verification, make_verification_id
from epbuild.session.events import note_lines
from epbuild.session.execution import MissingResultError
from epbuild.session.planning import read_plan
from epbuild.session.request import Request
from epbuild.session.session import Session, open_session
from epbuild.verify.fallback import FallbackNodes


def bisect(request: BisectRequest, progress: Progress) -> Bisection:
    """Find the smallest part of a step's model that does not compile, or else the first value that differs from the CPU EP's.

    Missing preparations are built first. `progress` receives a note for each compile. Raises EpbuildError, and Cancelled.
    """
    cancelled = threading.Event()
    _, plan = read_plan(Request(request.recipe, settings=request.settings))
    group, index = _find_step(plan, request.step)
    checked = _find_checked(plan, group, group.members[index])
    chosen = Request(request.recipe, (request.step,), settings=request.settings, emits=False)
    with open_session(chosen, progress, cancelled, builds=True) as session:
        group = _resolve(session, request.step)
        member = group.members[index]
        with session.workspace.staging("bisect") as scratch:
            prober = Prober(
                group,
                member,
                StepId(request.step),
                session.provisioning.environment(group),
                session.surveyor.store,
                scratch,
                note_lines(progress),
                cancelled,
            )
            folder = session.workspace.directory / "bisect" / re.sub(r"[^A-Za-z0-9._-]", "+", request.step)
            return _examine(open_case(request, prober, checked, folder))


def _examine(case: Case) -> Bisection:
    """Compile the whole model, and search for what fails: the compile, the coverage or the numbers."""
    prober, member = case.prober, case.prober.member
    try:
        whole = prober.compile(None, f"the whole model, {format_count(len(case.graph.nodes), 'node')}")
    except EpbuildError as error:
        if not is_fault(error):
            raise
        return explain_failure(case, error)
    allowed, outside = prober.group.max_fallback_nodes(member), FallbackNodes.of(whole.model(member.name))
    if allowed is not None and outside.count > allowed:
        return explain_fallback(case, outside)
    return compare_outputs(case, whole)


def _find_step(plan: Plan, name: str) -> tuple[SessionGroup, int]:
    """Return the session group of a compile step, and the number of the step's member. Raises PlanError (EPB240)."""
    known = {step.id: step.action for step in plan.steps if step.kind == "compile"}
    if name not in known:
        hint = suggest_nearest(name, known) or "List the steps with `epbuild plan`."
        raise PlanError(Problem("EPB240", f"no compile step is called '{name}'", None, hint))
    group = plan.session_groups[known[name]]
    return group, group.steps.index(name)


def _find_checked(plan: Plan, group: SessionGroup, member: Member) -> CheckedMember | None:
    """Return the recipe's settings for checking a model's numbers, or None if the recipe does not check them."""
    verification = plan.actions.get(make_verification_id(group.group, group.target.name))
    members = verification.members if isinstance(verification, Verification) else ()
    return next((checked for checked in members if checked.name == member.name), None)


def _resolve(session: Session, name: str) -> SessionGroup:
    """Return the session group of a step with all its files. Build its preparations. Raises BuildError if one of them fails."""
    found = session.survey()
    group = next(group for group in found.plan.session_groups.values() if name in group.steps)
    if group.needs:
        made = session.build(replace(found, todo=tuple(ident for ident in found.todo if ident != group.id))).made
    else:
        made = dict[str, Made]()
    for ident in group.needs:
        if ident not in made:
            raise MissingResultError(found.plan.actions[ident])
    environment = session.provisioning.environment(group)
    resolved, *_ = session.surveyor.keyed(group, [made[ident] for ident in group.needs], environment)
    return cast("SessionGroup", resolved)
