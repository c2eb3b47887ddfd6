"""`epbuild explain`: short lines for people, full digests for programs, and errors for wrong names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.commands.plan import Explanation
from epbuild.plan.key import Change
from epbuild.plan.steps import Step
from epbuild.report.json.build import build_explanation_document
from epbuild.report.json.documents import format_json
from epbuild.report.terminal.plan import print_explanations
from tests.support.commands import RECIPE, epbuild, write_model

SHARE = Step("share:decoder/snapdragon-SC8380XP", "share", (), "share:decoder/snapdragon-SC8380XP")
COMPILE = Step("compile:decoder/snapdragon-SC8380XP/prefill", "compile", (), SHARE.id)
MERGE = Step("merge:decoder/snapdragon-SC8380XP", "merge", (SHARE.id,), "emit:decoder/snapdragon-SC8380XP/directory")
EMIT = Step("emit:decoder/snapdragon-SC8380XP/directory", "emit", (SHARE.id,), "emit:decoder/snapdragon-SC8380XP/directory")
OLD, NEW = "a" * 64, "b" * 64
CHANGES = (
    Change("changed", ("eps", "QNNExecutionProvider", "options", "htp_graph_finalization_optimization_mode"), "3", "1"),
    Change("changed", ("members", "prefill", "external", "weights-of-the-whole-decoder-in-one-file.bin"), OLD, NEW),
)
STALE = Explanation(SHARE, "out of date", NEW, OLD, 1.8e9, tuple(map(str, CHANGES)), CHANGES)
WAITING = Explanation(EMIT, "out of date", None, OLD, 1.8e9, (f"needs {SHARE.id}",), (), (STALE,))


def printed(capsys: pytest.CaptureFixture[str], *explanations: Explanation) -> str:
    print_explanations(explanations)
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_new_step_is_explained_by_missing_inputs(tmp_path: Path) -> None:
    write_model(tmp_path / "relu.onnx")
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    toolchains = str(tmp_path / "none yet")
    done = epbuild(tmp_path, "explain", "*", EPBUILD_TOOLCHAIN_DIR=toolchains)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "new  compile:main/phone/relu\n"
        "  It has never been built here.\n"
        "  - the toolchain 'qnn' is not provisioned yet\n"
        "\n"
        "new  emit:main/phone/directory\n"
        "  It has never been emitted here.\n"
        "  It depends on:\n"
        "    new  compile:main/phone/relu\n"
        "      It has never been built here.\n"
        "      - the toolchain 'qnn' is not provisioned yet\n"
    )
    document = json.loads(epbuild(tmp_path, "explain", "emit:*", "--json", EPBUILD_TOOLCHAIN_DIR=toolchains).stdout)
    nothing: dict[str, object] = {"key": None, "previous_key": None, "built": None, "changes": [], "remote": False}
    cause = {"reasons": ["the toolchain 'qnn' is not provisioned yet"], "causes": []}
    assert document == {
        "format": 1,
        "recipe": "epbuild.yaml",
        "steps": [
            {
                "id": "emit:main/phone/directory",
                "state": "new",
                "reasons": ["needs compile:main/phone/relu"],
                "causes": [{"id": "compile:main/phone/relu", "state": "new", **nothing, **cause}],
                **nothing,
            }
        ],
    }


@pytest.mark.slow
def test_an_unknown_step_name_exits_with_2_and_shows_the_nearest_ids(tmp_path: Path) -> None:
    write_model(tmp_path / "relu.onnx")
    (tmp_path / "other.yaml").write_text(RECIPE, encoding="utf-8")
    done = epbuild(tmp_path, "explain", "compile:main/phone/rel", "-r", "other.yaml")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "no step matches 'compile:main/phone/rel'. Did you mean 'compile:main/phone/relu'" in done.stderr
    assert "[EPB240]" in done.stderr
    assert epbuild(tmp_path, "explain").returncode == 2, "without a step there is nothing to explain"


def test_lines_fit_80_columns_and_keep_every_fact(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, STALE, WAITING, replace(STALE, step=COMPILE, state="restorable"))
    assert max(map(len, text.splitlines())) <= 80
    words = re.sub(r"\s+", " ", text)
    for change in CHANGES:
        assert words.count(f"- {change}") == 3
    assert "aaaaaaaa -> bbbbbbbb" in words
    assert "a" * 9 not in text


def test_an_output_shows_outdated_dependencies_below_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, WAITING).splitlines()
    assert lines[0] == f"out of date  {EMIT.id}"
    assert lines[2:4] == ["  It depends on:", f"    out of date  {SHARE.id}"]
    assert not [line for line in lines if "needs" in line], "said once is enough"


def test_a_current_step_shows_its_build_time_and_key(capsys: pytest.CaptureFixture[str]) -> None:
    current = Explanation(SHARE, "current", OLD, OLD, 1.8e9, (), ())
    text = " ".join(printed(capsys, current).split())
    assert re.fullmatch(
        rf"current {SHARE.id} Last built 2027-01-1\d \d\d:\d\d:\d\d, with the key aaaaaaaa; "
        "none of its inputs has changed since then.",
        text,
    )
    emitted = replace(current, step=EMIT)
    assert "Last emitted" in (text := " ".join(printed(capsys, emitted).split()))
    assert "its files are in place." in text


@pytest.mark.parametrize(
    ("explanation", "sentence"),
    [
        (
            Explanation(SHARE, "new", NEW, None, None, (), ()),
            "It has never been built here, and the store has no result for its key, bbbbbbbb.",
        ),
        (
            Explanation(SHARE, "restorable", NEW, None, None, (), ()),
            "It has never been built here; the store has a result for its key, bbbbbbbb.",
        ),
        (replace(STALE, state="restorable"), "its key is now bbbbbbbb. The store has a result for this key."),
        (
            Explanation(EMIT, "restorable", OLD, OLD, 1.8e9, ("a.bin is missing",), ()),
            "The store has everything needed to restore its files. - a.bin is missing",
        ),
        (replace(STALE, step=COMPILE), f"It is compiled in the same process as the rest of {SHARE.id}."),
        (replace(STALE, step=MERGE), f"It is run together with {EMIT.id}."),
        (
            Explanation(EMIT, "out of date", NEW, OLD, 1.8e9, (), (), (replace(STALE, state="current", reasons=()),)),
            "the emitted files come from an earlier result. - option htp_graph",
        ),
    ],
    ids=["new", "known to the store", "known again", "damaged", "a member of a group", "merged", "built and not emitted"],
)
def test_each_state_has_its_own_sentence(capsys: pytest.CaptureFixture[str], explanation: Explanation, sentence: str) -> None:
    assert sentence in " ".join(printed(capsys, explanation).split())


def test_a_step_that_waits_for_a_compile_is_not_called_restorable(capsys: pytest.CaptureFixture[str]) -> None:
    lost = Explanation(SHARE, "out of date", OLD, OLD, 1.8e9, ("its result is no longer in the store",), ())
    text = printed(capsys, Explanation(EMIT, "restorable", OLD, OLD, 1.8e9, ("a.bin is missing",), (), (lost,)))
    assert "The store has" not in text
    assert "its result is no longer in the store" in text


def test_the_json_document_has_full_values() -> None:
    [step] = json.loads(format_json(build_explanation_document("epbuild.yaml", [STALE])))["steps"]
    assert step["changes"][1] == {
        "what": "model prefill: external data weights-of-the-whole-decoder-in-one-file.bin",
        "place": ["members", "prefill", "external", "weights-of-the-whole-decoder-in-one-file.bin"],
        "old": OLD,
        "new": NEW,
    }
    assert (step["key"], step["previous_key"], step["built"]) == (NEW, OLD, 1.8e9)


@pytest.mark.slow
@pytest.mark.parametrize("command", [["run", "--check"], ["plan"], ["explain"], ["clean", "--dry-run"], ["log"]])
def test_the_recipe_precedes_the_steps_and_is_optional(tmp_path: Path, command: list[str]) -> None:
    write_model(tmp_path / "relu.onnx")
    (tmp_path / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "odd[1].yaml").write_text(RECIPE, encoding="utf-8")
    step = "compile:main/phone/relu"
    orders = [[step], ["epbuild.yaml", step], ["-r", "epbuild.yaml", step], [step, "--recipe=odd[1].yaml"]]
    answers = [epbuild(tmp_path, *command, *names) for names in orders]
    assert len({(done.returncode, done.stdout, done.stderr) for done in answers}) == 1
    assert answers[0].returncode == (1 if command[0] in {"run", "log"} else 0)  # nothing was built, and nothing has a log
    assert "recipe" not in answers[0].stderr
    assert "no step matches 'odd[1].yaml'" in epbuild(tmp_path, "plan", "odd[1].yaml").stderr, "a glob is a step"
