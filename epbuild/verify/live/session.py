"""Sessions to load models in: environment, EPs, devices and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from epbuild.catalog.catalog import BUILT_IN, entries_for, find_session_key, known_eps, name_source_ep
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import UnknownName, find_option
from epbuild.catalog.options import Option
from epbuild.core.defaults import MANIFEST
from epbuild.core.errors import Position
from epbuild.core.safepath import resolve_links
from epbuild.core.shown import ProgressLines
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.target import OptionFile, PlannedEp, PlannedTarget
from epbuild.recipe.model import DeviceChoice
from epbuild.recipe.paths import is_library_path
from epbuild.toolchain.environment import Environment, Toolchains
from epbuild.verify.artifact import ArtifactFolder
from epbuild.verify.live.options import LoadOptions
from epbuild.verify.live.source import Sources
from epbuild.verify.live.toolchain import Wanted, inspect_interpreter, provision_manifest_toolchain
from epbuild.verify.live.worker import Session


class CannotLoad(Exception):
    """Error for an artifact that cannot be loaded with the given information. The text is a sentence with reason and remedy."""


def open_artifact_session(
    artifact: ArtifactFolder, given: LoadOptions, sources: Sources, toolchains: Toolchains, lines: ProgressLines
) -> Session:
    """Return the session for an artifact's models. Raises CannotLoad, ToolchainError, and the errors of reading the recipe."""
    manifest = artifact.manifest
    document = artifact.document
    planned = sources.find_eps(document)
    asked: Mapping[str, Mapping[str, str]] = manifest.eps if manifest is not None else {ep: {} for ep in _list_eps(artifact)}
    unknown = [ep for ep in asked if ep not in planned and ep not in known_eps()]
    if unknown:
        raise CannotLoad(f"{unknown[0]} is not in the catalog; use --recipe with a recipe whose catalog file describes it")
    custom_ops = _find_custom_ops(artifact, given, sources)
    packages = [ops.name for ops in custom_ops if ops.library is None]
    environment, entries = _find_environment(artifact, given, list(asked), planned, packages, toolchains, lines)
    target: Mapping[str, Any] = document["target"] if document is not None else {}
    devices = {ep["ep"]: ep.get("device") or {} for ep in target.get("eps", ())}
    planned_eps = [
        plan_ep(
            entry, asked[entry.ep], planned.get(entry.ep), _choose_device(given, planned.get(entry.ep), devices.get(entry.ep, {}))
        )
        for entry in entries
    ]
    eps = tuple(ep for ep, _ in planned_eps)
    if eps and given.ep_options:
        eps = (replace(eps[0], provider_options={**eps[0].provider_options, **given.ep_options}), *eps[1:])
    options, without = resolve_files(target.get("session_options", {}), find_session_key, {})
    lacking = (*(name for _, names in planned_eps for name in names), *without)
    return Session(
        environment, eps, options, target.get("environment", {}), given.timeout, lacking, custom_ops, given.from_memory
    )


def _find_environment(
    artifact: ArtifactFolder,
    given: LoadOptions,
    eps: Sequence[str],
    planned: Mapping[str, PlannedEp],
    packages: Sequence[str],
    toolchains: Toolchains,
    lines: ProgressLines,
) -> tuple[Environment, Sequence[EpEntry]]:
    """Return the environment of the user's interpreter, or else one that matches the manifest, and the catalog entries of the EPs.

    The environment has the EPs' packages, except for EPs that the recipe loads from libraries, and the `packages` of custom operators.
    """
    libraries = {ep: found.entry for ep, found in planned.items() if found.library is not None}
    if given.interpreter is not None:
        packagings = {ep: [planned[ep].entry] if ep in planned else entries_for(ep) for ep in eps if ep not in libraries}
        environment, found = inspect_interpreter(given.interpreter, packagings.values(), packages, toolchains)
        by_name = {entry.ep: entry for entry in found} | libraries
        return environment, [by_name[ep] for ep in eps]
    if artifact.document is None:
        raise CannotLoad(
            "it is unknown which toolchain compiled the model; with --interpreter, specify a Python that can load the model"
        )
    toolchain, where = artifact.document["toolchain"], artifact.folder / MANIFEST
    entries = [planned[ep].entry if ep in planned else BUILT_IN.entry(ep, toolchain["distributions"]) for ep in eps]
    wanted = Wanted([entry for entry in entries if entry.ep not in libraries], packages)
    return provision_manifest_toolchain(toolchain, wanted, where, toolchains, lines), entries


def _find_custom_ops(artifact: ArtifactFolder, given: LoadOptions, sources: Sources) -> tuple[CustomOpLibraries, ...]:
    """Find the custom operators of an artifact's models: the user's choice, or else the manifest's. Raises CannotLoad.

    An artifact contains no libraries, so the user or the recipe must provide them.
    """
    place = Position(str(artifact.folder), 1, 1)
    if given.custom_ops:
        named = (Path(text) if is_library_path(text) else None for text in given.custom_ops)
        found = zip(given.custom_ops, named, strict=True)
        return tuple(CustomOpLibraries(text if path is None else path.name, place, path) for text, path in found)
    group = sources.find_group(artifact.document)
    planned = {ops.name: ops for ops in group.custom_ops} if group is not None else {}
    ops: list[CustomOpLibraries] = []
    for listed in (artifact.document or {}).get("custom_ops", ()):
        if "module" in listed:
            ops.append(CustomOpLibraries(listed["module"], place))
        elif listed["library"] in planned:
            ops.append(planned[listed["library"]])
        else:
            message = f"it needs the custom operators of {listed['library']}, which is not in the artifact"
            raise CannotLoad(f"{message}; pass the library with --custom-ops")
    return tuple(ops)


def _list_eps(artifact: ArtifactFolder) -> list[str]:
    """Return the EPs that compiled an artifact's models, without duplicates. For an unknown EP, return the node's `source`."""
    return list(dict.fromkeys(name_source_ep(node.source) or "" for model in artifact.models for node in model.nodes))


def _choose_device(given: LoadOptions, planned: PlannedEp | None, written: Mapping[str, Any]) -> DeviceChoice:
    """Return the device to load models on: from the user, or else the recipe, or else the manifest."""
    if given.device is not None:
        return DeviceChoice(type=given.device)
    choice = (
        planned.device
        if planned is not None
        else DeviceChoice(written.get("type"), written.get("vendor"), written.get("metadata") or {}, bool(written.get("virtual")))
    )
    return get_real_device(choice)


def open_target_session(
    target: PlannedTarget, environment: Environment, custom_ops: tuple[CustomOpLibraries, ...], timeout: float | None
) -> Session:
    """Return the session for models that were compiled for a recipe's target."""
    eps = (plan_ep(ep.entry, ep.lasting_options, ep, get_real_device(ep.device))[0] for ep in target.eps)
    options, _ = resolve_files(target.session_options, find_session_key, target.session_files)
    return Session(environment, tuple(eps), options, target.environment, timeout, custom_ops=custom_ops)


def get_real_device(choice: DeviceChoice) -> DeviceChoice:
    """Return the real device for a virtual device. Models are compiled for virtual devices, but never run on them."""
    return DeviceChoice(choice.type, choice.vendor) if choice.virtual else choice


def plan_ep(
    entry: EpEntry, options: Mapping[str, str], planned: PlannedEp | None, device: DeviceChoice
) -> tuple[PlannedEp, list[str]]:
    """Return the EP that loads the models, and the names of its options whose files are unknown."""
    files = planned.files if planned is not None else {}
    kept, lacking = resolve_files(options, lambda name: find_option(entry, name), files)
    ep = PlannedEp(
        entry=entry,
        device=device,
        provider_options=kept,
        files=files,
        library=planned.library if planned is not None else None,
        unkeyed=frozenset(),
    )
    return ep, lacking


def resolve_files(
    options: Mapping[str, str], find: Callable[[str], Option], files: Mapping[str, OptionFile]
) -> tuple[dict[str, str], list[str]]:
    """Return options with the real paths of their files, and the names of options whose files are unknown.

    A manifest contains the names under which files were staged for the compile.
    """
    places = {file.staged: str(resolve_links(file.path)) for file in files.values()}
    kept, lacking = {}, []
    for name, value in options.items():
        try:
            option = find(name)
        except UnknownName:
            kept[name] = value
            continue
        named = option.files(value)
        if all(file in places for file in named):
            kept[name] = option.with_files(value, [places[file] for file in named])
        else:
            lacking.append(name)
    return kept, lacking
