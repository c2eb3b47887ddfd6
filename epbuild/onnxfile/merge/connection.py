"""Connections between models: outputs that feed inputs, and their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from epbuild.core.errors import ChangeRefused, Problem
from epbuild.onnxfile.read.model_header import ModelHeader, ValueInfo
from epbuild.onnxfile.read.sizes import format_shape


class Connection(NamedTuple):
    """Output of one model that feeds an input of a later model. Models are numbered from 0."""

    source: int
    output: str
    target: int
    input: str


class ConnectedModel(Struct, frozen=True, dict=True):
    """Model to connect. `label` is the model's name in messages."""

    path: Path
    label: str
    header: ModelHeader

    @cached_property
    def inputs(self) -> Mapping[str, ValueInfo]:
        """Inputs by name. If a name occurs twice, the first input counts."""
        return {value.name: value for value in reversed(self.header.inputs)}

    @cached_property
    def outputs(self) -> Mapping[str, ValueInfo]:
        """Outputs by name. If a name occurs twice, the first output counts."""
        return {value.name: value for value in reversed(self.header.outputs)}


def read_connections(texts: Iterable[str], members: Sequence[ConnectedModel]) -> list[Connection]:
    """Parse texts of the form `MODEL.OUTPUT=MODEL.INPUT`. MODEL is a file's stem or the model's number, from 1.

    Stems and names may contain dots and equals signs, so every way to split a text is tried. Raises ChangeRefused (EPB627)
    unless exactly one way names an existing output and an existing input.
    """
    named: dict[str, list[int]] = {}
    for number, member in enumerate(members):
        for name in dict.fromkeys((member.path.stem, str(number + 1))):
            named.setdefault(name, []).append(number)
    return [_read_connection(text, members, named) for text in texts]


def _read_connection(text: str, members: Sequence[ConnectedModel], named: Mapping[str, Sequence[int]]) -> Connection:
    readings = [
        Connection(source, output, target, value)
        for at, sign in enumerate(text)
        if sign == "="
        for source, output in _split_end(text[:at], named)
        for target, value in _split_end(text[at + 1 :], named)
    ]
    found = [
        reading
        for reading in readings
        if reading.output in members[reading.source].outputs and reading.input in members[reading.target].inputs
    ]
    if len(found) == 1:
        return found[0]
    if found:
        message = f"the connection '{text}' is ambiguous"
        raise ChangeRefused(Problem("EPB627", message, None, "Use the models' numbers: 1.OUTPUT=2.INPUT."))
    if readings:
        _check_ends(members, readings[0])
    stems = ", ".join(f"{number}: {member.path.stem}" for number, member in enumerate(members, 1))
    message = f"the connection '{text}' is not of the form MODEL.OUTPUT=MODEL.INPUT"
    raise ChangeRefused(Problem("EPB627", message, None, f"The models are {stems}."))


def connect_same_names(members: Sequence[ConnectedModel]) -> tuple[Connection, ...]:
    """Connect each input to the output with the same name in the nearest earlier model."""
    found = []
    latest: dict[str, int] = {}
    for target, member in enumerate(members):
        for value in member.header.inputs:
            if value.name in latest:
                found.append(Connection(latest[value.name], value.name, target, value.name))
        latest.update(dict.fromkeys((value.name for value in member.header.outputs), target))
    return tuple(found)


def check_connections(members: Sequence[ConnectedModel], connections: Sequence[Connection]) -> None:
    """Raise ChangeRefused (EPB627, EPB628) for the first impossible connection."""
    fed = set()
    for connection in connections:
        output, value = _check_ends(members, connection)
        source, target = members[connection.source].label, members[connection.target].label
        if connection.source >= connection.target:
            message = f"'{output.name}' of {source} cannot feed {target}: {target} does not come after {source}"
            raise ChangeRefused(Problem("EPB627", message, None, "Name the models in the order in which they run."))
        if (connection.target, value.name) in fed:
            raise ChangeRefused(Problem("EPB627", f"'{value.name}' of {target} is connected twice"))
        fed.add((connection.target, value.name))
        if not have_same_type(output, value):
            output_end = f"'{output.name}' of {source} ({format_type(output)})"
            message = f"{output_end} cannot feed '{value.name}' of {target} ({format_type(value)})"
            raise ChangeRefused(Problem("EPB628", message))


def have_same_type(left: ValueInfo, right: ValueInfo) -> bool:
    """Return whether one value can replace the other. Unknown sizes are not compared."""
    if left.elem_type != right.elem_type:
        return False
    if left.shape is None or right.shape is None:
        return True
    return len(left.shape) == len(right.shape) and all(
        one == other
        for one, other in zip(left.shape, right.shape, strict=True)
        if isinstance(one, int) and isinstance(other, int)
    )


def format_type(value: ValueInfo) -> str:
    """Format a value's type for messages."""
    from onnx import TensorProto

    known = value.elem_type in TensorProto.DataType.values()
    kind = TensorProto.DataType.Name(value.elem_type).lower() if known and value.elem_type else "no tensor"
    return f"{kind}{'[?]' if value.shape is None else format_shape(value.shape)}"


def _split_end(text: str, named: Mapping[str, Sequence[int]]) -> list[tuple[int, str]]:
    """Return the pairs of model and value name that `text` can mean. `named` has the numbers of models by name."""
    return sorted((number, text[at + 1 :]) for at, sign in enumerate(text) if sign == "." for number in named.get(text[:at], ()))


def _check_ends(members: Sequence[ConnectedModel], connection: Connection) -> tuple[ValueInfo, ValueInfo]:
    source, target = members[connection.source], members[connection.target]
    if connection.output not in source.outputs:
        message = f"{source.label} has no output '{connection.output}'"
        raise ChangeRefused(Problem("EPB627", message, None, _make_names_hint(source.header.outputs)))
    if connection.input not in target.inputs:
        message = f"{target.label} has no input '{connection.input}'"
        raise ChangeRefused(Problem("EPB627", message, None, _make_names_hint(target.header.inputs)))
    return source.outputs[connection.output], target.inputs[connection.input]


def _make_names_hint(values: Sequence[ValueInfo]) -> str:
    return f"Available: {', '.join(value.name for value in values)}." if values else "Available: none."
