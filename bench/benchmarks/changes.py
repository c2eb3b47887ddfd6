"""Benchmark of builds after few changes, without their compiles, and of `plan`: thousands of steps, against ninja."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from graphs import contenders
from many import Many
from peers import Peers
from results import Result, Series
from rounds import Contender, interleave
from workshop import SETTLED_SECONDS, Workshop

_ROUNDS = {10_000: 3, 100_000: 1}
_AT = 10_000
"""Number of steps that the limits apply to."""
LIMITS = {
    "nothing to do": None,
    "run right after a build": 0.25,
    "one model changed, without its compile": 1.0,
    "one model touched": 0.25,
    "one option of one group changed, plan": 2.5,
    "plan": 0.5,
    "run --json": 0.5,
    "run --check --json": 0.5,
    "fresh checkout, warm store": 5.0,
}
"""Limits in seconds. With nothing to do, ninja's time is the limit."""


class _Edits:
    """Project and the edits before each sample."""

    def __init__(self, workshop: Workshop, many: Many) -> None:
        self.workshop, self.many = workshop, many
        self.data = many.folder / "models" / "g0" / "g0-m0.0.data"
        self.number = self.checkouts = 0

    def run(self, *arguments: str) -> float:
        return self.workshop.seconds(self.workshop.epbuild(*arguments, self.many.recipe))

    def change(self) -> None:
        self.number += 1
        self.data.write_bytes(f"{self.number:016}".encode())

    def after_a_build(self) -> float:
        self.change()
        self.run("run")
        return self.run("run")

    def changed(self) -> float:
        """Return the time of a run without its compiles. The compiles do not overlap here, because a group is one process."""
        self.run("run")
        time.sleep(SETTLED_SECONDS)
        self.change()
        built: list[float] = []

        def note(text: str) -> bool:
            events = [json.loads(line) for line in text.splitlines()]
            built.extend(
                event["seconds"] for event in events if event["event"] == "step_finished" and event["outcome"] == "built"
            )
            return bool(built)

        taken = self.workshop.seconds(self.workshop.epbuild("run", "--json", self.many.recipe), said=note)
        # The processor time of compiles is unknown.
        return taken if self.workshop.processor_time else taken - sum(built)

    def touched(self) -> float:
        os.utime(self.data)
        return self.run("run")

    def option(self) -> float:
        """Time `plan` after a change of the order of a group's models, then restore the order and build."""
        text = self.many.recipe.read_text(encoding="utf-8")
        self.many.recipe.write_text(text.replace("[g1-m0, g1-m1", "[g1-m1, g1-m0"), encoding="utf-8")
        taken = self.run("plan")
        self.many.recipe.write_text(text, encoding="utf-8")
        self.run("run")
        return taken

    def fresh(self) -> float:
        """Time the build of a checkout of the same files in another folder, with the same store."""
        # Use a new folder each time: ext4 searches long for new inodes if many were freed in the last minute.
        self.checkouts += 1
        place = self.workshop.folder / f"fresh-{self.checkouts}"
        place.mkdir()
        shutil.copytree(self.many.folder / "models", place / "models")
        recipe = place / self.many.recipe.name
        shutil.copyfile(self.many.recipe, recipe)
        time.sleep(SETTLED_SECONDS)
        return self.workshop.seconds(self.workshop.epbuild("run", recipe))


def measure(workshop: Workshop, rounds: int, *, steps: int) -> Result:
    peers, many = Peers(workshop, "ninja"), Many(workshop, steps)
    edits = _Edits(workshop, many)
    samples: dict[str, Callable[[], float]] = {
        "nothing to do": partial(edits.run, "run"),
        "run right after a build": edits.after_a_build,
        "one model changed, without its compile": edits.changed,
        "one model touched": edits.touched,
        "one option of one group changed, plan": edits.option,
        "plan": partial(edits.run, "plan"),
        "run --json": partial(edits.run, "run", "--json"),
        "run --check --json": partial(edits.run, "run", "--check", "--json"),
    }
    # Ten times as many steps take ten times as long. Fewer samples suffice, because each varies less.
    rounds = min(rounds, _ROUNDS.get(steps, rounds))
    own = interleave([*(Contender(what, sample) for what, sample in samples.items())], rounds)
    if steps <= _AT:
        own += interleave([Contender("fresh checkout, warm store", edits.fresh)], (rounds + 1) // 2)
    many.put_in_order()
    workshop.seconds(workshop.epbuild("run", many.recipe))
    ninja = contenders(["ninja"], workshop, peers, many.folder, many.steps)
    idle, *other = interleave([Contender("nothing to do", samples["nothing to do"]), *ninja], rounds)
    return Result(
        f"How long does a build take without its compiles after a small change, with {steps} steps and {many.files} files?",
        (*_limited([idle, *own[1:]], other, steps), *other),
        "The project is the one of nothing-to-do-10000. ninja checks the same files and has nothing to do. Limits are "
        f"proportional to the number of steps, plus 0.2 s for the start. {peers.notes()}",
    )


def _limited(own: Sequence[Series], ninja: Sequence[Series], steps: int) -> list[Series]:
    """Return the series with the limits for this number of steps."""
    share = max(steps / _AT, 0.5)
    found = []
    for series in own:
        limit = LIMITS[series.what]
        if limit is None:
            found.append(replace(series, limit=ninja[0].median if ninja and steps >= _AT else None))
        else:
            found.append(replace(series, limit=limit * share))
    return found
