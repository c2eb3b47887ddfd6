"""JUnit XML of builds: valid by Jenkins' schema for all step names and all ends of a build."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st

from epbuild.core.errors import EnvironmentFailure, Position, Problem, RecipeError, StepId
from epbuild.engine.events import Event, RunFinished, RunStarted, StepFailed, StepFinished, StepStarted
from epbuild.report.ci.junit import JUnitDocument, get_suite
from epbuild.report.listeners import DocumentFile, Listener
from epbuild.session.events import StepCompared

SCHEMA = xmlschema.XMLSchema(Path(__file__).parent / "schemas/junit-10.xsd")
REFUSED = Problem("EPB401", "Unable to compile any nodes", StepId("compile:main/phone/relu"), "See the log.")


class Silent(Listener):
    def report(self, event: Event, /) -> None:
        pass


def written(*events: Event, error: BaseException | None = None) -> ET.Element:
    document = JUnitDocument()
    for event in events:
        document.report(event)
    text = document.text(error)
    SCHEMA.validate(text)
    return ET.fromstring(text.encode())


def cases(root: ET.Element) -> dict[str, tuple[str, str, str | None]]:
    """Return the suite, the outcome and the message of each case."""
    found = {}
    for suite in root:
        for case in suite:
            below = next((child for child in case if child.tag != "system-out"), None)
            kind, message = ("passed", None) if below is None else (below.tag, below.get("message"))
            found[str(case.get("name"))] = (str(suite.get("name")), kind, message)
    return found


def test_each_step_is_a_case_in_the_suite_of_its_group_and_target() -> None:
    root = written(
        RunStarted("tiny", 7, 6),
        StepFinished("prepare:relu/1-simplify", "built", 0.5),
        StepStarted("compile:main/phone/relu", "compiling"),
        StepFailed("compile:main/phone/relu", (REFUSED,)),
        StepFinished("emit:main/phone/directory", "skipped", 0.0, "needs compile:main/phone/relu"),
        StepFinished("compile:main/tablet/relu", "built", 1.5, "note", 10),
        StepFinished("emit:main/tablet/directory", "current", 0.0),
        StepFailed("compile:other/phone/big", (REFUSED, Problem("EPB402", "and it timed out")), allowed=True),
        StepFinished("emit:package", "restored", 0.1, from_="remote"),
        RunFinished(1, 2.5, 3, 1, 1, 1, 1, 1),
    )
    why = "Unable to compile any nodes. See the log."
    assert cases(root) == {
        "prepare:relu/1-simplify": ("prepare:relu", "passed", None),
        "compile:main/phone/relu": ("main/phone", "failure", why),
        "emit:main/phone/directory": ("main/phone", "skipped", "needs compile:main/phone/relu"),
        "compile:main/tablet/relu": ("main/tablet", "passed", None),
        "emit:main/tablet/directory": ("main/tablet", "passed", None),
        "compile:other/phone/big": ("other/phone", "skipped", f"failed, which the recipe allows: {why} and it timed out."),
        "emit:package": ("emit:package", "passed", None),
    }
    assert {name: root.get(name) for name in ("name", "tests", "failures", "errors")} == {
        "name": "tiny", "tests": "7", "failures": "1", "errors": "0",
    }  # fmt: skip
    suite = next(suite for suite in root if suite.get("name") == "main/tablet")
    assert (suite.get("time"), suite.get("tests"), suite[0].get("classname")) == ("1.500", "2", "main.tablet")
    [failure] = root.iter("failure")
    assert (failure.get("type"), failure.text) == ("EPB401", str(REFUSED))


def test_a_differing_rebuild_is_a_separate_case() -> None:
    step = "share:main/phone"
    compared = StepCompared(step, "different", 1.0, 2, 10, problems=(Problem("EPB650", "not the same", StepId(step)),))
    assert cases(written(StepFinished(step, "built", 1.0), compared)) == {
        step: ("main/phone", "passed", None),
        f"rebuilt: {step}": ("main/phone", "failure", "not the same."),
    }


def test_an_error_that_aborts_a_build_is_an_error_case() -> None:
    mistakes = RecipeError(Problem("EPB103", "unknown key", Position("epbuild.yaml", 3, 1)), Problem("EPB104", "missing"))
    assert cases(written(error=mistakes)) == {
        "EPB103 epbuild.yaml:3:1": ("epbuild run", "error", "unknown key."),
        "EPB104": ("epbuild run", "error", "missing."),
    }
    root = written(StepFinished("share:main/phone", "built", 1.0), error=KeyboardInterrupt())
    assert cases(root)["the build"] == ("epbuild run", "error", "interrupted")
    assert root.get("errors") == "1"


TEXTS = st.text(st.characters(), max_size=30) | st.sampled_from(
    ["\x00\x1b[31m", "]]>", "<&\"'>", "\ud800", "\r\n", "\ufffe", "a\u2028b"]
)


@given(TEXTS, TEXTS, TEXTS)
def test_hostile_names_and_messages_are_escaped(recipe: str, name: str, message: str) -> None:
    root = written(
        RunStarted(recipe, 2, 2),
        StepFinished(f"compile:{name}/phone/{name}", "built", 1234567.89, message),
        StepFailed(f"emit:{name}", (Problem("EPB401", message, StepId(name), message),)),
        error=RecipeError(Problem("EPB103", message, Position(name, 1, 1))),
    )
    assert root.get("tests") == "3"


@pytest.mark.parametrize(
    ("step", "suite"),
    [
        ("compile:decoder/SM8750/prefill", "decoder/SM8750"),
        ("emit:decoder/SM8750/directory", "decoder/SM8750"),
        ("prepare:model/1-simplify", "prepare:model"),
        ("emit:all", "emit:all"),
    ],
)
def test_the_suite_of_a_step(step: str, suite: str) -> None:
    assert get_suite(step) == suite


def test_a_failed_build_writes_a_complete_file_and_creates_its_folders(tmp_path: Path) -> None:
    place = tmp_path / "reports" / "junit.xml"
    with pytest.raises(RecipeError), DocumentFile(Silent(), place, JUnitDocument()):
        raise RecipeError(Problem("EPB103", "unknown key"))
    SCHEMA.validate(place)
    assert [path.name for path in place.parent.iterdir()] == ["junit.xml"]


def test_an_unwritable_file_is_an_error_that_hides_no_other_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "junit.xml"
    with pytest.raises(EnvironmentFailure, match="EPB443"), DocumentFile(Silent(), place, JUnitDocument()):
        pass
    with pytest.raises(RecipeError), DocumentFile(Silent(), place, JUnitDocument()):
        raise RecipeError(Problem("EPB103", "unknown key"))
    assert "[EPB443]" in capsys.readouterr().err
