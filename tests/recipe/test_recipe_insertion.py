"""Definitions inserted into recipes: all other text stays byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import RecipeError
from epbuild.recipe.insertion import Definition, insert_definition
from epbuild.recipe.nodes import to_plain
from epbuild.recipe.source import read

PLAIN = Definition("new", ["new: new.onnx"])
SIZED = Definition("new", ["new:", "  path: new.onnx", "  input_shapes:", "    x: [1, 3]    # guessed"])


def inserted(text: str, definition: Definition = PLAIN, section: str = "models") -> str:
    return insert_definition(text.encode(), "r.yaml", section, definition).decode()


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("models:\n  a: a.onnx  # one\n  # last\nx: 1\n", "models:\n  a: a.onnx  # one\n  new: new.onnx\n  # last\nx: 1\n"),
        ("models:\r\n    a: a.onnx\r\nx: 1", "models:\r\n    a: a.onnx\r\n    new: new.onnx\r\nx: 1"),
        ("models:\n  a: a.onnx", "models:\n  a: a.onnx\n  new: new.onnx"),
        ("models: {a: a.onnx, }  # one\n", "models: {a: a.onnx, new: new.onnx, }  # one\n"),
        ("models: [a.onnx]\n", "models: [a.onnx, new.onnx]\n"),
        ("models:\n- a.onnx\nx: 1\n", "models:\n- a.onnx\n- new.onnx\nx: 1\n"),
        ("models:\n  a: >\n    a.onnx\n# end\n", "models:\n  a: >\n    a.onnx\n  new: new.onnx\n# end\n"),
        ("models:  # none yet\nx: 1\n", "models:  # none yet\n  new: new.onnx\nx: 1\n"),
        ("\ufeffx: 1\n# end\n", "\ufeffx: 1\nmodels:\n  new: new.onnx\n# end\n"),
        ("{x: 1}\n", "{x: 1, models: {new: new.onnx}}\n"),
        ("b: &b {a: a.onnx}\nmodels:\n  <<: *b\n", "b: &b {a: a.onnx}\nmodels:\n  <<: *b\n  new: new.onnx\n"),
    ],
)  # fmt: skip
def test_a_definition_goes_to_the_end_of_its_section(text: str, result: str) -> None:
    assert inserted(text) == result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("models: [a.onnx]  # one\n", "models: {a: a.onnx, new: {path: new.onnx, input_shapes: {x: [1, 3]}}}  # one\n"),
        (
            'models:\n  -  "a.onnx"  # one\n',
            'models:\n  a:  "a.onnx"  # one\n  new:\n    path: new.onnx\n    input_shapes:\n      x: [1, 3]    # guessed\n',
        ),
    ],
)
def test_a_list_of_models_becomes_a_mapping_for_a_model_with_settings(text: str, result: str) -> None:
    assert inserted(text, SIZED) == result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b: &b {a: a.onnx}\nmodels: *b\n", "1:4: a definition cannot be added to 'models' without changing other values"),
        ("models: &b\n  a: a.onnx\nb: *b\n", "1:9: a definition cannot be added to 'models' without changing other values"),
        ("b: &b {models: {a: a.onnx}}\n<<: *b\n", "a definition cannot be added to 'models' without changing other values"),
        ("models: '*.onnx'\n", "1:9: 'models' is a single path or pattern"),
        ("models: ['*.onnx']\n", "1:10: 'models' is a list with '*.onnx', and the new model needs settings"),
        ("models: [a.onnx, b/a.onnx]\n", "1:18: 'models' is a list with 'b/a.onnx', and the new model needs settings"),
        ("models: [new.onnx]\n", "1:10: the recipe already has 'new' in 'models'"),
        ("models:\n  new: a.onnx\n", "2:3: the recipe already has 'new' in 'models'"),
        ("models:\n  ? a\n  : a.onnx\n", "a definition cannot be added to 'models' without changing other values"),
    ],
)
def test_a_definition_that_would_change_other_values_is_refused(text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=r"^r\.yaml:.*") as caught:
        inserted(text, SIZED)
    assert message in str(caught.value)


COMMENTS = st.sampled_from(["", "  # a comment: {x, y} [z]", "    # 'quoted", "  #"])
LINES = st.lists(st.sampled_from(["", "# alone", "      # deeper: x", "  "]), max_size=2)
VALUES = st.sampled_from(
    ["a.onnx", '"a # b.onnx"', "'it''s'", "{path: a.onnx, split: [1, 2]}", "[a, {b: c}]", "|\n      text", "&k b", ""]
)
NAMES = st.lists(st.sampled_from("abcdef"), unique=True, min_size=1, max_size=4)


@st.composite
def sections(draw: st.DrawFn, name: str) -> list[str]:
    """Return the lines of a section in one of YAML's styles."""
    names = draw(NAMES)
    if draw(st.booleans()):
        space = draw(st.sampled_from(["", " "]))
        items = f",{space or ' '}".join(f"{each}: {each}.onnx" for each in names)
        return [f"{name}: {{{space}{items}{space}}}{draw(COMMENTS)}", *draw(LINES)]
    margin = " " * draw(st.integers(1, 4))
    lines = [f"{name}:{draw(COMMENTS)}", *draw(LINES)]
    for each in names:
        value = draw(VALUES)
        lines += [f"{margin}{each}: {value}{draw(COMMENTS) if '|' not in value else ''}", *draw(LINES)]
    return lines


@st.composite
def recipes(draw: st.DrawFn) -> str:
    """Return the text of a recipe with comments, in which `models` may be anywhere or missing."""
    kept = draw(st.permutations(["epbuild", "models", "targets", "vars"]))[: draw(st.integers(1, 4))]
    lines = draw(LINES)
    for name in kept:
        lines += [f"epbuild: 1{draw(COMMENTS)}"] if name == "epbuild" else draw(sections(name))
    line_break = draw(st.sampled_from(["\n", "\r\n"]))
    # A block scalar at the end of the file gets a line break when lines follow.
    end = line_break if any("|" in line for line in lines) else draw(st.sampled_from(["", line_break]))
    return line_break.join("\n".join(lines).split("\n")) + end


@given(text=recipes(), definition=st.sampled_from([PLAIN, SIZED]))
def test_all_text_of_a_recipe_stays_around_an_insertion(text: str, definition: Definition) -> None:
    before = to_plain(read(text.encode(), "r.yaml").root)
    result = inserted(text, definition)
    start = next((at for at, (old, new) in enumerate(zip(text, result, strict=False)) if old != new), len(text))
    added = len(result) - len(text)
    assert any(result[:at] + result[at + added :] == text for at in range(start + 1))
    assert isinstance(before, dict)
    new = to_plain(definition.read_value())
    assert to_plain(read(result.encode(), "r.yaml").root) == {**before, "models": {**(before.get("models") or {}), "new": new}}
