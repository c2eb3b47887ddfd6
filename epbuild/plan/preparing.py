"""Preparations of models: an action for each entry of `prepare`, and for `make`.

    prepare:det/1-infer_shapes ── prepare:det/2-quantize ─┬─ compile:vision/phone/det ── …
                                                          └─ compile:vision/tablet/det ── …

A preparation can read only its staged files. The model is in the folder `in`, and the files that the entry names are in `files`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from epbuild.catalog.catalog import entry, get_full_name
from epbuild.catalog.packagings import list_providers
from epbuild.catalog.preparations import get_preparation
from epbuild.core.digest import hash_bytes
from epbuild.core.errors import Position, Problem
from epbuild.engine.capacity import estimate_memory
from epbuild.onnxfile.read.model_header import Dimension, ModelHeader
from epbuild.onnxfile.read.sizes import fit_sizes
from epbuild.plan.known_patterns import to_document
from epbuild.plan.member import ModelFiles
from epbuild.plan.preparation_options import find_package_problems, resolve_preparation_options
from epbuild.plan.staged_files import FILES, StagedFiles, find_unused_names
from epbuild.plan.steps import ToolchainNeeds
from epbuild.recipe.model import InputShape, ModelSpec, PrepareStep, Reference, ToolchainSpec
from epbuild.recipe.models import REWRITE, RUN
from epbuild.recipe.nodes import MappingNode, SequenceNode, render
from epbuild.recipe.paths import rebase_path, use_slashes
from epbuild.recipe.patterns import FileFinder
from epbuild.worker.scripts import PATTERNS, PREPARATIONS

_FORMAT = 1
_CONTRACT = 1
"""Version of the contract of preparations. Increment it when a change to their inputs changes results."""


class Preparation(Struct, frozen=True):
    """One entry of a model's `prepare`, or its `make`, as an action."""

    model: ModelSpec
    number: int
    """Number of the entry, from 1. The number of `make` is 0."""
    kind: str
    where: Position
    toolchain: ToolchainSpec
    command: tuple[str, ...] = ()
    """Program and arguments of the kind `run`, with staged names."""
    options: Mapping[str, Any] = field(default_factory=dict)
    option_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Staged names of the files in options, by option."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings from the catalog that are passed to a built-in script in addition to the options."""
    staged: Mapping[str, Path] = field(default_factory=dict)
    """Files to stage in addition to the model, by staged name."""
    packages: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Packages that the toolchain needs for a built-in kind, each with the distributions that provide it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    memory: int | None = None
    after: str | None = None
    """Id of the preceding preparation, whose result this one reads. None for the first preparation, which reads the source model."""
    source: ModelFiles | None = None
    """Files of the model that the preparation reads. None while the files are unknown, and for `make`, which reads no model."""
    beginning: tuple[Path, ...] = ()
    """User files from which the source is made. Their size is an estimate while the model's size is unknown."""
    inputs: Mapping[str, tuple[Dimension, ...]] = field(default_factory=dict)
    """New shapes of the inputs that the model's `input_shapes` lists. The staged model has these shapes."""

    def with_shapes(self, header: ModelHeader) -> Preparation:
        """Return a copy of the preparation with the new shapes of its inputs. `header` is the header of the model that it reads."""
        return replace(self, inputs=fit_sizes(header, {name: shape.sizes for name, shape in self.input_shapes.items()}).shapes)

    @property
    def input_shapes(self) -> Mapping[str, InputShape]:
        """Sizes that the recipe sets for inputs. Only the first preparation of a model has them."""
        return self.model.input_shapes if self.number == 1 else {}

    @property
    def id(self) -> str:
        return make_step_id(self.model.name, self.number, self.kind)

    @property
    def is_make(self) -> bool:
        """True if the preparation makes the source model, so that it reads no model."""
        return self.number == 0

    @property
    def steps(self) -> tuple[str, ...]:
        return (self.id,)

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.after,) if self.after is not None else ()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys((*(self.source.all if self.source is not None else ()), *self.staged.values())))

    @property
    def source_models(self) -> tuple[tuple[ModelSpec, ModelFiles], ...]:
        return ((self.model.origin, self.source),) if self.after is None and self.source is not None else ()

    @property
    def runs_in(self) -> ToolchainNeeds:
        return ToolchainNeeds(self.toolchain, (), {})

    @property
    def input(self) -> str:
        """Path of the model to read, relative to the staging directory."""
        return f"in/{self.model.name}.onnx"

    @property
    def output(self) -> str:
        """Path of the model to write, relative to the staging directory."""
        return f"out/{self.model.name}.onnx"

    @property
    def step(self) -> PrepareStep:
        make = self.model.make if self.is_make else None
        return self.model.prepare[self.number - 1] if make is None else make

    @property
    def script(self) -> Path | None:
        """Script of a built-in kind. None for a user's program."""
        return None if self.kind == RUN else PREPARATIONS / f"{self.kind}.py"

    @property
    def title(self) -> str:
        """Short name for messages: the kind, or the first two words of the command."""
        words = (word.removeprefix(f"{FILES}/") for word in self.command[:2])
        return " ".join(words) if self.kind == RUN else self.kind


def measure_files(preparation: Preparation) -> int:
    """Return the total bytes of the files to read. For a model that does not exist yet, use the size of the user's files.

    Raises OSError if a file is missing.
    """
    beginning = preparation.beginning if preparation.source is None else ()
    return sum(path.stat().st_size for path in {*preparation.files, *beginning})


def estimate_built_in_memory(preparation: Preparation) -> int | None:
    """Estimate the memory in bytes that a built-in preparation needs. Return None for a user's program.

    Raises OSError if a file is missing.
    """
    if preparation.kind == RUN:
        return None
    return estimate_memory(measure_files(preparation), get_preparation(preparation.kind).memory_per_byte)


def make_step_id(model: str, number: int, kind: str) -> str:
    return f"prepare:{model}/{number}-{kind}" if number else f"prepare:{model}/make"


def get_maker(model: ModelSpec) -> str | None:
    """Return the id of the step that makes a model's source, or None if the source is a user's file."""
    return None if model.origin.make is None else make_step_id(model.origin.name, 0, RUN)


def plan_preparations(
    model: ModelSpec, toolchains: Mapping[str, ToolchainSpec], after: str | None, problems: list[Problem]
) -> tuple[Preparation, ...]:
    """Plan the preparations of a model in order, without reading files. Add problems to `problems`.

    The first preparation reads the result of the preparation `after`, or else the source model.
    """
    found: list[Preparation] = []
    for number, step in enumerate(model.commands, 0 if model.make is not None else 1):
        toolchain = toolchains.get(step.toolchain.name)
        if toolchain is None:
            continue  # the reader of the recipe reports a missing toolchain
        preparation = Preparation(
            model=model,
            number=number,
            kind=step.kind,
            where=step.where,
            toolchain=toolchain,
            environment={name: render(setting.value) for name, setting in step.environment.items()},
            timeout=step.timeout,
            memory=step.memory,
            after=found[-1].id if found else after,
        )
        problems += _find_command_problems(preparation, step) if step.kind == RUN else _find_option_problems(step, toolchain)
        found.append(preparation)
    return tuple(found)


def with_files(preparation: Preparation, recipe: Path, finder: FileFinder, problems: list[Problem]) -> Preparation:
    """Return a copy of `preparation` that lists the files to stage in addition to the model.

    Paths are relative to the folder of `recipe`. Add a problem for each missing file.
    """
    step = preparation.step
    staged = StagedFiles(recipe.parent, finder, problems)
    staged.add(step.files)
    if step.kind == RUN:
        names = {"in": preparation.input, "out": preparation.output, "model": preparation.model.name}
        words = staged.stage_command(preparation.id, step.command, names)
        return replace(preparation, command=words, staged=staged.files)
    given, wrong = resolve_preparation_options(step.kind, step.options, step.where)
    if wrong:  # reported by `plan_preparations`
        return preparation
    known = get_preparation(step.kind)
    named = {
        name: tuple(staged.add(_read_references(step, name, given[name], recipe, problems)))
        for name in known.files
        if name in given
    }
    options = {name: value for name, value in given.items() if name not in named}
    packages = {name: frozenset(list_providers(name)) for name in known.list_packages_for(given)}
    return replace(
        preparation,
        options=options,
        option_files=named,
        packages=packages,
        settings={**known.settings, **catalog_settings(step.kind, given)},
        staged=staged.files,
    )


def catalog_settings(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a script's settings from the catalog entry of an EP. Only `rewrite` has settings: the patterns to replace."""
    ep = get_full_name(options["ep"]) if kind == REWRITE else None
    return {} if ep is None else {"rewrites": [to_document(rewrite) for rewrite in entry(ep).rewrites]}


def _find_command_problems(preparation: Preparation, step: PrepareStep) -> Iterator[Problem]:
    names = {"in": "the model to read", "out": "the model to write"}
    if preparation.is_make:
        del names["in"]
    yield from find_unused_names(f"'{preparation.id}'", step.command, names, step.where)
    for word in step.command:
        if preparation.is_make and "${in}" in str(word.value):
            message = f"the command of '{preparation.id}' uses ${{in}}, but there is no model to read before 'make'"
            yield Problem("EPB270", message, word.where, "Pass only ${out} to the program.")


def _find_option_problems(step: PrepareStep, toolchain: ToolchainSpec) -> list[Problem]:
    options, wrong = resolve_preparation_options(step.kind, step.options, step.where)
    return wrong or find_package_problems(step.kind, options, toolchain, step.where)


def _read_references(step: PrepareStep, option: str, value: object, recipe: Path, problems: list[Problem]) -> list[Reference]:
    """Return the file patterns in the value of an option, as paths relative to the recipe with their positions."""
    node = step.options.entries[option].node if isinstance(step.options, MappingNode) else None
    places = [item.where for item in node.items] if isinstance(node, SequenceNode) else [node.where if node else step.where]
    listed = value if isinstance(value, list) else [value]
    return [
        Reference(rebase_path(use_slashes(str(text), where, problems), where, recipe), where)
        for text, where in zip(listed, places, strict=True)
    ]


def build_preparation_document(
    preparation: Preparation, digests: Mapping[Path, str], toolchain: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the key document of a preparation.

    `digests` maps the preparation's files to their SHA-256. `toolchain` is the fingerprint of its toolchain. Raises TypeError while
    the files of its model are unknown.
    """
    script = preparation.script
    asked = {
        "command": list(preparation.command),
        "options": dict(preparation.options),
        "option_files": {name: list(files) for name, files in preparation.option_files.items()},
        "settings": dict(preparation.settings),
    }
    return {
        "format": _FORMAT,
        "contract": _CONTRACT,
        "kind": "prepare",
        "source": {} if preparation.is_make else {preparation.model.name: _describe_source(preparation, digests)},
        "prepare": {"kind": preparation.kind, **{name: value for name, value in asked.items() if value}},
        "staged": {name: digests[path] for name, path in preparation.staged.items()},
        "environment": dict(preparation.environment),
        **({"script": _hash_scripts(script)} if script is not None else {}),
        "toolchain": toolchain,
    }


def _describe_source(preparation: Preparation, digests: Mapping[Path, str]) -> dict[str, Any]:
    source = preparation.source
    if source is None:
        raise TypeError(f"the files of {preparation.id} have not been located")
    return {
        "graph": digests[source.graph],
        "external": {location: digests[path] for location, path in source.external.items()},
        **({"inputs": {name: list(shape) for name, shape in preparation.inputs.items()}} if preparation.inputs else {}),
    }


def _hash_scripts(script: Path) -> str:
    """Return the combined digest of a built-in script and the modules that it loads."""
    files = [script, script.with_name("step.py"), *([PATTERNS] if script.stem == REWRITE else [])]
    return hash_bytes(b"".join(file.read_bytes() for file in files))
