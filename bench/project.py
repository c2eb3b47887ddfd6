"""Projects to build: a recipe with models of a chosen size, which can be reset, and the quickstart."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from workshop import CHECKOUT, SCRIPTS, Workshop

PACKAGES = ("onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0")
SOC = "SM8750"
SIDE = 2048
"""Side of a layer's weights, which have 2048 x 2048 x 4 bytes: 16 MiB."""

_RECIPE = """\
epbuild: 1
name: bench
toolchains:
  qnn: {{packages: [{packages}]}}
models:
{models}
targets:
  snapdragon:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {{backend_type: htp, soc_model: {soc}}}
groups:
{groups}
outputs:
  - {{layout: directory, path: "dist/${{group}}"}}
"""


class Project:
    """Recipe and its models, each in a group of its own, in the folder `name` of the workshop."""

    def __init__(self, workshop: Workshop, name: str, *, layers: int, side: int = SIDE, models: int = 1) -> None:
        """Write models of equal content, each with this many layers of `side` x `side` float32 weights."""
        self._workshop = workshop
        self.folder = workshop.folder / name
        self.recipe = self.folder / "epbuild.yaml"
        self.models = {f"model{number}": self.folder / f"model{number}.onnx" for number in range(models)}
        self.folder.mkdir()
        text = _RECIPE.format(
            packages=", ".join(PACKAGES),
            models="\n".join(f"  {name}: {path.name}" for name, path in self.models.items()),
            soc=SOC,
            groups="\n".join(f"  of-{name}: {{models: [{name}], targets: [snapdragon]}}" for name in self.models),
        )
        self.recipe.write_text(text, encoding="utf-8")
        first, *others = self.models.values()
        # Use a separate process to keep this one small: some systems count a parent's memory as its child's.
        workshop.seconds([sys.executable, SCRIPTS / "make_model.py", first, str(side), str(layers)])
        for path in others:
            shutil.copyfile(first, path)

    def reset(self) -> None:
        """Restore the state before the first build: no outputs, no history and an empty store. The toolchain stays."""
        for name in ("dist", ".epbuild"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self._workshop.forget_results()

    def context_binary(self, model: str) -> Path:
        """Return the path of a model's context binary in the output."""
        return self.folder / "dist" / f"of-{model}" / f"{model}_qnn.bin"


def quickstart(workshop: Workshop) -> Path:
    """Copy the checked-in quickstart recipe with its models, without any outputs."""
    recipes, copy = CHECKOUT / "recipes", workshop.folder / "quickstart"
    shutil.copytree(recipes / "models", copy / "models")
    shutil.copyfile(recipes / "quickstart.yaml", copy / "quickstart.yaml")
    return copy / "quickstart.yaml"
