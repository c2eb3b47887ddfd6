"""`epbuild init`: valid recipes for models of any name, and no file overwritten."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from epbuild.commands.init.choices import list_starter_kinds
from epbuild.commands.init.recipe import RecipeChoices, format_recipe, name_models
from epbuild.recipe.load import load
from epbuild.recipe.model import Recipe
from epbuild.recipe.yaml_text import format_scalar
from tests.support.commands import environment, epbuild, write_model

pytestmark = pytest.mark.slow  # each test starts the real command

FLAGS = ("--model", "relu.onnx", "--ep", "qnn", "--soc", "SM8750")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "relu.onnx")
    return tmp_path


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def written(folder: Path, *arguments: str, path: str = "epbuild.yaml") -> Recipe:
    """Run `epbuild init`, check its recipe with `epbuild validate`, and return it."""
    done = epbuild(folder, "init", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert epbuild(folder, "validate", path).returncode == 0
    return load(folder / path)


def target_values(recipe: Recipe, option: str) -> dict[str, object]:
    return {name: target.eps[0].provider_options[option].value for name, target in recipe.targets.items()}


def test_a_folder_with_a_checkpoint_and_an_export_script_gets_a_recipe(tmp_path: Path) -> None:
    for name in ("export.py", "model.safetensors"):
        (tmp_path / name).touch()
    done = epbuild(tmp_path, "init", "--ep", "qnn", "--soc", "SM8750")
    assert done.stdout.splitlines() == [
        "The arguments and packages of export.py are guesses, marked in the recipe: check them.",
        "Wrote epbuild.yaml: 1 model for 1 target. Next: epbuild run",
    ]
    make = load(tmp_path / "epbuild.yaml").models["model"].make
    assert make is not None
    assert [word.value for word in make.command] == ["python", "export.py", "${out}"]


@pytest.mark.parametrize(
    ("ep", "value", "option", "package"),
    [
        ("qnn", "SM8750", "soc_model", "onnxruntime-qnn==2.7.0"),
        ("openvino", "CPU", "device_type", "onnxruntime-openvino==1.24.1"),
    ],
)
def test_flags_produce_a_valid_recipe_with_pinned_packages(folder: Path, ep: str, value: str, option: str, package: str) -> None:
    recipe = written(folder, "--model", "relu.onnx", "--ep", ep, "--target", value)
    assert {name: str(found) for name, found in target_values(recipe, option).items()} == {value: value}
    [toolchain] = recipe.toolchains.values()
    assert package in toolchain.packages
    assert all("==" in requirement for requirement in toolchain.packages)
    assert recipe.name == folder.name


def test_a_soc_number_and_an_ep_in_capitals_are_accepted(folder: Path) -> None:
    recipe = written(folder, "--model", "relu.onnx", "--ep", "QNN", "--target", "60")
    assert target_values(recipe, "soc_model") == {"60": "SC8380XP"}


def test_the_recipe_has_comments_and_the_next_command_is_printed(folder: Path) -> None:
    done = epbuild(folder, "init", *FLAGS)
    assert done.stdout == "Wrote epbuild.yaml: 1 model for 1 target. Next: epbuild run\n"
    assert (
        (folder / "epbuild.yaml").read_text(encoding="utf-8")
        == """\
epbuild: 1
models: [relu.onnx]
targets:
  # One line per target. `soc`: the SoC, by chip name or number.
  SM8750: {ep: qnn, soc: SM8750}
groups:
  # Compares numbers on generated inputs. To fail on differences, pass your own inputs: `verify: {data: samples/*.npz}`.
  relu: {verify: true}
# Each group and target gets a folder below dist/. For one package instead:
# outputs: [{layout: ort-model-package, path: "dist/${recipe.name}.ortpackage"}]
"""
    )


def test_many_models_and_targets_keep_their_order_and_names(folder: Path) -> None:
    write_model(folder / "prefill" / "model.onnx")
    write_model(folder / "decode" / "model.onnx")
    models = [word for name in ("prefill", "decode") for word in ("--model", f"{name}/model.onnx")]
    recipe = written(folder, *models, "--ep", "qnn", "--soc", "SM8750", "--soc", "laptop=SC8380XP", "--name", "llm")
    assert recipe.name == "llm"
    assert {name: [member.model.name for member in group.members] for name, group in recipe.groups.items()} == {
        "main-prefill-model": ["prefill-model"],
        "main-decode-model": ["decode-model"],
    }
    assert not any(group.share_weights for group in recipe.groups.values())
    assert target_values(recipe, "soc_model") == {"SM8750": "SM8750", "laptop": "SC8380XP"}


def test_models_without_common_weights_cause_a_warning(folder: Path) -> None:
    write_model(folder / "second.onnx")
    done = epbuild(folder, "init", *FLAGS, "--model", "second.onnx", "--share-weights")
    assert done.returncode == 0
    assert "warning" in done.stderr
    assert [group.share_weights for group in load(folder / "epbuild.yaml").groups.values()] == [True]


def test_model_paths_are_relative_to_the_new_recipe(folder: Path) -> None:
    (folder / "build here").mkdir()
    recipe = written(folder, "build here", *FLAGS, "--output", "phone.yaml", path="build here/phone.yaml")
    assert recipe.models["relu"].path == "../relu.onnx"
    done = epbuild(folder, "init", "build here", *FLAGS)
    assert done.stdout.rstrip().endswith(f'Next: epbuild run "{Path("build here", "epbuild.yaml")}"')


def test_an_existing_file_is_kept_unless_force_is_set(folder: Path) -> None:
    (folder / "epbuild.yaml").write_text("mine", encoding="utf-8")
    refused = epbuild(folder, "init", *FLAGS)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "epbuild.yaml already exists; use --force" in refused.stderr
    assert (folder / "epbuild.yaml").read_text(encoding="utf-8") == "mine"
    assert written(folder, *FLAGS, "--force").models.keys() == {"relu"}


def test_without_a_terminal_init_names_missing_flags_and_does_not_wait(folder: Path) -> None:
    for there, needs in (
        (folder, "without one, pass --ep, --target"),
        (folder / "empty", "without one, pass --model, --ep, --target"),
    ):
        there.mkdir(exist_ok=True)
        done = epbuild(there, "init")
        assert (done.returncode, done.stdout) == (2, "")
        [line] = done.stderr.splitlines()
        assert needs in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "relu.onnx"], "without one, pass --ep, --target"),
        (["--model", "relu.onnx", "--ep", "qnn"], "without one, pass --target"),
        ([*FLAGS, "--ep", "qmn"], "expected one of 'qnn', 'openvino', 'openvino-npu', 'tensorrt'"),
        ([*FLAGS, "--soc", "SM8750"], "two targets have the name 'SM8750': name each target"),
        ([*FLAGS, "--target", "phone="], "invalid target 'phone='"),
        ([*FLAGS, "--target", "=SM8750"], "invalid target '=SM8750'"),
        ([*FLAGS, "--soc", "SM9999"], "SM9999"),
        ([*FLAGS, "--name", "a/b"], "EPB107"),
        ([*FLAGS, "--target", "a phone=SM8750"], "EPB107"),
        ([*FLAGS, "--modell", "x"], "No such option '--modell'"),
        ([*FLAGS, "nowhere"], "'nowhere' does not exist"),
        ([*FLAGS, "--size", "x"], "invalid size 'x'"),
        ([*FLAGS, "--size", "x=1,many"], "'1,many' is not a shape"),
        ([*FLAGS, "--size", "x=1,0"], "'1,0' is not a shape"),
        ([*FLAGS, "--size", "y=1,4"], "no model has an input 'y'"),
        ([*FLAGS, "--size", "x=1,5"], "The input x of relu, dimension 2: its size is 4 in the model, not 5."),
        ([*FLAGS, "--size", "x=1,4,4"], "The input x of relu"),
        (
            ["text.onnx", "compiled.onnx", "--ep", "qnn", "--soc", "SM8750"],
            "no usable model: text.onnx: The model 'text' is not a",
        ),
        ([*FLAGS, "--model", "gone.onnx"], "EPB201"),
        ([*FLAGS, "--model", "text.onnx"], "EPB202"),
        ([*FLAGS, "--model", "compiled.onnx"], "EPB205"),
        (["--model", "relu.onnx", "--ep", "openvino", "--target", "NPUU"], "NPUU"),
    ],
)
def test_models_that_cannot_be_built_are_refused_without_writing(folder: Path, arguments: list[str], words: str) -> None:
    (folder / "text.onnx").write_text("no model\n", encoding="utf-8")
    write_model(folder / "compiled.onnx", "EPContext", "com.microsoft")
    before = files(folder)
    done = epbuild(folder, "init", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert files(folder) - {".cache"} == before


def test_a_file_that_is_not_a_model_has_the_message_of_validate(folder: Path) -> None:
    (folder / "text.onnx").write_text("no model\n", encoding="utf-8")
    [said] = epbuild(folder, "init", "--model", "text.onnx", "--ep", "qnn", "--soc", "SM8750").stderr.splitlines()
    epbuild(folder, "init", *FLAGS)
    recipe = folder / "epbuild.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("relu", "text"), encoding="utf-8")
    planner = epbuild(folder, "validate").stderr.splitlines()[0]
    assert said.removeprefix("epbuild: ") == planner.split(": ", 1)[1]


def write_open_model(path: Path, *shape: int | str | None, name: str = "x") -> Path:
    """Write a model of one node whose input has open dimensions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = [helper.make_tensor_value_info(each, TensorProto.FLOAT, shape) for each in (name, "y")]
    graph = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def sizes(recipe: Recipe, model: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape.sizes) for name, shape in recipe.models[model].input_shapes.items()}


def test_models_of_a_folder_are_listed_and_others_skipped_with_a_reason(folder: Path) -> None:
    write_open_model(folder / "net.onnx", "batch", 3, "height", "width", name="image")
    (folder / "text.onnx").write_text("no model\n", encoding="utf-8")
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    write_model(folder / "compiled.onnx", "EPContext", "com.microsoft")
    done = epbuild(folder, "init", "--ep", "qnn", "--soc", "SM8750")
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "net.onnx" in said
    assert "image[batch,3,height,width]" in said
    assert "Skipped: compiled.onnx. The model 'compiled' is already compiled" in said
    assert "Skipped: text.onnx. The model 'text' is not a complete ONNX file" in said
    assert "The sizes of 1 input are guesses" in said
    assert "Next: epbuild run --keep-going" in said
    assert max(map(len, done.stdout.splitlines())) <= 110
    recipe = load(folder / "epbuild.yaml")
    assert sizes(recipe, "net") == {"image": (1, 3, 224, 224)}
    assert list(recipe.groups) == ["main-net", "main-relu"]
    assert all(group.members[0].expect.fallback_nodes is None for group in recipe.groups.values())
    assert epbuild(folder, "validate").returncode == 0


@pytest.mark.parametrize("places", [["models"], ["models/*.onnx"], ["models/net.onnx", "models/other.onnx"]])
def test_models_are_selected_by_folder_glob_or_file(folder: Path, places: list[str]) -> None:
    for name in ("net", "other"):
        write_model(folder / "models" / f"{name}.onnx")
    done = epbuild(folder, "init", *places, "--ep", "qnn", "--soc", "SM8750")
    assert done.returncode == 0, done.stderr
    there = folder / ("models" if places == ["models"] else ".")
    assert list(load(there / "epbuild.yaml").models) == ["net", "other"]


def test_a_size_applies_to_one_model_or_to_every_model_with_the_input(folder: Path) -> None:
    write_open_model(folder / "one.onnx", None, 3)
    write_open_model(folder / "two.onnx", "n", 3)
    write_open_model(folder / "three.onnx", "length", name="tokens")
    given = ("--size", "x=2,3", "--size", "two:x=4,3", "--size", "tokens=[77]")
    done = epbuild(folder, "init", "--ep", "qnn", "--soc", "SM8750", "--model", "relu.onnx", *given)
    assert done.returncode == 2  # it is not in that model
    done = epbuild(folder, "init", "one.onnx", "two.onnx", "three.onnx", "--ep", "qnn", "--soc", "SM8750", *given)
    assert done.returncode == 0, done.stderr
    assert "guess" not in done.stdout
    recipe = load(folder / "epbuild.yaml")
    assert [sizes(recipe, name) for name in ("one", "two", "three")] == [{"x": (2, 3)}, {"x": (4, 3)}, {"tokens": (77,)}]


def test_sizes_from_dimensions_of_another_model_are_marked_as_guesses(folder: Path) -> None:
    write_open_model(folder / "one.onnx", "batch", "length")
    write_open_model(folder / "two.onnx", "batch", "length", name="tokens")
    done = epbuild(folder, "init", "one.onnx", "two.onnx", "--ep", "qnn", "--soc", "SM8750", "--size", "x=2,300")
    assert done.returncode == 0, done.stderr
    assert "The sizes of 1 input are guesses, marked in the recipe" in done.stdout
    lines = (folder / "epbuild.yaml").read_text(encoding="utf-8").splitlines()
    assert [line.strip() for line in lines if "[2, 300]" in line] == [
        "x: [2, 300]    # the model declares [batch, length]",
        "tokens: [2, 300]    # the model declares [batch, length]; guessed from another model with these dimensions: please check",
    ]


def test_no_sizes_are_written_for_an_ep_with_dynamic_shapes(folder: Path) -> None:
    write_open_model(folder / "net.onnx", "batch", 3)
    assert sizes(written(folder, "--model", "net.onnx", "--ep", "openvino", "--target", "CPU"), "net") == {}


def test_verify_is_written_only_if_compiled_models_can_run_here(folder: Path) -> None:
    for ep, value, runs in (("qnn", "SM8750", True), ("openvino", "CPU", sys.platform != "linux"), ("openvino", "GPU", True)):
        assert epbuild(folder, "init", "--force", "--model", "relu.onnx", "--ep", ep, "--target", value).returncode == 0
        text = (folder / "epbuild.yaml").read_text(encoding="utf-8")
        assert ("  relu: {verify: true}\n" in text) == runs


@pytest.mark.parametrize("ep", list_starter_kinds())
def test_the_first_recipe_of_every_ep_of_the_catalog_is_valid(folder: Path, ep: str) -> None:
    done = epbuild(folder, "init", "--model", "relu.onnx", "--ep", ep, "--target", list_starter_kinds()[ep].start.example)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("here: " in done.stdout) == (list_starter_kinds()[ep].obstacle() is not None)
    assert epbuild(folder, "validate").returncode == 0


def asked(folder: Path, answers: str, *arguments: str) -> tuple[int, str]:
    """Run `epbuild init` on a terminal of 80 columns, type these answers, and return the exit code and the output."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    command = [sys.executable, "-m", "epbuild", "init", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    os.write(ours, answers.encode())
    said = b""
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while piece := os.read(ours, 1 << 16):
            said += piece
    code = process.wait(60)
    os.close(ours)
    return code, said.decode().replace("\r\n", "\n")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals in the standard library")
@pytest.mark.parametrize(
    ("answers", "arguments", "models", "targets"),
    [
        ("\n\n\n", (), ["relu", "second"], {"SM8750": "SM8750"}),
        ("qmn\nqnn\nSM8750 SC8380XP\nn\n", (), ["relu", "second"], {"SM8750": "SM8750", "SC8380XP": "SC8380XP"}),
        ("SC8380XP\n", ("--model", "relu.onnx", "--ep", "qnn"), ["relu"], {"SC8380XP": "SC8380XP"}),
        ("gone.onnx\nrelu.onnx\n", ("gone-*.onnx", "--ep", "qnn", "--soc", "SM8750"), ["relu"], {"SM8750": "SM8750"}),
    ],
    ids=["defaults", "a wrong answer is asked again", "only what no flag says", "models, where there are none"],
)
def test_on_a_terminal_init_prompts_for_missing_flags(
    folder: Path, answers: str, arguments: tuple[str, ...], models: list[str], targets: dict[str, str]
) -> None:
    write_model(folder / "second.onnx")
    code, said = asked(folder, answers, *arguments)
    assert code == 0, said
    recipe = load(folder / "epbuild.yaml")
    assert list(recipe.models) == models
    assert target_values(recipe, "soc_model") == targets


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals in the standard library")
def test_on_a_terminal_init_prompts_once_for_each_named_size(folder: Path) -> None:
    write_open_model(folder / "a.onnx", "batch", "channels", 8)
    write_open_model(folder / "b.onnx", "batch", "channels", 8)
    write_open_model(folder / "c.onnx", "d0", None, None, 3)
    code, said = asked(
        folder, "2,3,9\n2,5,8\n\n", "a.onnx", "b.onnx", "c.onnx", "--ep", "qnn", "--soc", "SM8750", "--no-share-weights"
    )
    assert code == 0, said
    assert "a: sizes of x[batch,channels,8] [1,3,8]: " in said
    assert "its size is 8 in the model, not 9" in said
    assert "b: sizes" not in said
    assert "c: sizes of x[?,?,?,3] [1,224,224,3]: " in said
    recipe = load(folder / "epbuild.yaml")
    assert [sizes(recipe, name)["x"] for name in "abc"] == [(2, 5, 8), (2, 5, 8), (1, 224, 224, 3)]
    text = (folder / "epbuild.yaml").read_text(encoding="utf-8")
    assert text.count("guess") == text.count("the model declares [batch, channels, 8]; guessed from another model") == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals in the standard library")
def test_on_a_terminal_init_lists_every_ep_and_its_abilities_here(folder: Path) -> None:
    code, said = asked(folder, "\n\n")
    assert code == 0, said
    assert all(name in said for name in list_starter_kinds())
    assert "CPUExecutionProvider" in said
    assert "Compiles on this machine." in said
    listed = said.partition("Execution provider [")[0]
    assert max(map(len, listed.splitlines())) <= 80


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\u2028\u2029\ufeff\ufffe\uffff")))
def test_any_text_survives_a_round_trip_through_the_recipe(text: str) -> None:
    assert yaml.safe_load(f"key: {format_scalar(text)}    # said\nnext: 1\n") == {"key": text, "next": 1}


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1), min_size=1, max_size=6))
def test_models_get_unique_names(paths: list[str]) -> None:
    names = name_models(paths)
    assert list(names.values()) == paths
    assert len({name.lower() for name in names}) == len(paths)


@pytest.mark.parametrize(
    "file", ["größe ü.onnx", "no.onnx", "1e3.onnx", "12.onnx", "a#b: c.onnx", 'it\'s "x".onnx', "${model}.onnx", "-x-.onnx"]
)
def test_init_accepts_a_model_file_of_any_name(tmp_path: Path, file: str) -> None:
    if os.name == "nt" and set(file) & set(':"'):
        pytest.skip("Windows has no such file names")
    recipe = tmp_path / "epbuild.yaml"
    text = format_recipe(recipe, RecipeChoices(list_starter_kinds()["qnn"], [str(tmp_path / file)], {"phone": "SM8750"}))
    recipe.write_text(text, encoding="utf-8")
    [model] = load(recipe).models.values()
    assert model.path == file
