"""Where artifacts go: output templates become paths, and no path may leave its folder or meet another one."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from epbuild.errors import Position, Problem
from epbuild.plan.steps import Emission, Merging, PlannedTarget, SessionGroup
from epbuild.recipe import Group, Output, TemplateError, substitute

MANIFEST = "manifest.json"
_DRIVE = re.compile(r"[A-Za-z]:")


def plan_emission(
    output: Output,
    ident: str,
    group: Group,
    target: PlannedTarget,
    groups: Sequence[SessionGroup],
    merging: Merging | None,
    root: Path,
    problems: list[Problem],
) -> Emission | None:
    """The emission of `output` for one group and target below `root`, or None when its templates are wrong.

    What is wrong is added to `problems`: a path that leaves its folder, or two files with one name, where upper and lower case count as one
    because some file systems do.
    """
    names = {"group": group.name, "target": target.name}
    found = len(problems)
    main = target.eps[0].entry
    directory = _relative(output.path, {**names, "ep": main.ep, "ep.short": main.short}, output.path_where, problems)
    models: dict[str, str] = {}
    binaries: dict[str, dict[str, str]] = {}
    taken: dict[str, str] = {MANIFEST: "the manifest"}
    if merging is not None:
        merged = {**names, "model": merging.name, "first_model": merging.members[0], "ep": main.ep, "ep.short": main.short}
        models[merging.name] = _relative(output.model, merged, output.model_where, problems)
        _take(taken, models[merging.name], f"the merged model '{merging.name}'", output.model_where, problems)
    for session in groups:
        for member in session.members:
            first = session.members[0].name if session.share and target.one_binary else member.name
            mine = {**names, "model": member.name, "first_model": first}
            if merging is not None:
                path = models[merging.name]
            else:
                path = _relative(output.model, {**mine, "ep": main.ep, "ep.short": main.short}, output.model_where, problems)
                models[member.name] = path
                _take(taken, path, f"the model '{member.name}'", output.model_where, problems)
            if member.external_file:
                beside = posixpath.join(posixpath.dirname(path), member.external_file)
                _take(taken, beside, f"the external initializers of '{member.name}'", group.where, problems)
            if member.compile.embed:
                continue
            shared = {**mine, "model": first}  # one file has one name, whichever member names it
            for entry in (ep.entry for ep in target.compiling):
                names_of_ep = {**shared, "ep": entry.ep, "ep.short": entry.short}
                binary = _relative(output.context_binary, names_of_ep, output.context_binary_where, problems)
                binaries.setdefault(member.name, {})[entry.ep] = binary
                if first == member.name:
                    what = f"the context binary of '{member.name}' by {entry.ep}"
                    _take(taken, binary, what, output.context_binary_where, problems)
                _check_reach(path, binary, output, problems)
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
        merging=merging,
    )


def collisions(emissions: Mapping[str, Emission]) -> list[Problem]:
    """Outputs that would write into one folder, or one inside another's folder."""
    problems: list[Problem] = []
    owners: dict[str, Emission] = {}
    for emission in emissions.values():
        owner = owners.setdefault(str(emission.directory).casefold(), emission)
        if owner is not emission:
            message = f"two outputs have one path, {emission.directory.name}: {owner.id} and {emission.id}"
            problems.append(Problem("EPB222", message, emission.where, "Put ${group} and ${target} into the output's path."))
    for folder, emission in owners.items():
        outer = next((owners[parent] for parent in _parents(folder, os.sep) if parent in owners), None)
        if outer is not None:
            message = f"the output {emission.id} lies inside the output {outer.id}"
            problems.append(Problem("EPB222", message, emission.where, "Give each output a folder of its own."))
    return problems


def _parents(path: str, separator: str) -> Iterator[str]:
    """The folders that a path lies in, the innermost first. Plain text, since a plan may have ten thousand of them."""
    while separator in path:
        path = path.rpartition(separator)[0]
        yield path


def _relative(template: str, names: Mapping[str, str], where: Position, problems: list[Problem]) -> str:
    """The template's text as a POSIX path that stays below its folder; an empty string when it does not."""
    try:
        text = str(substitute(template, names))
    except TemplateError as error:
        problems.append(Problem("EPB220", error.message, where, error.hint))
        return ""
    path = text.replace("\\", "/")
    normal = posixpath.normpath(path)
    if path.startswith("/") or _DRIVE.match(path) or normal == ".." or normal.startswith("../"):
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
        hint = "Put ${model} into the name of a model, ${first_model} and ${ep.short} into that of a context binary."
        problems.append(Problem("EPB222", f"{other} and {what} would both be written to '{name}'", where, hint))


def _check_nesting(taken: Mapping[str, str], output: Output, problems: list[Problem]) -> None:
    """A name cannot be a file's and a folder's."""
    for name, what in taken.items():
        for folder in _parents(name, "/"):
            if folder in taken:
                message = f"'{folder}' would be {taken[folder]} and the folder of {what}"
                problems.append(Problem("EPB222", message, output.where, "Give files and folders different names."))


def _check_reach(model: str, binary: str, output: Output, problems: list[Problem]) -> None:
    """EPs follow a reference only downwards from the model's own folder."""
    folder = posixpath.dirname(model)
    if model and binary and folder and not binary.startswith(f"{folder}/"):
        message = f"the context binary '{binary}' does not lie below the folder of its model '{model}', where EPs look for it"
        problems.append(Problem("EPB223", message, output.context_binary_where, "Put it beside the model or into a subfolder."))
