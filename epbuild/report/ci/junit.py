"""JUnit XML of a build. Groups and targets are suites, and steps are cases.

The format has no standard. The document is valid under Jenkins' junit-10.xsd, which GitLab and Azure Pipelines also read.
"""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec import Struct

from epbuild.core.errors import EpbuildError, Problem, escape_controls
from epbuild.engine.events import Event, RunStarted, StepFailed, StepFinished, StepsCurrent, StepStarted
from epbuild.session.events import StepCompared

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MAX_MESSAGE = 2000
_OWN_SUITE = "epbuild run"
_MADE_AGAIN = "rebuilt: "


class _Case(Struct, frozen=True):
    name: str
    seconds: float = 0.0
    kind: str | None = None
    """`failure`, `error` or `skipped`. None for a passed case."""
    problems: Sequence[Problem] = ()
    message: str = ""


@dataclass
class JUnitDocument:
    """Collector that converts a build's events to JUnit XML."""

    _begin: datetime = field(default_factory=lambda: datetime.now(UTC))
    _name: str = _OWN_SUITE
    _started: dict[str, float] = field(default_factory=dict)
    _suites: dict[str, dict[str, _Case]] = field(default_factory=dict)

    def report(self, event: Event, /) -> None:
        """Record the outcome of a step."""
        match event:
            case RunStarted(recipe=recipe):
                self._name = recipe
            case StepStarted(step):
                self._started.setdefault(step, time.monotonic())
            case StepFinished(step, "skipped", note=note):
                self._add(step, _Case(step, kind="skipped", message=note))
            case StepFinished(step, outcome, seconds, note):
                words = ", ".join(filter(None, (outcome, note, event.from_, event.machine)))
                self._add(step, _Case(step, seconds, message=words))
            case StepsCurrent():
                for finished in event.each:
                    self.report(finished)
            case StepFailed(step, problems, allowed=True):
                self._add(
                    step, _Case(step, self._measure_seconds(step), "skipped", problems, "failed, which the recipe allows: ")
                )
            case StepFailed(step, problems):
                self._add(step, _Case(step, self._measure_seconds(step), "failure", problems))
            case StepCompared(step, _, seconds, problems=problems):
                name = f"{_MADE_AGAIN}{step}"
                self._add(
                    step, _Case(name, seconds, "failure", problems) if problems else _Case(name, seconds, message=event.verdict)
                )

    def text(self, error: BaseException | None) -> str:
        """Return the document. Each problem that stopped the build is a case."""
        suites = {name: list(cases.values()) for name, cases in self._suites.items()}
        if error is not None:
            suites[_OWN_SUITE] = _make_error_cases(error)
        root = ET.Element("testsuites", {"name": _escape_xml(self._name)})
        for name, cases in suites.items():
            suite = ET.SubElement(root, "testsuite", {"name": _escape_xml(name), **_count_cases(cases)})
            suite.set("timestamp", self._begin.strftime("%Y-%m-%dT%H:%M:%S"))
            for case in cases:
                suite.append(_make_element(name, case))
        for attribute, value in _count_cases([case for cases in suites.values() for case in cases]).items():
            if attribute != "skipped":
                root.set(attribute, value)
        ET.indent(root)
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'

    def _add(self, step: str, case: _Case) -> None:
        self._suites.setdefault(get_suite(step), {})[case.name] = case

    def _measure_seconds(self, step: str) -> float:
        return time.monotonic() - self._started[step] if step in self._started else 0.0


def get_suite(step: str) -> str:
    """Return the name of a step's suite: its group and target. For a step of several groups or targets, use its kind and subject."""
    kind, _, rest = step.partition(":")
    parts = rest.split("/")
    return "/".join(parts[:2]) if kind != "prepare" and len(parts) > 1 else f"{kind}:{parts[0]}"


def _make_error_cases(error: BaseException) -> list[_Case]:
    if isinstance(error, EpbuildError):
        named = ((f"{problem.code} {problem.where or ''}".strip(), problem) for problem in error.problems)
        return [_Case(name, kind="error", problems=[problem]) for name, problem in named]
    words = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
    return [_Case("the build", kind="error", message=words)]


def _count_cases(cases: Sequence[_Case]) -> dict[str, str]:
    kinds = [case.kind for case in cases]
    counts = {
        "tests": len(cases),
        "failures": kinds.count("failure"),
        "errors": kinds.count("error"),
        "skipped": kinds.count("skipped"),
    }
    return {**{name: str(count) for name, count in counts.items()}, "time": f"{sum(case.seconds for case in cases):.3f}"}


def _make_element(suite: str, case: _Case) -> ET.Element:
    # Readers split a class name at its last dot into package and class.
    names = {"name": _escape_xml(case.name), "classname": _escape_xml(suite.replace(".", "_").replace("/", "."))}
    element = ET.Element("testcase", {**names, "time": f"{case.seconds:.3f}"})
    if case.kind is None:
        if case.message:
            ET.SubElement(element, "system-out").text = _escape_xml(case.message)
        return element
    texts = [escape_controls(problem.text) for problem in case.problems]
    attributes = {"message": _escape_xml(f"{case.message}{' '.join(texts)}"[:_MAX_MESSAGE])}
    if case.problems:
        attributes["type"] = case.problems[0].code
    below = ET.SubElement(element, case.kind, attributes)
    below.text = _escape_xml("\n".join(escape_controls(str(problem)) for problem in case.problems))
    return element


def _escape_xml(text: str) -> str:
    """Escape control characters and lone surrogates, because XML cannot represent them."""
    return _NO_XML.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
