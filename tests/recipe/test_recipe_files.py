"""Recipes of several files: they equal a recipe in one file, and problems name the file of the mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epbuild.core.errors import Position, RecipeError
from epbuild.recipe.load import load
from epbuild.report.terminal.problems import print_problems
from tests.recipe.texts import MINIMAL, load_text, problems_of, values
from tests.support.recipe_texts import codes_and_places, places


def write(folder: Path, **files: str) -> None:
    """Write files by their names without `.yaml`. `__` in a name stands for a slash."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_a_recipe_that_only_extends_another_recipe_is_equal(tmp_path: Path) -> None:
    write(tmp_path, base=MINIMAL)
    assert values(load_text(tmp_path, "extends: base.yaml\n")) == values(load(tmp_path / "base.yaml"))


def test_a_recipe_split_into_fragments_is_equal(tmp_path: Path) -> None:
    whole = values(load_text(tmp_path, MINIMAL))
    head, rest = MINIMAL.split("toolchains:")
    middle, tail = rest.split("groups:")
    write(tmp_path, environments="toolchains:" + middle, work="groups:" + tail)
    assert values(load_text(tmp_path, head + "include: [environments.yaml, work.yaml]\n")) == whole


def test_mappings_are_merged_and_lists_and_scalars_replaced(tmp_path: Path) -> None:
    options = "    provider_options: {base: 1, first: 1, second: 1, own: 1}\n"
    write(
        tmp_path,
        base=MINIMAL.replace("    ep: Q", options + "    ep: Q"),
        first="targets: {npu: {provider_options: {first: 2, second: 2, own: 2}}}\nvars: {quality: 7}\n",
        second="targets: {npu: {provider_options: {second: 3, own: 3}}}\nmodels: {decode: decode.onnx}\n",
    )
    own = "extends: base.yaml\ninclude: [first.yaml, second.yaml]\n"
    own += "targets: {npu: {provider_options: {own: 4}}}\ngroups: {decoder: {models: [decode]}}\nname: other\n"
    recipe = load_text(tmp_path, own)
    [choice] = recipe.targets["npu"].eps
    assert {name: setting.value for name, setting in choice.provider_options.items()} == {
        "base": 1,
        "first": 2,
        "second": 3,
        "own": 4,
    }
    assert (recipe.name, sorted(recipe.models)) == ("other", ["decode", "prefill"])
    assert [member.model.name for member in recipe.groups["decoder"].members] == ["decode"]


def test_an_overridden_axis_keeps_its_place_in_the_names_of_targets(tmp_path: Path) -> None:
    write(tmp_path, base=MINIMAL.replace("    ep: Q", "    matrix: {a: [1], b: [2]}\n    ep: Q").replace("[npu]", "[npu-*]"))
    assert list(load_text(tmp_path, "extends: base.yaml\ntargets: {npu: {matrix: {b: [3], a: [4]}}}\n").targets) == ["npu-4-3"]


def test_paths_are_relative_to_the_file_that_contains_them(tmp_path: Path) -> None:
    parts = """\
vars: {folder: sub}
toolchains: {mine: {interpreter: env/python}}
catalogs: [my.toml]
models: {prefill: prefill.onnx, up: {path: "../${vars.folder}/up.onnx", external_data: data}, far: "package:pkg/far.onnx"}
targets: {npu: {library: lib/ep.so}}
"""
    write(tmp_path, base=MINIMAL, shared__parts=parts, shared__deep__more="models: {deep: deep.onnx}\n")
    write(tmp_path, shared__top="include: [parts.yaml, deep/more.yaml]\n")
    recipe = load_text(tmp_path, "extends: base.yaml\ninclude: [shared/top.yaml]\nmodels: {own: ./own.onnx}\n")
    assert {name: model.path for name, model in recipe.models.items()} == {
        "prefill": "shared/prefill.onnx",
        "up": "sub/up.onnx",
        "far": "package:pkg/far.onnx",
        "deep": "shared/deep/deep.onnx",
        "own": "./own.onnx",
    }
    data = recipe.models["up"].external_data
    assert data is not None
    assert data.name == "shared/data"
    assert recipe.toolchains["mine"].interpreter == "shared/env/python"
    assert [catalog.name for catalog in recipe.catalogs] == ["shared/my.toml"]
    library = recipe.targets["npu"].eps[0].library
    assert library is not None
    assert library.value == "shared/lib/ep.so"
    assert [output.path.value for output in recipe.outputs] == ["dist/${group}/${target}"]


def test_an_absolute_path_in_another_file_is_kept(tmp_path: Path) -> None:
    absolute = (tmp_path / "elsewhere" / "a.onnx").as_posix()
    write(tmp_path, base=MINIMAL, shared__parts=f"models: {{prefill: '{absolute}'}}\n")
    recipe = load_text(tmp_path, "extends: base.yaml\ninclude: [shared/parts.yaml]\n")
    assert recipe.models["prefill"].path == absolute


@pytest.mark.skipif(os.name == "nt", reason="only administrators may make links on Windows")
def test_two_dots_after_a_link_are_resolved_in_the_links_target(tmp_path: Path) -> None:
    """Check that `..` is resolved as the system does it. By name alone it would be the folder above the link."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "link").symlink_to(tmp_path / "real" / "deep")
    write(
        tmp_path,
        base=MINIMAL,
        real__up="models: {up: a.onnx}\n",
        parts__top="models: {other: link/../b.onnx, plain: deep/../c.onnx}\n",
    )
    write(tmp_path, parts__up="models: {up: wrong.onnx}\n")
    recipe = load_text(tmp_path, "extends: base.yaml\ninclude: [parts/top.yaml, parts/link/../up.yaml]\n")
    leads = {name: (tmp_path / model.path).resolve() for name, model in recipe.models.items()}
    assert leads["other"] == tmp_path / "real" / "b.onnx"
    assert leads["up"] == tmp_path / "real" / "a.onnx"
    assert recipe.models["plain"].path == "parts/c.onnx", "and what is no link is left out"


@pytest.mark.skipif(os.name == "nt", reason="only administrators may make links on Windows")
def test_every_path_that_led_to_a_file_of_a_recipe_is_recorded(tmp_path: Path) -> None:
    write(tmp_path, base=MINIMAL, low="vars: {quality: 1}\n")
    (tmp_path / "link.yaml").symlink_to("low.yaml")
    (tmp_path / "folder").symlink_to(tmp_path)
    recipe = load_text(tmp_path, "extends: base.yaml\ninclude: [low.yaml, link.yaml, folder/../" + tmp_path.name + "/low.yaml]\n")
    assert len(recipe.files) == 3
    names = [name.relative_to(tmp_path).as_posix() for name in recipe.names]
    assert names == ["epbuild.yaml", "base.yaml", "low.yaml", "link.yaml", f"folder/../{tmp_path.name}/low.yaml"]


def test_every_file_of_a_recipe_is_listed_and_part_of_its_digest(tmp_path: Path) -> None:
    write(tmp_path, base=MINIMAL, shared__top="include: [low.yaml]\n", shared__low="vars: {quality: 1}\n")
    text = "extends: base.yaml\ninclude: [shared/top.yaml]\n"
    recipe = load_text(tmp_path, text)
    names = ["epbuild.yaml", "base.yaml", "shared/top.yaml", "shared/low.yaml"]
    assert [file.relative_to(tmp_path).as_posix() for file in recipe.files] == names
    digests = {recipe.digest}
    for file in recipe.files:
        file.write_bytes(file.read_bytes() + b"# more\n")
        digests.add(load(tmp_path / "epbuild.yaml").digest)
    assert len(digests) == 1 + len(names)


def test_two_files_can_include_a_third_file(tmp_path: Path) -> None:
    write(tmp_path, base=MINIMAL, a="include: [low.yaml]\n", b="include: [low.yaml]\n", low="vars: {quality: 1}\n")
    recipe = load_text(tmp_path, "extends: base.yaml\ninclude: [a.yaml, b.yaml]\n")
    assert [file.name for file in recipe.files] == ["epbuild.yaml", "base.yaml", "a.yaml", "low.yaml", "b.yaml"]


@pytest.mark.parametrize(
    ("name", "files", "code", "says"),
    [
        ("wrong type", {"part": "groups: {decoder: {share_weights: ‸on}}\n"}, "EPB105", "true or false"),
        ("unknown key", {"part": "targets:\n  npu: {‸devise: {}}\n"}, "EPB103", "'device'"),
        ("unknown reference", {"part": "groups: {more: {models: [prefill], targets: [‸npx]}}\n"}, "EPB108", "'npu'"),
        ("unknown name", {"part": "models: {more: ‸'${vars.qualty}'}\n"}, "EPB109", "'vars.quality'"),
        ("duplicate key", {"part": "vars: {a: 1, ‸a: 2}\n"}, "EPB102", "duplicate"),
        ("bad name", {"part": "models: {‸a/b: a.onnx}\n"}, "EPB107", "letters"),
        ("syntax", {"part": "vars: {a: ‸'b\n"}, "EPB101", "unclosed"),
        ("no mapping", {"part": "‸- a\n"}, "EPB105", "a mapping"),
        ("empty", {"part": "‸"}, "EPB101", "empty"),
        ("another version", {"part": "epbuild: ‸2\n"}, "EPB106", "version 2"),
        ("missing file", {"part": "include: [‸more.yaml]\n"}, "EPB100", "no such file: 'more.yaml'"),
        ("long name", {"part": f"include: [‸{'x' * 300}.yaml]\n"}, "EPB100", "no such file: 'xxx"),
        ("long path", {"part": f"extends: ‸{'deep/' * 1000}low.yaml\n"}, "EPB100", "no such file: 'deep/"),
        ("cycle", {"part": "extends: low.yaml\n", "low": "include: [‸part.yaml]\n"}, "EPB106", "part.yaml → low.yaml → part.yaml"),
        ("cycle to the recipe", {"part": "extends: ‸epbuild.yaml\n"}, "EPB106", "epbuild.yaml → part.yaml → epbuild.yaml"),
    ],
)  # fmt: skip
def test_a_mistake_in_another_file_is_reported_at_that_file(
    tmp_path: Path, name: str, files: dict[str, str], code: str, says: str
) -> None:
    expected = []
    for file, text in files.items():
        clean, found = places(text)
        write(tmp_path, **{file: clean})
        expected += [Position(str(tmp_path / f"{file}.yaml"), *place) for place in found]
    problems = problems_of(tmp_path, MINIMAL.replace("vars:", "include: [part.yaml]\nvars:"))
    assert [(problem.code, problem.where) for problem in problems] == [(code, place) for place in expected], name
    assert says in str(problems[0])
    assert "\n" not in str(problems[0])


def test_keys_missing_after_merging_are_reported_at_the_recipe(tmp_path: Path) -> None:
    write(tmp_path, base="epbuild: 1\nname: base\n")
    problems = problems_of(tmp_path, "extends: base.yaml\n")
    assert {problem.code for problem in problems} == {"EPB104"}
    assert {str(problem.where) for problem in problems} == {f"{tmp_path / 'epbuild.yaml'}:1:1"}


def test_mistakes_in_several_files_are_reported_in_one_run(tmp_path: Path) -> None:
    write(tmp_path, one="vars: [\n", two="vars: {a: 1, a: 2}\n")
    text = MINIMAL.replace("vars:", "include: [one.yaml, two.yaml, three.yaml]\nvars:")
    assert [problem.code for problem in problems_of(tmp_path, text)] == ["EPB100", "EPB101", "EPB102"]


def test_includes_are_limited_to_ten_levels(tmp_path: Path) -> None:
    write(tmp_path, **{f"f{n}": f"include: [f{n + 1}.yaml]\n" for n in range(1, 10)}, f10="vars: {quality: 9}\n")
    text = MINIMAL.replace("vars:\n  quality: 3\n", "include: [f1.yaml]\n")
    load_text(tmp_path, text)
    write(tmp_path, f10="include: [f11.yaml]\n", f11="vars: {quality: 9}\n")
    [problem] = problems_of(tmp_path, text)
    assert (problem.code, str(problem.where)) == ("EPB110", f"{tmp_path / 'f10.yaml'}:1:11")


def test_exponential_includes_are_refused_early(tmp_path: Path) -> None:
    for n in range(9):
        write(tmp_path, **{f"f{n}": f"include: [{', '.join([f'f{n + 1}.yaml'] * 1000)}]\n"})
    write(tmp_path, f9="vars: {" + ", ".join(f"v{n}: 1" for n in range(1000)) + "}\n")
    problems = problems_of(tmp_path, MINIMAL.replace("vars:", "include: [f0.yaml]\nvars:"))
    assert [problem.code for problem in problems] == ["EPB110"]


def test_an_extended_file_is_named_by_its_normalized_path(tmp_path: Path) -> None:
    write(tmp_path, base=MINIMAL.replace("packages:", "pakages:"))
    (tmp_path / "sub").mkdir()
    problem, *_ = problems_of(tmp_path / "sub", "extends: ../base.yaml\n")
    assert (problem.code, getattr(problem.where, "file", None)) == ("EPB103", str(tmp_path / "base.yaml"))


def test_a_missing_include_is_the_only_problem_reported(tmp_path: Path) -> None:
    assert codes_and_places(problems_of(tmp_path, "epbuild: 1\ninclude: [gone.yaml]\n")) == [("EPB100", 2, 11)]


def test_a_recipe_with_too_long_a_name_is_refused(tmp_path: Path) -> None:
    words = r"does not exist" if os.name == "nt" else r"cannot be read: .*"  # Windows calls a name that is too long missing
    with pytest.raises(RecipeError, match=rf"the recipe {words}\. \w.* \[EPB100\]"):
        load(tmp_path / f"{'x' * 300}.yaml")


def test_a_missing_recipe_is_reported_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"gone\.yaml: the recipe does not exist"):
        load(tmp_path / "gone.yaml")


def test_a_folder_without_a_recipe_suggests_init(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"or create one for your models with `epbuild init`"):
        load(tmp_path / "epbuild.yaml")


def test_a_missing_recipe_error_names_other_recipes_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "phone.yaml").write_text("# mine\nepbuild: 1\n", encoding="utf-8")
    (tmp_path / "compose.yaml").write_text("services: {}\n", encoding="utf-8")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(RecipeError, match=r"Name one of the recipes in this folder: phone\.yaml\."):
        load(tmp_path / "epbuild.yaml")


@pytest.mark.parametrize("section", ["include: [{}]", "extends: {}"], ids=["include", "extends"])
@pytest.mark.parametrize(
    "content",
    [
        "machine host login me password tulip-bulb-42\n",
        "token: tulip-bulb-42\n",
        "a: 1\n\tb: tulip-bulb-42\n",
        "[default]\ntulip-bulb-42 = @tulip-bulb-42\n",
        "name: *tulip-bulb-42\n",
        '{"auths": {"host": {"auth": "tulip-bulb-42"}}}\n',
        "tulip-bulb-42: 1\n",
    ],
)
def test_a_file_that_is_not_a_recipe_is_refused_without_quoting_its_text(
    tmp_path: Path, content: str, section: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "netrc").write_text(content, encoding="utf-8")
    recipe = tmp_path / "project" / "epbuild.yaml"
    recipe.parent.mkdir()
    recipe.write_text(section.replace("{}", "../netrc") + f"\n{MINIMAL}", encoding="utf-8")
    with pytest.raises(RecipeError) as refused:
        load(recipe)
    print_problems(refused.value.problems)
    shown = str(refused.value) + capsys.readouterr().err
    assert "'../netrc' is not" in shown
    assert "tulip" not in shown
    assert str(recipe) in shown


def test_a_link_in_a_checkout_shows_no_line_of_its_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "netrc").write_text("token: tulip-bulb-42\n", encoding="utf-8")
    recipe = tmp_path / "project" / "epbuild.yaml"
    recipe.parent.mkdir()
    recipe.symlink_to("../netrc")
    with pytest.raises(RecipeError) as refused:
        load(recipe)
    print_problems(refused.value.problems)
    assert "tulip" not in str(refused.value) + capsys.readouterr().err
