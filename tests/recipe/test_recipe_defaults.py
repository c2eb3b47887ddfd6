"""Defaults and short forms of a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from epbuild.recipe.model import Recipe, Target
from tests.recipe.texts import load_text, problems_of
from tests.support.recipe_texts import changed, codes_and_places, places

SHORT = """\
epbuild: 1
models: [models/det.onnx, models/cls.onnx]
targets: {phone: {ep: qnn, soc: SM8750}}
"""
LONG = """\
epbuild: 1
name: shop
toolchains:
  qnn: {packages: [onnxruntime==1.31.1, onnxruntime-qnn==2.7.0]}
models: {det: models/det.onnx, cls: models/cls.onnx}
targets:
  phone:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options: {backend_type: htp, soc_model: SM8750}
groups:
  det: {models: [det], targets: ["*"]}
  cls: {models: [cls], targets: ["*"]}
outputs:
  - {layout: directory, path: "dist/${recipe.name}/${group}/${target}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of the recipes, whose name is a recipe's name."""
    place = tmp_path / "shop"
    place.mkdir()
    return place


def meaning(recipe: Recipe) -> dict[str, object]:
    """Return the content of a recipe without positions."""
    return {
        "name": recipe.name,
        "toolchains": {name: toolchain.packages for name, toolchain in recipe.toolchains.items()},
        "models": {name: model.path.rpartition("/")[2] for name, model in recipe.models.items()},
        "targets": {name: of_target(target) for name, target in recipe.targets.items()},
        "groups": {
            name: (
                [member.model.name for member in group.members],
                [target.name for target in group.targets],
                group.share_weights,
            )
            for name, group in recipe.groups.items()
        },
        "outputs": [(output.layout, output.path.value) for output in recipe.outputs],
    }


def of_target(target: Target) -> object:
    options = [(choice.ep.name, {key: option.value for key, option in choice.provider_options.items()}) for choice in target.eps]
    return target.toolchain.name, options


def test_a_short_recipe_equals_its_long_form(folder: Path) -> None:
    assert meaning(load_text(folder, SHORT)) == meaning(load_text(folder, LONG))


def test_a_list_of_socs_expands_to_one_target_per_soc(folder: Path) -> None:
    text = changed(SHORT, ("soc: SM8750", "soc: [SC8380XP, SM8750]"))
    long = changed(LONG, ("  phone:\n", "  phone:\n    matrix: {soc: [SC8380XP, SM8750]}\n"), ("SM8750}", '"${matrix.soc}"}'))
    assert meaning(load_text(folder, text)) == meaning(load_text(folder, long))


def test_the_name_of_a_list_or_matrix_selects_all_its_targets(folder: Path) -> None:
    text = changed(SHORT, ("soc: SM8750", "soc: [SC8380XP, SM8750]")) + "groups: {det: {targets: [phone]}}\n"
    assert [target.name for target in load_text(folder, text).groups["det"].targets] == ["phone-SC8380XP", "phone-SM8750"]


def test_explicit_options_override_and_extend_the_short_form(folder: Path) -> None:
    text = changed(SHORT, ("soc: SM8750", "soc: SM8750, provider_options: {backend_type: gpu, vtcm_mb: 8}"))
    [choice] = load_text(folder, text).targets["phone"].eps
    options = {key: option.value for key, option in choice.provider_options.items()}
    assert options == {"backend_type": "gpu", "vtcm_mb": 8, "soc_model": "SM8750"}


def test_the_packages_determine_the_meaning_of_an_eps_short_key(folder: Path) -> None:
    text = changed(SHORT, ("ep: qnn, soc: SM8750", "ep: openvino, device: [CPU, NPU]"))
    recipe = load_text(folder, text)
    assert recipe.toolchains["openvino"].packages == ("onnxruntime-openvino==1.24.1",)
    assert [of_target(target) for target in recipe.targets.values()] == [
        ("openvino", [("OpenVINOExecutionProvider", {"device_type": device})]) for device in ("CPU", "NPU")
    ]
    plugin = text + "toolchains: {ov: {packages: [onnxruntime==1.31.1, onnxruntime-ep-openvino==1.8.1]}}\n"
    targets = load_text(folder, plugin).targets
    assert {name: target.eps[0].device.type for name, target in targets.items()} == {"phone-cpu": "cpu", "phone-npu": "npu"}


@pytest.mark.parametrize(
    ("soc", "names"),
    [
        ("Snapdragon 8 Elite", ["phone"]),
        ("[Snapdragon 8 Elite, snapdragon x elite]", ["phone-SM8750", "phone-SC8380XP"]),
        ("[69, sm8650]", ["phone-SM8750", "phone-SM8650"]),
    ],
)
def test_a_soc_can_be_named_by_product_and_names_its_target(folder: Path, soc: str, names: list[str]) -> None:
    targets = load_text(folder, changed(SHORT, ("SM8750", soc))).targets
    assert list(targets) == names
    assert targets[names[0]].eps[0].provider_options["soc_model"].value == "SM8750"


def test_short_names_are_valid_in_a_list_of_eps(folder: Path) -> None:
    text = changed(SHORT, ("ep: qnn, soc: SM8750", "eps: [{ep: qnn, soc: SM8750}, {ep: cpu}]"))
    assert of_target(load_text(folder, text).targets["phone"]) == (
        "qnn",
        [("QNNExecutionProvider", {"backend_type": "htp", "soc_model": "SM8750"}), ("CPUExecutionProvider", {})],
    )


@pytest.mark.parametrize(
    ("toolchains", "name"),
    [
        ("{ort: {packages: [onnxruntime-qnn]}}", "ort"),
        ("{a: {packages: [x]}, qnn: {packages: [onnxruntime-qnn==2.6.0]}}", "qnn"),
    ],
)
def test_a_toolchain_of_the_recipe_overrides_the_catalog(folder: Path, toolchains: str, name: str) -> None:
    recipe = load_text(folder, f"{SHORT}toolchains: {toolchains}\n")
    assert recipe.targets["phone"].toolchain.name == name
    assert "onnxruntime-qnn==2.7.0" not in recipe.toolchains[name].packages


def test_an_ungrouped_model_gets_its_own_group_unless_disabled(folder: Path) -> None:
    text = SHORT + "groups: {both: {models: ['d*'], share_weights: true}}\n"
    assert {name: len(group.members) for name, group in load_text(folder, text).groups.items()} == {"both": 1, "cls": 1}
    alone = changed(text, ("groups: {", "groups: {default: none, "))
    assert list(load_text(folder, alone).groups) == ["both"]


@pytest.mark.parametrize(
    ("change", "code", "message", "hint"),
    [
        (("soc: SM8750", "soc: [‸{a: 1}]"), "EPB105", "", ""),
        (("ep: qnn", "ep: cpu, toolchain: ‸x"), "EPB108", "there is no toolchain 'x'", ""),
        (
            ("ep: qnn, soc: SM8750", "ep: tensorrt, ‸soc: x"),
            "EPB103",
            "unknown key 'soc' in a target for Tensorrt",
            "Write `provider_options: {device_id: 0}`.",
        ),
        (
            ("ep: qnn, soc: SM8750", "ep: qnn, ‸device: NPU"),
            "EPB103",
            "unknown key 'device' in a target for QNN",
            "Write 'soc', such as `soc: SM8750`.",
        ),
        (
            ("ep: qnn, soc: SM8750", "ep: webgpu, ‸soc: y"),
            "EPB103",
            "unknown key 'soc' in a target for WebGpu",
            "Write `device: gpu`.",
        ),
        (("ep: qnn, soc: SM8750", "ep: ‸[qnn, cpu], toolchain: x, soc: SM8750"), "EPB105", "expected a string, found a list", ""),
        (("soc: SM8750", "soc: [SM8650, ‸SM8751]"), "EPB212", "'SM8751' is not one of", "Did you mean 'SM8750'?"),
        (
            ("soc: SM8750", "soc: [SM8650, ‸'SM8650,SM8750']"),
            "EPB107",
            "cannot be part of a target's name",
            "Define a separate target for it: `soc: SM8650,SM8750`.",
        ),
        (
            ("SM8750", "‸Snapdragon 8 Elit"),
            "EPB212",
            "the catalog has no soc 'Snapdragon 8 Elit'",
            "Did you mean 'Snapdragon 8 Elite'?",
        ),
        (("SM8750", "‸X Elite"), "EPB212", "the catalog has no soc 'X Elite'", "Did you mean 'Snapdragon X Elite'?"),
        (("SM8750", "[SM8650, ‸Pixel Tensor]"), "EPB212", "the catalog has no soc 'Pixel Tensor'", "Write a known soc"),
        (("soc: SM8750", "soc: [SM8750, ‸69]"), "EPB107", "duplicate value 'SM8750' in this axis", ""),
        (
            ("ep: qnn, soc: SM8750", "ep: ‸openvino, eps: [{ep: qnn}]"),
            "EPB106",
            "a target must have 'ep' or 'eps', not both",
            "",
        ),
        (
            ("ep: qnn, soc: SM8750", "ep: openvino, ‸soc: x"),
            "EPB103",
            "unknown key 'soc' in a target for OpenVINO",
            "`device: CPU`",
        ),
        (("phone: {ep: qnn, soc", "phone: ‸{soc"), "EPB106", "a target must have 'ep' or 'eps'", ""),
        (
            ("soc: SM8750", "soc: ‸[A, B], matrix: {x: [1]}"),
            "EPB106",
            "a target with a matrix cannot have a list for 'soc'",
            "Move the list into the matrix",
        ),
        (
            ("soc: SM8750", "soc: a, provider_options: {‸soc_model: b}"),
            "EPB106",
            "'soc' is short for the option 'soc_model'",
            "Remove",
        ),
        (
            ("ep: qnn, soc: SM8750", "eps: [{ep: qnn, soc: ‸[A, B]}]"),
            "EPB106",
            "an entry of 'eps' must have a single value here, not a list",
            "matrix",
        ),
        (
            (
                "targets: {phone: {ep: qnn, soc: SM8750}",
                "toolchains: {a: {packages: [x]}, b: {packages: [y]}}\ntargets: {phone: ‸{ep: webgpu}",
            ),
            "EPB104",
            "'toolchain' is missing in targets.phone",
            "Set 'toolchain' to one of these: a, b.",
        ),
        (
            ("det.onnx,", "det.onnx, ‸more/det.onnx,"),
            "EPB107",
            "two models have the name 'det': 'models/det.onnx' and 'more/det.onnx'",
            "Name the models explicitly",
        ),
        (("targets", "groups: {‸det: {models: [cls]}}\ntargets"), "EPB107", "the model 'det' is in no group", "default: none"),
        (
            ("det.onnx,", "det.onnx, ‸models/default.onnx,"),
            "EPB107",
            "no group can be added for it because its name is reserved",
            "models: [default]",
        ),
        (
            ("targets", "groups: {both: ‸{share_weights: true}}\ntargets"),
            "EPB104",
            "'models' is missing in groups.both",
            "no model",
        ),
        (("targets", "groups: {default: ‸{}}\ntargets"), "EPB105", "expected one of none", ""),
    ],
    ids=lambda value: str(value[1]) if isinstance(value, tuple) else None,
)
def test_a_mistake_in_a_short_form_has_its_position_and_a_fix(
    folder: Path, change: tuple[str, str], code: str, message: str, hint: str
) -> None:
    text, expected = places(changed(SHORT, change))
    problems = problems_of(folder, text)
    assert codes_and_places(problems)[:1] == [(code, *place) for place in expected], problems
    assert message in problems[0].message
    assert hint in (problems[0].hint or "")


def test_a_folder_name_that_is_not_a_valid_recipe_name_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    [problem] = problems_of(folder, SHORT)
    assert (problem.code, problem.hint) == ("EPB104", "Set `name` to a name of letters and digits.")
