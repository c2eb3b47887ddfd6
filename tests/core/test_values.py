"""A class that waits for its first object is the dataclass that it would have been."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import operator
import pickle
import pkgutil
import threading
from dataclasses import field
from functools import cached_property
from typing import Any

import pytest

import epbuild
from epbuild.core.values import dataclass


@dataclass(frozen=True)
class Base:
    name: str
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True, order=True)
class Derived(Base):
    count: int = 3
    note: str = field(default="none", kw_only=True)
    seen: list[str] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        self.seen.append(self.name)

    @cached_property
    def double(self) -> int:
        return 2 * self.count


@dataclass
class Counter:
    number: int = 0
    step: int = field(default=1, repr=False)


@dataclass(frozen=True)
class Pickled:
    text: str
    parts: tuple[str, ...] = ()


_PICKLED = pickle.dumps(Pickled("a", ("b",)))


def test_objects_are_made_with_defaults_factories_and_keywords() -> None:
    made = Derived("a", [1], note="x")
    assert (made.name, made.sizes, made.count, made.note, made.seen, made.double) == ("a", [1], 3, "x", ["a"], 6)
    assert Derived("a").sizes is not Derived("a").sizes
    assert repr(Base("a")) == "Base(name='a', sizes=[])"
    assert Derived("a") < Derived("b")
    assert Derived("a") == Derived("a") != Base("a")


def _make(**options: bool) -> list[Any]:
    """One class twice: as `dataclasses` makes it, and as it is made here."""

    class Kind:
        """With a field of each sort."""

        first: str
        second: tuple[int, ...] = ()
        shown: int = field(default=1, compare=False)
        hidden: int = field(default=2, repr=False)
        unhashed: int = field(default=3, hash=False)

    def copy(kind: type) -> Any:
        return type(kind.__name__, kind.__bases__, {name: value for name, value in vars(kind).items() if name != "__dict__"})

    return [dataclasses.dataclass(**options)(copy(Kind)), dataclass(**options)(copy(Kind))]


@pytest.mark.parametrize(
    "options",
    [{}, {"frozen": True}, {"eq": False}, {"frozen": True, "eq": False}, {"order": True}, {"frozen": True, "order": True}],
    ids=str,
)
def test_a_class_does_what_the_standard_library_makes_of_it(options: dict[str, bool]) -> None:
    outcomes = []
    for kind in _make(**options):
        one, same, near, other = kind("a", (1,)), kind("a", (1,)), kind("a", (1,), 5), kind("a", (1,), hidden=9)
        alike = kind("a", (1,), unhashed=8)
        hashable = type(one).__hash__ is not None
        hashes = [hash(one) == hash(another) for another in (same, near, other, alike)] if hashable else None
        outcomes.append(
            [
                repr(one).rpartition(".")[2],
                one == same,
                one == near,
                one == other,
                one == alike,
                one == 3,
                hashes,
                kind.__match_args__,
                [_compared(left, right) for left in (one, near, other) for right in (one, same, near, other, 3)],
            ]
        )
    assert outcomes[0] == outcomes[1]


def _compared(left: Any, right: Any) -> list[bool | None]:
    """What each comparison comes to; None where these two have no order."""
    found: list[bool | None] = []
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        try:
            found.append(compare(left, right))
        except TypeError:
            found.append(None)
    return found


def test_fields_that_are_given_by_name_alone() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Named:
        first: str
        second: int = 2

    assert inspect.getfullargspec(type(Named(first="a")).__init__).kwonlyargs == ["first", "second"]
    assert (Named(first="a", second=3).second, Named(first="a")) == (3, Named(first="a", second=2))
    assert Named.__match_args__ == ()
    with pytest.raises(TypeError, match="positional"):
        Named("a")  # type: ignore[call-arg]


def test_what_a_class_has_itself_stays() -> None:
    @dataclass(frozen=True)
    class Own:
        name: str

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and other.name.lower() == self.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

        def __repr__(self) -> str:
            return f"<{self.name}>"

    assert {Own("a")} == {Own("A")}
    assert repr(Own("a")) == "<a>"


@pytest.mark.parametrize(("values", "named"), [((), {}), (("a", [], 1, "x"), {}), (("a",), {"other": 1}), (("a",), {"seen": []})])
def test_what_does_not_fit_the_fields_is_refused(values: tuple[object, ...], named: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="__init__"):
        Derived(*values, **named)  # type: ignore[arg-type]


def test_a_frozen_object_stays_as_it_is_and_another_does_not() -> None:
    base, counter = Base("a"), Counter()
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.name = "b"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del base.name
    counter.number += counter.step
    assert repr(counter) == "Counter(number=1)"


def test_what_python_itself_makes_may_be_made_of_one() -> None:
    @dataclasses.dataclass(frozen=True)
    class More(Base):
        count: int = 1

    assert More("a", count=2) == More("a", [], 2)
    with pytest.raises(TypeError, match="cannot inherit"):

        @dataclasses.dataclass
        class Open(Base):  # type: ignore[misc]
            count: int = 1


def test_fields_can_be_looked_at_before_there_is_an_object() -> None:
    @dataclass(frozen=True)
    class Fresh(Base):
        more: int = field(default=1)

    assert dataclasses.is_dataclass(Fresh)
    assert [one.name for one in dataclasses.fields(Fresh)] == ["name", "sizes", "more"]
    assert dataclasses.replace(Fresh("a"), more=2) == Fresh("a", [], 2)


def test_the_first_object_may_come_from_a_pickle() -> None:
    kept, module = _PICKLED, inspect.getmodule(Pickled)

    @dataclass(frozen=True)
    class Other:
        text: str
        parts: tuple[str, ...] = ()

    Other.__qualname__ = Other.__name__ = "Pickled"
    before, vars(module)["Pickled"] = Pickled, Other
    try:
        read = pickle.loads(kept)
        assert type(read) is Other
        assert {read} == {Other("a", ("b",))}
        with pytest.raises(dataclasses.FrozenInstanceError):
            read.text = "c"  # type: ignore[misc]
    finally:
        vars(module)["Pickled"] = before


def test_a_plain_class_may_be_made_of_one() -> None:
    @dataclass(frozen=True)
    class Fresh:
        name: str = "a"

    class Plain(Fresh):
        def __init__(self) -> None:
            super().__init__("b")

    assert (Plain().name, Fresh().name) == ("b", "a")


def test_many_threads_may_make_the_first_object_at_once() -> None:
    for _ in range(50):

        @dataclass(frozen=True)
        class Fresh:
            name: str
            size: int = 2

        found: list[object] = []
        start = threading.Barrier(8)

        def make(kind: type[Fresh] = Fresh, start: threading.Barrier = start, found: list[object] = found) -> None:
            start.wait()
            found.append(kind("a"))

        threads = [threading.Thread(target=make) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [Fresh("a")] * 8


def test_every_dataclass_of_epbuild_can_be_made() -> None:
    """What is wrong with one shows at its first object, or here."""
    count = 0
    for module in pkgutil.walk_packages(epbuild.__path__, "epbuild."):
        if module.name.rpartition(".")[2] == "__main__" or "worker" in module.name.split("."):
            continue
        try:
            kinds = vars(importlib.import_module(module.name)).values()
        except ImportError:  # what an extra brings
            continue
        for kind in kinds:
            if isinstance(kind, type) and kind.__module__ == module.name and dataclasses.is_dataclass(kind):
                assert callable(kind)
                inspect.signature(kind)
                count += 1
    assert count > 300


def test_a_class_that_cannot_be_made_says_so_each_time() -> None:
    @dataclass(frozen=True)
    class Wrong:
        name: str = field(default="a")
        parts: list[str] = []  # noqa: RUF012

    for _ in range(2):
        with pytest.raises(ValueError, match="mutable default"):
            Wrong("b")
