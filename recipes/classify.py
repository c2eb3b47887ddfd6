"""Classifier application: `python recipes/classify.py FOLDER` classifies one generated image with the quickstart's model.

FOLDER is an output of `epbuild run recipes/quickstart.yaml`, such as `recipes/dist/quickstart/classifier`. Run it with a Python
that has onnxruntime and the EP's package, onnxruntime-qnn. On x86-64 the model runs on QNN's emulator, which accepts the
context of any SoC: select one with --target.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from epbuild import runtime


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify a generated image.")
    parser.add_argument("folder", help="what epbuild emitted for the group `classifier`")
    parser.add_argument(
        "--target", help="the variant to open, such as snapdragon-SM8750; default: the one that fits this machine"
    )
    arguments = parser.parse_args()
    image = np.random.default_rng(1).standard_normal((1, 3, 32, 32)).astype(np.float32)
    try:
        with runtime.open(arguments.folder, target=arguments.target) as group:
            probabilities = group["classifier"].run(None, {"image": image})[0][0]
            print(f"{group.variant.target}: class {np.argmax(probabilities)}, probability {np.max(probabilities):.3f}")
    except runtime.OpenError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
