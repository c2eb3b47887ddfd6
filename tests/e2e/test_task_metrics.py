"""Task metrics of a user's program with the real QNN EP: what passes, what fails, and what is emitted."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy
import pytest

from tests.support.projects import Project
from tests.support.quick_builds import RECIPE, write_project

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(sys.platform != "linux", reason="the HTP emulator that runs compiled contexts comes in the Linux wheel"),
]

SCRIPT = """\
import json, pathlib, sys
import numpy
folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
[labels] = json.loads(pathlib.Path("files/labels.json").read_text())
files = sorted((folder / "outputs").glob("*.npz"))
assert [file.name for file in files] == [file.name for file in sorted((folder / "inputs").glob("*.npz"))]
assert all(numpy.load(file)["x"].shape == (1, 64) for file in (folder / "inputs").glob("*.npz"))
outputs = [numpy.load(file)["y"] for file in files]
out.write_text(json.dumps({"accuracy": float(numpy.mean([y.argmax() for y in outputs] == numpy.array(labels))),
                           "sum": float(sum(y.sum() for y in outputs))}))
"""
COMMAND = '[python, score.py, "${in}", "${out}"], files: [score.py, labels.json]'


def write_metric_project(project: Project, limits: str, script: str = SCRIPT) -> None:
    """Write a project in which a program scores the model `left` on two sets of inputs."""
    write_project(project)
    random, folder = numpy.random.default_rng(0), project.folder
    weights = numpy.random.default_rng(0).standard_normal((64, 64)).astype(numpy.float32)
    labels = []
    for number in range(2):
        x = random.standard_normal((1, 64)).astype(numpy.float32)
        numpy.savez(folder / f"sample{number}.npz", x=x)
        labels.append(int((x @ weights).argmax()))
    (folder / "labels.json").write_text(json.dumps([labels]), encoding="utf-8")
    (folder / "score.py").write_text(script, encoding="utf-8")
    verify = f"verify: {{data: 'sample*.npz', metric: {{run: {COMMAND}{limits}}}}}"
    text = RECIPE.replace("left: {models: [left], targets: [npu]}", f"left: {{models: [left], targets: [npu], {verify}}}")
    project.recipe.write_text(text.replace("  right: {models: [right], targets: [npu]}\n", ""), encoding="utf-8")


def build(project: Project, status: int) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Build, and return the problems and the entry of the model in the manifest, if it was emitted."""
    done = project.epbuild("run", "--json")
    assert done.returncode == status, done.stdout + done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    manifest = project.folder / "dist/left/manifest.json"
    model = json.loads(manifest.read_text(encoding="utf-8"))["models"][0] if manifest.is_file() else None
    return [problem for event in events for problem in event.get("problems", ())], model


def test_task_metrics_decide_with_absolute_and_relative_limits(project: Project) -> None:
    write_metric_project(project, ", min: {accuracy: 1}, max_drop: {accuracy: 0, sum: 5}, max_rise: {sum: 5}")
    problems, model = build(project, 0)
    assert problems == []
    assert model is not None
    assert model["metrics"]["accuracy"] == {"compiled": 1, "source": 1}
    found = model["metrics"]["sum"]
    difference = abs(found["compiled"] - found["source"])
    assert 0 < difference < 5
    report = json.loads(project.epbuild("report", "--json").stdout)
    [past] = report["history"][-1]["totals"]["figures"]
    assert (past["kind"], past["figures"], past["on"]) == ("metrics", {"accuracy": 1, "sum": found["compiled"]}, None)
    rows = report["accuracy"]
    assert [(row["output"], row["outcome"]) for row in rows] == [
        ("y", "passed"),
        ("metric accuracy", "passed"),
        ("metric sum", "passed"),
    ]
    # Limits are not part of the key: nothing runs again, and a limit that is missed by a hair holds the output back.
    hair = 0.999 * difference
    recipe = project.recipe.read_text(encoding="utf-8").replace("sum: 5", f"sum: {hair!r}")
    project.recipe.write_text(recipe, encoding="utf-8")
    (project.folder / "dist/left/manifest.json").unlink()
    [problem], model = build(project, 1)
    assert (problem["code"], model) == ("EPB670", None)
    key = "max_drop" if found["compiled"] < found["source"] else "max_rise"
    side = "below" if key == "max_drop" else "above"
    assert problem["message"] == (
        f"the model 'left' misses a limit of 'metric': sum is {found['compiled']!r}, and {found['source']!r} for the source; "
        f"{key} allows {hair!r} {side} the source"
    )


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("import sys; sys.exit('no labels')", "EPB455", "'python score.py' exited with status 1. It printed: no labels"),
        ("print('accuracy: 0.9')", "EPB671", "did not write out/metrics.json. It printed: accuracy: 0.9"),
        ("import sys; open(sys.argv[2], 'w').write('0.9')", "EPB671", "wrote unusable metrics: Expected `object`, got `float`"),
        ("import sys; open(sys.argv[2], 'w').write('{\"a\": NaN}')", "EPB671", "wrote unusable metrics"),
        ("import sys; open(sys.argv[2], 'w').write('{\"a\": 1}')", "EPB671", "did not compute accuracy, which a limit names"),
    ],
    ids=["fails", "writes nothing", "writes a number", "writes NaN", "lacks a metric"],
)
def test_a_program_without_usable_metrics_fails(script: str, code: str, told: str, project: Project) -> None:
    write_metric_project(project, ", min: {accuracy: 0.5}", script)
    [problem], model = build(project, 1)
    assert (problem["code"], model) == (code, None)
    assert told in problem["message"]
