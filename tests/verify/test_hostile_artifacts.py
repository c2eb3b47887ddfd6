"""Hostile artifacts: no bytes make `inspect` or `verify` crash, leave the artifact, or exhaust the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from epbuild.core.errors import EpbuildError
from epbuild.verify.artifact import find_artifacts
from epbuild.verify.inspection import inspect_model
from epbuild.verify.static import check_artifact
from tests.support.compiled_models import GRAPHS, SHARED, context_node, emitted, save

HOSTILE = Path(__file__).parents[1] / "support" / "hostile_artifacts.py"
ROOT = HOSTILE.parents[2]

names = st.sampled_from(
    ["ep_cache_context", "embed_mode", "main_context", "max_size", "source", "partition_name", "notes", "own"]
)
values = (
    st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([0, 1])
    | st.binary(max_size=40)
    | st.sampled_from(["llm.bin", "../llm.bin", "/llm.bin", "", "QNNExecutionProvider", GRAPHS["decode"], "\u202e", "1" * 60])
    | st.floats(width=32)
    | st.lists(st.integers(-9, 9), max_size=3)
)


@pytest.mark.slow
@given(nodes=st.lists(st.dictionaries(names, values, max_size=6), min_size=1, max_size=4), manifest=st.booleans())
def test_no_node_attributes_crash_inspect_or_verify(nodes: list[dict[str, object]], manifest: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = emitted(Path(temporary) / "dist")
        made = [context_node(None) for _ in nodes]
        for node, attributes in zip(made, nodes, strict=True):
            del node.attribute[:]
            for name, value in attributes.items():
                node.attribute.append(helper.make_attribute(name, value, attr_type=None if value != [] else 7))
        model = save(folder / "decode_ctx.onnx", *made)
        if not manifest:
            (folder / "manifest.json").unlink()
        json.dumps(inspect_model(model))
        assert [finding for artifact in find_artifacts(folder) for finding in check_artifact(artifact)]


@given(content=st.binary(max_size=200), name=st.sampled_from(["decode_ctx.onnx", "llm.bin", "manifest.json"]))
def test_no_file_content_crashes_inspect_or_verify(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = emitted(Path(temporary) / "dist")
        (folder / name).write_bytes(content)
        [artifact] = find_artifacts(folder)
        # JSON of another program is no manifest, and then nothing else is wrong.
        assert any(finding.outcome == "failed" for finding in check_artifact(artifact)) or not artifact.has_manifest
        if name != "decode_ctx.onnx":
            json.dumps(inspect_model(folder / "decode_ctx.onnx"))
            return
        with pytest.raises(EpbuildError, match="EPB602"):
            inspect_model(folder / name)


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="limits on memory and the peak of it are those of Linux")
def test_thousands_of_damaged_artifacts_do_no_harm(tmp_path: Path, exhaustive: bool) -> None:
    inputs, seconds = (20_000, 1200) if exhaustive else (500, 120)
    emitted(tmp_path / "corpus" / "shared")
    embedded = tmp_path / "corpus" / "embedded"
    save(embedded / "m_ctx.onnx", context_node(None, embed_mode=1, ep_cache_context=SHARED, partition_name=GRAPHS["decode"]))
    command = [sys.executable, str(HOSTILE), str(tmp_path / "corpus"), str(tmp_path / "work"), str(inputs), "5"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["traces"] == []
    assert found["outside"] == {}
    assert (found["inputs"], found["crashes"]) == (inputs, 0)
    assert found["peak"] < 500_000_000
    # The test proves nothing if no file was damaged, or if no file was readable.
    assert min(found["outcomes"][outcome] for outcome in ("inspected", "passed", "failed")) > inputs / 50
