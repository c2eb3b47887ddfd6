"""Limits on measured figures, and their texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec import to_builtins

from epbuild.core.errors import Problem, StepId
from epbuild.core.units import format_count
from epbuild.plan.made import Made
from epbuild.plan.measuring import FigureBaseline, MeasuredMember, ModelMeasurement
from epbuild.plan.result import MeasuredModel, MeasurementResult
from epbuild.recipe.model import MeasuredOn

_PLACES: Mapping[MeasuredOn, str] = {"device": "on the device", "emulator": "on an emulator", "cpu": "on the CPU"}
_NOT_REPORTED = "Let the command of 'measure' report it, or remove the limit."


def check_figures(measurement: ModelMeasurement, result: MeasurementResult) -> Iterator[Problem]:
    """Yield a problem for each limit that a figure exceeds, and for each limit that cannot be checked."""
    for member in measurement.members:
        yield from check_member_figures(measurement, member, result)


def check_member_figures(measurement: ModelMeasurement, member: MeasuredMember, result: MeasurementResult) -> Iterator[Problem]:
    """Yield a problem for each limit of a member that a figure exceeds, and for each limit that cannot be checked."""
    step = StepId(measurement.id)
    wanted = measurement.choice.on
    model = result.model(member.name)
    place = describe_place(model.on, model.device)
    limits = list_figure_limits(member, model)
    for name, limit, why in limits:
        found = model.figures.get(name)
        subject, most = f"the model '{member.name}' has", f"the recipe expects at most {format_figure(name, float(limit))}{why}"
        if found is None:
            yield Problem("EPB657", f"{subject} no measured {name}; {most}", step, _NOT_REPORTED)
            continue
        message = f"{subject} a {name} of {format_figure(name, found)} {place}; {most}"
        if model.on != wanted:
            hint = f"Measure {_PLACES[wanted]}, or write `on: {model.on}` under 'measure' if this limit is meant."
            yield Problem("EPB657", f"{message} {_PLACES[wanted]}, which cannot be compared", step, hint)
        elif Fraction(str(found)) > limit:
            yield Problem("EPB656", message, step, "Change the model, or raise the limit.")
    limited = {limit.name for limit in limits}
    for name, _ in member.growth:
        if name not in limited and member.baseline is not None:
            yield _make_baseline_problem(step, name, model, member.baseline)


class FigureLimit(NamedTuple):
    """Maximum value of a figure. `why` continues the sentence about the maximum."""

    name: str
    most: Fraction
    why: str = ""


def list_figure_limits(member: MeasuredMember, model: MeasuredModel) -> list[FigureLimit]:
    """Return the limits on the figures of a model. The growth of a figure is limited only if the release measured it on the same device."""
    limits = [FigureLimit(name, Fraction(str(limit))) for name, limit in member.limits]
    baseline = member.baseline
    if baseline is not None and baseline.device is not None and (baseline.on, baseline.device) == (model.on, model.device):
        for name, growth in member.growth:
            if (before := baseline.figures.get(name)) is not None:
                why = f": {format_figure(name, before)} in {baseline.path}, and a growth of {100 * growth:g} %"
                limits.append(FigureLimit(name, Fraction(str(before)) * (1 + Fraction(str(growth))), why))
    return limits


def find_lowest_limits(member: MeasuredMember, model: MeasuredModel) -> dict[str, float]:
    """Return the lowest limit on each figure of a model, by name."""
    lowest: dict[str, Fraction] = {}
    for name, most, _ in list_figure_limits(member, model):
        lowest[name] = min(most, lowest.get(name, most))
    return {name: float(most) for name, most in lowest.items()}


def _make_baseline_problem(step: StepId, name: str, model: MeasuredModel, baseline: FigureBaseline) -> Problem:
    """Return the problem of a figure whose growth cannot be checked, because the release has no comparable figure."""
    found, before = model.figures.get(name), baseline.figures.get(name)
    if found is None:
        message = f"the model '{model.member}' has no measured {name}; the recipe limits its growth since {baseline.path}"
        return Problem("EPB657", message, step, _NOT_REPORTED)
    message = f"the model '{model.member}' has a {name} of {format_figure(name, found)} {describe_place(model.on, model.device)}"
    if before is None or baseline.on is None:
        hint = f"For a model that was not measured for the baseline, limit {name} in 'expect' as well."
        return Problem("EPB657", f"{message}, but {baseline.path} has no {name} of {step} to compare with", step, hint)
    place = describe_place(baseline.on, baseline.device)
    message = f"{message}; {baseline.path} has {format_figure(name, before)} {place}, which cannot be compared"
    hint = "Measure on the same device, whose name the command of 'measure' must report, or limit the figure itself in 'expect'."
    return Problem("EPB657", message, step, hint)


def describe_measured_figures(measured: Made, member: str) -> dict[str, Any]:
    """Return the manifest entry of a model's figures."""
    if not isinstance(measured.result, MeasurementResult):
        raise TypeError(f"{measured.action.id} is not a measurement")
    found = to_builtins(measured.result.model(member))
    return {"measured": {name: value for name, value in found.items() if name != "member"}}


def describe_place(on: MeasuredOn, device: str | None) -> str:
    """Return where a model was measured, as a clause."""
    return _PLACES[on] + (f" '{device}'" if device is not None else "")


def format_figure(name: str, value: float) -> str:
    """Return a figure with its unit. All digits are shown, so that a figure above its limit never looks equal to it."""
    return f"{value:,.0f} bytes" if name == "peak_memory" else f"{value!r} ms".replace(".0 ms", " ms")


def format_figures(figures: Mapping[str, float], limits: Mapping[str, float]) -> str:
    """Return figures with their limits, as a list."""
    texts = {name: f" (limit {format_figure(name, limit)})" for name, limit in limits.items()}
    return ", ".join(f"{name} {format_figure(name, value)}{texts.get(name, '')}" for name, value in figures.items())


def format_measurement_note(result: MeasurementResult) -> str:
    """Return the note for a finished step: the largest figures, where they were measured, and the number of files."""
    names = dict.fromkeys(name for model in result.models for name in model.figures)
    largest = {name: max(model.figures[name] for model in result.models if name in model.figures) for name in names}
    parts = [f"{name} {format_figure(name, round(value, 3))}" for name, value in largest.items()]
    places = dict.fromkeys(describe_place(model.on, model.device) for model in result.models)
    parts += [" and ".join(places), *([format_count(len(result.diagnostics), "file")] if result.diagnostics else [])]
    return ", ".join(parts)
