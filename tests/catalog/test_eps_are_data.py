"""EP facts: they are in catalog files, and no other package names an EP."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import epbuild
from epbuild.catalog.catalog import known_eps

PACKAGE = Path(epbuild.__file__).parent
CPU = "CPUExecutionProvider"
NAMES = [re.sub("(?<=[a-z])(?=[A-Z])", "_?", ep.removesuffix("ExecutionProvider")) for ep in known_eps() if ep != CPU]
"""Patterns of names, such as `Core_?ML`."""
EP = re.compile("|".join([*NAMES, r"\b\w+ExecutionProvider"]), re.IGNORECASE)
REASONS = {
    "commands/importing/build.py": "a path of an EP's library, as the configurations of those tools have",
    "commands/importing/olive.py": "what that tool's configurations have",
    "commands/importing/weight_sharing_tool.py": "what that tool's command lines have",
    "commands/importing/winml.py": "what that tool's configurations have",
    "runtime/plugins.py": "applications have the runtime and onnxruntime alone, and so no catalog",
    "worker/compile.py": f"the worker runs in the toolchain's interpreter, which has no catalog: {CPU} alone",
    "worker/preparations/step.py": f"as the worker: {CPU} alone",
}
"""Modules that name an EP, with the reason."""


def words(tree: ast.Module) -> Iterator[str]:
    """Yield every name and every text of a module, without its docstrings."""
    bodies = (getattr(node, "body", None) for node in ast.walk(tree))
    statements = (statement for body in bodies if isinstance(body, list) for statement in body)
    docstrings = {statement.value for statement in statements if isinstance(statement, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            yield node.value
        yield from (
            text
            for field in ("id", "attr", "arg", "name", "asname", "module")
            if isinstance(text := getattr(node, field, None), str)
        )


def test_no_other_package_names_an_ep() -> None:
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    found = {
        name: {match[0] for word in words(ast.parse(text)) for match in EP.finditer(word)}
        for name, text in texts.items()
        if not name.startswith("catalog/") and EP.search(text)
    }
    named = {name: eps for name, eps in found.items() if eps}
    assert named.keys() == REASONS.keys()
    assert [eps for name, eps in named.items() if name.startswith("worker/")] == [{CPU}, {CPU}]


def test_no_other_module_is_named_after_an_ep() -> None:
    assert [path for path in PACKAGE.rglob("*.py") if EP.search(path.stem) and path.parent.name != "catalog"] == []
