"""The rules of the house that a linter does not know: `docs/architecture.md` says why each is there."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "epbuild"
LONGEST_CHAIN = 6


@cache
def modules() -> Mapping[str, ast.Module]:
    """Every module of epbuild by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in PACKAGE.rglob("*.py")
    }


def imports(name: str) -> Iterator[str]:
    """The modules of epbuild that a module imports, at its top or inside a function, but those that only a type checker imports."""
    for node in _running(modules()[name]):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from _running(child)


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def test_a_name_is_imported_from_the_module_that_has_it() -> None:
    """No room has a face: one way to import a thing, and nothing is loaded that was not asked for. Applications import the runtime."""
    faces = [
        name for name in modules() if (ROOT / name.replace(".", "/")).is_dir() and name not in {"epbuild", "epbuild.runtime"}
    ]
    assert [name for name in faces if len(modules()[name].body) > 1] == []


def test_no_import_hides_a_circle() -> None:
    """Also not one inside a function, which would run."""
    graph = {name: {found for found in imports(name) if found in modules() and found != name} for name in modules()}
    while leaves := {name for name, found in graph.items() if not found}:
        graph = {name: found - leaves for name, found in graph.items() if name not in leaves}
    assert sorted(graph) == []


def test_no_file_is_a_tower() -> None:
    long = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > 400
    ]
    assert long == []


@pytest.mark.parametrize("name", sorted(path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"))
def test_no_import_chain_inside_a_room_is_long(name: str) -> None:
    @cache
    def chain(module: str) -> int:
        return 1 + max(
            (chain(found) for found in imports(module) if found in modules() and room(found) == name and found != module),
            default=0,
        )

    assert max(chain(module) for module in modules() if room(module) == name) <= LONGEST_CHAIN


def test_what_has_a_name_of_its_own_is_there_once() -> None:
    """No private helper of one name in more than four modules: the fifth would be a function that they share."""
    found = Counter(
        node.name
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_")
    )
    assert [name for name, count in found.items() if count > 4] == []


def test_a_class_has_a_name_of_its_own() -> None:
    """No two rooms have a class of one name."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].add(room(name))
    assert {name: rooms for name, rooms in found.items() if len(rooms) > 1} == {}


def test_a_dataclass_costs_nothing_until_it_is_used() -> None:
    """It is made by `epbuild.core.values`, but where a room stands alone."""
    found = {
        name
        for name, tree in modules().items()
        for node in _running(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses" and "dataclass" in {one.name for one in node.names}
    }
    assert {room(name) for name in found} <= {"runtime"}


def test_a_module_says_what_it_is_in_one_line() -> None:
    """A noun phrase of at most 80 characters; what else there is to know comes below it."""
    first = {name: (ast.get_docstring(tree) or "").split("\n")[0] for name, tree in modules().items()}
    assert {name: line for name, line in first.items() if not 0 < len(line) <= 80} == {}


PATCHED = {
    "survey/test_scope.py": 1,  # `toolchains_here`: the command line makes its own request
    "survey/test_status.py": 1,  # `__version__`: of a release to come
    "toolchain/test_process.py": 1,  # `_GRACE_SECONDS`: five seconds, each time that this is run
    "output/test_every_field.py": 1,  # `push`: the address of a registry is part of what is compared
}
"""How often tests change names of epbuild under it, by file. This list only gets shorter: fakes are passed in."""


def test_fakes_are_passed_in() -> None:
    """What the standard library has may be patched; of epbuild, `tests/support/moments.py` shows what happens, and changes nothing."""
    found = Counter[str]()
    for path in (ROOT / "tests").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("epbuild")]
        own = {"epbuild", *(alias.asname or alias.name for node in imports for alias in node.names)}
        for call in nodes:
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith((".setattr", "mock.patch", "mock.patch.object")):
                target = ast.unparse(call.args[0]).removeprefix("importlib.import_module(").lstrip("f'")
                found[path.relative_to(ROOT / "tests").as_posix()] += re.split(r"\W", target)[0] in own
    assert +found == PATCHED
