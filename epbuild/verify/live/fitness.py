"""Fitness of compiled models for this machine.

It depends on the answers of the EPs, on the versions of the SDKs, and on whether the model opens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from epbuild.catalog.catalog import name_source_ep
from epbuild.verify.facts import Model
from epbuild.verify.findings import Finding, Fitness, Outcome, format_sentence
from epbuild.verify.live.worker import Attempt, Session

_NUMBERS = 3
"""Parts of a version to compare. A fourth part is the number of a build."""
_TEXTS: Mapping[Fitness, str] = {
    "best": "This machine runs it best, according to ",
    "runs": "This machine runs it; ",
    "recompile": "It must be compiled again for this machine: ",
    "cannot": "This machine cannot run it. ",
}


class SdkDifference(Struct, frozen=True):
    """Versions of an EP's SDK: the one that compiled a model, and the one on this machine."""

    ep: str
    compiled: str
    here: str

    @property
    def is_newer(self) -> bool:
        """True if the model was compiled with a newer SDK."""
        compiled, here = _read_version(self.compiled), _read_version(self.here)
        length = min(len(compiled), len(here))
        return compiled[:length] > here[:length]


def compare_sdks(model: Model, attempt: Attempt) -> list[SdkDifference]:
    """Compare the SDK versions in a model with the ones on this machine. For several nodes of an EP, use the newest version."""
    here = {report["ep"]: report["version"] for report in attempt.find_reports("sdk")}
    newest: dict[str, str] = {}
    for node in model.nodes:
        ep = name_source_ep(node.source) or ""
        if ep in here and node.ep_sdk_version and _read_version(node.ep_sdk_version) > _read_version(newest.get(ep, "")):
            newest[ep] = node.ep_sdk_version
    return [SdkDifference(ep, compiled, here[ep]) for ep, compiled in newest.items() if _read_version(here[ep])]


def report_sdks(attempt: Attempt, models: Mapping[str, Model], shown: Mapping[str, str], session: Session) -> Iterator[Finding]:
    """Yield an `sdk` finding for each model and EP. A newer SDK is a failure only if the model did not open."""
    for name, model in models.items():
        for sdk in compare_sdks(model, attempt):
            if not sdk.is_newer:
                yield Finding("sdk", shown[name], "passed")
                continue
            message = f"It was compiled with the SDK {sdk.compiled}, which is newer than {sdk.here}, the SDK of {sdk.ep} here"
            if name in attempt.seconds:
                yield Finding("sdk", shown[name], "passed", f"{message}. It opens nevertheless.")
                continue
            packages = " or ".join(name for ep in session.eps if ep.entry.ep == sdk.ep for name in ep.entry.distributions)
            hint = f"Update {packages or sdk.ep} on this machine, or compile the model with an older release."
            yield Finding("sdk", shown[name], "failed", f"{message}.", "EPB669", hint)


def report_fitness(
    attempt: Attempt, models: Mapping[str, Model], shown: Mapping[str, str], loads: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield a `here` finding for each model. `loads` has the `load` finding of each model, in the same order."""
    for (name, model), load in zip(models.items(), loads, strict=True):
        answers = {report["answer"]: report["ep"] for report in attempt.find_reports("compatibility") if report["model"] == name}
        newer = [sdk for sdk in compare_sdks(model, attempt) if sdk.is_newer]
        opened = load.outcome == "passed"
        if "EP_UNSUPPORTED" in answers:
            why = f"{answers['EP_UNSUPPORTED']} does not support it on this device"
            yield _make_fitness(shown[name], "recompile", why, "EPB645")
        elif not opened and newer:
            why = f"its SDK {newer[0].compiled} is newer than {newer[0].here}"
            yield _make_fitness(shown[name], "recompile", why, "EPB669")
        elif not opened:
            yield make_cannot(shown[name], load.message)
        elif "EP_SUPPORTED_PREFER_RECOMPILATION" in answers:
            why = f"{answers['EP_SUPPORTED_PREFER_RECOMPILATION']} recommends compiling it again"
            yield _make_fitness(shown[name], "runs", why)
        elif answers.keys() == {"EP_SUPPORTED_OPTIMAL"}:
            yield _make_fitness(shown[name], "best", answers["EP_SUPPORTED_OPTIMAL"])
        else:
            yield _make_fitness(shown[name], "runs", "no EP reports whether it runs best")


def make_cannot(subject: str, why: str) -> Finding:
    """Return the `here` finding of a model that does not open. `why` is a clause or a sentence."""
    return _make_fitness(subject, "cannot", format_sentence(why).removesuffix("."), "EPB640")


def _make_fitness(subject: str, fitness: Fitness, why: str, code: str | None = None) -> Finding:
    outcome: Outcome = "passed" if code is None else "failed"
    return Finding("here", subject, outcome, f"{_TEXTS[fitness]}{why}.", code, fitness=fitness)


def _read_version(text: str) -> tuple[int, ...]:
    """Return the first numbers of a version such as `v2.51.0.260929`. Empty if there are none."""
    found = re.search(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split(".")[:_NUMBERS])) if found is not None else ()
