"""Summary of a workflow's step: tables of failures, sizes and steps, with any names in them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from epbuild.core.errors import BuildError, Position, Problem, RecipeError, StepId
from epbuild.engine.events import Event, RunFinished, RunStarted, StepFailed, StepFinished, Warned
from epbuild.publish.sizes import OutputCompared
from epbuild.report.terminal.progress import make_reporter
from epbuild.session.events import RemoteCacheUsed
from tests.report.events import COMPILE, EVENTS, SHARE

ENDED = RunFinished(0, 3.0, 1, 0, 0, 0, 0)


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the file of the summary. As on a runner, it exists before the first step writes to it."""
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "summary.md"
    path.write_text("# Of an earlier command\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    return path


def build(*events: Event, json: bool = False) -> None:
    with make_reporter(json=json) as listener:
        for event in events:
            listener.report(event)


@pytest.mark.parametrize("json", [False, True])
def test_a_build_appends_tables_of_its_failures_sizes_and_steps(summary: Path, json: bool) -> None:
    build(*EVENTS, json=json)
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("# Of an earlier command\n### epbuild run: `quickstart`\n\n1 built, 1 current, 1 failed (20.00 s).\n")
    reason = "<code>&#8594; &#91;bold&#93;no&#91;&#47;bold&#93;&#46;"
    for line in (
        "#### Failures",
        "| reason | steps |",
        f"| `Made again, x_qnn.bin is not the same. [EPB650]` | `{COMPILE}` |",
        "| `epbuild.yaml:12:5` | `the model 'x' shares nothing. [EPB233]` |",
        "#### Sizes",
        "| `dist/new` | 100 bytes | 130 bytes | +30 bytes | +30.0% |",
        f"| `{COMPILE}` | built | 7.2 s | 268.7 MB | `1 EPContext node` |",
        f"| `{COMPILE}` | failed |  |  |  |",
        f"| `{SHARE}` | same | 2.5 s | 752.2 kB | `rebuilt` |",
    ):
        assert line in text.splitlines()
    assert reason.partition("bold")[0] in text, "markup in what an EP said is shown, not obeyed"


def test_a_named_summary_file_gets_the_tables_instead(summary: Path, tmp_path: Path) -> None:
    with make_reporter(json=False, summary=tmp_path / "own.md") as listener:
        for event in (RemoteCacheUsed("s3://x", 5, 4, 0, 1_900_000, 0, 0, 0.5), ENDED):
            listener.report(event)
    text = (tmp_path / "own.md").read_text(encoding="utf-8")
    assert "Remote cache: 4 of 5 found, 1.9 MB in 0.5 s." in text.splitlines()
    assert summary.read_text(encoding="utf-8") == "# Of an earlier command\n"


def test_a_build_that_cannot_begin_writes_its_errors(summary: Path) -> None:
    error = RecipeError(Problem("EPB101", "there is no key 'modles'", Position("epbuild.yaml", 3, 1), "Did you mean 'models'?"))
    with pytest.raises(RecipeError), make_reporter(json=False):
        raise error
    row = "| `epbuild.yaml:3:1` | `there is no key 'modles'. Did you mean 'models'? [EPB101]` |"
    assert row in summary.read_text(encoding="utf-8").splitlines()


def test_an_unwritable_summary_is_a_warning(
    summary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary / "below a file"))
    build(RunStarted("r", 1, 1), ENDED)
    assert capsys.readouterr().err.startswith("::warning::cannot write the summary to ")


@pytest.mark.slow
def test_a_summary_never_exceeds_the_limit_of_github(summary: Path) -> None:
    steps = [f"compile:g/x/{'m' * 90}{number}" for number in range(3_000)]
    failed = [
        StepFailed(step, (Problem("EPB402", f"reason {number}", StepId(step)),)) for number, step in enumerate(steps[:1_200])
    ]
    built = [StepFinished(step, "built", 1.0, "", 10) for step in steps[1_200:]]
    sizes = [OutputCompared(step, step, None, 10, ()) for step in steps]
    for _ in range(4):
        build(RunStarted("r", 3_000, 3_000), *failed, *built, *sizes, ENDED)
    text = summary.read_bytes()
    assert 500_000 < len(text) <= 1 << 20
    failed_rows, size_rows = (
        text.partition(f"<summary>{name}".encode())[2].partition(b"</details>")[0] for name in ("Failures", "Sizes")
    )
    assert b"and 200 more." in failed_rows
    assert b"and 2000 more." in size_rows


def test_a_models_name_cannot_break_a_table_row(summary: Path) -> None:
    problem = Problem("EPB203", "the file a|b`\n| x | is not there", StepId("compile:g/x/a|b"))
    build(Warned(problem), RunStarted("r", 1, 1), StepFailed("compile:g/x/a|b", (problem,)), ENDED)
    rows = [line for line in summary.read_text(encoding="utf-8").splitlines() if "EPB203" in line]
    assert len(rows) == 2
    assert all(row.count("|") == 3 and row.startswith("| ") and row.endswith(" |") for row in rows)


def test_without_the_variable_no_summary_is_written(summary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "")
    build(*EVENTS)
    with pytest.raises(BuildError), make_reporter(json=False):
        raise BuildError(Problem("EPB401", "no"))
    assert summary.read_text(encoding="utf-8") == "# Of an earlier command\n"
