"""Load worker: the order of sessions, unchanged arrays, and a truthful end."""

from __future__ import annotations

import ast
import json
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epbuild.toolchain.process import Ending, supervise
from tests.support.fake_sessions import write_package
from tests.support.worker_listener import WorkerWords
from tests.worker.scripts import FOLDER

pytestmark = pytest.mark.slow  # every test starts a process

QNN = "QNNExecutionProvider"


class Loader:
    """Scratch directory, and the worker's process in it with the fake onnxruntime."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        packages = folder / "packages"
        write_package(packages)
        self.code = textwrap.dedent(f"""
            import runpy, sys
            sys.path.insert(0, {str(packages)!r})
            sys.argv = ["load.py", "request.json"]
            runpy.run_path({str(FOLDER / "load.py")!r}, run_name="__main__")
        """)
        self.worker = WorkerWords()

    def model(self, name: str, inputs: list[dict[str, Any]] | None = None, written: str = "", **commands: Any) -> dict[str, Any]:
        (self.folder / f"{name}.json").write_text(json.dumps(commands), encoding="utf-8")
        return {
            "name": name,
            "file": str(self.folder / f"{name}.onnx"),
            "compatibility": {QNN: written} if written else {},
            "inputs": inputs or [],
            "compile": {"node_name_prefix": None},
            "read": "file",
            "data_folder": None,
            "data_in_memory": None,
            "profile": None,
            "free_dimensions": {},
            "denoted_dimensions": {},
        }

    def load(self, *models: dict[str, Any], **changes: Any) -> Ending:
        ep = {
            "name": QNN,
            "kind": "plugin",
            "module": "none",
            "library": "qnn.so",
            "registration": QNN,
            "device": {"type": None, "vendor": None, "metadata": {}, "virtual": False},
            "prefer": [],
            "options": {"backend_type": "htp"},
        }
        request = {
            "eps": [ep],
            "session_options": {"ep.share_ep_contexts": "1"},
            "share_weights": False,
            "members": [],
            "verbose": False,
            "lists_devices": False,
            "sdk_attributes": {},
        }
        request["here"] = {"eps": [{}], "custom_ops": [], "node_log": None}
        text = json.dumps({**request, "models": models, **changes})
        (self.folder / "request.json").write_text(text, encoding="utf-8")
        return supervise(
            [sys.executable, "-I", "-c", self.code],
            self.folder,
            self.folder / "log",
            self.worker,
            timeout=60,
            environment={},
            cancelled=threading.Event(),
        )

    def told(self, word: str) -> list[str]:
        return [line for line in self.worker.words if line.startswith(word)]


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    return Loader(tmp_path)


def events(ending: Ending) -> list[str]:
    return [" ".join([report["event"], *([report["model"]] if "model" in report else [])]) for report in ending.reports]


def test_load_script_needs_no_epbuild_and_supports_older_python() -> None:
    tree = ast.parse((FOLDER / "load.py").read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    # NumPy comes with onnxruntime.
    assert {name.split(".")[0] for name in imported} - sys.stdlib_module_names == {"onnxruntime", "numpy"}


def test_sessions_open_in_order_and_close_in_reverse_order(loader: Loader) -> None:
    ending = loader.load(loader.model("prefill"), loader.model("decode"))
    assert (ending.cause, ending.status) == ("exited", 0)
    assert events(ending) == [
        "started",
        "device",
        "opening prefill",
        "opened prefill",
        "opening decode",
        "opened decode",
        "closing decode",
        "closing prefill",
        "finished",
    ]
    assert [line.split()[:2] for line in loader.worker.words if line.startswith(("open ", "close "))] == [
        ["open", "prefill"],
        ["open", "decode"],
        ["close", "decode"],
        ["close", "prefill"],
    ]
    providers, entries = json.loads(loader.told("open decode")[0].partition("decode ")[2])
    assert providers == [[["CPU"], {"backend_type": "htp"}]]
    assert entries == {"ep.share_ep_contexts": "1"}  # without the key that stops sharing, which belongs to compiles


def test_session_without_an_ep_uses_the_cpu_ep(loader: Loader) -> None:
    loader.load(loader.model("source"), eps=[], session_options={})
    assert json.loads(loader.told("open source")[0].partition("source ")[2]) == [["CPUExecutionProvider"], {}]


def test_outputs_belong_to_their_run_with_any_names(loader: Loader) -> None:
    runs = []
    for number, values in enumerate(([1.0, 2.0], [3.0, 4.0])):
        np.savez(loader.folder / f"{number}.npz", np.array(values, np.float32))
        runs.append({"file": f"{number}.npz", "names": ["a/b:c"], "outputs": f"{number}.out.npz"})
    ending = loader.load(loader.model("model", runs, factor=10))
    assert [report["outputs"] for report in ending.reports if report["event"] == "ran"] == [["file"], ["file"]]
    for number, values in enumerate(([10.0, 20.0], [30.0, 40.0])):
        assert np.load(loader.folder / f"{number}.out.npz")["arr_0"].tolist() == values


def test_string_tensors_are_supported(loader: Loader) -> None:
    np.savez(loader.folder / "in.npz", np.array(["a", "bc"]))
    loader.load(loader.model("model", [{"file": "in.npz", "names": ["text"], "outputs": "out.npz"}]))
    assert np.load(loader.folder / "out.npz", allow_pickle=False)["arr_0"].tolist() == ["A", "BC"]


def test_non_tensor_output_is_reported(loader: Loader) -> None:
    np.savez(loader.folder / "in.npz", np.zeros(1))
    ending = loader.load(loader.model("model", [{"file": "in.npz", "names": ["x"], "outputs": "out.npz"}], run="give a list"))
    assert ending.reports[-1]["message"] == "the output 'file' is not a tensor"


@pytest.mark.parametrize(
    ("written", "answer", "reason"),
    [("EP_UNSUPPORTED", "EP_UNSUPPORTED", ""), ("v2:6", None, "cannot judge v2:6")],
)
def test_ep_is_queried_about_device_compatibility(loader: Loader, written: str, answer: str | None, reason: str) -> None:
    ending = loader.load(loader.model("model", written=written))
    (report,) = [report for report in ending.reports if report["event"] == "compatibility"]
    assert (report["model"], report["ep"], report["answer"], report["reason"]) == ("model", QNN, answer, reason)


def test_failure_ends_the_process_with_the_onnx_runtime_message(loader: Loader) -> None:
    ending = loader.load(loader.model("prefill"), loader.model("decode", open="fail"))
    assert ending.status == 1
    assert events(ending)[-2:] == ["opening decode", "failed"]
    assert "Failed to get context binary info" in ending.reports[-1]["message"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
@pytest.mark.parametrize(("moment", "event"), [("open", "opening decode"), ("close", "closing decode")])
def test_crash_is_preceded_by_a_report_of_its_origin(loader: Loader, moment: str, event: str) -> None:
    ending = loader.load(loader.model("prefill"), loader.model("decode", None, "", **{moment: "crash"}))
    assert ending.status < 0
    assert events(ending)[-1] == event


def test_verbose_load_shows_ep_messages(loader: Loader) -> None:
    loader.load(loader.model("model", open="crash"), verbose=True)
    assert loader.told("1 [ERROR] <E> The backend gives its reason")
