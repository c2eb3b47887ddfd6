"""Built-in preparations in the catalog: each has its script, and invalid options are refused at their position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import epbuild
from epbuild.catalog.preparations import OptionFault, check_options, get_preparation, list_preparation_kinds

SCRIPTS = Path(epbuild.__file__).parent / "worker" / "preparations"
RANGES = {"x": [0, 1]}


def faults(kind: str, given: object) -> list[OptionFault]:
    return check_options(get_preparation(kind), given)[1]


def options(kind: str, given: object) -> dict[str, Any]:
    found, wrong = check_options(get_preparation(kind), given)
    assert wrong == []
    return found


def test_every_preparation_kind_has_a_script_and_every_script_a_kind() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} - {"__init__", "step"} == set(list_preparation_kinds())


@pytest.mark.parametrize("kind", list_preparation_kinds())
def test_facts_of_a_preparation_kind_are_consistent(kind: str) -> None:
    known = get_preparation(kind)
    assert {*known.one_of, *known.any_of, *filter(None, [known.short])} <= set(known.options)
    for option in known.options.values():
        assert option.meaning.endswith(".")
        assert option.requires is None or option.requires in known.options
        assert (option.type == "choice") <= bool(option.values)
        assert (option.type == "table") == bool(option.options)


@pytest.mark.parametrize(
    ("kind", "given", "path"),
    [
        ("opset", None, ()),
        ("opset", "new", ()),
        ("opset", True, ()),
        ("opset", {"target_version": 0}, ("target_version",)),
        ("opset", {"target_version": 17.5}, ("target_version",)),
        ("opset", [17], ()),
        ("simplify", {"skip_optimization": ["graph_fusion"]}, ("skip_optimization",)),
        ("simplify", {"skip_optimizations": ["graph_fusion", "fusion"]}, ("skip_optimizations", 1)),
        ("simplify", {"skip_fusion_patterns": "FusionGemm"}, ("skip_fusion_patterns",)),
        ("simplify", {"skip_fusion_patterns": ["a", "a"]}, ("skip_fusion_patterns", 1)),
        ("simplify", "yes", ()),
        ("float16", {"keep_io_types": "x"}, ("keep_io_types",)),
        ("float16", {"keep_io_types": [""]}, ("keep_io_types", 0)),
        ("float16", {"max_finite_val": 100_000}, ("max_finite_val",)),
        ("infer_shapes", {"auto_merge": True}, ("auto_merge",)),
        ("infer_shapes", {"data_prop": 1}, ("data_prop",)),
        ("cut", {}, ()),
        ("cut", {"outputs": []}, ("outputs",)),
        ("split", {"parts": 2}, ()),
        ("split", {"part": 0}, ()),
        ("split", {"part": -1, "parts": 2}, ("part",)),
        ("split", {"part": 0, "parts": 2, "layers": [1]}, ("layers",)),
        ("split", {"part": 0, "layers": 1}, ("layers",)),
        ("split", {"part": 0, "layers": [1, 2.5]}, ("layers", 1)),
        ("split", {"part": 0, "layers": [2, 2]}, ("layers", 1)),
        ("split", {"part": 0, "at": "x"}, ("at",)),
        ("split", {"part": 0, "at": ["x", 3]}, ("at", 1)),
        ("split", {"part": 0, "at": ["x", ["y", ""]]}, ("at", 1, 1)),
        ("split", {"part": 0, "at": [[]]}, ("at", 0)),
        ("quantize", None, ()),
        ("quantize", {"calibration": ["a.npz"], "generate": {"ranges": RANGES}}, ("generate",)),
        ("quantize", {"calibration": ["a.npz"], "activation_type": "QUInt8"}, ("activation_type",)),
        ("quantize", {"calibration": 7}, ("calibration",)),
        ("quantize", {"generate": {}}, ("generate",)),
        ("quantize", {"generate": {"ranges": {"x": [1, 0]}}}, ("generate", "ranges", "x")),
        ("quantize", {"generate": {"ranges": {"x": 1}}}, ("generate", "ranges", "x")),
        ("quantize", {"generate": {"ranges": RANGES, "sizes": {"x": [1, 0]}}}, ("generate", "sizes", "x")),
        ("quantize", {"generate": {"ranges": RANGES, "seeds": 1}}, ("generate", "seeds")),
    ],
)
def test_wrong_options_are_refused_with_their_place(kind: str, given: object, path: tuple[Any, ...]) -> None:
    [fault] = faults(kind, given)
    assert fault.path == path
    assert not fault.message.endswith(".")


def test_misspelled_name_gets_a_suggestion() -> None:
    assert [fault.hint for fault in faults("simplify", {"skip_optimisations": []})] == ["Did you mean 'skip_optimizations'?"]
    choice = faults("quantize", {"calibration": "a.npz", "activation_type": "unit8"})
    assert [fault.hint for fault in choice] == ["Did you mean 'uint8'?"]


def test_single_value_sets_the_main_option_of_a_kind() -> None:
    assert options("opset", 21) == options("opset", {"target_version": 21}) == {"target_version": 21}


def test_a_name_and_a_group_of_one_name_mean_the_same() -> None:
    assert options("split", {"part": 0, "at": ["x", ["y", "z"]]}) == {"part": 0, "at": [["x"], ["y", "z"]]}


def test_defaults_of_generated_samples_are_written_into_the_key() -> None:
    assert options("quantize", {"generate": {"ranges": RANGES}}) == {"generate": {"samples": 8, "seed": 0, "ranges": RANGES}}


def test_option_may_require_an_additional_package() -> None:
    simplify = get_preparation("simplify")
    assert simplify.list_packages_for({"model_check": False}) == simplify.packages
    assert simplify.list_packages_for({"model_check": True}) == (*simplify.packages, "onnxruntime")
