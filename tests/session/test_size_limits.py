"""Limits on the size of results: absolute, and relative to the report of the last release."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from epbuild.cli.app import execute
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, SHARE, Workshop

EXPECT = "    expect: {fallback_nodes: any}\n"
DECODER = "expect: {ep_context_nodes: 1, fallback_nodes: 1}"
REPORTS = ("report.xml", "report.md", "report.json")


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    found = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    found.serve_commands(monkeypatch)
    return found


def limit(workshop: Workshop, keys: str) -> None:
    workshop.write_recipe((EXPECT, EXPECT.replace("}", f", {keys}}}")))


def size_of(workshop: Workshop, action: str) -> int:
    return sum(blob["size"] for blob in workshop.record(action).result["artifacts"].values())


def release(workshop: Workshop, change: int = 0) -> int:
    """Build, write the report to `release.json`, and return the classifier's size in the report. `change` is added to that size."""
    assert execute(["run"]) == 0
    assert execute(["report", "-o", "release.json"]) == 0
    document = json.loads((workshop.folder / "release.json").read_text(encoding="utf-8"))
    [step] = [step for step in document["steps"] if step["id"] == CLASSIFIER]
    step["size"] += change
    (workshop.folder / "release.json").write_text(json.dumps(document), encoding="utf-8")
    return int(step["size"])


def test_a_result_at_its_limit_is_emitted_with_the_limit_in_its_note(workshop: Workshop) -> None:
    workshop.build()
    size = size_of(workshop, CLASSIFIER)
    limit(workshop, f"max_bytes: {size}")
    assert (execute(["run"]), workshop.states()[EMIT_CLASSIFIER]) == (0, "current")
    limit(workshop, "max_bytes: 1 GB")
    (workshop.folder / "classifier.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())
    assert workshop.build().exit_code == 0
    assert any(getattr(event, "note", "").endswith("limit 1,000,000,000 bytes") for event in workshop.events)


def test_a_result_one_byte_above_its_limit_leaves_the_earlier_output(
    workshop: Workshop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(workshop.folder / REPORTS[1]))
    workshop.build()
    before, size = workshop.contents("classifier"), size_of(workshop, CLASSIFIER)
    limit(workshop, f"max_bytes: {size - 1}")
    (workshop.folder / "classifier.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())
    assert execute(["run", "--junit", REPORTS[0]]) == 1
    assert workshop.contents("classifier") == before
    said = f"the model 'classifier' has {size:,} bytes; the recipe expects at most {size - 1:,}"
    assert said in " ".join(capsys.readouterr().err.split())
    assert execute(["report", "-o", REPORTS[2]]) == 0
    for name in REPORTS:
        text = (workshop.folder / name).read_text(encoding="utf-8")
        assert f"{size:,} bytes" in text, name
        assert f"{size - 1:,}" in text, name
    assert execute(["coverage", "--json"]) == 0
    for rows in (json.loads(text)["coverage"], json.loads(capsys.readouterr().out)["rows"]):
        assert [(row["outcome"], row["reason"]) for row in rows if row["model"] == "classifier"] == [("failed", said)]


def test_growth_is_compared_exactly_with_the_last_report(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    size = release(workshop)
    limit(workshop, "max_growth: 0, baseline: release.json")
    assert execute(["run"]) == 0
    release(workshop, -1)
    assert execute(["run"]) == 1, "a changed baseline must not pass as nothing to do"
    said = " ".join(capsys.readouterr().err.split())
    assert f"has {size:,} bytes; the recipe expects at most {size - 1:,}: {size - 1:,} bytes in release.json" in said
    limit(workshop, "max_growth: 0.01, baseline: release.json")
    assert execute(["run"]) == 0


def test_growth_is_compared_exactly_with_the_last_manifest(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.build()
    shutil.copytree(workshop.folder / "dist", workshop.folder / "last")
    limit(workshop, "max_growth: 0, baseline: last/classifier/manifest.json")
    workshop.write_recipe(
        (EXPECT, EXPECT.replace("}", ", max_growth: 0, baseline: last/classifier/manifest.json}")),
        (DECODER, DECODER.replace("}", ", max_growth: 0, baseline: last}")),
    )
    assert execute(["run"]) == 0
    for name, action, said in (("decoder", SHARE, "sharing set of 'prefill'"), ("classifier", CLASSIFIER, "model 'classifier'")):
        size, path = size_of(workshop, action), workshop.folder / "last" / name / "manifest.json"
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f'"compiled_size": {size}', f'"compiled_size": {size - 1}'), encoding="utf-8")
        assert execute(["run"]) == 1
        assert f"the {said} has {size:,} bytes; the recipe expects at most {size - 1:,}" in " ".join(
            capsys.readouterr().err.split()
        )
        path.write_text(text, encoding="utf-8")
    assert execute(["run"]) == 0


def test_a_model_that_the_baseline_lacks_needs_an_absolute_limit(workshop: Workshop) -> None:
    (workshop.folder / "release.json").write_text('{"format": 1, "steps": []}', encoding="utf-8")
    limit(workshop, "max_growth: 0.5, baseline: release.json")
    assert workshop.build().exit_code == 1
    assert workshop.failures == ["EPB657"]
    assert not workshop.output("classifier").exists()
    limit(workshop, "max_growth: 0.5, baseline: release.json, max_bytes: 1 GB")
    assert workshop.build().exit_code == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2, "steps": []}', '{"format": 1, "steps": [{"action": "a", "size": -1}]}']
)
def test_a_file_that_is_no_report_is_refused_as_a_baseline(
    workshop: Workshop, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (workshop.folder / "release.json").write_text(text, encoding="utf-8")
    limit(workshop, "max_growth: 0.5, baseline: release.json")
    assert execute(["validate"]) == 2
    assert "[EPB298]" in capsys.readouterr().err


def test_a_sharing_set_is_limited_as_a_whole(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.build()
    size = size_of(workshop, SHARE)
    workshop.write_recipe((DECODER, DECODER.replace("}", f", max_bytes: {size - 1}}}")))
    assert workshop.build().exit_code == 1
    assert f"the sharing set of 'prefill' has {size:,} bytes" in workshop.problems[0].message
    workshop.write_recipe(("[prefill, decode]", "[prefill, {model: decode, expect: {max_bytes: 9}}]"))
    assert execute(["validate"]) == 2
    assert "[EPB230]" in capsys.readouterr().err
