"""Messages for models that fail to load or run: the error, the moment, and the reason if there is one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from epbuild.catalog.catalog import entry
from epbuild.catalog.facts import Limitation
from epbuild.core.errors import EnvironmentFailure
from epbuild.recipe.model import DeviceChoice
from epbuild.verify.live.worker import Attempt, Feed, Load, list_devices, run_models
from tests.verify.live.fake_trials import QNN, fake_worker, planned, session

pytestmark = pytest.mark.slow  # every test starts a process

LIMITATION = Limitation("load models that share weights", "it crashes", "measured", symptom="gives its reason")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return a scratch directory for a worker with a fake onnxruntime. The models specify their faults."""
    (tmp_path / "scratch").mkdir()
    fake_worker(tmp_path / "scratch")
    return tmp_path / "scratch"


def model(scratch: Path, name: str, feeds: tuple[Feed, ...] = (), **commands: Any) -> Load:
    (scratch / f"{name}.json").write_text(json.dumps(commands), encoding="utf-8")
    return Load(name, scratch / f"{name}.onnx", feeds=feeds)


def words(tried: Attempt) -> str:
    assert tried.failure is not None
    return tried.failure.message


def test_loaded_models_are_reported_with_their_device(scratch: Path) -> None:
    tried = run_models([model(scratch, "prefill"), model(scratch, "decode")], session(scratch), scratch)
    assert tried.failure is None
    assert list(tried.seconds) == ["prefill", "decode"]
    assert tried.devices == "cpu from Acme"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
@pytest.mark.parametrize(
    ("moment", "when"),
    [("open", "while the model was being opened"), ("run", "while the model ran"), ("close", "while the model was being closed")],
)
def test_a_crash_is_reported_with_its_phase_and_the_eps_output(scratch: Path, moment: str, when: str) -> None:
    np.savez(scratch / "in.npz", np.zeros(1))
    feed = Feed(scratch / "in.npz", ("x",), scratch / "out.npz")
    tried = run_models(
        [model(scratch, "prefill"), model(scratch, "decode", (feed,), **{moment: "crash"})], session(scratch), scratch
    )
    assert tried.failure is not None
    assert (tried.failure.model, tried.failure.code, tried.failure.cannot_load) == ("decode", "EPB642", False)
    assert words(tried).startswith(f"the process crashed (SIGABRT) {when}. The EP logged: ")
    assert words(tried).endswith("The backend gives its reason")


def test_a_crash_known_to_the_catalog_is_reported_as_a_limitation(scratch: Path) -> None:
    ep = planned(entry=replace(entry(QNN), cannot=(LIMITATION,)))
    tried = run_models([model(scratch, "prefill", open="crash"), model(scratch, "decode")], session(scratch, ep), scratch)
    assert tried.failure is not None
    assert (tried.failure.model, tried.failure.cannot_load) == ("prefill", True)
    assert words(tried) == f"{QNN} cannot load models that share weights here: it crashes."


def test_a_crash_without_the_known_symptom_is_a_failure(scratch: Path) -> None:
    ep = planned(entry=replace(entry(QNN), cannot=(replace(LIMITATION, symptom="Shared weights buffer"),)))
    tried = run_models([model(scratch, "prefill", open="crash")], session(scratch, ep), scratch)
    assert tried.failure is not None
    assert (tried.failure.code, tried.failure.cannot_load) == ("EPB642", False)


def test_a_refusal_of_onnx_runtime_is_reported_with_its_message(scratch: Path) -> None:
    tried = run_models([model(scratch, "prefill", open="fail")], session(scratch), scratch)
    assert tried.failure is not None
    assert tried.failure.code == "EPB641"
    assert words(tried).startswith("opening the model failed: Failed to get context binary info.")
    assert tried.seconds == {}


def test_a_load_that_hangs_is_stopped_and_reported(scratch: Path) -> None:
    tried = run_models([model(scratch, "prefill", open="hang")], session(scratch, timeout=2), scratch)
    assert tried.failure is not None
    assert tried.failure.code == "EPB643"
    assert words(tried).startswith("opening the model did not finish within 2 s and was stopped.")


def test_a_load_killed_from_outside_is_not_a_crash_and_not_retried(scratch: Path) -> None:
    tried = run_models([model(scratch, "prefill", open="killed")], session(scratch), scratch)
    assert tried.failure is not None
    if sys.platform != "win32":
        assert tried.failure.code == "EPB644"
        assert (
            "by an external signal (SIGKILL), possibly because it ran out of memory, while the model was being opened."
            in words(tried)
        )
    assert json.loads((scratch / "request.json").read_text(encoding="utf-8"))["verbose"] is False


def test_a_lack_of_memory_is_reported(scratch: Path) -> None:
    tried = run_models([model(scratch, "prefill", open="out of memory")], session(scratch), scratch)
    assert tried.failure is not None
    assert tried.failure.code == "EPB644"
    assert words(tried).startswith("the process ran out of memory while the model was being opened: bad_alloc.")


def test_a_missing_device_is_a_limitation_of_the_machine(scratch: Path) -> None:
    tried = run_models([model(scratch, "prefill")], session(scratch, planned(device=DeviceChoice(type="npu"))), scratch)
    assert tried.failure is not None
    assert (tried.failure.model, tried.failure.cannot_load) == (None, True)
    assert words(tried).startswith(f"{QNN} has no suitable device; available: cpu from Acme.")


def test_all_devices_are_listed_including_unsuitable_devices(scratch: Path) -> None:
    found = list_devices(session(scratch, planned(device=DeviceChoice(type="npu"))), scratch)
    assert found.failure is None
    assert [(report["ep"], report["type"], report["vendor"]) for report in found.find_reports("offered")] == [
        (QNN, "cpu", "Acme")
    ]


def test_an_ep_that_crashes_on_registration_is_a_failure(scratch: Path) -> None:
    found = list_devices(session(scratch, planned(library=Path("crash.so"))), scratch)
    assert found.failure is not None
    assert found.find_reports("offered") == []


def test_a_crash_before_any_model_blames_no_model(scratch: Path) -> None:
    tried = run_models([model(scratch, "prefill")], session(scratch, planned(library=Path("crash.so"))), scratch)
    assert tried.failure is not None
    assert tried.failure.model is None
    if sys.platform == "linux":
        assert words(tried).startswith("the process crashed (SIGABRT) while the EPs were being set up.")


def test_an_interpreter_that_cannot_start_is_reported(scratch: Path) -> None:
    environment = replace(session(scratch).environment, interpreter=scratch / "python")
    with pytest.raises(EnvironmentFailure) as raised:
        run_models([model(scratch, "prefill")], replace(session(scratch), environment=environment), scratch)
    assert raised.value.problems[0].code == "EPB413"
