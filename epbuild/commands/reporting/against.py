"""Comparison of a report with another report or with outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from epbuild.archive.members import UnsoundArchive
from epbuild.archive.opened import open_artifact
from epbuild.commands.reporting.changes import (
    ComparedFile,
    ComparedModel,
    FileChange,
    ModelChange,
    OutputChange,
    ReportedAgainst,
    SourceChange,
    VersionChange,
)
from epbuild.commands.reporting.values import FORMAT, Report
from epbuild.core.canonical import parse_json
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import Problem
from epbuild.core.records import convert
from epbuild.core.shown import format_path
from epbuild.diff.facts import Incomparable
from epbuild.publish.sizes import is_metadata
from epbuild.session.coverage import find_worst_figures
from epbuild.session.events import Coverage
from epbuild.verify.artifact import ArtifactFolder, find_artifacts
from epbuild.verify.manifest import Manifest

_EMBEDDED = re.compile(r'<script type="application/json" id="report">(.*?)</script>', re.DOTALL)
PAGES = (".html", ".htm")

_Key = tuple[str, str, str]
"""Key of a model: group, name in the group, and target."""
T = TypeVar("T")


class _ComparedOutput(Struct, frozen=True):
    path: str
    groups: tuple[str, ...]
    targets: tuple[str, ...]
    files: Mapping[str, ComparedFile]


class _Side(Struct, frozen=True):
    """One side of a comparison: facts from a report or from emitted outputs."""

    recipe: str
    models: Mapping[_Key, ComparedModel]
    outputs: Mapping[str, _ComparedOutput]
    """Outputs, by emit step."""
    versions: Mapping[str, Mapping[str, str]]
    sources: Mapping[str, tuple[str | None, Mapping[str, str]]] | None
    """For each source model, the digest of its graph and the digests of its external data. None for outputs."""
    toolchains: Mapping[str, str]
    """Name of each target's toolchain. Empty for outputs, because manifests do not contain the name."""
    merged: frozenset[tuple[str, str]] = frozenset()
    """Groups and targets whose models were merged, so that their models cannot be compared individually."""


def with_comparison(report: Report, path: Path) -> Report:
    """Return a report with the changes since the report or the outputs at `path`.

    Raises NothingToVerify (EPB600) and Incomparable (EPB630).
    """
    other = read_report(path)
    after = _read_report_side(report)
    about: tuple[str | None, str | None, float | None] = (None, None, None)
    if other is not None:
        before, about = _read_report_side(other), (other.made_at, other.epbuild, other.build.seconds if other.build else None)
    else:
        packed = {output.step for output in report.outputs if output.archive is not None}
        after = replace(after, outputs={step: output for step, output in after.outputs.items() if step not in packed})
        before = _read_output_side(path, after)
        after = _select_comparable(after, before, path)
    known = set(before.versions) & set(after.versions)
    against = ReportedAgainst(
        path.as_posix(),
        "report" if other is not None else "outputs",
        before.recipe,
        *about,
        models=tuple(_compare_models(before.models, after.models)),
        outputs=tuple(_compare_outputs(before.outputs, after.outputs)),
        versions=tuple(
            VersionChange(name, package, old, new)
            for name in sorted(known)
            for package, old, new in _compare_values(before.versions[name], after.versions[name])
        ),
        sources=tuple(_compare_sources(before, after)),
    )
    return replace(report, against=against)


def read_report(path: Path) -> Report | None:
    """Return the report in an HTML or JSON file. Return None for other paths, such as a manifest or a folder.

    Raises Incomparable if the report is unreadable, or if an HTML file contains no report.
    """
    if not path.is_file() or path.suffix.lower() not in (*PAGES, ".json"):
        return None
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        if path.suffix.lower() in PAGES:
            found = _EMBEDDED.search(text)
            if found is None:
                raise _make_error(path, "is not a report")
            text = found[1]
        document = parse_json(text)
    except (OSError, ValueError, RecursionError) as error:
        raise _make_error(path, f"cannot be read: {error}") from error
    if not isinstance(document, dict) or "steps" not in document:
        return None  # The file is a manifest or a file of another program.
    if document.get("format") != FORMAT:
        raise _make_error(path, f"is a report of format {document.get('format')}, but this epbuild reads format {FORMAT}")
    try:
        return convert(document, Report)
    except msgspec.ValidationError as error:
        raise _make_error(path, "is not a complete report") from error


def _make_error(path: Path, why: str) -> Incomparable:
    return Incomparable(
        Problem(
            "EPB630", f"{format_path(path)} {why}", None, "Pass a report that epbuild wrote, a manifest, or a folder of outputs."
        )
    )


def _read_report_side(report: Report) -> _Side:
    return _Side(
        recipe=report.recipe.name,
        models={
            (row.group, row.member, row.target): ComparedModel(
                row.outcome, row.ep_context_nodes, row.fallback_nodes, row.size, row.seconds, row.accuracy
            )
            for row in report.coverage
        },
        outputs={
            output.step: _ComparedOutput(
                output.path,
                output.groups,
                output.targets,
                {file.path: ComparedFile(file.size, file.sha256) for file in output.files if not is_metadata(file.path)},
            )
            for output in report.outputs
            if output.files
        },
        versions={
            toolchain.name: {package.name: package.version for package in toolchain.packages}
            for toolchain in report.toolchains
            if toolchain.packages
        },
        sources={model.name: (model.sha256, {data.location: data.sha256 for data in model.data}) for model in report.models},
        toolchains={target.name: target.toolchain for target in report.targets},
    )


def _select_comparable(after: _Side, before: _Side, path: Path) -> _Side:
    """Return the part of the report `after` that can be compared with the outputs at `path`.

    A single output can be compared only with the models of its own group and target.
    """
    outputs = {step: output for step, output in after.outputs.items() if step in before.outputs}
    is_of_many = path.is_dir() and not (path / MANIFEST).exists()
    places = {(group, target) for group, _, target in (after.models if is_of_many else before.models)} - before.merged
    models = {key: model for key, model in after.models.items() if (key[0], key[2]) in places}
    return replace(after, models=models, outputs=outputs)


def _read_output_side(path: Path, report: _Side) -> _Side:
    """Read the outputs at a path as a side of the comparison. `report` provides the outputs' emit steps and toolchains."""
    try:
        with open_artifact(path) as found:
            artifacts = [item for item in find_artifacts(found.place) if item.document is not None and item.listed]
            if not artifacts:
                raise _make_error(path, "contains no manifest written by epbuild")
            return _collect_side(artifacts, report)
    except UnsoundArchive as error:
        raise Incomparable(*error.problems) from error


def _collect_side(artifacts: Iterable[ArtifactFolder], report: _Side) -> _Side:
    steps = {(output.groups, output.targets): step for step, output in reversed(list(report.outputs.items()))}
    models: dict[_Key, ComparedModel] = {}
    outputs: dict[str, _ComparedOutput] = {}
    versions: dict[str, Mapping[str, str]] = {}
    merged, recipe = set[tuple[str, str]](), ""
    for artifact in artifacts:
        manifest = artifact.manifest or Manifest()
        document, group, target = manifest.document, manifest.group, manifest.target
        recipe = str(document["recipe"])
        apart = [model for model in document["models"] if "merged" not in model]
        models.update({(group, str(model["name"]), target): _read_model(model) for model in apart})
        merged |= {(group, target)} if len(apart) < len(document["models"]) else set()
        if (step := steps.get(((group,), (target,)))) is not None:
            files = {file.path: ComparedFile(file.size, file.sha256) for file in manifest.files.values()}
            outputs.setdefault(step, _ComparedOutput(artifact.place, (group,), (target,), files))
        if target in report.toolchains:
            versions[report.toolchains[target]] = document["toolchain"]["distributions"]
    return _Side(recipe, models, outputs, versions, None, {}, frozenset(merged))


def _read_model(model: Mapping[str, Any]) -> ComparedModel:
    left = int(model["fallback_nodes"])
    nodes = len(model["ep_context_nodes"])
    outcome: Coverage = "partial" if left else "whole"
    if not model.get("compiled", True):
        outcome = "on the CPU"
    return ComparedModel(outcome, nodes, left, None, None, find_worst_figures(model.get("figures", ())))


def _compare_models(before: Mapping[_Key, ComparedModel], after: Mapping[_Key, ComparedModel]) -> Iterator[ModelChange]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old is None or new is None or _is_different(old, new):
            yield ModelChange(*key, old, new)


def _is_different(old: ComparedModel, new: ComparedModel) -> bool:
    """Return whether two models differ in a fact that is known for both."""
    pairs = ((value, getattr(new, name)) for name, value in asdict(old).items())
    return any(one != other for one, other in pairs if one is not None and other is not None)


def _compare_outputs(before: Mapping[str, _ComparedOutput], after: Mapping[str, _ComparedOutput]) -> Iterator[OutputChange]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        changed = tuple(FileChange(*found) for found in _compare_values(old.files if old else {}, new.files if new else {}))
        output = new or old
        if changed and output is not None:
            yield OutputChange(output.path, output.groups, output.targets, _sum_sizes(old), _sum_sizes(new), changed)


def _sum_sizes(output: _ComparedOutput | None) -> int | None:
    return sum(file.size for file in output.files.values()) if output is not None else None


def _compare_sources(before: _Side, after: _Side) -> Iterator[SourceChange]:
    if before.sources is None or after.sources is None:
        return
    for name, old, new in _compare_values(before.sources, after.sources):
        data = old is not None and new is not None and old[1] != new[1]
        yield SourceChange(name, old[0] if old is not None else None, new[0] if new is not None else None, data)


def _compare_values(before: Mapping[str, T], after: Mapping[str, T]) -> Iterator[tuple[str, T | None, T | None]]:
    """Yield each name whose values differ, with the old and the new value. A missing value is None."""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield name, old, new
