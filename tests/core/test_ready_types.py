"""Record types that several threads use at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from msgspec import Struct, ValidationError

import epbuild
from epbuild.core.records import convert

PACKAGE = Path(epbuild.__file__).parent

FIRST_USES_AT_ONCE = """
import sys, threading, types

from epbuild.core import records

sys.setswitchinterval(1e-6)
for number in range(40):
    source, document = "from __future__ import annotations\\nimport msgspec\\n", {"n": 0}
    for depth in range(12):
        inner = f"C{depth - 1} | None" if depth else "int"
        fields = "".join(f"    f{index}: tuple[str, ...] | None = None\\n" for index in range(6))
        source += f"class C{depth}(msgspec.Struct):\\n{fields}    n: {inner} = None\\n"
        document = {"f0": ["a"], "n": document} if depth else document
    module = types.ModuleType(f"records{number}")
    sys.modules[module.__name__] = module
    exec(source, module.__dict__)
    barrier = threading.Barrier(4)

    def convert():
        barrier.wait()
        assert records.convert(document, module.C11).f0 == ("a",)

    threads = [threading.Thread(target=convert) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("done")
"""


def test_threads_can_use_a_type_for_the_first_time_concurrently() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USES_AT_ONCE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


class Inner(Struct, tag=True):
    name: str = ""


class Outer(Struct):
    kind: Literal["one", "two"] = "one"
    inner: Inner | None = None


@pytest.mark.parametrize(
    "document",
    [{"\udcff": 1}, {"kind": "\udcff"}, {"inner": {"type": "\udcff"}}, {"inner": {"type": "Inner", "a\udcff": 1}}],
)
def test_invalid_unicode_is_refused_like_any_wrong_value(document: object) -> None:
    with pytest.raises(ValidationError, match="udcff"):
        convert(document, Outer)


def kinds_of_conversions(tree: ast.AST) -> Iterator[str]:
    """Yield each conversion by msgspec itself, and the type of each decoding."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "msgspec":
            yield from (alias.name for alias in node.names if alias.name == "convert")
        if not isinstance(node, ast.Call):
            continue
        if ast.unparse(node.func) == "msgspec.convert":
            yield ast.unparse(node.args[1])
        elif isinstance(node.func, ast.Attribute) and node.func.attr == "decode":
            yield from (ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "type")


def test_every_converted_type_is_prepared() -> None:
    kinds = [kind for path in PACKAGE.rglob("*.py") for kind in kinds_of_conversions(ast.parse(path.read_text(encoding="utf-8")))]
    assert len(kinds) > 2
    assert [kind for kind in kinds if not kind.startswith("prepare_type(")] == []
