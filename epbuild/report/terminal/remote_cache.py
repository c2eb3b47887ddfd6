"""Results in a remote cache as lines of 80 columns, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from epbuild.commands.remote_cache import CheckedResult, Push, PushedResult, RemoteCheck
from epbuild.core.units import counted
from epbuild.report.amounts import amount
from epbuild.report.json.documents import problem_document
from epbuild.report.terminal.screen import print_line

FORMAT = 1


def push_document(done: Push) -> dict[str, Any]:
    """`cache push --json`."""
    return {
        "format": FORMAT,
        "remote": done.remote,
        "results": [asdict(result) for result in done.results],
        "sent_bytes": done.sent_bytes,
        "seconds": done.seconds,
        "warnings": [problem_document(problem) for problem in done.warnings],
    }


def print_push(done: Push) -> None:
    """A line for what was written and what could not be, and the sum."""
    for result in done.results:
        if result.outcome == "written":
            print_line(f"written  {result.step}  {amount(result.size)}")
        elif result.outcome == "failed":
            print_line(f"failed   {result.step}")
    sent = f" ({amount(done.sent_bytes)} in {done.seconds:.1f} s)" if done.sent_bytes else ""
    print_line(f"{done.remote}: {counted(len(done.results), 'result')}, {_sums(done.results, 'written', sent)}")
    if any(result.outcome == "not here" for result in done.results):
        print_line("What is not here, `epbuild run --no-emit --remote-cache write` makes and writes.")


def remote_check_document(found: RemoteCheck) -> dict[str, Any]:
    """`cache verify --remote --json`."""
    return {
        "format": FORMAT,
        "remote": found.remote,
        "results": [asdict(result) for result in found.results],
        "received_bytes": found.received_bytes,
        "seconds": found.seconds,
        "warnings": [problem_document(problem) for problem in found.warnings],
    }


def print_remote_check(found: RemoteCheck) -> None:
    """What cannot be used, what is not there, each with why; then the sum."""
    width = max((len(result.outcome) for result in found.results if result.outcome != "sound"), default=0)
    for result in found.results:
        if result.outcome != "sound":
            print_line(f"{result.outcome:<{width}}  {result.step}")
            if result.why:
                print_line(f"{'':<{width}}    {result.why}")
    read = f" ({amount(found.received_bytes)} read in {found.seconds:.1f} s)" if found.received_bytes else ""
    print_line(f"{found.remote}: {counted(len(found.results), 'result')}, {_sums(found.results, 'sound', read)}")
    if any(result.outcome == "unusable" for result in found.results):
        print_line("`epbuild cache push --replace STEP` writes one again, from a store that has it.")


def _sums(results: Sequence[PushedResult | CheckedResult], first: str, note: str) -> str:
    """How many results had each outcome; `note` is about the `first`."""
    counts = Counter(result.outcome for result in results)
    parts = [
        f"{counts[outcome]} {outcome}{note if outcome == first else ''}"
        for outcome in sorted(counts, key=lambda name: name != first)
    ]
    return ", ".join(parts)
