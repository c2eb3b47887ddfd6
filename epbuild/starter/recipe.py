"""A first recipe's text, and its file: it is there only if it can be built."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from epbuild.errors import EpbuildError, Problem
from epbuild.newfile import new_file
from epbuild.plan import make_plan
from epbuild.recipe import load
from epbuild.starter.kinds import Kind

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")  # two letters at least: one is a drive
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_PLAIN_TEXT = re.compile(r"(?![-.])[A-Za-z0-9_./=-]*[A-Za-z_/][A-Za-z0-9_./=-]*")
_NOT_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


@dataclass(frozen=True)
class Wishes:
    """What the recipe is to build: models (paths as given, or addresses) for targets, each a value of the kind's target option by name."""

    kind: Kind
    toolchain: str
    models: Sequence[str]
    targets: Mapping[str, str]
    share_weights: bool = False
    name: str | None = None


def write_recipe(path: Path, wishes: Wishes, *, overwrite: bool = False) -> tuple[Problem, ...]:
    """Write the recipe that `wishes` describe to `path`; returns what the planner warns of.

    Raises what reading and planning it raises, and FileExistsError without `overwrite`; then nothing was written.
    """
    with new_file(path, recipe_text(path, wishes), overwrite=overwrite) as draft:
        try:
            warnings = make_plan(load(draft)).warnings
        except EpbuildError as error:
            # The reader knows no line of a file that never was.
            raise type(error)(*(replace(problem, where=None) for problem in error.problems)) from None
    return tuple(replace(problem, where=None) for problem in warnings)


def recipe_text(path: Path, wishes: Wishes) -> str:
    """The recipe as it stands in the file at `path`, to which its own paths are relative."""
    kind = wishes.kind
    models = model_names(wishes.models)
    lines = [
        "# Check this recipe with `epbuild validate`, and build it with `epbuild run`.",
        "# To have an editor complete and explain it, run `epbuild schema --output epbuild.schema.json` and begin it with this line:",
        "#   # yaml-language-server: $schema=epbuild.schema.json",
        "epbuild: 1",
        f"name: {scalar(wishes.name or _name(path.absolute().parent.name) or 'models')}",
        "",
        "toolchains:",
        "  # A Python environment, which epbuild makes. With exact versions, everybody's results are the same.",
        f"  {wishes.toolchain}:",
        f"    packages: [{', '.join(kind.packages)}]",
        "",
        "models:",
        "  # By name; paths are relative to this file.",
        *(f"  {scalar(name)}: {scalar(_relative(model, path.parent))}" for name, model in models.items()),
        "",
        "targets:",
        "  # What the models are compiled for.",
    ]
    for name, value in wishes.targets.items():
        lines += [
            f"  {scalar(name)}:",
            f"    toolchain: {wishes.toolchain}",
            f"    ep: {kind.ep}",
            "    provider_options:",
            *(f"      {option}: {setting}" for option, setting in kind.options.items()),
            f"      {kind.target_option}: {scalar(value.replace('${', '$${'))}    # {kind.target_words}",
        ]
    lines += [
        "",
        "groups:",
        "  # Models that are built together, for each of the targets.",
        "  main:",
        f"    models: [{', '.join(map(scalar, models))}]",
        f"    targets: [{', '.join(map(scalar, wishes.targets))}]",
        f"    share_weights: {str(wishes.share_weights).lower()}    # true: the models, in this order, share one context binary",
        "",
        "outputs:",
        "  # Where the results go, and a manifest that says what they were made from.",
        "  - layout: directory",
        "    path: dist/${recipe.name}/${target}",
    ]
    return "\n".join(lines) + "\n"


def model_names(models: Sequence[str]) -> dict[str, str]:
    """A name for each model: that of its file, with its folder's before it or a number after it where another has it."""
    stems = [_name(PurePath(model).stem) or "model" for model in models]
    names: dict[str, str] = {}
    for model, stem in zip(models, stems, strict=True):
        name = stem if stems.count(stem) == 1 else _name(f"{Path(model).absolute().parent.name}-{stem}")
        taken = {other.lower() for other in names}
        unique, number = name, 2
        while unique.lower() in taken:
            unique, number = f"{name}-{number}", number + 1
        names[unique] = model
    return names


def scalar(text: str) -> str:
    """A text as YAML, in quotes where it would be something else without."""
    if _PLAIN_TEXT.fullmatch(text) and text.lower() not in _NOT_TEXT and not re.fullmatch(r"[0-9.]+e[0-9]+", text.lower()):
        return text
    import yaml

    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 20)).strip()


def _name(text: str) -> str:
    return _NO_NAME.sub("-", text).strip("-._")


def _relative(model: str, folder: Path) -> str:
    if _ADDRESS.match(model):
        return model
    try:
        path = Path(os.path.relpath(model, folder))
    except ValueError:  # another drive
        path = Path(model).absolute()
    return path.as_posix().replace("${", "$${")
