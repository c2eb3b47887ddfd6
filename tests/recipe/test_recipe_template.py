"""Templates substitute a closed set of names, keep types, and can always be escaped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.recipe.nodes import Scalar
from epbuild.recipe.template import MAX_TEXT, TemplateError, substitute, substitute_known

NAMES: dict[str, Scalar] = {"recipe.name": "tiny", "vars.n": 3, "vars.on": True, "vars.rate": 1.5, "vars.word": "w"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${vars.n}", 3),
        ("${vars.on}", True),
        ("${vars.rate}", 1.5),
        ("${vars.word}", "w"),
        ("a${vars.n}-${vars.on}-${vars.rate}", "a3-true-1.5"),
        (" ${vars.n}", " 3"),
        ("${vars.n}${vars.n}", "33"),
        ("$${vars.n}", "${vars.n}"),
        ("$$${", "$${"),
        ("a$${b}${vars.n}", "a${b}3"),
        ("$", "$"),
        ("$$", "$$"),
        ("{vars.n}", "{vars.n}"),
        ("$vars.n", "$vars.n"),
        ("", ""),
    ],
)
def test_only_references_are_replaced_by_their_values(text: str, value: Scalar) -> None:
    found = substitute(text, NAMES)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("${vars.m}", "${vars.m}", "Did you mean 'vars.n'? Allowed here: recipe.name, vars.n"),
        ("${zzzzzz}", "${zzzzzz}", "Allowed here: recipe.name, vars.n"),
        ("${}", "unknown name", "Allowed here"),
        ("${ vars.n }", "unknown name", "Did you mean 'vars.n'?"),
        ("x${vars.n", "unclosed '${'", "Add '}'"),
        ("${vars.${vars.n}}", "unknown name", "Allowed here"),
    ],
)
def test_an_invalid_reference_is_refused_with_the_allowed_names(text: str, says: str, hint: str) -> None:
    with pytest.raises(TemplateError) as raised:
        substitute(text, NAMES)
    assert says in raised.value.message
    assert raised.value.hint is not None
    assert hint in raised.value.hint


def test_a_hint_without_allowed_names_says_nothing_is_allowed() -> None:
    with pytest.raises(TemplateError) as raised:
        substitute("${a}", {})
    assert raised.value.hint == "Allowed here: nothing."


def test_a_text_cannot_expand_beyond_its_limit() -> None:
    with pytest.raises(TemplateError, match="longer than"):
        substitute("${a}${a}", {"a": "x" * MAX_TEXT})
    assert substitute("${a}", {"a": "x" * 2 * MAX_TEXT}) == "x" * 2 * MAX_TEXT
    assert substitute("x" * 2 * MAX_TEXT, {}) == "x" * 2 * MAX_TEXT


def test_a_value_that_looks_like_a_reference_is_never_expanded_later() -> None:
    early = substitute_known("${vars.a}/${model}/$${model}", {"vars.a": "${model}"}, ("model",))
    assert substitute(early, {"model": "m"}) == "${model}/m/${model}"
    with pytest.raises(TemplateError, match="is not allowed before"):
        substitute_known("${vars.a}${model}", {"vars.a": "$"}, ("model",))


_PIECES = st.lists(st.sampled_from(["$", "{", "}", "$${", "${early}", "${late}", "a"]))


@given(pieces=_PIECES, early=st.text("${}early"), late=st.text("${}late"))
def test_substituting_in_two_stages_equals_substituting_once(pieces: list[str], early: str, late: str) -> None:
    text = "".join(pieces)
    try:
        two = substitute(substitute_known(text, {"early": early}, ("late",)), {"late": late})
    except TemplateError:
        return
    assert two == substitute(text, {"early": early, "late": late})
