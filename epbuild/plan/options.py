"""A target's options against the catalog: every name and value checked, every value in its one canonical spelling."""

from __future__ import annotations

from collections.abc import Mapping

from epbuild.catalog import BadValue, Entry, Option, entry, known_eps, normalize, plain_text, session_keys
from epbuild.errors import Problem, nearest
from epbuild.plan.steps import PlannedTarget
from epbuild.recipe import Setting, Target, Toolchain


def plan_target(target: Target, toolchain: Toolchain, problems: list[Problem]) -> PlannedTarget | None:
    """`target` with its options as ONNX Runtime takes them; None for an unknown EP. What is wrong is added to `problems`."""
    if target.ep.name not in known_eps():
        known = ", ".join(known_eps())
        hint = nearest(target.ep.name, known_eps()) or f"Known EPs: {known}."
        problems.append(Problem("EPB210", f"unknown EP '{target.ep.name}'", target.ep.where, hint))
        return None
    found = entry(target.ep.name)
    keys = session_keys()
    for name, setting in target.session_options.items():
        if name in keys.reserved:
            message = f"the session key '{name}' is set by epbuild itself: {keys.reserved[name]}"
            problems.append(Problem("EPB213", message, setting.name_where))
    session = {name: setting for name, setting in target.session_options.items() if name not in keys.reserved}
    return PlannedTarget(
        name=target.name,
        toolchain=toolchain,
        entry=found,
        device=target.device,
        provider_options=_canonical(found, found.options, target.provider_options, "option", target, problems),
        session_options=_canonical(found, keys.options, session, "session key", target, problems),
        silent_options=frozenset(
            name
            for options, used in ((found.options, target.provider_options), (keys.options, target.session_options))
            for name in used
            if name in options and not options[name].changes_output
        ),
    )


def sharing_refusals(target: PlannedTarget) -> list[str]:
    """Why weights cannot be shared for `target`: sentences, none when they can."""
    sharing = target.entry.sharing
    if not sharing.possible:
        return [sharing.reason]
    return [
        f"{refusal.option} is '{target.provider_options[refusal.option]}', and {refusal.reason}"
        for refusal in sharing.refusals
        if refusal.matches(target.provider_options.get(refusal.option, ""))
    ]


def _canonical(
    found: Entry,
    options: Mapping[str, Option],
    settings: Mapping[str, Setting],
    kind: str,
    target: Target,
    problems: list[Problem],
) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, setting in settings.items():
        option = options.get(name)
        if option is None:
            if target.allow_unknown_options:
                values[name] = plain_text(setting.value)
            else:
                hint = nearest(name, options) or "Set allow_unknown_options on the target to pass it on unchecked."
                problems.append(Problem("EPB211", f"{found.ep} has no {kind} '{name}'", setting.name_where, hint))
            continue
        try:
            booleans = found.booleans if kind == "option" else ("0", "1")
            values[name] = normalize(option, setting.value, booleans=booleans, names=found.names.get(name, {}))
        except BadValue as error:
            problems.append(Problem("EPB212", f"{kind} '{name}': {error}", setting.where))
    return values
