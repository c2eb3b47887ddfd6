"""Checks of the source models of a session group, and of their SHA-256.

The checks of a group run during planning if a model is available, or else before the compile.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from epbuild.core.errors import PlanError, Problem
from epbuild.onnxfile.read.model_header import ModelHeader
from epbuild.plan.known_patterns import describe_dynamic_nodes
from epbuild.plan.member import Member, ModelFiles
from epbuild.plan.shapes import find_shape_problems, find_shape_warnings
from epbuild.plan.sources import make_compiled_problem
from epbuild.plan.steps import Plan, SessionGroup
from epbuild.recipe.model import ModelSpec


def find_source_problems(group: SessionGroup, headers: Mapping[str, ModelHeader]) -> list[Problem]:
    """Return the problems of the members of a session group. `headers` has the headers of known sources, by member."""
    found = [*_find_unopenable(group, headers), *_find_inline_weights(group, headers)] if group.compiled else []
    found += _find_compiled(group)
    for member in group.members:
        found += find_data_name_problems(member.name, member.model, member.external if member.has_files else ())
        if member.name in headers:
            target = group.target if group.compiled else None
            found += find_shape_problems(member, headers[member.name], target)
    return found


def find_source_warnings(group: SessionGroup, headers: Mapping[str, ModelHeader]) -> Iterator[Problem]:
    """Yield the warnings about the members of a session group. `headers` has the headers of known sources, by member."""
    for member in group.members if group.compiled else ():
        if member.name in headers:
            yield from find_shape_warnings(member, headers[member.name], group.target)
            yield from _find_dynamic_nodes(member, headers[member.name], group)
            yield from _find_unused_patterns(member, headers[member.name])


def _find_unused_patterns(member: Member, header: ModelHeader) -> Iterator[Problem]:
    """Yield a warning for each pattern of initializers that matches none in a member."""
    names = [initializer.name for initializer in header.initializers]
    for pattern in member.compile.initializer_names:
        if not any(fnmatchcase(name, pattern) for name in names):
            message = f"'{pattern}' matches no initializer of the model '{member.name}'"
            hint = "Correct the pattern, or ignore this warning if graph optimization creates the initializer."
            yield Problem("EPB268", message, member.compile.initializers_where, hint)


def _find_compiled(group: SessionGroup) -> Iterator[Problem]:
    """Yield a problem for each compiled member whose other nodes the target does not compile."""
    for member in group.members:
        sources = member.compiled_files.context_sources if member.has_files else ()
        if not sources:
            continue
        eps = group.target.compiling
        unknown = [source for source in sources if not any(ep.entry.has_source(source) for ep in eps)]
        others = [ep for ep in eps if not any(ep.entry.has_source(source) for source in sources)]
        if group.share or not group.compiled:
            yield make_compiled_problem(member.model)
        elif unknown:
            hint = f"To compile its other nodes, list the EP of '{unknown[0]}' in the 'eps' of '{group.target.name}' too."
            yield make_compiled_problem(member.model, hint)
        elif not others:
            hint = f"To compile its other nodes with a second EP, list that EP in the 'eps' of '{group.target.name}' too."
            yield make_compiled_problem(member.model, hint)


def _find_dynamic_nodes(member: Member, header: ModelHeader, group: SessionGroup) -> Iterator[Problem]:
    """Yield a warning for each EP that does not fully support the dynamically quantized nodes of a member."""
    for entry in (ep.entry for ep in group.target.compiling):
        nodes, rule = describe_dynamic_nodes(header, entry), entry.dynamic_quantization
        if nodes is not None and rule is not None:
            hint = "To replace them with float32 nodes, add `prepare: [{dequantize: {}}]` to the model."
            yield Problem("EPB266", f"the model '{member.model.name}' has {nodes}: {rule.why}", member.model.path_where, hint)


def find_data_name_problems(name: str, model: ModelSpec, locations: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem for each external data file whose name equals the staged name of the graph of model `name`."""
    for location in locations:
        if os.path.normcase(os.path.normpath(location)) == os.path.normcase(f"{name}.onnx"):
            message = f"the model '{name}' is compiled as {name}.onnx, but its external data file {location} has the same name"
            yield Problem("EPB204", message, model.path_where, "Rename the model in the recipe.")


def _find_inline_weights(group: SessionGroup, headers: Mapping[str, ModelHeader]) -> Iterator[Problem]:
    """Yield a problem for each member without external data if the target compiles weightless contexts that need such data."""
    needs_data = any(ep.weightless_support == {"external"} for ep in group.target.compiling)
    if group.target.weightless_key is None or not needs_data or group.weights_file is not None:
        return
    for member in group.members:
        if member.name in headers and not headers[member.name].external_data:
            message = f"the model '{member.name}' has no external data, but '{group.target.name}' compiles weightless contexts"
            hint = "Save the model's weights as external data, or remove ep.enable_weightless."
            yield Problem("EPB214", message, member.model.path_where, hint)


def _find_unopenable(group: SessionGroup, headers: Mapping[str, ModelHeader]) -> Iterator[Problem]:
    """Yield a problem for each pair of a member with overridable initializers and an EP that does not support them."""
    known = [(ep, row) for ep in group.target.eps for row in ep.entry.cannot if row.source_has == "overridable initializers"]
    for member in group.members:
        names = headers[member.name].overridable if member.name in headers else ()
        for ep, row in known if names else ():
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            message = (
                f"the model '{member.name}' has initializers that are also inputs ('{names[0]}'{more}), which a run may override; "
                f"{ep.entry.ep} cannot {row.what}: {row.why}"
            )
            hint = "Remove the initializers from the graph's inputs, for example with ONNX Runtime's remove_initializer_from_input.py."
            yield Problem("EPB259", message, member.model.path_where, hint)


def check_pins(plan: Plan, digests: Mapping[str, str]) -> None:
    """Raise PlanError if a model differs from its pin in the recipe. `digests` maps all files to their SHA-256."""
    problems = [
        Problem("EPB207", message, model.path_where, "Restore the pinned file, or change the pin.")
        for model, files in plan.sources()
        if model.sha256 or model.data_sha256  # few models are pinned
        for message in _find_broken_pins(model, files, digests)
    ]
    if problems:
        raise PlanError(*problems)


def _find_broken_pins(model: ModelSpec, files: ModelFiles, digests: Mapping[str, str]) -> Iterator[str]:
    pins = {f"external data {location}": (files.external.get(location), pin) for location, pin in model.data_sha256.items()}
    if model.sha256:
        pins["graph"] = (files.graph, model.sha256)
    for what, (path, pin) in pins.items():
        if path is None:
            yield f"the model '{model.name}' has no {what}, but the recipe pins it"
        elif digests[str(path)] != pin.lower():
            yield f"the {what} of the model '{model.name}' does not match the recipe's pin: its SHA-256 is {digests[str(path)]}"
