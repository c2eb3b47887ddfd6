"""Checks of the models that a session group compiled, before they are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from epbuild.core.errors import Problem, StepId, VerifyError
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.onnxfile.read.payload import Payload
from epbuild.verify.checks import (
    ExpectedEp,
    check_contexts,
    check_embedding,
    check_one_binary,
    check_one_file,
    check_references,
    check_sources,
    check_target,
    check_whole,
    find_node_ep,
    read_target,
)
from epbuild.verify.facts import Model
from epbuild.verify.findings import Flaw


class ExpectedModel(Struct, frozen=True):
    """Compiled model that is expected for a member of the group. `file` is the name of the model's file."""

    member: str
    file: str
    embed: bool = False


class Expected(Struct, frozen=True):
    """Expected models of a session group, with the EPs that may have compiled them."""

    step: str
    eps: tuple[ExpectedEp, ...]
    models: tuple[ExpectedModel, ...]
    one_binary: bool = False


class CompiledModel(Struct, frozen=True):
    """EPContext model that passed the checks, with the files it refers to."""

    member: str
    file: str
    header: ModelHeader
    binaries: Mapping[str, str]
    """EP of each context binary, by the binary's name."""
    data: tuple[str, ...]


def check_compiled(folder: Path, expected: Expected) -> tuple[CompiledModel, ...]:
    """Check the EPContext models in `folder`, and return them. Raises VerifyError with every problem found."""
    models = {model.file: Model(folder, model.file, asked_for=True, name_nodes=True) for model in expected.models}
    flaws = {item.file: tuple(_find_flaws(models[item.file], item, expected)) for item in expected.models}
    sound = [model for model in models.values() if not flaws[model.file]]
    found = [flaw for several in flaws.values() for flaw in several]
    if not found and expected.one_binary and (flaw := check_one_binary(sound)) is not None:
        found.append(flaw)
    found += _find_target_flaws(sound, expected.eps)
    if found:
        raise VerifyError(*(_make_problem(flaw, expected.step) for flaw in found))
    return tuple(_make_compiled_model(models[item.file], item.member, expected.eps) for item in expected.models)


def _find_flaws(model: Model, item: ExpectedModel, expected: Expected) -> Iterator[Flaw]:
    if not model.path.is_file():
        text = f"the EP reported success for '{item.member}' but wrote no {model.file}"
        yield Flaw("EPB601", "", text, standalone=True)
    elif (flaw := check_whole(model)) is not None:
        yield flaw
    else:
        yield from check_sources(model, expected.eps)
        yield from check_embedding(model, embed=item.embed)
        yield from check_contexts(model)
        yield from check_references(model)
        yield from check_one_file(model)


def _find_target_flaws(models: Sequence[Model], eps: Sequence[ExpectedEp]) -> Iterator[Flaw]:
    """Yield one flaw for each context that was compiled for another target."""
    contexts: dict[Payload, tuple[str, ExpectedEp]] = {}
    for model in models:
        for context in model.contexts:
            ep = find_node_ep(context.node.source, eps)
            if ep is not None and context.payload is not None:
                contexts[context.payload] = context.node.reference or model.file, ep
    for payload, (name, ep) in contexts.items():
        if ep.target_pattern and ep.target and (flaw := check_target(name, read_target(payload, ep.target_pattern), ep.target)):
            yield flaw


def _make_compiled_model(model: Model, member: str, eps: Sequence[ExpectedEp]) -> CompiledModel:
    header = model.header
    assert not isinstance(header, str)  # noqa: S101 - a model with an unreadable header has a flaw and is not here
    context_eps = ((node.reference, find_node_ep(node.source, eps)) for node in model.nodes)
    binaries = {name: ep.name for name, ep in context_eps if name is not None and ep is not None}
    return CompiledModel(member, model.file, header, binaries, header.external_locations)


def _make_problem(flaw: Flaw, step: str) -> Problem:
    text = flaw.text.rstrip(".")
    message = text if not flaw.file else f"{flaw.file}: {text}" if flaw.standalone else f"{flaw.file} {text}"
    return Problem(flaw.code, message, StepId(step), flaw.hint)
