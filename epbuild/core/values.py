"""Dataclasses whose methods are made when the first object of them is.

`dataclasses.dataclass` writes a class's methods as text and compiles it: 0.6 ms for a frozen one. A command imports some two hundred and
makes objects of a third of them, so that this was a third of what a short command took. The decorator here leaves a class as it is until
then. The standard library finds its fields, and only its `__init__` is text, which is half as fast otherwise: 0.1 ms. Whatever looks at
dataclasses (`fields`, `replace`, `asdict`, `match`, pickles) finds one.
"""

from __future__ import annotations

import _thread
import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers know all about
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - it is given away

_FIELDS = "__dataclass_fields__"
_LATER = frozenset({"frozen", "eq", "order", "kw_only"})
"""The options of classes that can wait; all others are made at once, and so are those that have what is put in their way here."""
_making = _thread.RLock()


if not TYPE_CHECKING:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """`dataclasses.dataclass`, at the first object, or at the first look at its fields. What is wrong with a class is raised then."""

        def decorated(cls: type) -> type:
            if not options.keys() <= _LATER or not {"__init__", "__setstate__"}.isdisjoint(vars(cls)):
                return dataclasses.dataclass(cls, **options)
            _put_off(cls, options)
            return cls

        return decorated if cls is None else decorated(cls)


class _Fields:
    """What stands for the fields of a class until it is made."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __get__(self, instance: object, owner: type) -> Any:
        return vars(self._make())[_FIELDS]


def _put_off(cls: Any, options: dict[str, bool]) -> None:
    """Have a class be made when the first object of it is, as such, or from a pickle."""

    def make() -> Any:
        with _making:
            if isinstance(vars(cls)[_FIELDS], _Fields):
                before = dict(vars(cls))
                frozen = options.get("frozen", False)
                # The standard library compares that with what the bases are, and makes two methods of it as well.
                by_library = frozen and any(hasattr(base, _FIELDS) for base in cls.__mro__[1:])
                try:
                    by_name = options.get("kw_only", False)
                    dataclasses.dataclass(cls, init=False, repr=False, eq=False, frozen=by_library, kw_only=by_name)
                    cls.__dataclass_params__.frozen = frozen
                    _complete(cls, frozen=frozen, eq=options.get("eq", True), order=options.get("order", False))
                    # At last, since other threads may come meanwhile: until it is there, they wait.
                    cls.__init__ = _initialiser(cls, frozen=frozen)
                    delattr(cls, "__setstate__")
                except BaseException:  # no memory, or Ctrl-C: the next object has it made
                    for name in vars(cls).keys() - before.keys():
                        delattr(cls, name)
                    for name in before.keys() - {"__dict__", "__weakref__"}:
                        if vars(cls).get(name) is not before[name]:
                            setattr(cls, name, before[name])
                    raise
        return cls

    def initialise(self: Any, *values: Any, **named: Any) -> None:
        make()
        cls.__init__(self, *values, **named)

    def restore(self: Any, state: dict[str, Any]) -> None:
        make()
        vars(self).update(state)

    cls.__init__, cls.__setstate__ = initialise, restore
    setattr(cls, _FIELDS, _Fields(make))


def _complete(cls: Any, *, frozen: bool, eq: bool, order: bool) -> None:
    """Give a class the methods that `dataclasses` would, but for `__init__` and those that it has."""
    fields, own = dataclasses.fields(cls), vars(cls)
    names = frozenset(field.name for field in fields)
    shown = [field.name for field in fields if field.repr]
    compared = _values([field.name for field in fields if field.compare])
    told_apart = _values([field.name for field in fields if (field.compare if field.hash is None else field.hash)])

    def described(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def equal(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if type(self) is type(other) else NotImplemented

    def ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
        return lambda self, other: compare(compared(self), compared(other)) if type(self) is type(other) else NotImplemented

    def hashed(self: Any) -> int:
        return hash(told_apart(self))

    def refuse_to_set(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def refuse_to_delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    has_own_hash = own.get("__hash__") is not None
    if "__repr__" not in own:
        cls.__repr__ = described
    if eq and "__eq__" not in own:
        cls.__eq__ = equal
    if eq and not has_own_hash:
        cls.__hash__ = hashed if frozen else None
    if order:
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            setattr(cls, f"__{compare.__name__}__", ordered(compare))
    if frozen and "__setattr__" not in own:
        cls.__setattr__, cls.__delattr__ = refuse_to_set, refuse_to_delete


def _values(names: Sequence[str]) -> Callable[[Any], Any]:
    """What reads the values of fields of an object, as a tuple."""
    if len(names) > 1:
        return operator.attrgetter(*names)  # in C
    return lambda one: tuple(getattr(one, name) for name in names)


def _initialiser(cls: Any, *, frozen: bool) -> Any:
    """The `__init__` that `dataclasses` would make of a class's fields."""
    known: dict[str, Any] = {"put": object.__setattr__, "MISSING": dataclasses.MISSING}
    positional, named, body = ["self"], list[str](), list[str]()
    for number, field in enumerate(dataclasses.fields(cls)):
        value = field.name
        default = f"default_{number}"
        if field.default_factory is not dataclasses.MISSING:
            known[default] = field.default_factory
            value = f"{default}() if {value} is MISSING else {value}" if field.init else f"{default}()"
            parameter = f"{field.name}=MISSING"
        elif field.default is not dataclasses.MISSING:
            known[default] = field.default
            parameter = f"{field.name}={default}"
        else:
            parameter = field.name
        if field.init:
            (named if field.kw_only else positional).append(parameter)
        elif field.default_factory is dataclasses.MISSING:
            continue  # a default is the class's, and anything else is put there by its `__post_init__`
        body.append(f"put(self, {field.name!r}, {value})" if frozen else f"self.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    text = "\n  ".join([f"def __init__({parameters}):", *(body or ["pass"])])
    exec(text, known)  # noqa: S102 - as `dataclasses` does it: there is nothing in it but the names of fields
    made = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made
