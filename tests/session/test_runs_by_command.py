"""Runs of compiled models by a user's command: the example for adb with a fake adb, inaccurate outputs, and unusable files."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest

from epbuild.cli.app import execute
from epbuild.cluster.request import find_local_reason
from epbuild.toolchain.process import Ending, supervise
from tests.support.fake_builds import Workshop
from tests.support.projects import RECIPES

VERIFY = "verify:classifier/plain"
EXPECT = "    expect: {fallback_nodes: any}\n"
COMMAND = 'command: {run: [python, run.py, "${in}", "${out}"], files: [run.py]}'
OFFSET = 2.5
"""Constant that the classifier adds to its input."""
BAD_HEADER = r"""
import zipfile
with zipfile.ZipFile(out / '00001.npz', 'w') as archive:
    archive.writestr('y.npy', b"\x93NUMPY\x01\x00\x0c\0{1:2, 'a':3}")
"""
"""Script that writes an array whose header makes NumPy raise a TypeError."""
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
    case ["shell", command] if "run_model classifier_ctx.onnx inputs.npz outputs.npz" in command:
        import numpy
        assert (phone / "classifier_ctx.onnx").is_file()
        numpy.savez(phone / "outputs.npz", y=numpy.load(phone / "inputs.npz")["x"] + numpy.float32({OFFSET}))
    case ["shell", "getprop ro.product.model"]:
        print("SM-S918B")
"""


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    found = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    found.serve_commands(monkeypatch)
    for number in range(2):
        sample = numpy.random.default_rng(number).standard_normal(4).astype(numpy.float32)
        numpy.savez(found.folder / f"sample{number}.npz", x=sample)
    return found


def write_recipe(workshop: Workshop, script: str, metrics: str = "{cosine: 0.99}") -> None:
    """Write a recipe whose classifier is run by a script. A script without `given` runs in a process of its own."""
    workshop.run_worker = partial(run_worker, workshop, run_script if "given / 'inputs'" in script else supervise)
    (workshop.folder / "run.py").write_text(script, encoding="utf-8")
    verify = f"    verify: {{data: 'sample*.npz', metrics: {metrics}, {COMMAND}}}\n"
    workshop.write_recipe((EXPECT, EXPECT + verify))


def run_worker(workshop: Workshop, run: Any, command: Any, folder: Path, log: Path, **options: Any) -> Ending:
    """Compile with the fake EP, run sources as the CPU EP, and run commands with `run`."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    if "models" not in request:
        return (run if "command" in request else workshop.worker)(command, folder, log, **options)
    [source] = request["models"]
    assert request["eps"] == [], "only the command runs the compiled model"
    for inputs in source["inputs"]:
        numpy.savez(inputs["outputs"], numpy.load(inputs["file"])["arr_0"] + numpy.float32(OFFSET))
    return finish(log, *({"event": "ran", "model": source["name"], "outputs": ["y"]} for _ in source["inputs"]))


def run_script(command: Any, folder: Path, log: Path, **options: Any) -> Ending:
    """Run the user's script in this process, which takes less time."""
    exec(compile((folder / "files/run.py").read_bytes(), "run.py", "exec"), {"given": folder / "in", "out": folder / "out"})
    return finish(log)


def finish(log: Path, *reports: dict[str, Any]) -> Ending:
    log.write_text("ran\n", encoding="utf-8")
    return Ending("exited", 0, (*reports, {"event": "finished", "peak_memory": None}), ())


def adding(offset: float, more: str = "") -> str:
    """Return a script that computes the outputs with an offset."""
    return (
        "import numpy\nfor path in (given / 'inputs').iterdir():\n"
        f"    numpy.savez(out / path.name, y=numpy.load(path)['x'] + numpy.float32({offset}))\n"
        f"(out / 'device.txt').write_text('phone 7\\n')\n{more}\n"
    )


@pytest.mark.slow
def test_the_example_runs_models_on_a_phone_that_adb_reaches(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adb = tmp_path / "bin" / "adb"
    (adb.parent / "phone").mkdir(parents=True)
    adb.write_text(FAKE_ADB, encoding="utf-8")
    adb.chmod(0o755)
    monkeypatch.setenv("PATH", str(adb.parent), prepend=":")
    write_recipe(workshop, (RECIPES / "adb-verify.py").read_text(encoding="utf-8"))
    assert execute(["run"]) == 0
    assert "cosine 1.000000, run by the command on 'SM-S918B'" in " ".join(capsys.readouterr().out.split())
    [figures] = json.loads(workshop.contents("classifier")["manifest.json"])["models"][0]["figures"]
    assert (figures["output"], figures["samples"], figures["command_device"]) == ("y", 2, "SM-S918B")
    assert execute(["report", "-o", "report.json"]) == 0
    [row] = json.loads((workshop.folder / "report.json").read_text("utf-8"))["accuracy"]
    assert (row["outcome"], row["on"]) == ("passed", "for 2 sets of inputs, run by the command on 'SM-S918B'")
    made = workshop.survey().actions[VERIFY].made
    assert made is not None
    assert find_local_reason(made.action) == "its command runs models on a device of this machine"
    shutil.rmtree(adb.parent / "phone")
    assert workshop.build().exit_code == 0, "the stored figures need no phone"
    before = workshop.contents("classifier")
    numpy.savez(workshop.folder / "sample1.npz", x=numpy.array([1, 2, 3, 4], numpy.float32))
    capsys.readouterr()
    assert execute(["run"]) == 3
    assert "no devices/emulators found" in capsys.readouterr().err
    assert workshop.contents("classifier") == before
    assert workshop.states()[VERIFY] == "out of date", "a failure on this machine is not remembered"


def test_outputs_that_differ_by_a_hair_too_much_leave_the_earlier_output(workshop: Workshop) -> None:
    write_recipe(workshop, adding(OFFSET + 0.25), "{max_abs: 0.25}")
    assert workshop.build().exit_code == 0
    before = workshop.contents("classifier")
    write_recipe(workshop, adding(OFFSET + 0.25), "{max_abs: 0.2499}")
    assert (workshop.build().exit_code, workshop.failures) == (1, ["EPB646"])
    assert "(for 2 sets of inputs, run by the command on 'phone 7'): y: max_abs is 0.25" in workshop.problems[0].message
    assert workshop.contents("classifier") == before


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links need rights on Windows")
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("(out / 'device.txt').unlink()", "out/device.txt: it is missing or not a regular file"),
        ("(out / 'device.txt').write_text('\\x1b[31m')", "out/device.txt: expected the name of the device"),
        ("(out / 'device.txt').write_bytes(b'\\xff')", "out/device.txt: 'utf-8' codec"),
        ("(out / '00001.npz').unlink()", "out/00001.npz: it is missing or not a regular file"),
        ("(out / '00001.npz').unlink(); (out / '00001.npz').symlink_to('/etc/hostname')", "out/00001.npz: it is missing"),
        ("(out / '00001.npz').write_bytes(b'x')", "out/00001.npz: File is not a zip file"),
        ("numpy.savez(out / '00001.npz', z=numpy.ones(4))", "out/00001.npz: it lacks the output 'y'"),
        (BAD_HEADER, "out/00001.npz: '<' not supported"),
        ("numpy.savez(out / '00001.npz', y=numpy.array([{}]))", "out/00001.npz: Object arrays cannot be loaded"),
    ],
)
def test_unusable_files_of_a_command_are_refused(workshop: Workshop, more: str, told: str) -> None:
    write_recipe(workshop, adding(OFFSET, more))
    assert (workshop.build("emit:classifier/*").exit_code, workshop.failures) == (1, ["EPB461"])
    assert told in workshop.problems[0].message
    assert not workshop.output("classifier").exists()


def test_outputs_of_another_shape_fail(workshop: Workshop) -> None:
    write_recipe(workshop, adding(OFFSET, "numpy.savez(out / '00001.npz', y=numpy.ones(5, numpy.float32))"))
    assert (workshop.build("emit:classifier/*").exit_code, workshop.failures) == (1, ["EPB646"])
    assert "its source (for 2 sets of inputs, run by the command on 'phone 7'): " in workshop.problems[0].message
    assert not workshop.output("classifier").exists()
