"""Expectations of a recipe: EPContext nodes, CPU fallback, sizes and shared bytes.

Expectations are not part of an action key. If they change, results are judged again, but nothing is compiled again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from epbuild.catalog.catalog import CPU_EP
from epbuild.catalog.facts import Limitation
from epbuild.core.errors import Problem, StepId
from epbuild.core.units import format_count
from epbuild.plan.member import Member
from epbuild.plan.result import CompileResult, ModelResult
from epbuild.plan.shapes import has_fixed_inputs
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import PlannedTarget
from epbuild.verify.fallback import FallbackGroup, FallbackNodes

_MAX_HINTS = 2
_MIN_HINT_FRACTION = 0.1
"""Minimum fraction of the fallback nodes that a hint must explain. Rarer reasons often disappear with the main reasons."""
_ACCEPT_HINT = "To let the CPU run these nodes, write `expect: {{fallback_nodes: {}}}`, or end the target's `eps` with {}."


class SharedBytes(Struct, frozen=True):
    """Bytes of a group's context binaries and data: `shared` with sharing, and `alone` if each member is compiled alone."""

    shared: int
    alone: int

    @property
    def saved(self) -> int:
        """Bytes that sharing saves. Negative if sharing needs more bytes."""
        return self.alone - self.shared

    @property
    def ratio(self) -> float:
        return self.saved / self.alone if self.alone else 0.0

    @property
    def shown_ratio(self) -> str:
        """Ratio with three decimals, rounded down, so that an insufficient ratio never looks sufficient."""
        return f"{(1000 * self.saved // self.alone if self.alone else 0) / 1000:.3f}"


def find_unmet_expectations(group: SessionGroup, result: CompileResult) -> list[Problem]:
    """Return a problem for each expectation that a group's result does not meet. The sharing ratio is skipped until it is measured."""
    problems = [problem for model in result.models for problem in _find_unmet(group, group.member(model.member), model)]
    problems += check_size(group, result)
    if group.min_shared_ratio is not None and (found := measure_shared_bytes(group, result)) is not None:
        problems += check_shared_bytes(found, group.steps[-1], group.min_shared_ratio)
    return problems


def find_advice(target: PlannedTarget, member: Member, found: FallbackGroup) -> tuple[str, ...]:
    """Return the catalog's hints for fallback nodes with the same operator and reason."""
    limitations = (limitation for _, limitation in target.limitations(f"{found.operator}: {found.reason}", "compile"))
    hints = (_add_first_node(limitation, member, (found.operator, found.nodes[0])).hint for limitation in limitations)
    return tuple(dict.fromkeys(hint for hint in hints if hint))


def find_main_limitations(target: PlannedTarget, member: Member, outside: FallbackNodes) -> list[tuple[str, Limitation]]:
    """Return the few limitations in the catalog that explain the most fallback nodes, starting with the most frequent."""
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
        (whose, _add_first_node(limitation, member, first[what]))
        for what, number in counts.most_common(_MAX_HINTS)
        if number > outside.count * _MIN_HINT_FRACTION
        for whose, limitation in [concerned[what]]
    ]


def with_hint(limitation: Limitation, member: Member) -> Limitation:
    """Return a limitation with the hint for this model. The hint can depend on whether all inputs have fixed sizes."""
    return replace(limitation, hint=limitation.sized_hint) if limitation.sized_hint and has_fixed_inputs(member) else limitation


def _add_first_node(limitation: Limitation, member: Member, first: tuple[str, str]) -> Limitation:
    found = with_hint(limitation, member)
    operator, node = first
    return (
        found
        if found is limitation or not node
        else replace(found, hint=f"{found.hint} The first such node is {operator} '{node}'.")
    )


def _find_unmet(group: SessionGroup, member: Member, model: ModelResult) -> Iterator[Problem]:
    step = StepId(group.steps[-1])
    wanted, compiled = member.expect.ep_context_nodes, len(model.nodes)
    if wanted is not None and compiled != wanted:
        message = f"the model '{member.name}' was compiled to {compiled} EPContext nodes; the recipe expects {wanted}"
        yield Problem("EPB609", message, step)
    most, outside = group.max_fallback_nodes(member), FallbackNodes.of(model)
    if most is None or outside.count <= most:
        return
    which = f": {outside.what}" if outside.nodes else ""
    message = f"{group.target.title} did not compile {format_count(outside.count, 'node')} of the model '{member.name}'{which}"
    if outside.reasons:
        message += f". The EP logged: {outside.why}"
    hints = [limitation.hint for _, limitation in find_main_limitations(group.target, member, outside) if limitation.hint]
    hint = " ".join([*hints, _ACCEPT_HINT.format(outside.count, CPU_EP)])
    if member.expect.fallback_nodes is None:
        yield Problem("EPB655", message, step, hint)
    else:
        yield Problem("EPB609", f"{message}. The recipe expects at most {most}", step, hint)


class SizeLimit(Struct, frozen=True):
    """Maximum size of a result in bytes, and the key of `expect` that sets it. `why` continues the sentence about the maximum."""

    bytes: int
    key: str
    why: str = ""


def list_size_limits(group: SessionGroup) -> list[SizeLimit]:
    """Return the limits on the size of a session group's result."""
    expect, baseline, limits = group.members[0].expect, group.baseline, []
    if expect.max_bytes is not None:
        limits.append(SizeLimit(expect.max_bytes, "max_bytes"))
    if expect.max_growth is not None and baseline is not None and baseline.size is not None:
        most = math.floor(baseline.size * (1 + Fraction(str(expect.max_growth))))
        why = f": {baseline.size:,} bytes in {baseline.path}, and a growth of {100 * expect.max_growth:g} %"
        limits.append(SizeLimit(most, "max_growth", why))
    return limits


def check_size(group: SessionGroup, result: CompileResult) -> Iterator[Problem]:
    """Yield a problem for each limit that the size of a result exceeds, and a problem if there is nothing to compare it with."""
    name, step, limits = group.members[0].name, StepId(group.steps[-1]), list_size_limits(group)
    subject = f"the sharing set of '{name}' has" if group.share else f"the model '{name}' has"
    for limit in limits:
        if result.total_bytes > limit.bytes:
            message = f"{subject} {result.total_bytes:,} bytes; the recipe expects at most {limit.bytes:,}{limit.why}"
            yield Problem("EPB656", message, step, f"Make the model smaller, or raise {limit.key}.")
    expect, baseline = group.members[0].expect, group.baseline
    if expect.max_growth is not None and baseline is not None and not limits:
        message = f"{subject} {result.total_bytes:,} bytes, but {baseline.path} has no size of {group.id} to compare with"
        hint = "For a model that is not in the baseline, write 'max_bytes' as well."
        yield Problem("EPB657", message, step, hint)


def find_unmeasured(group: SessionGroup, result: CompileResult) -> tuple[Member, ...]:
    """Return the members that must still be compiled alone before the group's sharing ratio can be judged."""
    if group.min_shared_ratio is None:
        return ()
    return tuple(member for member in group.members if member.name not in result.alone)


def with_alone(result: CompileResult, member: Member, size: int) -> CompileResult:
    """Return the result with the size in bytes of one more member that was compiled alone."""
    return replace(result, alone={**result.alone, member.name: size})


def measure_shared_bytes(group: SessionGroup, result: CompileResult) -> SharedBytes | None:
    """Return the bytes with and without sharing. None if the recipe sets no ratio or a member has not been measured."""
    if group.min_shared_ratio is None or find_unmeasured(group, result):
        return None
    return SharedBytes(result.context_bytes, sum(result.alone.values()))


def check_shared_bytes(found: SharedBytes, step: str, min_ratio: float) -> list[Problem]:
    """Return a problem if a sharing group saves less than the recipe's `expect` requires."""
    if found.ratio >= min_ratio:
        return []
    message = (
        f"the context binaries and data have {found.shared:,} bytes with sharing and {found.alone:,} bytes with each model "
        f"compiled alone: the saved ratio is {found.shown_ratio}; the recipe expects at least {min_ratio:g}"
    )
    hint = "Check that the models have common weights, or lower shared_bytes.min_ratio."
    return [Problem("EPB611", message, StepId(step), hint)]
