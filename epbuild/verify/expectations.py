"""Expectations of a recipe: EPContext nodes, and nodes left to other EPs.

None of it is part of a key: any result may be asked again, so that a model that stayed outside in part is compiled once, whatever the
recipe comes to expect of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from msgspec.structs import replace

from epbuild.catalog.catalog import CPU_EP
from epbuild.catalog.facts import Limitation
from epbuild.core.errors import Problem, StepId
from epbuild.core.units import counted
from epbuild.plan.member import Member
from epbuild.plan.result import CompileResult, ModelResult
from epbuild.plan.shapes import is_sized
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import PlannedTarget
from epbuild.verify.compiled import SharedBytes
from epbuild.verify.fallback import LeftGroup, Outside

_MOST_HINTS = 2
_FEW = 0.1
"""A hint that concerns no more than this part of the nodes outside is left out: these often go when the others do."""
_ACCEPT = "To accept that the CPU runs them, write `expect: {{fallback_nodes: {}}}`, or end the target's `eps` with {}."


def unmet_expectations(group: SessionGroup, result: CompileResult) -> list[Problem]:
    """What is not as the recipe wants it of each model in a session group's result."""
    return [problem for model in result.models for problem in _unmet(group, group.member(model.member), model)]


def advice(target: PlannedTarget, member: Member, found: LeftGroup) -> tuple[str, ...]:
    """What the catalog has to do about nodes of one operator that stayed outside for one reason."""
    limitations = (limitation for _, limitation in target.limitations(f"{found.operator}: {found.reason}", "compile"))
    hints = (_with_hint(limitation, member, (found.operator, found.nodes[0])).hint for limitation in limitations)
    return tuple(dict.fromkeys(hint for hint in hints if hint))


def most_concerned(target: PlannedTarget, member: Member, outside: Outside) -> list[tuple[str, Limitation]]:
    """The limitations of the catalog that show in why nodes stayed outside: first that of most of them, and none that concerns few."""
    counts: Counter[str] = Counter()
    concerned: dict[str, tuple[str, Limitation]] = {}
    first: dict[str, tuple[str, str]] = {}
    shows = cache(lambda operator, reason: tuple(target.limitations(f"{operator}: {reason}", "compile")))
    for left in outside.nodes:
        for whose, limitation in shows(left.operator, left.reason):
            counts[limitation.what] += 1
            concerned[limitation.what] = whose, limitation
            first.setdefault(limitation.what, (left.operator, left.node))
    return [
        (whose, _with_hint(limitation, member, first[what]))
        for what, number in counts.most_common(_MOST_HINTS)
        if number > outside.count * _FEW
        for whose, limitation in [concerned[what]]
    ]


def with_hint(limitation: Limitation, member: Member) -> Limitation:
    """Return a limitation with the hint for this model: another one may hold once all inputs have their sizes."""
    return replace(limitation, hint=limitation.sized_hint) if limitation.sized_hint and is_sized(member) else limitation


def _with_hint(limitation: Limitation, member: Member, first: tuple[str, str]) -> Limitation:
    found = with_hint(limitation, member)
    operator, node = first
    return found if found is limitation or not node else replace(found, hint=f"{found.hint} The first is {operator} '{node}'.")


def _unmet(group: SessionGroup, member: Member, model: ModelResult) -> Iterator[Problem]:
    step = StepId(group.steps[-1])
    wanted, compiled = member.expect.ep_context_nodes, len(model.nodes)
    if wanted is not None and compiled != wanted:
        message = f"the model '{member.name}' became {compiled} EPContext nodes; the recipe expects {wanted}"
        yield Problem("EPB609", message, step)
    most, outside = group.most_left(member), Outside.of(model)
    if most is None or outside.count <= most:
        return
    which = f": {outside.what}" if outside.nodes else ""
    message = f"{counted(outside.count, 'node')} of the model '{member.name}' stayed outside {group.target.title}{which}"
    if outside.reasons:
        message += f". The EP logged: {outside.why}"
    hints = [limitation.hint for _, limitation in most_concerned(group.target, member, outside) if limitation.hint]
    hint = " ".join([*hints, _ACCEPT.format(outside.count, CPU_EP)])
    if member.expect.fallback_nodes is None:
        yield Problem("EPB655", message, step, hint)
    else:
        yield Problem("EPB609", f"{message}. The recipe expects {most} at most", step, hint)


def unmeasured(group: SessionGroup, result: CompileResult) -> tuple[Member, ...]:
    """The members whose size alone the group's `expect` needs, and a result lacks."""
    if group.min_shared_ratio is None:
        return ()
    return tuple(member for member in group.members if member.name not in result.alone)


def with_alone(result: CompileResult, member: Member, size: int) -> CompileResult:
    """A result that also has the bytes of a member compiled alone."""
    return replace(result, alone={**result.alone, member.name: size})


def shared_bytes(result: CompileResult) -> SharedBytes:
    """What sharing comes to, by a result in which every member is measured."""
    names = (name for model in result.models for name in (*model.binaries, *model.data))
    return SharedBytes(result.size(names), sum(result.alone.values()))
