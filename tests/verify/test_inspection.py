"""What a user sees of an EPContext model: every node, where its context is, and what is wrong with a reference."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from compiled_models import BINARY, QNN, context_node, relu, save

from epbuild.errors import VerifyError
from epbuild.verify import inspect_model


def test_a_whole_model_is_described_with_the_digest_and_the_target_of_its_binary(tmp_path: Path) -> None:
    (tmp_path / "llm.bin").write_bytes(BINARY)
    path = save(
        tmp_path / "m.onnx", context_node(hidden=7), relu(), metadata={f"ep_compatibility_info.{QNN}": "1;2", "other": "x"}
    )
    found = inspect_model(path)
    assert found["inputs"] == [{"name": "x", "type": "float32", "shape": [4, None, "n"]}]
    [node] = found["ep_context_nodes"]
    assert (node["reference"], node["size"], node["problem"]) == ("llm.bin", len(BINARY), None)
    assert (node["sha256"], node["target"]) == (hashlib.sha256(BINARY).hexdigest(), "SC8380XP")
    assert node["others"] == {"hidden": 7}
    assert found["other_operators"] == {"Relu": 1}
    assert found["compatibility"] == {QNN: "1;2"}
    json.dumps(found)


@pytest.mark.parametrize(
    ("reference", "told"),
    [("gone.bin", "does not exist"), ("../llm.bin", "'..'"), ("/llm.bin", "absolute"), (None, "holds no context and names none")],
)
def test_a_reference_that_leads_nowhere_is_told_and_hides_nothing_else(tmp_path: Path, reference: str | None, told: str) -> None:
    found = inspect_model(save(tmp_path / "m.onnx", context_node(reference), context_node(None, main_context=0)))
    first, second = found["ep_context_nodes"]
    assert told in first["problem"]
    assert second["problem"] is None


def test_an_embedded_context_is_told_with_its_size(tmp_path: Path) -> None:
    found = inspect_model(save(tmp_path / "m.onnx", context_node(None, embed_mode=1, ep_cache_context=BINARY)))
    [node] = found["ep_context_nodes"]
    assert (node["embed_mode"], node["size"], node["problem"]) == (1, len(BINARY), None)


def test_a_model_that_was_never_compiled_can_be_looked_at_too(tmp_path: Path) -> None:
    found = inspect_model(save(tmp_path / "m.onnx", relu(), relu(), external="w.bin"))
    assert (found["ep_context_nodes"], found["other_operators"], found["external_data"]) == ([], {"Relu": 2}, ["w.bin"])


def test_a_file_that_is_no_model_or_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model", encoding="utf-8")
    for name, code in {"text.onnx": "EPB602", "gone.onnx": "EPB600", ".": "EPB600"}.items():
        with pytest.raises(VerifyError) as refused:
            inspect_model(tmp_path / name)
        assert refused.value.problems[0].code == code
