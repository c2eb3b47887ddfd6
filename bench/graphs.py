"""One graph of steps and files, described to each of the other tools in its own language and built once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from many import FileStep
from peers import Peers
from rounds import Contender
from workshop import Said, Workshop

# Command of every step. It does nothing, because the files exist already, but the tool records that it ran.
_NOTHING = "cmd /c exit 0" if os.name == "nt" else "true"


@dataclass(frozen=True)
class _Tool:
    """Usage of a tool: the function that writes its project files, its arguments, and the check that it had nothing to do."""

    describe: Callable[[Path, Sequence[FileStep]], None]
    arguments: tuple[str, ...]
    idle: Said


def contenders(
    names: Sequence[str], workshop: Workshop, peers: Peers, folder: Path, steps: Sequence[FileStep]
) -> list[Contender]:
    """Return the installed tools of these names, each with nothing left to do. Raises Unable if one has work left."""
    found = []
    for name in names:
        program = peers.program(name)
        if program is None:
            continue
        tool = _TOOLS[name]
        tool.describe(folder, steps)
        command = [program, *tool.arguments]
        workshop.seconds(command, folder)
        found.append(Contender(name, partial(workshop.seconds, command, folder, tool.idle)))
    return found


def _ninja(folder: Path, steps: Sequence[FileStep]) -> None:
    lines = [f"rule done\n  command = {_NOTHING}\n  description = $out"]
    lines += [f"build {' '.join(step.outputs)}: done {' '.join(step.inputs)}" for step in steps]
    _write(folder / "build.ninja", lines)


def _make(folder: Path, steps: Sequence[FileStep]) -> None:
    # Disable the built-in rules, which make it thirty times as slow.
    lines = ["MAKEFLAGS += -rR", ".SUFFIXES:", ".PHONY: all", f"all: {' '.join(path for step in steps for path in step.outputs)}"]
    lines += [f"{' '.join(step.outputs)}: {' '.join(step.inputs)}\n\t@{_NOTHING}" for step in steps]
    _write(folder / "Makefile", lines)


def _doit(folder: Path, steps: Sequence[FileStep]) -> None:
    _steps(folder, steps)
    _write(folder / "dodo.py", [
        "import json",
        "def nothing():",
        "    pass",
        "def task_step():",
        "    with open('steps.json', encoding='utf-8') as file:",
        "        for name, inputs, outputs in json.load(file):",
        "            yield {'name': name, 'file_dep': inputs, 'targets': outputs, 'actions': [nothing]}",
    ])  # fmt: skip


def _scons(folder: Path, steps: Sequence[FileStep]) -> None:
    _steps(folder, steps)
    _write(folder / "SConstruct", [
        "import json",
        "def nothing(target, source, env):",
        "    pass",
        "env = Environment(tools=[])",
        "env.Decider('content-timestamp')",
        "with open('steps.json', encoding='utf-8') as file:",
        "    for name, inputs, outputs in json.load(file):",
        "        env.Precious(env.Command(outputs, inputs, nothing))",  # otherwise it removes them first
    ])  # fmt: skip


def _dvc(folder: Path, steps: Sequence[FileStep]) -> None:
    # DVC rewrites its whole lock after each step, so building these steps would take many minutes. The lock is written here
    # instead. DVC's report that nothing has changed shows that the lock is right. Outputs without DVC's cache are the cheapest.
    (folder / ".dvc").mkdir()
    (folder / ".dvc/config").write_text("[core]\n    no_scm = true\n", encoding="utf-8")
    stages = {
        step.name: {"cmd": _NOTHING, "deps": list(step.inputs), "outs": [{path: {"cache": False}} for path in step.outputs]}
        for step in steps
    }
    (folder / "dvc.yaml").write_text(json.dumps({"stages": stages}), encoding="utf-8")
    locked = {
        step.name: {
            "cmd": _NOTHING,
            "deps": [_entry(folder, path) for path in step.inputs],
            "outs": [_entry(folder, path) for path in step.outputs],
        }
        for step in steps
    }
    (folder / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": locked}), encoding="utf-8")


def _entry(folder: Path, path: str) -> dict[str, object]:
    content = (folder / path).read_bytes()
    return {"path": path, "hash": "md5", "md5": hashlib.md5(content, usedforsecurity=False).hexdigest(), "size": len(content)}


def _steps(folder: Path, steps: Sequence[FileStep]) -> None:
    (folder / "steps.json").write_text(json.dumps([[step.name, step.inputs, step.outputs] for step in steps]), encoding="utf-8")


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


_TOOLS = {
    "ninja": _Tool(_ninja, (), lambda text: "no work to do" in text),
    "make": _Tool(_make, (), lambda text: "Nothing to be done" in text),
    "doit": _Tool(_doit, (), lambda text: bool(text) and all(line.startswith("-- ") for line in text.splitlines())),
    "scons": _Tool(_scons, ("-Q",), lambda text: "is up to date" in text),
    "dvc": _Tool(_dvc, ("repro",), lambda text: "up to date" in text),
}
