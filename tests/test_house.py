"""House rules that no linter checks. `docs/internals/architecture.md` has the reason for each."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "epbuild"


@cache
def modules() -> Mapping[str, ast.Module]:
    """Return every module of epbuild by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in PACKAGE.rglob("*.py")
    }


def imports(name: str) -> Iterator[str]:
    """Yield the modules of epbuild that a module imports: at its top, inside a function, or for a type checker alone."""
    for node in ast.walk(modules()[name]):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else name


def test_names_are_imported_from_the_module_that_defines_them() -> None:
    """Forbid re-exports: each name has one import path, and nothing is loaded unasked. Applications import the runtime."""
    faces = [
        name
        for name in modules()
        if (ROOT / name.replace(".", "/") / "__init__.py").exists() and name not in {"epbuild", "epbuild.runtime"}
    ]
    assert [name for name in faces if len(modules()[name].body) > 1] == []


def test_no_imports_form_a_cycle() -> None:
    graph = {name: {found for found in imports(name) if found in modules() and found != name} for name in modules()}
    while leaves := {name for name, found in graph.items() if not found}:
        graph = {name: found - leaves for name, found in graph.items() if name not in leaves}
    assert sorted(graph) == []


def test_every_module_has_a_short_docstring() -> None:
    """Require a first line of at most 80 characters. Details go below it."""
    first = {name: (ast.get_docstring(tree) or "").split("\n")[0] for name, tree in modules().items()}
    assert {name: line for name, line in first.items() if not 0 < len(line) <= 80} == {}


PATCHED = {
    "support/fake_builds.py": 1,  # `list_toolchains`: the command line makes its own request
    "survey/test_status.py": 1,  # `__version__`: that of a future release
    "toolchain/test_process.py": 1,  # `_GRACE_SECONDS`: five seconds in each run
    "output/test_every_field.py": 1,  # `registry`: the comparison includes the address of a registry
}
"""Number of patches of epbuild's names by file. This list may only get shorter: fakes are passed in."""


def test_fakes_are_passed_in() -> None:
    """Allow patches of the standard library only. For epbuild, `tests/support/moments.py` observes without changes."""
    found = Counter[str]()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if ".setattr" not in text and "mock.patch" not in text and "patch.object" not in text:
            continue
        nodes = list(ast.walk(ast.parse(text)))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("epbuild")]
        own = {"epbuild", *(alias.asname or alias.name for node in imports for alias in node.names)}
        for call in nodes:
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith((".setattr", "mock.patch", "mock.patch.object")):
                target = ast.unparse(call.args[0]).removeprefix("importlib.import_module(").lstrip("f'")
                found[path.relative_to(ROOT / "tests").as_posix()] += re.split(r"\W", target)[0] in own
    assert +found == PATCHED


def test_the_index_of_shared_helpers_is_complete() -> None:
    support = ROOT / "tests" / "support"
    index = ast.get_docstring(ast.parse((support / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert sorted(re.findall(r"^    (\w+): ", index, re.M)) == sorted(path.stem for path in support.glob("[!_]*.py"))
