"""What is built: a recipe with one model of a chosen size, which can be built from nothing again and again; and the quickstart."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from workshop import CHECKOUT, SCRIPTS, Workshop

PACKAGES = ("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0")
SOC = "SM8750"

_RECIPE = f"""\
epbuild: 1
name: bench
toolchains:
  qnn: {{packages: [{", ".join(PACKAGES)}]}}
models:
  model: model.onnx
targets:
  snapdragon:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {{backend_type: htp, soc_model: {SOC}}}
groups:
  bench: {{models: [model], targets: [snapdragon]}}
outputs:
  - {{layout: directory, path: dist}}
"""


class Project:
    """The recipe and its model, in a folder of the workshop named `name`."""

    def __init__(self, workshop: Workshop, name: str, *, side: int) -> None:
        """Make them: four layers whose weights are `side` x `side` float32 each."""
        self._workshop = workshop
        self.folder = workshop.folder / name
        self.model = self.folder / "model.onnx"
        self.recipe = self.folder / "epbuild.yaml"
        self.folder.mkdir()
        self.recipe.write_text(_RECIPE, encoding="utf-8")
        # In a process of its own, so that this one stays small: some systems count a parent's memory as its child's.
        workshop.seconds([sys.executable, SCRIPTS / "make_model.py", self.model, str(side)])

    def reset(self) -> None:
        """Go back to before the first build: no outputs, no memory of any, an empty store; the toolchain stays."""
        for name in ("dist", ".epbuild"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self._workshop.forget_results()

    @property
    def context_binary(self) -> Path:
        """Where the recipe puts the context binary."""
        return self.folder / "dist" / "model_qnn.bin"


def quickstart(workshop: Workshop) -> Path:
    """A copy of the checked-in quickstart recipe with its models, never built."""
    recipes, copy = CHECKOUT / "recipes", workshop.folder / "quickstart"
    shutil.copytree(recipes / "models", copy / "models")
    shutil.copyfile(recipes / "quickstart.yaml", copy / "quickstart.yaml")
    return copy / "quickstart.yaml"
