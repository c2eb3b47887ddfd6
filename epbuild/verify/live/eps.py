"""EPs and sessions that open what was compiled for a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from epbuild.catalog.catalog import find_session_key
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import UnknownName, find_option
from epbuild.catalog.options import Option
from epbuild.core.safepath import real_path
from epbuild.plan.custom_ops import CustomOpLibraries
from epbuild.plan.target import OptionFile, PlannedEp, PlannedTarget
from epbuild.recipe.model import DeviceChoice
from epbuild.toolchain.environment import Environment
from epbuild.verify.live.worker import Session


def session_of(
    target: PlannedTarget, environment: Environment, custom_ops: tuple[CustomOpLibraries, ...], timeout: float | None
) -> Session:
    """What to open models with that were compiled for a target of a recipe."""
    eps = (planned_ep(ep.entry, ep.lasting_options, ep, real_device(ep.device))[0] for ep in target.eps)
    options, _ = with_files(target.session_options, find_session_key, target.session_files)
    return Session(environment, tuple(eps), options, target.environment, timeout, custom_ops=custom_ops)


def real_device(choice: DeviceChoice) -> DeviceChoice:
    """The device to open models on: a virtual one, for which they may have been compiled, only stands for it."""
    return DeviceChoice(choice.type, choice.vendor) if choice.virtual else choice


def planned_ep(
    entry: EpEntry, options: Mapping[str, str], planned: PlannedEp | None, device: DeviceChoice
) -> tuple[PlannedEp, list[str]]:
    """An EP to open models with, and the options that it has to do without."""
    files = planned.files if planned is not None else {}
    kept, lacking = with_files(options, lambda name: find_option(entry, name), files)
    ep = PlannedEp(
        entry=entry,
        device=device,
        provider_options=kept,
        files=files,
        library=planned.library if planned is not None else None,
        silent=frozenset(),
    )
    return ep, lacking


def with_files(
    options: Mapping[str, str], find: Callable[[str], Option], files: Mapping[str, OptionFile]
) -> tuple[dict[str, str], list[str]]:
    """Options whose files are where they really are, and the names of those whose files nobody has.

    A manifest names files as they were staged for the compile.
    """
    places = {file.staged: str(real_path(file.path)) for file in files.values()}
    kept, lacking = {}, []
    for name, value in options.items():
        try:
            option = find(name)
        except UnknownName:
            kept[name] = value
            continue
        named = option.files(value)
        if all(file in places for file in named):
            kept[name] = option.with_files(value, [places[file] for file in named])
        else:
            lacking.append(name)
    return kept, lacking
