"""Measurements by a user's command: the example for adb with a fake adb, limits on its figures, and damaged figures."""

from __future__ import annotations

import html
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from epbuild import api
from epbuild.cache.blobs import BlobStore
from epbuild.cli.app import execute
from epbuild.cluster.request import build_request, list_files, parse_action, read_request
from epbuild.commands.reporting.report import report
from epbuild.core.digest import hash_file
from epbuild.plan.measuring import ModelMeasurement, build_measurement_document
from epbuild.toolchain.process import Ending, supervise
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, Workshop
from tests.support.projects import RECIPES

MEASURE = "measure:classifier/plain"
EXPECT = "    expect: {fallback_nodes: any}\n"
COMMAND = 'measure: {command: [python, run.py, "${in}", "${out}", "${facts}"], files: [run.py]}\n'
FAKE_ADB = f"""\
#!{sys.executable}
import pathlib, shutil, sys
phone = pathlib.Path(__file__).parent / "phone"
if not phone.is_dir():
    sys.exit("adb: no devices/emulators found")
match sys.argv[1:]:
    case ["push", source, place]:
        shutil.copy(source, phone / pathlib.Path(place).name)
    case ["pull", place, copy]:
        shutil.copy(phone / pathlib.Path(place).name, copy)
    case ["shell", command] if "perf_test" in command:
        (phone / "profile.csv").write_text("node,cycles\\nconv,7\\n")
        print("Session creation time cost: 0.25 s\\nFirst inference time cost: 12 ms\\nPeak working set size: 4096 bytes")
        print("P50 Latency: 0.004 s\\nP95 Latency: 0.0055 s")
    case ["shell", "getprop ro.product.model"]:
        print("SM-S918B")
"""


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    found = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    found.serve_commands(monkeypatch)

    found.run_worker = partial(run_worker, found, supervise)
    return found


def run_worker(workshop: Workshop, run: Any, command: Any, folder: Path, log: Path, **options: Any) -> Ending:
    """Compile with the fake EP, and run commands with `run`."""
    is_command = {"command", "models"} & json.loads((folder / "request.json").read_text(encoding="utf-8")).keys()
    return (run if is_command else workshop.worker)(command, folder, log, **options)


def run_in_process(command: Any, folder: Path, log: Path, **options: Any) -> Ending:
    """Run the user's script in this process, which takes less time than two processes."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    arguments = [str(folder / word) for word in request["command"][1:]]
    exec(compile(Path(arguments[0]).read_bytes(), "run.py", "exec"), {"ARGUMENTS": arguments})
    log.write_text("measured\n", encoding="utf-8")
    return Ending("exited", 0, ({"event": "finished", "peak_memory": None},), ())


def measured(workshop: Workshop, script: str, keys: str = "", more: str = "") -> None:
    """Write a recipe that measures the classifier with a script, and expects `keys`."""
    if "ARGUMENTS" in script:
        workshop.run_worker = partial(run_worker, workshop, run_in_process)
    (workshop.folder / "run.py").write_text(script, encoding="utf-8")
    expect = EXPECT.replace("}", f", {keys}}}") if keys else EXPECT
    workshop.write_recipe((EXPECT, f"{expect}    {COMMAND[:-2]}{more}}}\n"))


def printing(**figures: Any) -> str:
    """Return a script that writes figures."""
    return (
        f"import pathlib\nout = pathlib.Path(ARGUMENTS[2]).parent\n(out / 'figures.json').write_text({json.dumps(figures)!r})\n"
    )


def result_of(workshop: Workshop) -> dict[str, Any]:
    return dict(workshop.record(MEASURE).result["models"][0])


def test_the_example_measures_on_a_phone_that_adb_reaches(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adb = tmp_path / "bin" / "adb"
    (adb.parent / "phone").mkdir(parents=True)
    adb.write_text(FAKE_ADB, encoding="utf-8")
    adb.chmod(0o755)
    monkeypatch.setenv("PATH", str(adb.parent), prepend=":")
    measured(workshop, (RECIPES / "adb-run.py").read_text(encoding="utf-8"), "latency_ms: 4, load_ms: 250, peak_memory: 4096")
    assert execute(["run"]) == 0
    assert "load_ms 250 ms, latency_ms.first 12 ms" in (said := " ".join(capsys.readouterr().out.split()))
    assert "on the device 'SM-S918B', 1 file" in said
    assert result_of(workshop)["figures"] == {
        "load_ms": 250, "latency_ms.first": 12, "latency_ms.p50": 4, "latency_ms.p95": 5.5, "peak_memory": 4096,
    }  # fmt: skip
    [profile] = (workshop.folder / ".epbuild" / "logs").rglob("profile.csv")
    assert profile.read_text(encoding="utf-8") == "node,cycles\nconv,7\n"
    model = json.loads(workshop.contents("classifier")["manifest.json"])["models"][0]
    assert model["measured"] == {"figures": result_of(workshop)["figures"], "on": "device", "device": "SM-S918B"}
    shutil.rmtree(adb.parent / "phone")
    assert workshop.build().exit_code == 0, "the stored figures need no phone"
    before = workshop.contents("classifier")
    (workshop.folder / "classifier.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())
    assert execute(["run"]) == 3
    assert "no devices/emulators found" in capsys.readouterr().err
    assert execute(["report"]) == 0
    assert "1 failed measure" in capsys.readouterr().out
    assert workshop.contents("classifier") == before
    (adb.parent / "phone").mkdir()
    assert execute(["run"]) == 0, "a failure on this machine is not remembered"


def test_a_figure_above_its_limit_by_a_hair_leaves_the_earlier_output(
    workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    measured(workshop, printing(latency_ms={"p50": 4.0001}))
    assert workshop.build().exit_code == 0
    before = workshop.contents("classifier")
    measured(workshop, printing(latency_ms={"p50": 4.0001}), "latency_ms: 4.0001")
    assert workshop.build().exit_code == 0
    assert workshop.contents("classifier") == before
    (workshop.folder / "classifier.onnx").write_bytes((workshop.folder / "decode.onnx").read_bytes())
    measured(workshop, printing(latency_ms={"p50": 4.0001}), "latency_ms: 4")
    assert execute(["run", "--junit", "report.xml"]) == 1
    assert workshop.contents("classifier") == before
    said = "the model 'classifier' has a latency_ms.p50 of 4.0001 ms on the device; the recipe expects at most 4 ms"
    assert said in html.unescape((workshop.folder / "report.xml").read_text("utf-8"))
    assert execute(["report", "-o", "report.json"]) == 0
    document = json.loads((workshop.folder / "report.json").read_text("utf-8"))
    assert document["measurements"] == [
        {
            "step": MEASURE,
            "group": "classifier",
            "target": "plain",
            "member": "classifier",
            "figures": {"latency_ms.p50": 4.0001},
            "limits": {"latency_ms.p50": 4},
            "on": "device",
            "device": None,
            "files": [],
        }
    ]
    assert said[1:] in document["failures"][0]["reason"]
    capsys.readouterr()
    assert execute(["coverage", "--json"]) == 0
    for rows in (document["coverage"], json.loads(capsys.readouterr().out)["rows"]):
        [row] = [row for row in rows if row["model"] == "classifier"]
        assert (row["outcome"], row["reason"]) == ("failed measure", said)


def test_growth_is_compared_with_figures_of_the_same_device(workshop: Workshop) -> None:
    measured(workshop, printing(load_ms=11, device="A"))
    workshop.build()
    manifest = json.loads(workshop.contents("classifier")["manifest.json"])
    [built] = report(workshop.request).history
    assert built.totals is not None
    [row] = built.totals.figures
    assert (row.member, row.figures, row.on, row.device) == ("classifier", {"load_ms": 11}, "device", "A")
    measured(workshop, printing(load_ms=11, device="A"), "max_growth: {load_ms: 0.1}, baseline: release.json")
    found = "the model 'classifier' has a load_ms of 11 ms on the device 'A'"
    none = f"{found}, but release.json has no load_ms of {MEASURE} to compare with"
    for before, said in (
        ({"figures": {"load_ms": 10}, "on": "device", "device": "A"}, None),
        (
            {"figures": {"load_ms": 9.9999}, "on": "device", "device": "A"},
            f"{found}; the recipe expects at most 10.99989 ms: 9.9999 ms in release.json, and a growth of 10 %",
        ),
        (
            {"figures": {"load_ms": 10}, "on": "emulator", "device": "A"},
            f"{found}; release.json has 10 ms on an emulator 'A', which cannot be compared",
        ),
        (
            {"figures": {"load_ms": 10}, "on": "device"},
            f"{found}; release.json has 10 ms on the device, which cannot be compared",
        ),
        ({"figures": {"peak_memory": 10}, "on": "device", "device": "A"}, none),
        (None, none),
    ):
        manifest["models"][0].pop("measured", None)
        if before is not None:
            manifest["models"][0]["measured"] = before
        (workshop.folder / "release.json").write_text(json.dumps(manifest), encoding="utf-8")
        assert workshop.build().exit_code == (0 if said is None else 1)
        assert [problem.message for problem in workshop.problems] == ([] if said is None else [said])
    last = {"group": "classifier", "target": "plain", "member": "classifier", "on": "device", "device": "A"}
    document = {"format": 1, "steps": [], "measurements": [{**last, "figures": {"load_ms": 10}}]}
    (workshop.folder / "release.json").write_text(json.dumps(document), encoding="utf-8")
    assert workshop.build().exit_code == 0


@pytest.mark.parametrize(
    ("figures", "keys", "code"),
    [
        ({"load_ms": 1}, "peak_memory: 4 KB", "EPB657"),
        ({"load_ms": 1, "on": "emulator"}, "load_ms: 2", "EPB657"),
        ({"load_ms": 1, "on": "cpu"}, "load_ms: 2", "EPB657"),
        ({"load_ms": 2.5}, "load_ms: 2", "EPB656"),
        ({"latency_ms": {"p95": 2.5}}, "latency_ms: {p95: 2}", "EPB656"),
        ({"peak_memory": 2001}, "peak_memory: 2 KB", "EPB656"),
        ({}, "", "EPB461"),
        ({"load_ms": "1"}, "", "EPB461"),
        ({"load_ms": -1}, "", "EPB461"),
        ({"load_ms": True}, "", "EPB461"),
        ({"load_ms": 1, "other": 1}, "", "EPB461"),
        ({"load_ms": float("nan")}, "", "EPB461"),
        ({"latency_ms": {"p50": 2, "p95": 1}}, "", "EPB461"),
        ({"load_ms": 1, "device": "x" * 201}, "", "EPB461"),
    ],
)
def test_a_missing_excessive_or_invalid_figure_fails(workshop: Workshop, figures: dict[str, Any], keys: str, code: str) -> None:
    measured(workshop, printing(**figures), keys)
    assert workshop.build("emit:classifier/*").exit_code == 1
    assert workshop.failures == [code]
    assert not workshop.output("classifier").exists()


def test_a_limit_can_be_for_the_emulator(workshop: Workshop) -> None:
    measured(workshop, printing(load_ms=1, on="emulator"), "load_ms: 2", ", on: emulator")
    assert workshop.build("emit:classifier/*").exit_code == 0
    assert "on an emulator" in str(workshop.events)


@pytest.mark.parametrize(
    "line",
    [
        "(out / 'link').symlink_to('/etc/hostname')",
        "(out / 'a:b').write_text('x')",
        "[(out / str(number)).write_text('x') for number in range(101)]",
        "(out / 'figures.json').unlink()",
        "(out / 'figures.json').unlink(); (out / 'figures.json').symlink_to('/etc/hostname')",
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="the files cannot exist on Windows")
def test_files_that_cannot_be_kept_are_refused(workshop: Workshop, line: str) -> None:
    measured(workshop, f"{printing(load_ms=1)}{line}\n")
    assert workshop.build("emit:classifier/*").exit_code == 1
    assert workshop.failures == ["EPB461"]


def test_measure_prints_new_and_current_figures_and_emits_nothing(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    measured(workshop, printing(load_ms=1234.5, latency_ms={"p50": 4.0001}, peak_memory=4096, device="SM-S918B"), "latency_ms: 4")
    table = [
        "On the device 'SM-S918B'          load       p50       p95     first      memory",
        "classifier/plain/classifier   1,234 ms     4 ms!         -         -      4.1 kB",
        "! above the limit of the recipe",
    ]
    assert execute(["measure"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == table
    assert f"[1/2] built {CLASSIFIER}" in said.err
    assert "[EPB656]" in said.err
    assert not workshop.output("classifier").exists()
    with pytest.raises(api.BuildFailed, match="expects at most 4"):
        api.measure(workshop.request)
    measured(workshop, printing(load_ms=1234.5, latency_ms={"p50": 4.0001}, peak_memory=4096, device="SM-S918B"), "latency_ms: 5")
    assert execute(["measure", "--json"]) == 0
    said = capsys.readouterr()
    assert "built" not in said.err
    [row] = json.loads(said.out)["rows"]
    assert (row["step"], row["figures"]["load_ms"], row["device"]) == (MEASURE, 1234.5, "SM-S918B")
    assert repr(api.measure(workshop.request)).splitlines() == [
        "1 measured model",
        "model       target  on        latency_ms.p50  load_ms  peak_memory",
        "classifier  plain   SM-S918B  4.0001          1234.5   4096",
    ]
    assert execute(["measure", "compile:*"]) == 0
    assert capsys.readouterr().out == "The selected steps measured nothing.\n"
    assert execute(["measure", "--offline", "--remote-cache", "write"]) == 2
    workshop.write_recipe()
    assert execute(["measure"]) == 2
    assert "The recipe measures nothing: add `measure: {on: device}` to a target or a group." in capsys.readouterr().err


def test_a_limit_without_a_measurement_is_refused(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    workshop.write_recipe((EXPECT, EXPECT.replace("}", ", load_ms: 1}")))
    assert execute(["validate"]) == 2
    assert "[EPB299]" in capsys.readouterr().err


def test_a_change_of_the_command_measures_again_and_a_change_of_a_limit_does_not(workshop: Workshop) -> None:
    measured(workshop, printing(load_ms=1), "load_ms: 1")
    workshop.build()
    measured(workshop, printing(load_ms=1), "load_ms: 2")
    assert (workshop.states()[MEASURE], workshop.states()[EMIT_CLASSIFIER]) == ("current", "current")
    measured(workshop, printing(load_ms=2), "load_ms: 2")
    assert (workshop.states()[CLASSIFIER], workshop.states()[MEASURE]) == ("current", "out of date")
    measured(workshop, printing(load_ms=1), "load_ms: 1", ", environment: {A: b}")
    assert workshop.states()[MEASURE] == "out of date"


def run_models(command: Any, folder: Path, log: Path, **options: Any) -> Ending:
    """Act as a worker that runs models on an emulator, where run N takes N milliseconds."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    reports: list[dict[str, Any]] = [{"event": "device", "ep": "QNNExecutionProvider", "type": "cpu", "vendor": "Intel"}]
    for model in request["models"]:
        reports.append({"event": "opened", "model": model["name"], "seconds": 0.25})
        runs = enumerate(model["inputs"], 1)
        reports += [{"event": "ran", "model": model["name"], "run": n, "outputs": ["y"], "seconds": n / 1000} for n, _ in runs]
    log.write_text("ran\n", encoding="utf-8")
    return Ending("exited", 0, (*reports, {"event": "finished", "peak_memory": 4096}), ())


def test_models_are_measured_without_a_command_as_another_machine_would(workshop: Workshop) -> None:
    workshop.run_worker = partial(run_worker, workshop, run_models)
    workshop.write_recipe((EXPECT, f"{EXPECT}    measure: {{on: emulator, runs: 21}}\n"))
    assert workshop.build("emit:classifier/*").exit_code == 0
    row = result_of(workshop)
    assert row["figures"] == {
        "load_ms": 250, "latency_ms.first": 1, "latency_ms.p50": 11.5, "latency_ms.p95": 20, "peak_memory": 4096,
    }  # fmt: skip
    assert (row["on"], row["device"].partition(",")[0]) == ("emulator", "cpu from Intel")
    made = workshop.survey().actions[MEASURE].made
    assert made is not None
    action, document = made.action, made.document
    assert isinstance(action, ModelMeasurement)
    digests = {path: hash_file(path) for path in list_files(action)}
    request = build_request(action, made.key, digests, [blob for item in made.needed for blob in item.result.artifacts.values()])
    assert str(workshop.folder) not in request.text
    there = parse_action(read_request(request.text), BlobStore(workshop.cache))
    assert isinstance(there, ModelMeasurement)
    assert build_measurement_document(there, {}, document["toolchain"]) == document
    workshop.write_recipe((EXPECT, f"{EXPECT}    measure: {{on: device, runs: 21}}\n"))
    before = workshop.contents("classifier")
    assert workshop.build("emit:classifier/*").exit_code == 3
    assert (workshop.failures, workshop.contents("classifier")) == (["EPB667"], before)
