"""Completions and explanations in a recipe: a real language server with the published schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.language_server import LanguageServer, language_server

pytestmark = pytest.mark.slow

SCHEMA = Path(__file__).parents[2] / "docs" / "reference" / "recipe.schema.json"
FIRST = f"# yaml-language-server: $schema={SCHEMA.as_uri()}\nepbuild: 1\n"
MODEL = f"{FIRST}models:\n  a:\n    path: a.onnx\n"
TARGET = f"{FIRST}targets:\n  a:\n    ep: QNNExecutionProvider\n    provider_options:\n"
SHORT = f"{FIRST}targets:\n  a:\n    ep: "


@pytest.fixture(scope="module")
def server() -> Iterator[LanguageServer]:
    with language_server() as running:
        yield running


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        (f"{FIRST}|", {"models", "toolchains", "targets", "groups", "outputs"}),
        (f"{MODEL}    |", {"input_shapes", "prepare", "verify", "sha256"}),
        (f"{MODEL}    prepare:\n      - |", {"run", "quantize", "float16", "simplify", "toolchain", "files"}),
        (f"{MODEL}    prepare:\n      - quantize:\n          |", {"calibration", "activation_type", "weight_type"}),
        (f"{MODEL}    prepare:\n      - quantize:\n          activation_type: |", {"uint8", "uint16"}),
        (f"{FIRST}groups:\n  a:\n    verify:\n      |", {"data", "metrics", "device", "reference"}),
        (f"{FIRST}targets:\n  a:\n    ep: |", {"QNNExecutionProvider", "qnn", "nv-tensorrt-rtx"}),
        (f"{TARGET}      |", {"backend_type", "soc_model", "offload_graph_io_quantization"}),
        (f"{TARGET}      soc_model: |", {"SM8750", "SC8380XP", "Snapdragon 8 Elite"}),
        (f"{SHORT}qnn\n    |", {"soc", "provider_options"}),
        (f"{SHORT}qnn\n    soc: |", {"SM8750", "Snapdragon 8 Elite"}),
        (f"{SHORT}qnn\n    soc:\n      - |", {"SM8750", "Snapdragon 8 Elite"}),
        (f"{SHORT}qnn\n    provider_options:\n      |", {"backend_type", "soc_model"}),
        (f"{SHORT}openvino\n    device: |", {"CPU", "GPU", "NPU"}),
        (f"{FIRST}targets:\n  a: {{ep: qnn, soc: |}}\n", {"SM8750", "Snapdragon 8 Elite"}),
    ],
)
def test_an_editor_proposes_valid_completions(server: LanguageServer, text: str, offered: set[str]) -> None:
    assert offered <= server.completions(text)


@pytest.mark.parametrize(
    ("text", "value", "meaning"),
    [
        (f"{SHORT}|", "qnn", "Qualcomm Snapdragon NPUs"),
        (f"{SHORT}qnn\n    soc: |", "SM8750", "Snapdragon 8 Elite"),
        (f"{SHORT}qnn\n    soc: |", "Snapdragon 8 Elite", "SM8750"),
        (f"{TARGET}      soc_model: |", "SM8750", "Snapdragon 8 Elite"),
    ],
)
def test_an_editor_describes_the_values_of_short_forms(server: LanguageServer, text: str, value: str, meaning: str) -> None:
    assert meaning in server.descriptions(text)[value]


def test_an_editor_underlines_an_unknown_option(server: LanguageServer) -> None:
    valid = "      backend_type: htp\n"
    message = "unknown option of QNNExecutionProvider; set `allow_unknown_options: true` in the target to pass it unchecked"
    assert server.problems(f"{TARGET}{valid}      backend_tpye: htp\n").get((7, 6)) == message
    assert (7, 6) not in server.problems(f"{TARGET}{valid}      backend_tpye: htp\n    allow_unknown_options: true\n")


def test_an_editor_explains_a_short_key(server: LanguageServer) -> None:
    assert "SoC that QNN compiles for" in server.hover(f"{SHORT}qnn\n    so|c: SM8750\n")
    assert "Qualcomm" in server.hover(f"{SHORT}q|nn\n    soc: SM8750\n")


def test_an_editor_explains_an_option_of_an_ep(server: LanguageServer) -> None:
    shown = server.hover(f"{TARGET}      offload_graph_io_quan|tization: 0\n")
    assert "Run the (de)quantization of the graph's inputs and outputs on the CPU" in shown
