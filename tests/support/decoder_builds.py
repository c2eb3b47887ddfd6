"""The recipe `llm-parts.yaml` for one SoC: a decoder that is made, quantized, split, copied, compiled and shared.

Tests disturb its builds at each kind of step.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.projects import RECIPES, Project
from tests.support.quick_builds import Subject

PACKAGE = "llm-parts.ortpackage"
_MODELS = "models/llm"
_LENGTHS = {"tiny": 96, "short": 64}
"""Values of `search.max_length` in the configuration of each name."""


def write_decoder(project: Project) -> Project:
    """Write the recipe with its export script, and configurations that change only the emitted package."""
    project.folder.mkdir(exist_ok=True)
    shutil.copytree(RECIPES / _MODELS, project.folder / _MODELS)
    shutil.copy(RECIPES / "llm-parts.yaml", project.recipe)
    project.edit("[SC8380XP, SM8750]", "[SM8750]")
    project.edit("vars: {size: tiny}", "vars: {size: tiny, config: tiny}")
    project.edit("genai_config.${vars.size}.json", "genai_config.${vars.config}.json")
    text = (project.folder / _MODELS / "genai_config.tiny.json").read_text(encoding="utf-8")
    for name, length in _LENGTHS.items():
        config = json.loads(text)
        config["search"]["max_length"] = length
        (project.folder / _MODELS / f"genai_config.{name}.json").write_text(json.dumps(config), encoding="utf-8")
    return project


DECODER = Subject(write_decoder, "vars.config", tuple(_LENGTHS), (PACKAGE,))


@dataclass(frozen=True)
class Stage:
    """A kind of step: an action with such a step, and the step whose start begins it."""

    action: str
    step: str


_TARGET = "llm/snapdragon-SM8750"
_EMIT = "emit:ort-model-package"
STAGES = {
    "make": Stage("prepare:llm/make", "prepare:llm/make"),
    "quantize": Stage("prepare:llm/1-quantize", "prepare:llm/1-quantize"),
    "split": Stage("prepare:layers/1-split", "prepare:layers/1-split"),
    "copy": Stage(f"copy:{_TARGET}/embeddings", f"copy:{_TARGET}/embeddings"),
    "compile": Stage(f"share:{_TARGET}/prefill_0", f"compile:{_TARGET}/prefill_0"),
    "share": Stage(f"share:{_TARGET}/prefill_0", f"compile:{_TARGET}/decode_0"),  # the last compile writes the shared binary
    "emit": Stage(_EMIT, _EMIT),
}


def find_keys(project: Project) -> Mapping[str, str]:
    """Return the action keys of a built project, by step."""
    done = project.epbuild("plan", "--json")
    assert done.returncode == 0, done.stderr
    return {step["id"]: step["key"] for step in json.loads(done.stdout)["steps"]}


def forget(project: Project, key: str) -> None:
    """Delete the state of the workspace and the stored result of an action, so that the next build repeats the action."""
    get_record(project.cache, key).unlink(missing_ok=True)
    for path in (project.folder / ".epbuild").glob("state.sqlite*"):
        path.unlink()


def get_record(cache: Path, key: str) -> Path:
    """Return the path of an action's record in a store."""
    return cache / "actions" / key[:2] / f"{key}.json"
