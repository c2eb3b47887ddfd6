"""Where artifacts go: output templates become paths, and no path may leave its folder or meet another one."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

from epbuild.errors import Position, Problem
from epbuild.plan.steps import Emission, PlannedTarget, SessionGroup
from epbuild.recipe import Group, Output, TemplateError, substitute

MANIFEST = "manifest.json"


def plan_emission(
    output: Output,
    ident: str,
    group: Group,
    target: PlannedTarget,
    groups: Sequence[SessionGroup],
    root: Path,
    problems: list[Problem],
) -> Emission | None:
    """The emission of `output` for one group and target below `root`, or None when its templates are wrong.

    What is wrong is added to `problems`: a path that leaves its folder, or two files with one name, where upper and lower case count as one
    because some file systems do.
    """
    names = {"group": group.name, "target": target.name, "ep": target.entry.ep, "ep.short": target.entry.short}
    found = len(problems)
    directory = _relative(output.path, names, output.path_where, problems)
    models: dict[str, str] = {}
    binaries: dict[str, str] = {}
    taken: dict[str, str] = {MANIFEST: "the manifest"}
    for session in groups:
        one_binary = session.share and target.entry.sharing.binaries == "one"
        for member in session.members:
            first = session.members[0].name if one_binary else member.name
            mine = {**names, "model": member.name, "first_model": first}
            models[member.name] = _relative(output.model, mine, output.model_where, problems)
            _take(taken, models[member.name], f"the model '{member.name}'", output.model_where, problems)
            if session.compile.embed:
                continue
            shared = {**mine, "model": first}  # one file has one name, whichever member names it
            binary = binaries[member.name] = _relative(output.context_binary, shared, output.context_binary_where, problems)
            if first == member.name:
                _take(taken, binary, f"the context binary of '{member.name}'", output.context_binary_where, problems)
            _check_reach(models[member.name], binary, output, problems)
            external = session.external_file(member)
            if external:
                beside = str(PurePosixPath(models[member.name]).parent / external)
                _take(taken, beside, f"the external initializers of '{member.name}'", group.where, problems)
    _check_nesting(taken, output, problems)
    if len(problems) > found:
        return None
    return Emission(
        id=ident,
        group=group.name,
        target=target,
        layout=output.layout,
        directory=root / directory,
        session_groups=tuple(session.id for session in groups),
        models=models,
        binaries=binaries,
        where=output.path_where,
    )


def collisions(emissions: Mapping[str, Emission]) -> list[Problem]:
    """Outputs that would write into one folder, or one inside another's folder."""
    problems: list[Problem] = []
    owners: dict[tuple[str, ...], Emission] = {}
    for emission in emissions.values():
        parts = tuple(part.casefold() for part in emission.directory.parts)
        owner = owners.setdefault(parts, emission)
        if owner is not emission:
            message = f"two outputs have one path, {emission.directory.name}: {owner.id} and {emission.id}"
            problems.append(Problem("EPB222", message, emission.where, "Put ${group} and ${target} into the output's path."))
    for parts, emission in owners.items():
        outer = next((owners[parts[:length]] for length in range(len(parts) - 1, 0, -1) if parts[:length] in owners), None)
        if outer is not None:
            message = f"the output {emission.id} lies inside the output {outer.id}"
            problems.append(Problem("EPB222", message, emission.where, "Give each output a folder of its own."))
    return problems


def _relative(template: str, names: Mapping[str, str], where: Position, problems: list[Problem]) -> str:
    """The template's text as a POSIX path that stays below its folder; an empty string when it does not."""
    try:
        text = str(substitute(template, names))
    except TemplateError as error:
        problems.append(Problem("EPB220", error.message, where, error.hint))
        return ""
    path = text.replace("\\", "/")
    absolute = PurePosixPath(path).is_absolute() or PureWindowsPath(path).drive or PureWindowsPath(path).root
    normal = os.path.normpath(path).replace("\\", "/")
    if absolute or normal == ".." or normal.startswith("../"):
        problems.append(
            Problem("EPB221", f"the output path '{text}' leaves the recipe's folder", where, "Write a path below the recipe.")
        )
        return ""
    if normal == ".":
        problems.append(
            Problem("EPB221", f"the output path '{text}' names the folder itself", where, "Name a folder or file below it.")
        )
        return ""
    return normal


def _take(taken: dict[str, str], name: str, what: str, where: Position, problems: list[Problem]) -> None:
    if not name:
        return
    other = taken.setdefault(name.casefold(), what)
    if other != what:
        hint = "Put ${model} into the name of a model, ${first_model} into the name of a context binary."
        problems.append(Problem("EPB222", f"{other} and {what} would both be written to '{name}'", where, hint))


def _check_nesting(taken: Mapping[str, str], output: Output, problems: list[Problem]) -> None:
    """A name cannot be a file's and a folder's."""
    for name, what in taken.items():
        for folder in map(str, PurePosixPath(name).parents):
            if folder in taken:
                message = f"'{folder}' would be {taken[folder]} and the folder of {what}"
                problems.append(Problem("EPB222", message, output.where, "Give files and folders different names."))


def _check_reach(model: str, binary: str, output: Output, problems: list[Problem]) -> None:
    """EPs follow a reference only downwards from the model's own folder."""
    folder = PurePosixPath(model).parent
    if model and binary and not PurePosixPath(binary).is_relative_to(folder):
        message = f"the context binary '{binary}' does not lie below the folder of its model '{model}', where EPs look for it"
        problems.append(Problem("EPB223", message, output.context_binary_where, "Put it beside the model or into a subfolder."))
