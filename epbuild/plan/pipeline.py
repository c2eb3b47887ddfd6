"""Planner of onnxruntime-genai pipelines and of LoRA adapters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from epbuild.core.errors import Problem, suggest_nearest
from epbuild.core.units import format_count
from epbuild.plan.steps import Genai
from epbuild.recipe.model import GenaiChoice, GenaiRole, GroupSpec, Reference

_ADAPTER_MARK = b"TORT"
"""Magic number of ONNX Runtime's adapters. It follows the four bytes with the offset of the root table."""


def plan_adapters(group: GroupSpec, directory: Path, problems: list[Problem]) -> Mapping[str, Path]:
    """Plan the LoRA adapters of a group, by file name. Add a problem for each file that is not an adapter."""
    files = dict(_find_files(group.adapters, directory, problems))
    places = {directory / reference.name: reference.where for reference in group.adapters}
    for name, path in files.items():
        with path.open("rb") as file:
            is_adapter = file.read(8)[4:] == _ADAPTER_MARK
        if not is_adapter:
            hint = "Convert it with `olive convert-adapters`, or write it with `onnxruntime.AdapterFormat`."
            problems.append(Problem("EPB237", f"'{name}' is not an adapter of ONNX Runtime", places[path], hint))
    return files


def plan_genai(group: GroupSpec, choice: GenaiChoice, directory: Path, problems: list[Problem]) -> Genai | None:
    """Plan the onnxruntime-genai pipeline of a group. If the recipe's settings are invalid, add problems and return None.

    The order of `roles` in the plan is the order in which the models run. Each member needs a role, and each file must exist. Paths
    are relative to `directory`. The content of the files is validated when the output is emitted.
    """
    members = list(dict.fromkeys(member.name for member in group.members))
    problems_before = len(problems)
    if group.merge is not None:
        message = f"the group '{group.name}' merges its models, so no models are left for a pipeline"
        problems.append(Problem("EPB226", message, choice.where, "Remove 'merge' or 'genai'."))
    roles: dict[str, GenaiRole] = {}
    for role, model in ((role, model) for role, models in choice.roles.items() for model in models):
        if model.name not in members:
            message = f"the role '{role}' names '{model.name}', which is not a model of the group '{group.name}'"
            hint = suggest_nearest(model.name, members) or f"Models of the group: {', '.join(members)}."
            problems.append(Problem("EPB226", message, model.where, hint))
        elif model.name in roles:
            message = f"the model '{model.name}' has two roles, '{roles[model.name]}' and '{role}'"
            problems.append(
                Problem(
                    "EPB226",
                    message,
                    model.where,
                    "Use the role 'both' for a model that runs on the prompt and on each new token.",
                )
            )
        else:
            roles[model.name] = role
    problems += _find_missing_roles(group, choice, members, roles)
    problems += _find_missing_parts(group, choice)
    files = dict(_find_files(choice.files, directory, problems))
    config = _find_file(choice.config, directory, problems)
    if config is None or len(problems) > problems_before:
        return None
    return Genai(config, roles, files)


def _find_missing_roles(group: GroupSpec, choice: GenaiChoice, members: Iterable[str], roles: Iterable[str]) -> Iterator[Problem]:
    if any(model.name not in members for models in choice.roles.values() for model in models):
        return  # report a mistyped name only once
    for name in members:
        if name not in roles:
            message = f"the model '{name}' of the group '{group.name}' has no role in the genai pipeline"
            yield Problem("EPB226", message, choice.where, "Assign a role under 'roles'.")


def _find_missing_parts(group: GroupSpec, choice: GenaiChoice) -> Iterator[Problem]:
    prefill, decode = choice.roles.get("prefill", ()), choice.roles.get("decode", ())
    if prefill and decode and len(prefill) != len(decode):
        counts = f"{format_count(len(prefill), 'model')} for the prompt, {format_count(len(decode), 'model')} for each token"
        message = f"the pipeline of the group '{group.name}' has a different number of parts: {counts}"
        hint = "List all parts of the model under 'prefill' and under 'decode', in the order in which they run."
        yield Problem("EPB226", message, choice.where, hint)


def _find_files(references: Iterable[Reference], directory: Path, problems: list[Problem]) -> Iterator[tuple[str, Path]]:
    seen: dict[str, Reference] = {}
    for reference in references:
        path = _find_file(reference, directory, problems)
        if path is None:
            continue
        other = seen.setdefault(path.name.casefold(), reference)
        if other is not reference:
            message = f"'{other.name}' and '{reference.name}' would both be written to '{path.name}'"
            problems.append(Problem("EPB222", message, reference.where, "Give them different names."))
        yield path.name, path


def _find_file(reference: Reference, directory: Path, problems: list[Problem]) -> Path | None:
    path = directory / reference.name
    if path.is_file():
        return path
    message = f"the file '{reference.name}' does not exist"
    problems.append(Problem("EPB215", message, reference.where, "Paths are relative to the recipe."))
    return None
