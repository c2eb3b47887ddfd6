"""Checks of the packages of toolchains against the EPs of their targets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from epbuild.catalog.catalog import Catalog
from epbuild.catalog.packagings import find_additions, find_exclusion, find_runtimes, format_environments
from epbuild.core.errors import Problem
from epbuild.plan.target import PlannedEp
from epbuild.recipe.model import ToolchainSpec

_Eps = Mapping[str, PlannedEp]


def find_toolchain_problems(toolchain: ToolchainSpec, eps: _Eps, catalog: Catalog, *, is_default: bool) -> Iterator[Problem]:
    """Yield the problems of a toolchain's packages for the EPs of its targets.

    `is_default` is true if the recipe does not define the toolchain. If the toolchain is an existing interpreter, missing packages are
    not reported, because the interpreter's environment may contain packages that the recipe does not list.
    """
    named = list(dict.fromkeys(requirement.distribution for requirement in toolchain.requirements))
    for ep in eps.values():
        found = ([name for name in named if name in packaging.distributions] for packaging in catalog.entries_for(ep.entry.ep))
        carriers = [names[0] for names in found if names]
        if ep.library is None and not ep.entry.takes_every_node and len(set(carriers)) > 1:
            message = f"the toolchain '{toolchain.name}' contains {ep.entry.ep} more than once: in {' and in '.join(carriers)}"
            yield Problem("EPB258", message, toolchain.where, "Keep only one of these packages.")
    if toolchain.interpreter is not None or "" in named:  # a requirement without a name, such as a path, may provide any EP
        return
    if exclusion := find_exclusion(named):
        yield Problem("EPB258", exclusion, toolchain.where, "Keep only one of these packages.")
        return
    lacking = [ep for ep in eps.values() if _lacks_package(ep, named)]
    plugins = [ep for ep in eps.values() if ep.entry.kind == "plugin"]
    if lacking:
        message = f"the toolchain '{toolchain.name}' has no package for {' and for '.join(ep.entry.ep for ep in lacking)}"
    elif plugins and not find_runtimes(named):
        message, lacking = f"the toolchain '{toolchain.name}' has no package for ONNX Runtime", plugins
    else:
        return
    packagings = [catalog.entries_for(ep.entry.ep) for ep in lacking]
    additions = find_additions(packagings, named)
    if additions is not None and is_default:
        packages = ", ".join([*toolchain.packages, *additions])
        hint = f"Write `toolchains: {{{toolchain.name}: {{packages: [{packages}]}}}}`."
    elif additions is not None:
        hint = f"Add {', '.join(additions)} to the toolchain's packages."
    elif len(lacking) == len(eps) == 1:
        hint = f"Replace its packages with {format_environments(packagings[0])}."
    else:
        own = " and ".join(f"{format_environments(each)} for {ep.entry.ep}" for ep, each in zip(lacking, packagings, strict=True))
        hint = f"The packages of its EPs cannot be installed together: define a separate target and toolchain for each EP, with {own}."
    yield Problem("EPB257", message, toolchain.where, hint)


def _lacks_package(ep: PlannedEp, named: Collection[str]) -> bool:
    """Return whether an EP needs a package that is not among `named`. The CPU EP needs none, because every ONNX Runtime contains it."""
    is_in_package = bool(ep.entry.distributions) and not ep.entry.takes_every_node and ep.library is None
    return is_in_package and set(named).isdisjoint(ep.entry.distributions)
