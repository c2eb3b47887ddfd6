"""`simplify`: constant folding, and fusion and removal of nodes, with onnxslim."""

from __future__ import annotations

import os
import runpy
from types import SimpleNamespace
from typing import Any

step = SimpleNamespace(**runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "step.py")))  # noqa: PTH100, PTH118, PTH120


def simplify(request: dict[str, Any]) -> None:
    """Simplify the source with onnxslim, and write it. Raises Refused if the outputs change."""
    import onnxslim

    source = step.load_model(request)
    before = step.node_count(source)
    result = onnxslim.slim(source, **request["options"])
    if result is None:
        raise step.Refused(
            "the simplified model and its source have different outputs for generated inputs",
            "Name the optimizations to skip in 'skip_optimizations' or 'skip_fusion_patterns'.",
        )
    step.log(f"simplified {before} to {step.node_count(result)}")
    step.save(result, request)


if __name__ == "__main__":
    step.main(simplify)
