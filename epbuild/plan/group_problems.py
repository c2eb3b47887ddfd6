"""Problems of groups, and of group settings that targets do not support."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epbuild.core.errors import Problem
from epbuild.plan.options import COMPILER_SINCE
from epbuild.plan.sources import SourceModel
from epbuild.plan.steps import SessionGroup
from epbuild.plan.target import NO_FALLBACK, PlannedTarget
from epbuild.recipe.model import GroupMember, GroupSpec, ModelSpec

# Most models have some scalars and shapes in common. These initializers are not weights worth sharing.
_MIN_COMMON_SHARE = 0.01


def find_prefix_problems(group: GroupSpec, target: PlannedTarget) -> Iterator[Problem]:
    """Yield a problem for each `node_name_prefix` that an EP of the target does not support in a shared context."""
    places = dict.fromkeys(member.compile.prefix_where for member in group.members if member.compile.node_name_prefix)
    for ep in target.compiling if len(group.members) > 1 else ():
        rule = ep.entry.node_names
        if rule is not None and rule.found_by == "name" and ep.entry.sharing.binaries == "one":
            for where in places:
                message = f"the nodes of '{group.name}' share a context for '{target.name}' and cannot have a prefix: {rule.why}"
                hint = "Remove node_name_prefix: nodes in a shared context already have different names."
                yield Problem("EPB250", message, where, hint)


def find_runtime_problems(group: GroupSpec, target: PlannedTarget) -> Iterator[Problem]:
    """Yield a problem for each initializer setting that the toolchain's release of ONNX Runtime does not support."""
    if target.old_runtime is None:
        return
    settings = dict.fromkeys(member.compile for member in group.members)
    chosen = (compiled for compiled in settings if compiled.initializers == "source" or compiled.initializer_names)
    for where in dict.fromkeys(compiled.initializers_where for compiled in chosen):
        message = f"{target.old_runtime}, which '{target.name}' uses, cannot store initializers in the source model or by name"
        yield Problem("EPB251", message, where, f"Pin onnxruntime {COMPILER_SINCE} or later, or store the initializers inline.")
    external = (compiled for compiled in settings if compiled.initializers == "external" and compiled.external_threshold > 0)
    for where in dict.fromkeys(compiled.initializers_where for compiled in external):
        message = f"{target.old_runtime}, which '{target.name}' uses, writes initializers of any size to the external file"
        yield Problem("EPB251", message, where, f"Set the threshold to 0, or pin onnxruntime {COMPILER_SINCE} or later.")


def find_session_problems(group: GroupSpec, target: PlannedTarget) -> Iterator[Problem]:
    """Yield a problem for each member that expects fallback nodes although the target forbids CPU fallback."""
    if target.may_use_cpu or len(target.compiling) < len(target.eps):
        return
    for expected in dict.fromkeys(member.expect for member in group.members):
        if expected.fallback_nodes and expected.where is not None:
            message = f"the target '{target.name}' sets {NO_FALLBACK}, with which a compile fails if a node falls back"
            yield Problem("EPB214", message, expected.where, "Remove fallback_nodes, or remove the session key.")


def find_weightless_problems(group: GroupSpec, target: PlannedTarget) -> Iterator[Problem]:
    """Yield a problem for each member whose model would contain the weights that the target keeps out of contexts.

    EPs either read the weights themselves, or get them from ONNX Runtime, which then stores them like other initializers.
    """
    if target.weightless_key is None or not any(ep.weightless_support == {"external"} for ep in target.compiling):
        return
    for settings in dict.fromkeys(member.compile for member in group.members if member.compiled):
        if settings.initializers == "inline":
            message = f"the target '{target.name}' compiles weightless contexts, but the models would contain the weights"
            hint = "Set compile.initializers to `{store: external, file: '${model}.weights', threshold: 0}`."
            yield Problem("EPB214", message, settings.initializers_where or group.where, hint)


def find_size_problems(member: GroupMember, model: ModelSpec | None) -> Iterator[Problem]:
    """Yield a problem for each input for which a member of a group and its model in the recipe have different fixed sizes."""
    for name, shape in member.input_shapes.items():
        fixed = model.input_shapes.get(name) if model is not None else None
        if fixed is not None and fixed.sizes != shape.sizes:
            sizes = f"{list(shape.sizes)} here, {list(fixed.sizes)} in the model"
            message = f"conflicting sizes for the input '{name}' of '{member.name}': {sizes}"
            hint = "Remove the input from the model's 'input_shapes', so that each member can set its own sizes."
            yield Problem("EPB262", message, shape.where, hint)


def find_sharing_warnings(group: SessionGroup, models: Mapping[str, SourceModel]) -> list[Problem]:
    """Return a warning for each member of a sharing group that has no or almost no weights in common with other members.

    Raises OSError and MalformedModel if a weight cannot be read.
    """
    from epbuild.onnxfile.read.weights import estimate_common_bytes, find_weights

    found = estimate_common_bytes(
        {name: find_weights(model.header, model.files.graph, model.files.external) for name, model in models.items()}
    )
    problems = []
    for member in group.members if len(found) > 1 else ():
        most, total = found[member.name]
        if most and most >= _MIN_COMMON_SHARE * total:
            continue
        much, weights = ("nothing", "no weights")
        if most:
            much, weights = ("almost nothing", f"less than {_MIN_COMMON_SHARE:.0%} of its weights")
        message = f"the model '{member.name}' shares {much}: it has {weights} in common with the other models of '{group.group}'"
        problems.append(Problem("EPB233", message, member.model.path_where))
    return problems
