"""Program for a toolchain that splits a model in several ways, and checks that the joined parts compute what the model computes.

python -I joined_parts.py SCRIPT MODEL SAMPLE FOLDER OPTIONS...
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime


def open_model(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # fusions would change the last bits
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    session = open_model(path)
    results = session.run(None, {value.name: values[value.name] for value in session.get_inputs()})
    return dict(zip((value.name for value in session.get_outputs()), results, strict=True))


def count_parts(path: Path) -> int:
    [metadata] = [
        entry.value for entry in onnx.load(path, load_external_data=False).metadata_props if entry.key == "epbuild.split"
    ]
    return int(json.loads(metadata)["parts"])


def main(script: str, model: str, sample: str, folder: str, *ways: str) -> None:
    split = runpy.run_path(script)["split"]
    given = dict(np.load(sample))
    whole = run(Path(model), given)
    for way in map(json.loads, ways):
        paths: list[Path] = []
        values = dict(given)
        while len(paths) < (count_parts(paths[0]) if paths else 1):
            paths.append(Path(folder, f"{len(paths)}.onnx"))
            split({"source": model, "output": str(paths[-1]), "options": {**way, "part": len(paths) - 1}})
            values |= run(paths[-1], values)
        different = [name for name in whole if not np.array_equal(whole[name], values[name])]
        if different:
            sys.exit(f"{way}: {', '.join(different)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
