"""From the way in which a worker ended to the sentence that a person needs: which model, what ONNX Runtime said, what the EP said."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from epbuild.catalog.entries import EpEntry
from epbuild.catalog.facts import Limitation
from epbuild.core.errors import BuildError, EnvironmentFailure, EpbuildError, Problem, StepId
from epbuild.core.units import counted
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.process import Ending
from epbuild.verify.expectations import most_concerned
from epbuild.verify.fallback import LeftNode, Outside

_QUOTED = 3
_LONGEST_REASON = 400
_LONGEST_QUOTE = 300
_LEFT_OUT = " [...] "
_ERROR, _WARNING, _OTHER = range(3)  # the ranks of what is said
_LOG_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[([VIWEF]):[^\]]*\]\s*")
_SEVERITY_PREFIX = re.compile(r"^\s*\d+(?:\.\d+)?(?:ms)?\s*\[\s*(ERROR|WARN|WARNING)\s*\]\s*", re.IGNORECASE)
_ERROR_WORDS = re.compile(r"<E>|error\b|\bfail(ed|ure)?\b|terminate called|what\(\):", re.IGNORECASE)
_BOILERPLATE = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : ([A-Z_ ]+?) : "
    # A place in the source, a signature and a condition, where words follow.
    r"|(?:Exception during initialization: )?\S*/onnxruntime/\S+\.(?:cc|h):\d+ .*? was false\. (?=\S)"
)
_PROGRESS = re.compile(r"\d ?%|(?<![\w/.-])\d+ ?(?:/|of) ?\d+(?![\w/.-])")
# Said on every Linux host, about nothing that went wrong.
_NOISE = re.compile(
    r"File mapped weights feature|EPContext encryption config unavailable|LIBNATIVE"
    r"|Unable to get producer node for OrtValueInfo|Removing initializer '.*'\. It is not used by any node"
)
_OUT_OF_MEMORY = re.compile(
    r"bad_alloc|MemoryError|[Oo]ut of memory|[Cc]annot allocate memory|OpenBLAS error: Memory allocation"
    r"|can't start new thread"
)
MORE_MEMORY = "Give it more memory, or run fewer at once (-j)."
FREE_SPACE = "Check the free space of .epbuild/tmp, and the limit on the size of a file (`ulimit -f`)."
# Under `ulimit -v`, QNN failed with 83 to 99 % of it mapped, and said for one that it could validate no node.
_NEARLY = 0.75
_NO_OPERATOR = re.compile(r"(\S+:\S+?)\(-?\d+\) is not a registered function/op")
_TWO_LIBRARIES = "Domain already set in registry"
_NOTHING = "Unable to compile any nodes"
CANNOT_WRITE = re.compile(r"No space left on device|File too large|[Qq]uota exceeded|[Ff]ailed to write")
# SIGHUP, SIGINT, SIGKILL and SIGTERM: no program sends them to itself by mistake. Not all are in Python's signal module on Windows.
FROM_OUTSIDE = frozenset({1, 2, 9, 15})
_FOR_MEMORY = ("by the kernel for lack of memory", MORE_MEMORY)
_BY_SOMEBODY = ("from outside", f"If nobody did that, it was likely for lack of memory. {MORE_MEMORY}")
_WINDOWS_CRASHES = {0xC0000005: "an access violation", 0xC0000409: "an abort", 0xC00000FD: "a stack overflow"}


def diagnose(group: SessionGroup, ending: Ending, log: str, refused: Sequence[LeftNode] = ()) -> EpbuildError | None:
    """The error that a session group's `ending` amounts to; None when it ended well. `log` is what to tell the reader to look at.

    `refused` are the nodes of the model at fault that an EP said it would not take.
    """
    last = ending.reports[-1] if ending.reports else {}
    if ending.how == "exited" and ending.status == 0 and last.get("event") == "finished":
        return None
    step = StepId(_step_at_fault(group, ending.reports))
    subject = _subject(group, step)
    hint = f"The whole log: {log}."
    whole = tidy(str(last["message"])) or str(last["type"]) if last.get("event") == "failed" else None
    raised, quote = told_once(whole, ending.tail)
    finished = f"at its exit, after it had compiled every model for {group.target.name}"
    moment = finished if last.get("event") == "finished" else f"while {subject}"
    if ending.how == "timed out" and raised is None:
        allowed = f"within {group.timeout:g} s" if group.timeout else "within its limit"
        message = f"{subject} did not end {allowed} and was stopped.{quote}"
        return BuildError(Problem("EPB403", message, step, hint, f"it did not end {allowed}.{quote}"))
    if raised is not None and last.get("mapped", 0) > _NEARLY * last.get("mappable", math.inf):
        share = f"at {last['mapped'] / 1e6:.0f} of the {last['mappable'] / 1e6:.0f} MB that a process may map here (`ulimit -v`)"
        cure = f"Raise that limit: an EP that meets it may blame the model. {hint}"
        why = f"{share}: {raised}.{quote}"
        return EnvironmentFailure(Problem("EPB404", f"{subject} failed {why}", step, cure, f"it failed {why}"))
    known_limits = _limitations(group, ending, refused)
    hint = "".join(f"{text} " for text in dict.fromkeys(known.hint for _, known in known_limits if known.hint)) + hint
    limitation = next((found for found in known_limits if found[1].of != "model"), None)
    if limitation is not None and limitation[1].of == "target" and (raised or -ending.status not in FROM_OUTSIDE):
        # Before anything that this machine would be blamed for, such as its memory.
        ep, known = limitation
        why = f"{f': {raised}' if raised else ''}. {ep} cannot {known.what}: {known.why}.{quote}"
        return BuildError(Problem("EPB401", f"{subject} failed{why}", step, hint, f"it failed{why}"))
    if ran_out_of_memory("\n".join(ending.tail) if whole is None else whole, [ep.entry for ep in group.target.eps]):
        why = f"{'' if raised is None else f': {raised}'}.{quote}"
        what = "the worker ran out of memory"
        return EnvironmentFailure(Problem("EPB404", f"{what} {moment}{why}", step, f"{MORE_MEMORY} {hint}", f"{what}{why}"))
    if raised is None and -ending.status in FROM_OUTSIDE:
        by_whom, cure = _FOR_MEMORY if ending.out_of_memory else _BY_SOMEBODY
        what = f"the worker was ended {by_whom} ({signal_name(-ending.status)})"
        return EnvironmentFailure(Problem("EPB404", f"{what} {moment}.{quote}", step, f"{cure} {hint}", f"{what}.{quote}"))
    if limitation is not None:
        message = f"{limitation[0]} cannot {limitation[1].what} here: {limitation[1].why}.{quote}"
        return EnvironmentFailure(Problem("EPB416", message, step, hint))
    if raised is None or whole is None:
        what = f"the worker {ended(ending.status)}"
        return BuildError(Problem("EPB402", f"{what} {moment}.{quote}", step, hint, f"{what}.{quote}"))
    why = f"{raised}.{_why_nothing(refused) if _NOTHING in whole else ''}{quote}"
    if last["kind"] == "unfit":
        return EnvironmentFailure(Problem("EPB411", why, step, hint))
    if last["kind"] == "custom_ops":
        return EnvironmentFailure(Problem("EPB444", why, step, f"It must be built for this machine and ONNX Runtime. {hint}"))
    hint = f"{_about_custom_ops(whole)}{hint}"
    if CANNOT_WRITE.search(whole):
        room = f"{FREE_SPACE} {hint}"
        return EnvironmentFailure(Problem("EPB405", f"{subject} failed: {why}", step, room, why))
    return BuildError(Problem("EPB401", f"{subject} failed: {why}", step, hint, why))


def ran_out_of_memory(text: str, entries: Iterable[EpEntry] = ()) -> bool:
    """Whether a text is about too little memory, in general or in the words of the EPs of these catalog entries."""
    patterns = (entry.out_of_memory for entry in entries if entry.out_of_memory is not None)
    return _OUT_OF_MEMORY.search(text) is not None or any(re.search(pattern, text) for pattern in patterns)


def _about_custom_ops(raised: str) -> str:
    """What to do about custom operators, as a sentence with a space behind it; empty where they are not to blame."""
    unknown = _NO_OPERATOR.search(raised)
    if unknown is not None:
        return f"If {unknown[1]} is a custom operator, name its library or package in 'custom_ops'. "
    if _TWO_LIBRARIES in raised:
        return "Two of the 'custom_ops' have operators of one domain: name one of them. "
    return ""


def _limitations(group: SessionGroup, ending: Ending, refused: Sequence[LeftNode]) -> list[tuple[str, Limitation]]:
    """The limitations that the catalog knows, and that show in what was said; with whose they are.

    What was said of single nodes counts where none was taken. Then it is known why, so that a guess is left out.
    """
    said = "\n".join((*ending.tail, *(str(report.get("message", "")) for report in ending.reports)))
    found = list(group.target.limitations(said, "compile"))
    if _NOTHING not in said:
        return found
    of_nodes = most_concerned(group.target, Outside("", len(refused), tuple(refused)))
    return [item for item in found if item[1].of != "model"] + of_nodes if of_nodes else found


def _why_nothing(refused: Sequence[LeftNode]) -> str:
    """Why an EP took no node at all, as sentences with a space before them; empty where it did not say."""
    outside = Outside("", len(refused), tuple(refused))
    return f" It took none of {counted(outside.count, 'node')}, and said: {outside.why}." if outside.reasons else ""


def told_once(raised: str | None, lines: Sequence[str]) -> tuple[str | None, str]:
    """What ONNX Runtime raised, shortened, and what the EP said beside it as a sentence to add, which is empty if that is the same.

    ONNX Runtime logs and raises what an EP tells it, each time with other words around it: each reason is told once.
    """
    quotes = _said(lines)
    if raised is not None:
        quotes = [text for text in quotes if _core(text) not in _core(raised)]
        longer = [text for text in quotes if _core(raised) in _core(text)]
        if longer:
            raised, quotes = longer[-1], [text for text in quotes if text not in longer]
        raised = shortened(raised, _LONGEST_REASON)
    words = _joined(quotes)
    return raised, f" The EP said: {words}" if words else ""


def last_words(lines: Sequence[str]) -> str:
    """What an EP said last that bears on a failure: errors if there are any, else warnings, else anything; a few lines as one text."""
    return _joined(_said(lines))


def _joined(quotes: Sequence[str]) -> str:
    return " | ".join(shortened(text, _LONGEST_QUOTE) for text in quotes)


def _said(lines: Sequence[str]) -> list[str]:
    ranks: dict[int, list[str]] = {_ERROR: [], _WARNING: [], _OTHER: []}
    for line in lines:
        if _NOISE.search(line):
            continue
        text, rank = _severity(line)
        if text:
            ranks[rank].append(tidy(text))
    chosen = next((found for found in ranks.values() if found), [])
    distinct: list[str] = []
    for text in dict.fromkeys(chosen):
        # What has only more words around it was said before, or is said now in fewer.
        if not any(_core(other) in _core(text) for other in distinct):
            distinct = [other for other in distinct if _core(text) not in _core(other)] + [text]
    return distinct[-_QUOTED:]


def _core(text: str) -> str:
    return text.rstrip(". ").casefold()


def shortened(text: str, most: int) -> str:
    """`text` if it has at most so many characters, else its beginning and its end, which often has the reason."""
    if len(text) <= most:
        return text
    end = most // 3
    return text[: most - end - len(_LEFT_OUT)].rstrip() + _LEFT_OUT + text[-end:].lstrip()


def readable(line: str) -> str:
    """A line of a worker's log as a person wants it: without time stamps and source places, and nothing of what is always said."""
    match = _LOG_PREFIX.match(line) or _SEVERITY_PREFIX.match(line)
    return "" if _NOISE.search(line) else line[match.end() :] if match else line


def tells_progress(line: str) -> bool:
    """Whether a line of a worker's log says how far the EP is: most of what EPs write is about something else, such as each weight."""
    return _severity(line)[1] == _OTHER and _PROGRESS.search(readable(line)) is not None


def _severity(line: str) -> tuple[str, int]:
    """A log line without its time stamp, and its rank; no text for mere information."""
    match = _LOG_PREFIX.match(line)
    if match:
        rank = {"E": _ERROR, "F": _ERROR, "W": _WARNING}.get(match[1])
        return ("", _OTHER) if rank is None else (line[match.end() :], rank)
    match = _SEVERITY_PREFIX.match(line)
    if match:
        return line[match.end() :], _ERROR if match[1].upper() == "ERROR" else _WARNING
    return line, _ERROR if _ERROR_WORDS.search(line) else _OTHER


def tidy(message: str) -> str:
    """An ORT message on one line, without its boilerplate and without a full stop at the end."""
    return _BOILERPLATE.sub("", " ".join(message.split())).rstrip(". ")


def _step_at_fault(group: SessionGroup, reports: Sequence[Mapping[str, Any]]) -> str:
    """The compile step of the member that was being worked on, else the group's first step."""
    started = [report["member"] for report in reports if report.get("event") == "member_started"]
    if not started:
        return group.steps[0]
    return group.steps[[member.name for member in group.members].index(started[-1])]


def _subject(group: SessionGroup, step: str) -> str:
    name = step.rsplit("/", 1)[-1]
    return f"compiling '{name}' for {group.target.name}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ended(status: int) -> str:
    if status < 0:
        return f"crashed ({signal_name(-status)})"
    if status in _WINDOWS_CRASHES:
        return f"crashed ({_WINDOWS_CRASHES[status]})"
    return f"ended with status {status}"
