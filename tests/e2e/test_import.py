"""Recipes that `epbuild import` writes from ep_weight_sharing_ctx_gen commands, built by the real EP."""

from __future__ import annotations

import onnx

from tests.support.projects import Project


def test_a_recipe_imported_from_a_sharing_command_builds(quickstart: Project) -> None:
    models = ",".join(f"models/tiny-llm/{name}.onnx" for name in ("prefill", "decode"))
    options = ["-e", "qnn", "-v", "-i", "soc_model|60 htp_graph_finalization_optimization_mode|3"]
    done = quickstart.epbuild(
        "import", "--output", "imported.yaml", "--name", "tiny", "--", "./ep_weight_sharing_ctx_gen", *options, models
    )
    assert done.returncode == 0, done.stderr
    assert "-v: the EP's log is always kept." in done.stderr
    assert quickstart.epbuild("validate", "imported.yaml").returncode == 0
    quickstart.build("imported.yaml")
    folder = quickstart.folder / "dist/tiny/main/SC8380XP"
    assert sorted(path.name for path in folder.iterdir()) == [
        "decode_ctx.onnx", "manifest.json", "prefill_ctx.onnx", "prefill_qnn.bin",
    ]  # fmt: skip
    for name in ("prefill", "decode"):
        nodes = onnx.load(folder / f"{name}_ctx.onnx").graph.node
        assert any(node.op_type == "EPContext" for node in nodes)
    assert b"soc_type=SC8380XP;" in (folder / "prefill_qnn.bin").read_bytes()
