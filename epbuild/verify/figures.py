"""Limits on measured figures, and their texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import to_builtins

from epbuild.core.errors import Problem, StepId
from epbuild.core.units import format_count
from epbuild.plan.made import Made
from epbuild.plan.measuring import MeasuredMember, ModelMeasurement
from epbuild.plan.result import MeasurementResult
from epbuild.recipe.model import MeasuredOn

_PLACES: Mapping[MeasuredOn, str] = {"device": "on the device", "emulator": "on an emulator", "cpu": "on the CPU"}


def check_figures(measurement: ModelMeasurement, result: MeasurementResult) -> Iterator[Problem]:
    """Yield a problem for each limit that a figure exceeds, and for each limit whose figure is missing."""
    for member in measurement.members:
        yield from check_member_figures(measurement, member, result)


def check_member_figures(measurement: ModelMeasurement, member: MeasuredMember, result: MeasurementResult) -> Iterator[Problem]:
    """Yield a problem for each limit of a member that a figure exceeds, and for each limit whose figure is missing."""
    step = StepId(measurement.id)
    wanted = measurement.choice.on
    model = result.model(member.name)
    place = describe_place(model.on, model.device)
    for name, limit in member.limits:
        found = model.figures.get(name)
        subject, most = f"the model '{member.name}' has", f"the recipe expects at most {format_figure(name, limit)}"
        if found is None:
            hint = "Let the command of 'measure' report it, or remove the limit."
            yield Problem("EPB657", f"{subject} no measured {name}; {most}", step, hint)
            continue
        message = f"{subject} a {name} of {format_figure(name, found)} {place}; {most}"
        if model.on != wanted:
            hint = f"Measure {_PLACES[wanted]}, or write `on: {model.on}` under 'measure' if this limit is meant."
            yield Problem("EPB657", f"{message} {_PLACES[wanted]}, which cannot be compared", step, hint)
        elif found > limit:
            yield Problem("EPB656", message, step, "Change the model, or raise the limit.")


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
