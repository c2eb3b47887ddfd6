"""SARIF 2.1.0 of errors, warnings and failed steps, for code scanning."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from epbuild import __version__
from epbuild.core.errors import Argument, EpbuildError, Location, Position, Problem
from epbuild.core.records import prepare_type
from epbuild.engine.events import Event, RunFinished, StepFailed, Warned
from epbuild.report.json.documents import format_json
from epbuild.session.events import StepCompared

_FILE = Path(__file__).parents[2] / "error_codes.toml"
Level = Literal["error", "warning", "note"]
_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_HOME = "https://github.com/epbuild/epbuild"
_HELP = f"{_HOME}/blob/main/docs/reference/errors.md"
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


class ErrorCode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Help for an error code, in Markdown. Links are relative to `docs/`."""

    meaning: str
    action: str
    example: str
    """Example of the message that epbuild prints."""


@cache
def read_error_codes() -> dict[str, ErrorCode]:
    """Return the help for each error code."""
    return msgspec.toml.decode(_FILE.read_bytes(), type=prepare_type(dict[str, ErrorCode]))


class SarifDocument:
    """Collector that converts problems, or a build's events, to SARIF."""

    def __init__(self, recipe: Path) -> None:
        self._recipe = recipe
        self._root = _find_source_root()
        self._found: dict[tuple[Level, Problem], None] = {}
        self._exit_code = 0

    def report(self, event: Event, /) -> None:
        """Record the problems of an event."""
        match event:
            case Warned(problem):
                self.add("warning", [problem])
            case StepFailed(_, problems, allowed=allowed):
                self.add("note" if allowed else "error", problems)
            case StepCompared(problems=problems):
                self.add("error", problems)
            case RunFinished(exit_code):
                self._exit_code = exit_code

    def add(self, level: Level, problems: Iterable[Problem]) -> None:
        """Record problems. Duplicates are ignored."""
        self._found.update(dict.fromkeys((level, problem) for problem in problems))

    def text(self, error: BaseException | None) -> str:
        """Return the document."""
        exit_code = self._exit_code
        if isinstance(error, EpbuildError):
            self.add("error", error.problems)
            exit_code = error.exit_code
        invocation: dict[str, Any] = {"executionSuccessful": error is None and exit_code == 0}
        if error is None or isinstance(error, EpbuildError):
            invocation["exitCode"] = exit_code
        codes = sorted({problem.code for _, problem in self._found})
        driver = {
            "name": "epbuild",
            "version": __version__,
            "informationUri": _HOME,
            "rules": [_make_rule(code) for code in codes],
        }
        run = {
            "tool": {"driver": driver},
            "invocations": [invocation],
            "columnKind": "unicodeCodePoints",
            "results": [self._make_result(level, problem, codes.index(problem.code)) for level, problem in self._found],
        }
        return format_json({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})

    def _make_result(self, level: Level, problem: Problem, rule: int) -> dict[str, Any]:
        # Code scanning hides results without a location. Therefore, problems without a file are shown at the recipe.
        place = f"{problem.where}: " if isinstance(problem.where, Argument) else ""
        return {
            "ruleId": problem.code,
            "ruleIndex": rule,
            "level": level,
            "message": {"text": _escape_surrogates(f"{place}{problem.text}")},
            "locations": [self._make_location(problem.where)],
        }

    def _make_location(self, where: Location | None) -> dict[str, Any]:
        match where:
            case Position(file, line, column):
                region = {"startLine": line, "startColumn": column}
                return {"physicalLocation": {"artifactLocation": self._make_artifact(Path(file)), "region": region}}
            case Path():
                return {"physicalLocation": {"artifactLocation": self._make_artifact(where)}}
        location: dict[str, Any] = {"physicalLocation": {"artifactLocation": self._make_artifact(self._recipe)}}
        if isinstance(where, str):
            location["logicalLocations"] = [{"fullyQualifiedName": _escape_surrogates(where), "kind": "step"}]
        return location

    def _make_artifact(self, path: Path) -> dict[str, str]:
        absolute = path.absolute()
        try:
            below = absolute.relative_to(self._root).as_posix()
        except ValueError:
            return {"uri": f"file://{'' if absolute.as_posix().startswith('/') else '/'}{_quote_path(absolute.as_posix())}"}
        return {"uri": _quote_path(below), "uriBaseId": "%SRCROOT%"}


def _make_rule(code: str) -> dict[str, Any]:
    rule: dict[str, Any] = {"id": code, "helpUri": f"{_HELP}#{code.lower()}"}
    if (found := read_error_codes().get(code)) is not None:
        meaning, action = (_LINK.sub(r"\1", text) for text in (found.meaning, found.action))
        rule["shortDescription"] = {"text": meaning}
        rule["help"] = {"text": action, "markdown": action}
    return rule


def _find_source_root() -> Path:
    """Return the folder that paths are relative to: the root of the enclosing repository, or else the current directory."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), here)


def _quote_path(path: str) -> str:
    # Keep bytes of a name that are not UTF-8, and accept text that cannot be a file name.
    name = path.encode("utf-8", "surrogateescape" if _is_file_name(path) else "backslashreplace")
    return quote(name, safe="/:")


def _is_file_name(path: str) -> bool:
    return not any("\ud800" <= sign < "\udc80" or "\udcff" < sign <= "\udfff" for sign in path)


def _escape_surrogates(text: str) -> str:
    """Escape lone surrogates, because many readers reject them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
