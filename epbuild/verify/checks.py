"""What a session group must have made before any of it is kept: whole EPContext models, for the target that was asked for.

EPs report success for half a group, for a missing binary, for another SoC and for a model that still runs on the CPU: nothing here
trusts an exit status, a file name or an option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from epbuild.core.errors import Problem, StepId, VerifyError
from epbuild.core.safepath import BadReference, locate
from epbuild.onnxfile.embed import PROTOBUF_LIMIT
from epbuild.onnxfile.epcontext import EPContextNode, resolve
from epbuild.onnxfile.headers import ModelHeader, NamedNode, ValueInfo, read_header
from epbuild.onnxfile.wire import MalformedModel
from epbuild.verify.payload import Payload


@dataclass(frozen=True)
class ExpectedEp:
    """An EP that may have compiled a part: its `source` names, and the target that its binaries should name."""

    name: str
    sources: tuple[str, ...]
    target_pattern: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class ExpectedModel:
    """What one compiled model must be; `file` is its name in the folder."""

    member: str
    file: str
    embed: bool = False


@dataclass(frozen=True)
class Expected:
    """What the compiled models of one session group must be."""

    step: str
    eps: tuple[ExpectedEp, ...]
    models: tuple[ExpectedModel, ...]
    one_binary: bool = False

    def ep_of(self, source: str | None) -> ExpectedEp | None:
        """The EP that a node's `source` names; None for one that was not asked for."""
        return next((ep for ep in self.eps if source in ep.sources), None)

    @property
    def title(self) -> str:
        """The EPs' names, for messages."""
        return ", ".join(ep.name for ep in self.eps)


@dataclass(frozen=True)
class CompiledModel:
    """One EPContext model that passed, with the files that it needs beside it."""

    member: str
    file: str
    nodes: tuple[EPContextNode, ...]
    outside: tuple[NamedNode, ...]
    """The nodes that the EPs did not take."""
    metadata: Mapping[str, str]
    binaries: Mapping[str, str]
    """The EP that made each context binary, by the binary's name."""
    data: tuple[str, ...]
    outputs: tuple[ValueInfo, ...] = ()


@dataclass(frozen=True)
class SharedBytes:
    """The bytes of the context binaries and data of a sharing group, and of those that its members make when each is compiled alone."""

    shared: int
    alone: int

    @property
    def saved(self) -> int:
        """The bytes that sharing saves; fewer than 0 when it costs some."""
        return self.alone - self.shared

    @property
    def ratio(self) -> float:
        """The part of the bytes that sharing saves."""
        return self.saved / self.alone if self.alone else 0.0

    @property
    def shown_ratio(self) -> str:
        """The ratio with three decimals, rounded down: one that is too small never looks as if it were enough."""
        return f"{(1000 * self.saved // self.alone if self.alone else 0) / 1000:.3f}"


def check_compiled(folder: Path, expected: Expected) -> tuple[CompiledModel, ...]:
    """Check the EPContext models in `folder`. Raises VerifyError with every problem found."""
    problems: list[Problem] = []
    compiled = [found for model in expected.models if (found := _check_model(folder, model, expected, problems)) is not None]
    if not problems:
        binaries = list(dict.fromkeys(binary for model in compiled for binary in model.binaries))
        if expected.one_binary and len(binaries) != 1:
            named = ", ".join(binaries) or "none"
            message = (
                f"{len(compiled)} models that share weights must have one context binary; there are {len(binaries)}: {named}"
            )
            problems.append(_problem("EPB607", expected, message))
    problems += _check_targets(folder, compiled, expected)
    if problems:
        raise VerifyError(*problems)
    return tuple(compiled)


def check_shared_bytes(found: SharedBytes, step: str, min_ratio: float) -> list[Problem]:
    """What is wrong with a sharing group that saves less than the recipe's `expect` asks for."""
    if found.ratio >= min_ratio:
        return []
    message = (
        f"the context binaries and data have {found.shared:,} bytes shared, and {found.alone:,} bytes where each model is compiled "
        f"alone: sharing saves a ratio of {found.shown_ratio}; the recipe expects at least {min_ratio:g}"
    )
    hint = "Check that the models have their weights in common, or lower shared_bytes.min_ratio."
    return [Problem("EPB611", message, StepId(step), hint)]


def read_target(payload: Payload, pattern: str, *, several: bool = False) -> str | None:
    """What a context says that it was made for: the first group of `pattern` where it matches first; None when it does not.

    A context for several targets is a zip archive with one for each: then all their names, sorted, with commas between them. `several`:
    it is one, wherever in the payload it begins.
    """
    matches = payload.matches(pattern.encode())
    if several or payload.begins_with(b"PK\x03\x04"):
        return ",".join(sorted({match[1].decode("ascii", "replace") for match in matches})) or None
    match = next(matches, None)
    return match[1].decode("ascii", "replace") if match else None


def is_target(seen: str, wanted: str) -> bool:
    """Whether what a context was made for is what was asked for: the same names, in any capitals and order."""
    return set(seen.casefold().split(",")) == set(wanted.casefold().split(","))


def _check_targets(folder: Path, compiled: Sequence[CompiledModel], expected: Expected) -> list[Problem]:
    """Whether each context says that it was made for the target that was asked for; an embedded one says so in its model."""
    asked: dict[str, ExpectedEp] = {}
    for model in compiled:
        for node in model.nodes:
            ep = expected.ep_of(node.source)
            if ep is not None and node.main_context:
                asked[node.reference or model.file] = ep
    problems = []
    for name, ep in asked.items():
        seen = None
        if ep.target_pattern and ep.target:
            # An embedded context lies somewhere in its model.
            seen = read_target(Payload.whole(folder / name), ep.target_pattern, several="," in ep.target)
        if seen is not None and ep.target is not None and not is_target(seen, ep.target):
            message = f"{name} was compiled for {seen}, not for {ep.target}"
            problems.append(
                _problem("EPB608", expected, message, "Check the target's options; the EP ignores what it does not understand.")
            )
    return problems


def _check_model(folder: Path, model: ExpectedModel, expected: Expected, problems: list[Problem]) -> CompiledModel | None:
    member, file = model.member, model.file
    path = folder / file
    if not path.is_file():
        problems.append(_problem("EPB601", expected, f"the EP reported success for '{member}' and wrote no {file}"))
        return None
    try:
        header = read_header(path, name_nodes=True)
    except MalformedModel as error:
        problems.append(_problem("EPB602", expected, f"{file} is not a whole ONNX file: {error}"))
        return None
    if not header.is_compiled:
        problems.append(_problem("EPB603", expected, f"{file} holds no EPContext node: nothing of '{member}' was compiled"))
        return None
    found = len(problems)
    binaries = {}
    for node in header.ep_context_nodes:
        binary, ep = _check_node(path, node, model.embed, expected, problems), expected.ep_of(node.source)
        if binary is not None and ep is not None:
            binaries[binary] = ep.name
    data = _check_data(path, header, expected, problems)
    if model.embed and path.stat().st_size > PROTOBUF_LIMIT:
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
        outside=header.other_nodes,
        metadata=header.metadata,
        binaries=binaries,
        data=data,
        outputs=header.outputs,
    )


def _check_node(path: Path, node: EPContextNode, embed: bool, expected: Expected, problems: list[Problem]) -> str | None:
    """The context binary that a node refers to, if any, by its name in the model's folder."""
    if expected.ep_of(node.source) is None:
        message = f"an EPContext node of {path.name} comes from '{node.source}', not from {expected.title}"
        problems.append(_problem("EPB604", expected, message))
    if bool(node.embed_mode) != embed and node.main_context:
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
    if binary.stat().st_size == 0:
        problems.append(_problem("EPB605", expected, f"{path.name} needs the context binary {node.reference}, which is empty"))
        return None
    return node.reference


def _check_data(path: Path, header: ModelHeader, expected: Expected, problems: list[Problem]) -> tuple[str, ...]:
    for location in header.external_locations:
        try:
            locate(path.parent, location)
        except BadReference:
            message = f"{path.name} needs the external data file {location}, which was not written beside it"
            problems.append(_problem("EPB605", expected, message))
    return header.external_locations


def _problem(code: str, expected: Expected, message: str, hint: str | None = None) -> Problem:
    return Problem(code, message, StepId(expected.step), hint)
