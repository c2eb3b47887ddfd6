"""Values become JSON and are read back equal, whether they are structs or dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec import Struct

from epbuild.core.typed_json import MalformedJson, from_json, to_json


class Part(Struct, frozen=True):
    name: str
    size: int = 0


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    limit: float | None = None
    labels: tuple[str, ...] = field(default_factory=tuple, compare=False)


def test_a_dataclass_that_holds_structs_is_read_back_equal() -> None:
    whole = Whole((Part("a", 1), Part("b")), 2.5, ("x",))
    document = to_json(whole)
    assert document == {"parts": [{"name": "a", "size": 1}, {"name": "b"}], "limit": 2.5, "labels": ["x"]}
    found = from_json(Whole, document)
    assert (found, found.labels) == (whole, ("x",))


def test_defaults_may_be_missing_and_others_may_not() -> None:
    assert from_json(Whole, {"parts": []}) == Whole(())
    with pytest.raises(MalformedJson):
        from_json(Whole, {"limit": 1.0})
