"""Names on a command line: the recipe and the steps."""

from __future__ import annotations

import pytest

from epbuild.cli.names import split_names


@pytest.mark.parametrize(
    ("names", "recipe", "steps"),
    [
        ([], "epbuild.yaml", ()),
        (["a.yaml"], "a.yaml", ()),
        (["a.yaml", "emit:*", "b.yaml"], "a.yaml", ("emit:*", "b.yaml")),
        (["emit:decoder/*"], "epbuild.yaml", ("emit:decoder/*",)),
        (["compile:g/t/m", "share:g/t"], "epbuild.yaml", ("compile:g/t/m", "share:g/t")),
        (["*decoder*"], "epbuild.yaml", ("*decoder*",)),
        (["sub/odd:name.yaml"], "sub/odd:name.yaml", ()),
        (["./odd:name.yaml"], "./odd:name.yaml", ()),
        (["C:\\work\\a.yaml", "emit:*"], "C:\\work\\a.yaml", ("emit:*",)),
        (["c:a.yaml"], "c:a.yaml", ()),
        (["@steps.txt"], "epbuild.yaml", ("@steps.txt",)),
        (["a.yaml", "@steps.txt"], "a.yaml", ("@steps.txt",)),
    ],
)
def test_the_first_name_is_a_recipe_unless_it_can_only_be_a_step(names: list[str], recipe: str, steps: tuple[str, ...]) -> None:
    assert split_names(names) == (recipe, steps)
    assert split_names(names, "r[1].yaml") == ("r[1].yaml", tuple(names))
