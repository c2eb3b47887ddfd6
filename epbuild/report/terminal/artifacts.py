"""Terminal output for inspections and comparisons of artifacts."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from epbuild.catalog.catalog import BUILT_IN, SUFFIX
from epbuild.core.differences import format_value
from epbuild.core.errors import escape_controls
from epbuild.core.units import format_count
from epbuild.diff.difference import Comparison, Difference
from epbuild.plan.result import FallbackNode
from epbuild.report.formatting import UNKNOWN_PARTS, format_part, format_size, join_names
from epbuild.report.terminal.changes import format_part_changes
from epbuild.report.terminal.screen import BOLD, get_text_width, has_colors, paint, print_line, print_lines, wrap
from epbuild.verify.fallback import FallbackNodes

if TYPE_CHECKING:
    from epbuild.onnxfile.edit.wrapping import Wrapped

_LABEL = 16
_RED, _GREEN, _YELLOW, _PLAIN = "31", "32", "33", ""
_MAX_NODES = 5
"""Maximum number of nodes to name per operator. `--json` names all."""
_MAX_PARTS = 5
"""Maximum number of parts of a file to show. `--json` lists all."""
_NUMBERS = ("main_context", "embed_mode", "max_size")
_QUANTIZING = {"QuantizeLinear", "DequantizeLinear", "com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear"}
_QUANTIZING_NOTE = (
    "These nodes quantize the model's inputs and dequantize its outputs on the CPU. An EP may have an option to compile them "
    "too ({})."
)
_FALLBACK_NOTE = (
    "These nodes run on the CPU or another EP of the session. At each boundary, tensors are copied from the accelerator and back, "
    "which often costs more than the nodes themselves. A session with session.disable_cpu_ep_fallback=1 refuses such a model."
)

_Line = tuple[str, str, str]
_GAP = 2
NOT_COMPARED = "the options, the toolchain and the source models"
"""Parts of a comparison that need manifests."""


def print_inspection(found: Mapping[str, Any]) -> None:
    color = has_colors(sys.stdout)
    _print_heading(f"{found['file']} ({format_size(found['size'])})", color)
    _print_lines(_list_values(found), color)
    for node in found["ep_context_nodes"]:
        sys.stdout.write("\n")
        _print_heading(f"EPContext {node['name']}" + (" (in a subgraph)" if node["subgraph"] else ""), color)
        _print_lines(_list_node_facts(node), color)
    if found["ep_context_nodes"]:
        sys.stdout.write("\n")
    _print_lines(_list_model_facts(found), color)


def print_inspections(found: Mapping[str, Any]) -> None:
    color = has_colors(sys.stdout)
    for number, model in enumerate(found["models"]):
        if number:
            sys.stdout.write("\n")
        if "problem" in model:
            _print_heading(model["file"], color)
            _print_lines([("problem", model["problem"], _RED)], color)
        else:
            print_inspection(model)
    for shared in found["shared"]:
        sys.stdout.write("\n")
        _print_heading(f"Shared: {shared['file']} ({format_size(shared['size'])})", color)
        count = len(shared["models"])
        saved = f"{format_size(shared['saved'])}, compared with a copy for each of {count} models"
        users = [("used by" if number == 0 else "", file, _PLAIN) for number, file in enumerate(shared["models"])]
        _print_lines([*users, ("saves", saved, _GREEN)], color)


def print_wrapped(made: Wrapped) -> None:
    color = has_colors(sys.stdout)
    for graph in made.graphs:
        _print_heading(str(graph.model), color)
        values = {
            kind: [{"name": value.name, "type": value.type, "shape": value.shape} for value in found]
            for kind, found in (("inputs", graph.inputs), ("outputs", graph.outputs))
        }
        _print_lines([("graph", graph.name, _PLAIN), *_list_values(values)], color)
        sys.stdout.write("\n")
    _print_lines([("context", f"{made.binary}, SDK {made.sdk}", _PLAIN)], color)


def _list_values(found: Mapping[str, Any]) -> Iterator[_Line]:
    for kind in ("inputs", "outputs"):
        for number, value in enumerate(found[kind]):
            shape = "?" if value["shape"] is None else ", ".join("?" if size is None else str(size) for size in value["shape"])
            yield kind if number == 0 else "", f"{value['name']}  {value['type']}[{shape}]", _PLAIN


def _list_node_facts(node: Mapping[str, Any]) -> Iterator[_Line]:
    yield "source", f"{node['source'] or 'none'}" + (f", SDK {node['ep_sdk_version']}" if node["ep_sdk_version"] else ""), _PLAIN
    if node["target"]:
        yield "compiled for", node["target"], _GREEN
    if node["reference"] is not None:
        size = f" ({format_size(node['size'])})" if node["size"] is not None else ""
        yield "context", f"{node['reference'] or 'none'}{size}", _PLAIN
    elif node["size"] or (node["main_context"] and node["size"] is not None):
        yield "context", f"embedded, {format_size(node['size'])}", _PLAIN
    elif node["main_context"]:
        yield "context", "none", _PLAIN
    else:
        yield "context", "in the node with main_context=1", _PLAIN
    if node["sha256"]:
        yield "sha256", node["sha256"], _PLAIN
        yield from _list_context_parts(node)
    if node["weights"]:
        weights = node["weights"]
        yield "weights", f"{weights['reference']} ({format_size(weights['size'])}), sha256 {weights['sha256']}", _PLAIN
        yield from _list_weights_parts(weights["parts"])
    if node["problem"]:
        yield "problem", node["problem"], _RED
    for label, name in (
        ("partition", "partition_name"),
        ("compiled from", "onnx_model_filename"),
        ("architecture", "hardware_architecture"),
        ("notes", "notes"),
    ):
        if node[name] and node[name] != node["name"]:
            yield label, node[name], _PLAIN
    numbers = [f"{name} {node[name]}" + ("" if name in node["written"] else " (default)") for name in _NUMBERS]
    yield "attributes", ", ".join(numbers), _PLAIN
    own = [f"{name} {value}" for name, value in node["others"].items()]
    own += [f"{name} ({kind})" for name, kind in node["written"].items() if name not in node and name not in node["others"]]
    own = [text for text in own if not text.startswith("ep_cache_context ")]
    if own:
        yield "EP attributes", ", ".join(own), _PLAIN


def _list_context_parts(node: Mapping[str, Any]) -> Iterator[_Line]:
    """Yield the largest parts of a context, and the number and size of the other bytes."""
    parts, own = node["parts"], {name for name in (node["name"], node["partition_name"]) if name}
    if not parts and not node["weights"]:
        yield "size by part", UNKNOWN_PARTS, _PLAIN
    for number, part in enumerate(parts[:_MAX_PARTS]):
        title = "graph of this node" if part["name"] in own else format_part(part["kind"], part["name"])
        yield "size by part" if number == 0 else "", f"{format_size(part['size'])} {title}", _PLAIN
    others = parts[_MAX_PARTS:]
    if others:
        yield "", f"{format_size(sum(part['size'] for part in others))} in {format_count(len(others), 'smaller part')}", _PLAIN
    if parts:
        yield "", f"{format_size(node['size'] - sum(part['size'] for part in parts))} headers and padding", _PLAIN


def _list_weights_parts(parts: Sequence[Mapping[str, Any]]) -> Iterator[_Line]:
    """Yield the largest parts of a weights file, and the number and size of the others."""
    if not parts:
        yield "size by weight", "unknown: the context has no usable list of weights", _PLAIN
    for number, part in enumerate(parts[:_MAX_PARTS]):
        names = join_names(part["names"], _MAX_NODES)
        yield "size by weight" if number == 0 else "", f"{names}: {format_size(part['size'])}", _PLAIN
    others = parts[_MAX_PARTS:]
    if others:
        yield "", f"{format_count(len(others), 'smaller part')}: {format_size(sum(part['size'] for part in others))}", _PLAIN


def _list_model_facts(found: Mapping[str, Any]) -> Iterator[_Line]:
    others = found["other_operators"]
    count = sum(others.values())
    listed = ", ".join(f"{name} x {number}" for name, number in others.items())
    if not found["ep_context_nodes"]:
        yield "not compiled", f"{format_count(count, 'node')}, none of them an EPContext node: {listed}", _YELLOW
    elif count:
        yield "CPU fallback", f"{format_count(count, 'node')}: {listed}", _YELLOW
        for group in FallbackNodes("", count, tuple(FallbackNode(**left) for left in found["left"])).groups:
            names = join_names([name or "(no name)" for name in group.nodes], _MAX_NODES)
            yield "", f"{group.operator}{f' ({group.reason})' if group.reason is not None else ''}: {names}", _PLAIN
        options = (f"{ep.removesuffix(SUFFIX)}: {option}" for ep, option in BUILT_IN.quantized_io_options().items())
        yield "", _QUANTIZING_NOTE.format(", ".join(options)) if others.keys() <= _QUANTIZING else _FALLBACK_NOTE, _PLAIN
    else:
        yield "CPU fallback", "none", _GREEN
    weights = found["initializers"]
    if weights["count"]:
        inline = format_size(weights["inline_bytes"])
        yield "weights", f"{weights['count']} initializers, {inline} of them in the model file", _PLAIN
    for ep, text in found["compatibility"].items():
        yield "compatibility", f"{ep}: {text}", _PLAIN
    if found["external_data"]:
        yield "external data", ", ".join(found["external_data"]), _PLAIN


def _print_heading(text: str, color: bool) -> None:
    print_line(paint(text, BOLD, color))


def _print_lines(lines: Iterator[_Line] | list[_Line], color: bool) -> None:
    """Print lines with labels in a column. Text breaks only between words, so that users can search for names."""
    for label, text, style in lines:
        for number, part in enumerate(wrap(text, width=get_text_width() - _LABEL) or [""]):
            shown = paint(part, style, color) if style else part
            # With one space on the left, a SHA-256 just fits into 80 columns.
            print_line(f" {label if number == 0 else '':<{_LABEL - 1}}{shown}".rstrip())


def print_comparison(found: Comparison) -> None:
    """Print the verdict, the differences in each category, the equal categories, and what was not compared."""
    color = has_colors(sys.stdout)
    lines = [paint(found.verdict, BOLD, color)]
    widths = _measure_columns()
    if found.differences:
        lines += ["", f"{'':{widths[0] + _GAP}}{'A':{widths[1] + _GAP}}B"]
    for sense in found.senses:
        lines.append(paint(sense, BOLD, color))
        lines += [line for item in found.differences if item.sense == sense for line in _format_difference(item, widths)]
    lines += format_part_changes(found.sizes)
    notes = []
    if found.differences and found.same:
        notes.append(f"Identical: {', '.join(found.same)}.")
    if found.without_manifest:
        has_none = " and ".join(found.without_manifest) + (
            " has no manifest" if len(found.without_manifest) == 1 else " have no manifests"
        )
        notes.append(f"Not compared, because {has_none}: {NOT_COMPARED}.")
    if notes:
        lines += ["", *(line for note in notes for line in wrap(note))]
    print_lines(lines)


def _measure_columns() -> tuple[int, int]:
    """Return the widths of the first column of a comparison, and of each of the two values."""
    width = get_text_width()
    first = 2 * width // 5
    return first, (width - first) // 2 - _GAP


def _format_difference(item: Difference, widths: tuple[int, int]) -> Iterator[str]:
    """Yield lines with three columns: what differs, and the two values. A long first column is written on lines of its own."""
    first, room = widths
    what = wrap(item.what, "  ", "    ")
    if len(what) > 1 or len(what[0]) > first:
        yield from what
        what = []
    values = [
        _wrap_cell(None if value is None and item.kind != "changed" else format_value(value), room)
        for value in (item.old, item.new)
    ]
    for cells in zip_longest(what, *values, fillvalue=""):
        yield f"{cells[0]:{first + _GAP}}{cells[1]:{room + _GAP}}{cells[2]}".rstrip()


def _wrap_cell(text: str | None, room: int) -> list[str]:
    if text is None:
        return ["-"]
    return textwrap.wrap(escape_controls(text), room) or ["(empty)"]
