"""Parts of a report that come from the plan, the survey and the results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.digests import Digests
from epbuild.catalog.catalog import find_source_entry
from epbuild.catalog.facts import METRICS
from epbuild.commands.reporting.recipe_values import (
    ReportedAccuracy,
    ReportedContext,
    ReportedCoverage,
    ReportedData,
    ReportedEp,
    ReportedFile,
    ReportedMeasurement,
    ReportedModel,
    ReportedOperator,
    ReportedOutput,
    ReportedPackage,
    ReportedTarget,
    ReportedToolchain,
)
from epbuild.onnxfile.read.context_parts import label_graphs, list_context_parts
from epbuild.onnxfile.read.payload import Payload
from epbuild.output.materials import get_source_name
from epbuild.plan.measuring import ModelMeasurement
from epbuild.plan.outputs import PROVENANCE
from epbuild.plan.preparing import Preparation
from epbuild.plan.result import DIAGNOSTICS, ActionResult, CompileResult, MeasurementResult, VerificationResult
from epbuild.plan.steps import Emission, InTarget, Plan
from epbuild.plan.target import PlannedEp
from epbuild.plan.verification import Verification
from epbuild.recipe.model import ModelSpec
from epbuild.recipe.nodes import render
from epbuild.recipe.requirement import normalize_name
from epbuild.session.events import ModelCovered
from epbuild.session.lock import HeldLock
from epbuild.survey.action_status import ActionStatus
from epbuild.survey.orphans import Outputs
from epbuild.survey.status import Survey
from epbuild.verify.expectations import find_advice
from epbuild.verify.figures import find_lowest_limits
from epbuild.verify.live.judging import judge_metrics, judge_outputs, list_thresholds, round_figure

_Identity = Mapping[str, Any]
"""Facts about a toolchain that are part of action keys."""


_NOTHING_COMPARED: Mapping[str, Any] = {
    "figures": {},
    "limits": {},
    **dict.fromkeys(("samples", "evidence", "on", "reference")),
}
"""Fields of a `ReportedAccuracy` without a compared output."""


def collect_identities(found: Survey) -> dict[str, _Identity]:
    """Return the known facts about each toolchain, by name."""
    known: dict[str, _Identity] = {}
    for ident, action in found.plan.actions.items():
        document = found.actions[ident].document
        if action.runs_in is not None and "toolchain" in document:
            known.setdefault(action.runs_in.toolchain.name, document["toolchain"])
    return known


def report_toolchains(found: Survey, lock: HeldLock, known: Mapping[str, _Identity]) -> Iterator[ReportedToolchain]:
    for name, needs in found.plan.toolchains().items():
        identity, locked = known.get(name), lock.environments.get(name)
        files = {package.name: package.files for package in locked.packages} if locked is not None else {}
        versions = dict(identity["distributions"]) if identity is not None else {}
        if identity is None and locked is not None:
            versions = {package.name: package.version for package in locked.packages}
        yield ReportedToolchain(
            name=name,
            requires=needs.toolchain.packages,
            interpreter=needs.toolchain.interpreter,
            python=identity["python"] if identity is not None else locked.python if locked is not None else None,
            platform=identity["platform"] if identity is not None else None,
            locked=locked is not None,
            packages=tuple(
                ReportedPackage(package, version, files.get(normalize_name(package), ()))
                for package, version in sorted(versions.items())
            ),
        )


def report_targets(found: Survey, known: Mapping[str, _Identity]) -> Iterator[ReportedTarget]:
    targets = {action.target.name: action.target for action in found.plan.actions.values() if isinstance(action, InTarget)}
    for name, target in targets.items():
        yield ReportedTarget(
            name=name,
            toolchain=target.toolchain.name,
            platforms=target.toolchain.platforms,
            soc=next((ep.binary_target for ep in target.compiling if ep.binary_target is not None), None),
            eps=tuple(_report_ep(ep, known.get(target.toolchain.name)) for ep in target.eps),
        )


def _report_ep(ep: PlannedEp, toolchain: _Identity | None) -> ReportedEp:
    versions = {normalize_name(name): (name, version) for name, version in (toolchain or {}).get("distributions", {}).items()}
    carried = [versions[normalize_name(name)] for name in ep.entry.distributions if normalize_name(name) in versions]
    package, version = carried[0] if carried else (ep.entry.distribution, None)
    if ep.library is not None:
        package, version = "", None
    return ReportedEp(ep.entry.ep, package, version, ep.device.type, dict(ep.lasting_options))


def report_models(plan: Plan, digests: Digests) -> Iterator[ReportedModel]:
    users: dict[str, dict[str, None]] = {}
    specs = {action.model.name: action.model for action in plan.of(Preparation).values()}
    for group in plan.session_groups.values():
        for member in group.members:
            specs.setdefault(member.model.name, member.model)
            users.setdefault(member.model.name, {})[group.group] = None
    files = {model.name: found for model, found in plan.sources()}
    known = digests.of_many(path for found in files.values() for path in found.all)
    for name, model in specs.items():
        found = files.get(model.origin.name)
        data = found.external.items() if found is not None else ()
        listed = tuple(ReportedData(location, path.stat().st_size, known[path]) for location, path in sorted(data))
        yield ReportedModel(
            name=name,
            groups=tuple(users.get(name, ())),
            source=_describe_source(model.origin),
            sha256=known[found.graph] if found is not None else None,
            data=listed,
            size=found.graph.stat().st_size + sum(item.size for item in listed) if found is not None else None,
        )


def _describe_source(model: ModelSpec) -> str:
    """Return the path or address of a model's source, or the program that makes it. The program's options may contain secrets."""
    if model.make is None:
        return get_source_name(model.path)
    return " ".join(render(word.value) for word in model.make.command[:2])


def report_coverage(
    plan: Plan, rows: Iterable[ModelCovered], results: Mapping[str, ActionResult], store: BlobStore
) -> Iterator[ReportedCoverage]:
    contexts = {
        ident: _report_contexts(result, store)
        for ident in plan.session_groups
        if isinstance(result := results.get(ident), CompileResult)
    }
    members = {
        step: (group, member.name)
        for group in plan.session_groups.values()
        for step, member in zip(group.steps, group.members, strict=False)
    }
    for row in rows:
        group, member = members[row.step]
        yield ReportedCoverage(
            step=row.step,
            model=row.model,
            member=member,
            group=group.group,
            target=row.target,
            outcome=row.outcome,
            ep_context_nodes=row.ep_context_nodes,
            fallback_nodes=row.outside.count if row.outside is not None else None,
            outside=tuple(
                ReportedOperator(
                    found.operator,
                    len(found.nodes),
                    found.nodes,
                    found.reason,
                    find_advice(group.target, group.member(member), found),
                )
                for found in (row.outside.groups if row.outside is not None else ())
            ),
            reason=row.reason,
            size=row.size,
            seconds=row.seconds,
            accuracy=row.accuracy,
            contexts=contexts.get(group.id, {}).get(member, ()) if row.ep_context_nodes is not None else (),
        )


def _report_contexts(result: CompileResult, store: BlobStore) -> dict[str, tuple[ReportedContext, ...]]:
    """Return the context binaries of each member that are in the store. Each file is read once."""
    labels: dict[str, dict[str, str]] = {}
    sources: dict[str, str | None] = {}
    for model in result.models:
        for node in model.nodes:
            name = node.reference
            if name is not None and name in result.artifacts:
                labels.setdefault(name, {}).update(label_graphs(model.member, model.nodes))
                sources.setdefault(name, node.source)
    found: dict[str, ReportedContext] = {}
    for name, source in sources.items():
        with suppress(OSError):
            context = Payload.whole(store.place(result.artifacts[name].digest))
            parts = list_context_parts(context, find_source_entry(source))
            named = tuple(replace(part, name=labels[name].get(part.name, part.name)) for part in parts)
            found[name] = ReportedContext(name, context.size, named)
    return {
        model.member: tuple(
            found[name] for name in dict.fromkeys(node.reference for node in model.nodes) if name is not None and name in found
        )
        for model in result.models
    }


def report_output(emission: Emission, status: ActionStatus, outputs: Outputs) -> ReportedOutput:
    record = outputs.last(emission.path)
    files = record.files if record is not None else {}
    statement = emission.statement.name if emission.statement is not None else PROVENANCE
    return ReportedOutput(
        step=emission.id,
        path=Path(os.path.normpath(outputs.place(emission.path))).as_posix(),
        layout=emission.layout,
        archive=emission.archive_format,
        registry=str(emission.registry) if emission.registry is not None else None,
        groups=tuple(dict.fromkeys(part.group for part in emission.parts)),
        targets=tuple(dict.fromkeys(part.target.name for part in emission.parts)),
        in_place=status.state == "current",
        key=record.action_key if record is not None else None,
        provenance=statement if emission.provenance else None,
        size=sum(int(file["size"]) for file in files.values()),
        files=tuple(ReportedFile(name, int(file["size"]), str(file["digest"])) for name, file in sorted(files.items())),
    )


def report_accuracy(action: Verification, result: VerificationResult) -> Iterator[ReportedAccuracy]:
    for checked in action.members:
        row_of = partial(ReportedAccuracy, step=action.id, group=action.group, target=action.target.name, member=checked.name)
        rows = {row.output: row for row in result.figures if row.member == checked.name}
        for verdict in judge_outputs(action, checked, result):
            row = rows[verdict.figures.output]
            yield row_of(
                output=row.output,
                outcome=verdict.outcome,
                reason=verdict.reason or None,
                figures={name: round_figure(name, getattr(row, name)) for name in METRICS},
                limits=list_thresholds(action, checked, row),
                samples=row.samples,
                evidence=row.evidence,
                on=row.on,
                reference=row.reference,
            )
        for found in judge_metrics(checked, result):
            yield row_of(
                output=f"metric {found.metric.name}",
                outcome="failed" if found.missed else "passed",
                reason="; ".join((found.text, *found.missed)),
                **{**_NOTHING_COMPARED, "reference": "source"},
            )
        if (unjudged := result.unjudged_member(checked.name)) is not None:
            yield row_of(output=None, outcome="unjudgeable", reason=unjudged.reason, **_NOTHING_COMPARED)


def report_measurements(action: ModelMeasurement, result: MeasurementResult) -> Iterator[ReportedMeasurement]:
    for member in action.members:
        model, folder = result.model(member.name), f"{DIAGNOSTICS}/{member.name}/"
        yield ReportedMeasurement(
            step=action.id,
            group=action.group,
            target=action.target.name,
            member=member.name,
            figures=model.figures,
            limits=find_lowest_limits(member, model),
            on=model.on,
            device=model.device,
            files=tuple(name.removeprefix(folder) for name in result.diagnostics if name.startswith(folder)),
        )
