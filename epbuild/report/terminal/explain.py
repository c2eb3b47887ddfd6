"""Explanations of why steps would run.

out of date  emit:decoder/phone/directory
  Last emitted 2026-10-08 14:03:11, with the key 5a1b2c3d.
  It waits for:
    out of date  share:decoder/phone
      Last built 2026-10-08 14:03:10, with the key 1a2b3c4d; now its key is
      9f8e7d6c.
      - option soc_model of QNNExecutionProvider changed: SM8750 -> SM8650
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

from epbuild.commands.explain import Explanation
from epbuild.commands.graph import REMOTE
from epbuild.core.differences import shown
from epbuild.report.terminal.screen import BOLD, has_colors, paint, print_lines, wrap


def print_explanations(found: Sequence[Explanation]) -> None:
    """Print the explanations, with an empty line between them."""
    color = has_colors(sys.stdout)
    for number, explanation in enumerate(found):
        head, *rest = _lines(explanation, "")
        print_lines([*([""] if number else []), paint(head, BOLD, color), *rest])


def _lines(explanation: Explanation, margin: str) -> Iterator[str]:
    yield f"{margin}{explanation.state}{REMOTE if explanation.remote else ''}  {explanation.step.id}"
    inner = f"{margin}  "
    yield from wrap(_history(explanation), inner, inner)
    if explanation.state != "current" and explanation.step.id != explanation.step.action:
        how = "done together with" if explanation.step.kind == "merge" else "compiled in one process with all of"
        yield from wrap(f"It is {how} {explanation.step.action}.", inner, inner)
    waits = {f"needs {cause.step.id}" for cause in explanation.causes}
    # A finished step has no reasons, but its changes are why the steps after it have to run.
    for reason in explanation.reasons or map(str, explanation.changes):
        if reason not in waits:
            yield from wrap(reason, f"{inner}- ", f"{inner}  ")
    if explanation.causes:
        yield f"{inner}It waits for:" if waits & set(explanation.reasons) else f"{inner}It is made of:"
        for cause in explanation.causes:
            yield from _lines(cause, f"{inner}  ")


def _history(explanation: Explanation) -> str:
    """Return when the step was last done, with which key, and its state now."""
    emits = explanation.step.kind in ("merge", "emit")
    done = "emitted" if explanation.step.kind == "emit" else "built"
    key = "" if explanation.key is None else shown(explanation.key)
    place = "the remote cache" if explanation.remote else "the store"
    if explanation.built is None:
        text = f"It was never {done} here"
        if not emits and explanation.state == "new" and key:
            return f"{text}, and the store has no result for its key, {key}."
        return f"{text}; {place} has a result for its key, {key}." if explanation.state == "restorable" else f"{text}."
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(explanation.built))
    text = f"Last {done} {when}, with the key {shown(explanation.previous_key)}"
    if explanation.state == "current":
        if explanation.changes:
            return f"{text}; what was emitted is an earlier result."
        return f"{text}; " + ("its files are in place." if emits else "nothing that it depends on has changed since.")
    if key and explanation.key != explanation.previous_key:
        text += f"; now its key is {key}"
    if explanation.state != "restorable" or explanation.causes:
        return f"{text}."
    return f"{text}. " + (
        "The store has what it takes to put its files back." if emits else f"{place[0].upper()}{place[1:]} has a result for that."
    )
