"""Third-party models from packages: with only their sizes given, they run completely on the NPU."""

from __future__ import annotations

import json
import shutil

from tests.support.projects import RECIPES, Project, compiled

TARGET = "snapdragon-SM8650"
MODELS = {
    "ocr-cls": [1, 3, 48, 192],  # all dimensions but the channels are open, and no name distinguishes them
    "basic-pitch": [1, 43844, 1],  # 9 nodes fall back to the CPU without constant folding
    "orientation": [1, 3, 224, 224],  # one node in the middle does
}


def test_real_models_from_packages_compile_fully_with_only_their_sizes(project: Project) -> None:
    shutil.copy(RECIPES / "zoo.yaml", project.recipe)
    events = project.build("epbuild.yaml", *(f"emit:whole-{model}/{TARGET}/directory" for model in MODELS))
    steps = [f"compile:whole-{model}/{TARGET}/{model}" for model in MODELS]
    assert compiled(events) == set(steps)
    done = project.epbuild("coverage", "epbuild.yaml", *steps, "--json")
    rows = {row["model"]: (row["outcome"], row["ep_context_nodes"], row["left"]) for row in json.loads(done.stdout)["rows"]}
    assert rows == dict.fromkeys(MODELS, ("whole", 1, []))
    for model, sizes in MODELS.items():
        manifest = json.loads((project.folder / f"dist/zoo/whole-{model}/{TARGET}/manifest.json").read_text(encoding="utf-8"))
        assert [entry["shape"] for entry in manifest["models"][0]["source"]["inputs"]] == [sizes], (
            "what an application has to feed"
        )
