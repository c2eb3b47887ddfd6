"""Canonical JSON: epbuild writes the same as Python's own encoder."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.canonical import JsonFile, encode_indented, parse_json

_DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


class _Pair(NamedTuple):
    first: str
    second: int


@given(st.dictionaries(st.text(), _DOCUMENTS), st.booleans(), st.booleans())
def test_indented_json_equals_the_output_of_python(document: dict[str, Any], sort_keys: bool, ascii_only: bool) -> None:
    expected = json.dumps(document, indent=2, sort_keys=sort_keys, ensure_ascii=ascii_only)
    assert encode_indented(document, sort_keys=sort_keys, ascii_only=ascii_only) == expected


def test_other_mapping_and_list_types_are_indented() -> None:
    document: dict[str, object] = {"b": OrderedDict(z=1, a=()), "a": (_Pair("x", 1), [])}
    assert encode_indented(document) == json.dumps(document, indent=2)
    assert JsonFile(document).data.decode() == json.dumps(document, indent=2, sort_keys=True) + "\n"


def test_invalid_unicode_is_escaped() -> None:
    assert encode_indented({"file\udcff": ["\udc80.onnx"]}) == '{\n  "file\\udcff": [\n    "\\udc80.onnx"\n  ]\n}'


@pytest.mark.parametrize("value", [object(), math.nan, -math.inf])
def test_values_outside_json_are_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode_indented({"a": [value]})


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1.5e400"])
def test_non_finite_numbers_are_not_read(number: str) -> None:
    with pytest.raises(ValueError, match="not finite"):
        parse_json(f'{{"a": [1.5, {number}]}}')
    assert parse_json(b'{"a": [1.5, 2, "1e999"]}') == {"a": [1.5, 2, "1e999"]}
