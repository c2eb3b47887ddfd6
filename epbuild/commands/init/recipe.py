"""Text of a first recipe, and its file, which is written only if it can be built."""

from __future__ import annotations

import os
import re
import secrets
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.commands.init.choices import StarterKind, is_address
from epbuild.commands.init.sizing import Sized
from epbuild.core.atomic import new_file
from epbuild.core.errors import EpbuildError, Problem, printable
from epbuild.plan.planner import make_plan
from epbuild.recipe.load import load

_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_PLAIN_TEXT = re.compile(r"(?![-.])[A-Za-z0-9_./=-]*[A-Za-z_/][A-Za-z0-9_./=-]*")
_PREFIX = "node_name_prefix"
_WIDTH = 120
_NOT_TEXT = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


class CarriedOver(Struct, frozen=True):
    """Settings of another tool's configuration that a recipe keeps."""

    head: tuple[str, ...] = ()
    """Lines of the comment at the top."""
    provider_options: Mapping[str, str] = field(default_factory=dict)
    session_options: Mapping[str, str] = field(default_factory=dict)
    compile: Mapping[str, str] = field(default_factory=dict)
    fallback_nodes: str = "any"


class RecipeChoices(Struct, frozen=True):
    """Models (paths or addresses) and targets (values by name) of a recipe."""

    kind: StarterKind
    models: Sequence[str]
    targets: Mapping[str, str]
    share_weights: bool = False
    name: str | None = None
    sizes: Mapping[str, Mapping[str, Sized]] = field(default_factory=dict)
    """Sizes of inputs, by path of the model."""
    carried: CarriedOver | None = None


def write_recipe(path: Path, choices: RecipeChoices, *, overwrite: bool = False) -> tuple[Problem, ...]:
    """Write a recipe to `path` if it can be planned, and return the planner's warnings.

    Raises the errors of reading and planning it, and FileExistsError without `overwrite`. Then nothing is written.
    """
    with new_file(path, overwrite=overwrite) as draft:
        draft.write_bytes(recipe_text(path, choices).encode())
        try:
            warnings = make_plan(load(draft)).warnings
        except EpbuildError as error:
            # Positions in the draft mean nothing to the user.
            raise type(error)(*(replace(problem, where=None) for problem in error.problems)) from None
    return tuple(replace(problem, where=None) for problem in warnings)


def why_not(path: Path, choices: RecipeChoices) -> str | None:
    """Return why a recipe cannot be planned, as a sentence, or None if it can. Leaves no file."""
    draft = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        draft.write_text(recipe_text(path, choices), encoding="utf-8", newline="\n")
        make_plan(load(draft))
    except EpbuildError as error:
        return error.problems[0].text
    finally:
        draft.unlink(missing_ok=True)
    return None


def recipe_text(path: Path, choices: RecipeChoices) -> str:
    """Return the text of a recipe for the file at `path`, to which its paths are relative."""
    start = choices.kind.start
    models = model_names(choices.models)
    lines = [
        *(_head(choices.carried.head) if choices.carried is not None else ()),
        "# Check this recipe with `epbuild validate`, and build it with `epbuild run`.",
        "# To have an editor complete and explain it, run `epbuild schema --output epbuild.schema.json` and begin it with this line:",
        "#   # yaml-language-server: $schema=epbuild.schema.json",
        "epbuild: 1",
        f"name: {scalar(choices.name or _plain_name(path.absolute().parent.name) or 'models')}",
        "",
        "toolchains:",
        "  # A Python environment, which epbuild makes. With exact versions, everybody's results are the same."
        if start.packages
        else "  # A Python environment that is there: name its interpreter.",
        f"  {start.name}:",
        f"    {start.environment}",
        "",
        "models:",
        "  # By name; paths are relative to this file.",
        *(line for name, model in models.items() for line in _model(name, model, path.parent, choices.sizes.get(model, {}))),
        "",
        "targets:",
        "  # What the models are compiled for.",
        *(line for name, value in choices.targets.items() for line in _target(choices, name, value)),
        "",
        "groups:",
        *_groups(models, choices),
        "",
        "outputs:",
        "  # Where the results go, and a manifest that lists what they were made from.",
        "  - layout: directory",
        f"    path: dist/${{recipe.name}}/{'' if _is_one_group(choices) else '${group}/'}${{target}}",
    ]
    return "\n".join(lines) + "\n"


def _model(name: str, model: str, folder: Path, sizes: Mapping[str, Sized]) -> Iterator[str]:
    path = scalar(_relative(model, folder))
    if not sizes:
        yield f"  {scalar(name)}: {path}"
        return
    yield f"  {scalar(name)}:"
    yield f"    path: {path}"
    yield "    inputs:"
    for value, sized in sizes.items():
        by_names = " from another model with these dimensions" if sized.by_names else ""
        guess = "" if sized.chosen else f", and this is a guess{by_names}: look at it"
        yield f"      {scalar(value)}: [{', '.join(map(str, sized.sizes))}]    # the model has {printable(sized.declared)}{guess}"


def _head(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        more = "#   " if text.startswith("- ") else "# "
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent="# ", subsequent_indent=more, break_long_words=False, break_on_hyphens=False
        )
    yield ""


def _target(choices: RecipeChoices, name: str, value: str) -> Iterator[str]:
    kind, carried = choices.kind, choices.carried or CarriedOver()
    start = kind.start
    value, words = scalar(value.replace("${", "$${")) if value else "", f"    # {start.words}"
    yield f"  {scalar(name)}:"
    yield f"    toolchain: {start.name}"
    yield f"    ep: {kind.entry.ep}"
    if start.device or start.metadata:
        device = {key: str(setting).lower() for key, setting in start.device.items()}
        device |= {"metadata": f"{{{start.metadata}: {value}}}"} if start.metadata else {}
        comment = words if start.metadata else ""
        yield f"    device: {{{', '.join(f'{key}: {setting}' for key, setting in device.items())}}}{comment}"
    options = {**start.options, **{name: _setting(text) for name, text in carried.provider_options.items()}}
    if options or (start.option and value):
        yield "    provider_options:"
        yield from (f"      {scalar(option)}: {setting}" for option, setting in options.items())
        if start.option and value:
            yield f"      {start.option}: {value}{words}"
    if carried.session_options:
        yield "    session_options:"
        yield from (f"      {scalar(key)}: {_setting(text)}" for key, text in carried.session_options.items())


def _setting(text: str) -> str:
    """Return the value of an option as YAML. Numbers stay unquoted."""
    return text if re.fullmatch(r"0|[1-9][0-9]*", text) else scalar(text.replace("${", "$${"))


def _groups(models: Mapping[str, str], choices: RecipeChoices) -> Iterator[str]:
    yield "  # Models that are built for each of the targets."
    yield "  main:"
    if not _is_one_group(choices):
        yield "    for_each: model    # a group for each, called main-MODEL, so that one that fails holds back no other"
    yield f"    models: [{', '.join(map(scalar, models))}]"
    yield f"    targets: [{', '.join(map(scalar, choices.targets))}]"
    if _is_one_group(choices):
        share = str(choices.share_weights).lower()
        yield f"    share_weights: {share}    # true: the models, in this order, share one context binary"
    carried = choices.carried
    if carried is not None:
        yield from _carried(carried)
        return
    yield "    expect: {fallback_nodes: 0}    # any: the CPU may run what the EP does not take"
    yield "    # Compares its numbers with the source's. On made inputs, a difference is a warning; {inputs: samples/*.npz} is a gate."
    runs = all(choices.kind.runs_here(value) for value in choices.targets.values())
    yield "    verify: true" if runs else "    # verify: true    # not here: what is compiled cannot be loaded"


def _carried(carried: CarriedOver) -> Iterator[str]:
    if carried.compile:
        settings = (f"{key}: {scalar(text) if key == _PREFIX else text}" for key, text in carried.compile.items())
        yield f"    compile: {{{', '.join(settings)}}}"
    yield f"    expect: {{fallback_nodes: {carried.fallback_nodes}}}    # 0: the EP takes every node; any: the CPU may run the rest"
    yield "    # verify: true    # holds its numbers against the source's, where what is compiled can be loaded"


def _is_one_group(choices: RecipeChoices) -> bool:
    return choices.share_weights or len(choices.models) == 1


def model_names(models: Sequence[str]) -> dict[str, str]:
    """Return the models by unique name: the stem of the file, if needed with the folder's name before it or a number after it."""
    stems = [_plain_name(PurePath(model).stem) or "model" for model in models]
    counts = Counter(stems)
    names: dict[str, str] = {}
    taken: set[str] = set()
    for model, stem in zip(models, stems, strict=True):
        name = stem if counts[stem] == 1 else _plain_name(f"{Path(model).absolute().parent.name}-{stem}")
        unique, number = name, 2
        while unique.lower() in taken:
            unique, number = f"{name}-{number}", number + 1
        names[unique] = model
        taken.add(unique.lower())
    return names


def scalar(text: str) -> str:
    """Return a text as a YAML scalar, in quotes if it needs them."""
    if _PLAIN_TEXT.fullmatch(text) and text.lower() not in _NOT_TEXT and not re.fullmatch(r"[0-9.]+e[0-9]+", text.lower()):
        return text
    import yaml

    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 20)).strip()


def _plain_name(text: str) -> str:
    return _NO_NAME.sub("-", text).strip("-._")


def _relative(model: str, folder: Path) -> str:
    if is_address(model):
        return model
    try:
        path = Path(os.path.relpath(model, folder))
    except ValueError:  # another drive
        path = Path(model).absolute()
    return path.as_posix().replace("${", "$${")
