"""Errors of a session group, based on the diagnosis of its worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from epbuild.catalog.facts import Limitation
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId
from epbuild.core.units import format_count
from epbuild.onnxfile.read.wire import MalformedModel
from epbuild.plan.known_patterns import count_patterns
from epbuild.plan.member import Member
from epbuild.plan.result import FallbackNode
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.diagnosis import FREE_SPACE, MORE_MEMORY, diagnose, is_at_address_limit, merge_reasons
from epbuild.toolchain.process import Ending
from epbuild.verify.expectations import find_main_limitations, with_hint
from epbuild.verify.fallback import FallbackNodes

_NO_OPERATOR = re.compile(r"(\S+:\S+?)\(-?\d+\) is not a registered function/op")
_TWO_LIBRARIES = "Domain already set in registry"
_NO_NODES = "Unable to compile any nodes"
_UNLESS_STOPPED = f"Unless the worker was stopped deliberately, it probably ran out of memory. {MORE_MEMORY}"


def make_staging_error(group: SessionGroup, error: OSError) -> EnvironmentFailure:
    """Return the error for a source that could not be copied into the staging directory."""
    message = f"the sources could not be staged: {error.strerror or error}"
    hint = "Check the space and the permissions of the recipe's folder."
    return EnvironmentFailure(Problem("EPB412", message, StepId(group.id), hint))


@contextmanager
def translate_size_errors(model: str, step: StepId) -> Iterator[None]:
    """Raise BuildError (EPB265) if a model cannot be written with the recipe's input sizes."""
    try:
        yield
    except MalformedModel as error:
        message = f"the input sizes of the model '{model}' cannot be set: {error}"
        raise BuildError(Problem("EPB265", message, step, "Export the model again.")) from error


def make_compile_error(
    group: SessionGroup, ending: Ending, log: str, refused: Sequence[FallbackNode] = ()
) -> EpbuildError | None:
    """Return the error for the `ending` of a session group's worker, or None if the worker succeeded.

    The error's hint mentions the file `log`. `refused` lists the nodes of the failed model that an EP reported as unsupported.
    """
    found = diagnose(ending, [ep.entry for ep in group.target.eps])
    if found is None:
        return None
    last = ending.reports[-1] if ending.reports else {}
    at_fault = _find_faulty_member(group, ending.reports)
    member, step = group.members[at_fault], StepId(group.steps[at_fault])
    subject = f"compiling '{step.rsplit('/', 1)[-1]}' for {group.target.name}"
    raised, quote = merge_reasons(found.raised, ending.tail)
    hint = f"See the whole log: {log}."
    if found.cause == "timed out":
        late = f"did not finish {f'within {group.timeout:g} s' if group.timeout else 'within its limit'}"
        return BuildError(Problem("EPB403", f"{subject} {late} and was stopped.{quote}", step, hint, f"it {late}.{quote}"))
    if raised is not None and is_at_address_limit(last):
        share = f"{last['mapped'] / 1e6:.0f} of the {last['mappable'] / 1e6:.0f} MB that a process may map (`ulimit -v`)"
        why = f"failed after mapping {share}: {raised}.{quote}"
        cure = f"Raise this limit. An EP that reaches it may report that the model is at fault. {hint}"
        return EnvironmentFailure(Problem("EPB404", f"{subject} {why}", step, cure, f"it {why}"))
    limits = _find_limitations(group, member, ending, refused)
    limitation = next((found for found in limits if found[1].limit_of != "model"), None)
    # Advice for a model cannot help if this machine or the target is the cause.
    causes = [known for _, known in limits if limitation is None or known.limit_of != "model"]
    advice = _about_patterns(group, member) or dict.fromkeys(known.hint for known in causes if known.hint)
    hint = "".join(f"{text} " for text in advice) + hint
    if limitation is not None and limitation[1].limit_of == "target" and (raised or not found.from_outside):
        # Limitations of the target are checked before faults of this machine, such as a lack of memory.
        ep, known = limitation
        why = f"failed{f': {raised}' if raised else ''}. {ep} cannot {known.what}: {known.why}.{quote}"
        return BuildError(Problem("EPB401", f"{subject} {why}", step, hint, f"it {why}"))

    def make_worker_problem(code: str, what: str, why: str, cure: str = "") -> Problem:
        finished = f"at exit, after it had compiled every model for {group.target.name}"
        moment = finished if last.get("event") == "finished" else f"while {subject}"
        return Problem(code, f"the worker {what} {moment}{why}", step, f"{cure}{hint}", f"the worker {what}{why}")

    if found.cause == "out of memory":
        why = f"{'' if raised is None else f': {raised}'}.{quote}"
        return EnvironmentFailure(make_worker_problem("EPB404", "ran out of memory", why, f"{MORE_MEMORY} "))
    if found.cause == "ended":
        cure = MORE_MEMORY if ending.out_of_memory else _UNLESS_STOPPED
        return EnvironmentFailure(make_worker_problem("EPB404", found.end, f".{quote}", f"{cure} "))
    if limitation is not None:
        message = f"{limitation[0]} cannot {limitation[1].what} here: {limitation[1].why}.{quote}"
        return EnvironmentFailure(Problem("EPB416", message, step, hint))
    if raised is None or found.raised is None:
        return BuildError(make_worker_problem("EPB402", found.end, f".{quote}"))
    why = f"{raised}.{_explain_refusals(refused) if _NO_NODES in found.raised else ''}{quote}"
    if found.cause == "unfit":
        return EnvironmentFailure(Problem("EPB411", why, step, hint))
    if found.cause == "custom operators":
        cure = "Use a library that was built for this machine and this version of ONNX Runtime."
        return EnvironmentFailure(Problem("EPB444", why, step, f"{cure} {hint}"))
    hint = f"{_explain_custom_ops(found.raised)}{hint}"
    if found.cause == "cannot write":
        return EnvironmentFailure(Problem("EPB405", f"{subject} failed: {why}", step, f"{FREE_SPACE} {hint}", why))
    if found.spare_memory:
        why = f"{why} {found.spare_memory}"
    return BuildError(Problem("EPB401", f"{subject} failed: {why}", step, hint, why))


def _explain_custom_ops(raised: str) -> str:
    """Return a hint, with a trailing space, if custom operators caused the error. Otherwise, return an empty string."""
    unknown = _NO_OPERATOR.search(raised)
    if unknown is not None:
        return f"If {unknown[1]} is a custom operator, add its library or package to 'custom_ops'. "
    if _TWO_LIBRARIES in raised:
        return "Two entries of 'custom_ops' have operators of the same domain. Keep only one of these entries. "
    return ""


def _find_limitations(
    group: SessionGroup, member: Member, ending: Ending, refused: Sequence[FallbackNode]
) -> list[tuple[str, Limitation]]:
    """Return the catalog's limitations that match the log or the reports, each with the name of the limited EP.

    If the EP took no nodes, limitations that match the reasons logged for single nodes replace the limitations of the model.
    """
    reported = "\n".join((*ending.tail, *(str(report.get("message", "")) for report in ending.reports)))
    found = [(whose, with_hint(limitation, member)) for whose, limitation in group.target.limitations(reported, "compile")]
    if _NO_NODES not in reported:
        return found
    of_nodes = find_main_limitations(group.target, member, FallbackNodes("", len(refused), tuple(refused)))
    return [item for item in found if item[1].limit_of != "model"] + of_nodes if of_nodes else found


def _about_patterns(group: SessionGroup, member: Member) -> list[str]:
    """Return a hint for each pattern that a model contains and that is known to make an EP of the target fail."""
    hints = []
    for ep in group.target.eps:
        for summary, count in count_patterns(member.graph, ep.entry.rewrites).items():
            times = "" if count == 1 else f", {count} times"
            cure = f"Add `{{rewrite: {ep.entry.short}}}` to the model's 'prepare'."
            hints.append(f"The model contains {summary}{times}. {ep.entry.ep} is known to fail on this pattern. {cure}")
    return hints


def _explain_refusals(refused: Sequence[FallbackNode]) -> str:
    """Return a sentence about why an EP took no nodes, with a leading space. Return "" if the EP logged no reason."""
    outside = FallbackNodes("", len(refused), tuple(refused))
    return (
        f" The EP compiled none of {format_count(outside.count, 'node')}, and logged: {outside.why}." if outside.reasons else ""
    )


def _find_faulty_member(group: SessionGroup, reports: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the member whose compilation started last, or 0 if none started."""
    started = [report["member"] for report in reports if report.get("event") == "member_started"]
    return [member.name for member in group.members].index(started[-1]) if started else 0
