"""What a session group must have made before any of it is kept: whole EPContext models, for the target that was asked for.

EPs report success for half a group, for a missing binary, for another SoC and for a model that still runs on the CPU: nothing here
trusts an exit status, a file name or an option.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epbuild.errors import Problem, VerifyError
from epbuild.onnxfile import BadReference, EPContextNode, MalformedModel, ModelHeader, read_header, resolve

EMBED_LIMIT = 2**31 - 1
"""Bytes that one protobuf message may have; ONNX Runtime cannot read a model above it."""


@dataclass(frozen=True)
class Expected:
    """What the compiled models of one session group must be."""

    step: str
    ep: str
    sources: tuple[str, ...]
    embed: bool
    one_binary: bool
    target_pattern: str | None = None
    target: str | None = None
    ep_context_nodes: int | None = None
    fallback_nodes: int | None = None


@dataclass(frozen=True)
class CompiledModel:
    """One EPContext model that passed, with the files that it needs beside it."""

    member: str
    file: str
    nodes: tuple[EPContextNode, ...]
    fallback_nodes: int
    metadata: Mapping[str, str]
    binaries: tuple[str, ...]
    data: tuple[str, ...]


def check_compiled(folder: Path, models: Mapping[str, str], expected: Expected) -> tuple[CompiledModel, ...]:
    """Check the EPContext models in `folder`, given by file name for each member in order.

    Raises VerifyError with every problem found.
    """
    problems: list[Problem] = []
    compiled = [
        found for member, file in models.items() if (found := _check_model(folder, member, file, expected, problems)) is not None
    ]
    binaries = list(dict.fromkeys(binary for model in compiled for binary in model.binaries))
    if expected.one_binary and not problems and len(binaries) != 1:
        named = ", ".join(binaries) or "none"
        problems.append(
            _problem(
                "EPB607",
                expected,
                f"{len(models)} models that share weights must have one context binary; there are {len(binaries)}: {named}",
            )
        )
    if expected.target_pattern and expected.target:
        for name in binaries or [model.file for model in compiled]:
            seen = read_target(folder / name, expected.target_pattern)
            if seen is not None and seen.casefold() != expected.target.casefold():
                message = f"{name} was compiled for {seen}, not for {expected.target}"
                problems.append(
                    _problem(
                        "EPB608", expected, message, "Check the target's options; the EP ignores what it does not understand."
                    )
                )
    if problems:
        raise VerifyError(*problems)
    return tuple(compiled)


def check_expectations(
    counts: Sequence[tuple[str, int, int]], step: str, ep: str, ep_context_nodes: int | None, fallback_nodes: int | None
) -> list[Problem]:
    """What is not as the recipe's `expect` says; `counts` has a member's name, its EPContext nodes and its other nodes."""
    problems = []
    for member, compiled, others in counts:
        if ep_context_nodes is not None and compiled != ep_context_nodes:
            message = f"the model '{member}' became {compiled} EPContext nodes; the recipe expects {ep_context_nodes}"
            problems.append(Problem("EPB609", message, step))
        if fallback_nodes is not None and others > fallback_nodes:
            message = f"{others} nodes of the model '{member}' stayed outside {ep}; the recipe expects {fallback_nodes}"
            problems.append(Problem("EPB609", message, step, "`epbuild inspect` on the output lists what stayed outside."))
    return problems


def read_target(binary: Path, pattern: str) -> str | None:
    """What a context binary says that it was made for: the first group of `pattern` where it matches first; None when it does not."""
    if binary.stat().st_size == 0:
        return None
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        match = re.search(pattern.encode(), content)
        return match[1].decode("ascii", "replace") if match else None


def _check_model(folder: Path, member: str, file: str, expected: Expected, problems: list[Problem]) -> CompiledModel | None:
    path = folder / file
    if not path.is_file():
        problems.append(_problem("EPB601", expected, f"the EP reported success for '{member}' and wrote no {file}"))
        return None
    try:
        header = read_header(path)
    except MalformedModel as error:
        problems.append(_problem("EPB602", expected, f"{file} is not a whole ONNX file: {error}"))
        return None
    if not header.is_compiled:
        problems.append(_problem("EPB603", expected, f"{file} holds no EPContext node: nothing of '{member}' was compiled"))
        return None
    found = len(problems)
    binaries = [_check_node(path, node, expected, problems) for node in header.ep_context_nodes]
    data = _check_data(path, header, expected, problems)
    counts = (member, len(header.ep_context_nodes), header.remaining_nodes)
    problems += check_expectations([counts], expected.step, expected.ep, expected.ep_context_nodes, expected.fallback_nodes)
    if expected.embed and path.stat().st_size > EMBED_LIMIT:
        problems.append(
            _problem(
                "EPB606", expected, f"{file} embeds its context and is over 2 GiB, which no reader takes", "Set embed to false."
            )
        )
    if len(problems) > found:
        return None
    return CompiledModel(
        member=member,
        file=file,
        nodes=header.ep_context_nodes,
        fallback_nodes=header.remaining_nodes,
        metadata=header.metadata,
        binaries=tuple(dict.fromkeys(name for name in binaries if name)),
        data=data,
    )


def _check_node(path: Path, node: EPContextNode, expected: Expected, problems: list[Problem]) -> str | None:
    """The context binary that a node refers to, if any, by its name in the model's folder."""
    if node.source not in expected.sources:
        message = f"an EPContext node of {path.name} comes from '{node.source}', not from {expected.ep}"
        problems.append(_problem("EPB604", expected, message))
    if bool(node.embed_mode) != expected.embed and node.main_context:
        mode = "embeds its context" if node.embed_mode else "keeps its context in a file"
        problems.append(_problem("EPB606", expected, f"an EPContext node of {path.name} {mode}, which is not what was asked for"))
    if node.reference is None:
        if node.main_context and not (node.payload and node.payload[1]):
            message = f"an EPContext node of {path.name} holds no context and names no context binary"
            problems.append(_problem("EPB605", expected, message))
        return None
    try:
        binary = resolve(path, node)
    except BadReference as error:
        problems.append(_problem("EPB605", expected, f"{path.name}: {error}"))
        return None
    if not _lies_inside(binary, path.parent):
        message = f"{path.name} needs the context binary {node.reference}, which is a link to a place outside its folder"
        problems.append(_problem("EPB605", expected, message))
        return None
    if binary.stat().st_size == 0:
        problems.append(_problem("EPB605", expected, f"{path.name} needs the context binary {node.reference}, which is empty"))
        return None
    return node.reference


def _check_data(path: Path, header: ModelHeader, expected: Expected, problems: list[Problem]) -> tuple[str, ...]:
    for location in header.external_locations:
        if not _lies_inside(path.parent / location, path.parent):
            message = f"{path.name} needs the external data file {location}, which was not written beside it"
            problems.append(_problem("EPB605", expected, message))
    return header.external_locations


def _lies_inside(file: Path, folder: Path) -> bool:
    """Whether a file is there, and below `folder` when every link is followed."""
    try:
        return file.is_file() and file.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError):  # a name that is too long, or has a NUL character
        return False


def _problem(code: str, expected: Expected, message: str, hint: str | None = None) -> Problem:
    return Problem(code, message, expected.step, hint)
