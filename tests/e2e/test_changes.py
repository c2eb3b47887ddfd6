"""Table of changes that a build tool can miss or report wrongly, each applied to a real build.

Every row states the answer of `plan`, the cause that `explain` must name, and the number of steps that `run` must run.
Afterwards the test checks the files against the manifest, and the manifest against the sources. Each row runs twice.
With a snapshot of the last build, a plain `run` must not trust it. Without one, the test also runs `plan` and
`explain`, which read no snapshots.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.cache.location import find_toolchain_directory
from epbuild.toolchain.provision import Requirements, provision
from tests.support.gate import sampled
from tests.support.projects import Project
from tests.support.quick_builds import start

ORT, OTHER_ORT = "onnxruntime==1.31.1", "onnxruntime==1.31.0"
QNN = "onnxruntime-qnn==2.7.0"
RECIPE = f"""\
epbuild: 1
name: changes
vars: {{quality: 3}}
toolchains:
  qnn: {{packages: [{ORT}, {QNN}]}}
models:
  prefill: prefill.onnx
  decode: decode.onnx
  draft: draft.onnx
targets:
  npu:
    toolchain: qnn
    ep: QNNExecutionProvider
    provider_options:
      backend_type: htp
      soc_model: SM8750
      htp_graph_finalization_optimization_mode: ${{vars.quality}}
      qnn_ir_backend_path: ./ir.bin
    environment: {{STATED: one, PASSED_ON: "${{env.EPBUILD_TEST_SETTING:-one}}"}}
groups:
  default: none
  pair:
    models: [prefill, decode]
    targets: [npu]
    share_weights: true
outputs:
  - {{layout: directory, path: "dist/${{group}}"}}
"""
"""Two small models that share weights in one file. The EP reads `qnn_ir_backend_path` only to write a DLC."""

SHARE, EMIT = "share:pair/npu", "emit:pair/npu/directory"
OPTION = "option htp_graph_finalization_optimization_mode of QNNExecutionProvider"
BINARY = "dist/pair/prefill_qnn.bin"
_SIZE = 32
_SETTLED_SECONDS = 2.2  # after this time, epbuild trusts a file's stat

needs_ctime = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows keeps no time of the last change that a program cannot set"
)


# -- The project that is changed ---------------------------------------------------------------------------------------


def _write_model(path: Path, rows: int, own: int) -> None:
    """Write two matrix products. The second has its weights in the part `own` of the weights file."""
    tensors = []
    for name, part in (("shared", 0), ("own", own)):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[_SIZE, _SIZE], data_location=TensorProto.EXTERNAL)
        length = 4 * _SIZE * _SIZE
        for key, value in {"location": "weights.bin", "offset": part * length, "length": length}.items():
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    nodes = [
        helper.make_node("MatMul", ["x", "shared"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "own"], ["y"], name="second"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, _SIZE]) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _weights(seed: int) -> bytes:
    return numpy.random.default_rng(seed).standard_normal((4, _SIZE, _SIZE)).astype(numpy.float32).tobytes()


def write_project(folder: Path) -> None:
    for number, (name, rows) in enumerate({"prefill": 8, "decode": 1, "draft": 4}.items()):
        _write_model(folder / f"{name}.onnx", rows, number + 1)
    (folder / "weights.bin").write_bytes(_weights(1))
    (folder / "ir.bin").write_bytes(b"looked at by nobody")
    (folder / "epbuild.yaml").write_text(RECIPE, encoding="utf-8")


@dataclass
class Case(Project):
    """Built project of one test. `fast` means that a snapshot says that the last build had nothing to do."""

    fast: bool = False

    def settle(self) -> None:
        """Build once more with nothing to do, so that file stats are trusted. Keep or delete the snapshot."""
        snapshots: list[Path] = []
        # A run that had to check a toolchain again leaves no snapshot yet. Another test may have just installed the same wheels.
        for _ in range(3):
            done = self.epbuild("run")
            assert "Nothing to do" in done.stdout, done.stdout + done.stderr
            snapshots = self.snapshots()
            if snapshots:
                break
        if self.fast:
            assert snapshots
        else:
            for snapshot in snapshots:
                snapshot.unlink()

    def moved(self, folder: Path) -> Case:
        return Case(folder, self.cache, self.environment, self.fast)

    def ask(self, *command: str) -> dict[str, Any]:
        """Return the JSON document of a read-only command."""
        done = self.epbuild(*command, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document


@dataclass
class Shelf:
    """Copies of one built project, created in advance so that the timestamps of their files are old enough to be trusted."""

    folder: Path
    left: Iterator[int] = field(default_factory=lambda: iter(range(_COPIES)))

    def take(self) -> Case:
        place = self.folder / str(next(self.left))
        return Case(place / "project", place / "cache")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    folder = tmp_path_factory.mktemp("changes")
    first = Project(folder / "first" / "project", folder / "first" / "cache")
    first.folder.mkdir(parents=True)
    write_project(first.folder)
    first.build()
    for number in range(_COPIES):
        shutil.copytree(folder / "first", folder / str(number))
    time.sleep(_SETTLED_SECONDS)
    return Shelf(folder)


@pytest.fixture
def built(shelf: Shelf) -> Case:
    """Return the built project, before any other command runs in it."""
    return shelf.take()


@pytest.fixture(params=[True, False], ids=["snapshot", "no snapshot"])
def case(request: pytest.FixtureRequest, built: Case) -> Case:
    """Return the built project after a second build that found nothing to do."""
    built.fast = request.param
    built.settle()
    return built


# -- Assertions for every change ---------------------------------------------------------------------------------------


def read_steps(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the steps of `plan` and of `explain` by id. Both must agree with each other and with `run --check`."""
    steps = {step["id"]: step for step in case.ask("plan")["steps"]}
    reasons = {step["id"]: step for step in case.ask("explain", "*")["steps"]}
    for name in ("state", "reasons", "key"):
        assert {ident: step[name] for ident, step in steps.items()} == {ident: step[name] for ident, step in reasons.items()}
    checked = case.epbuild("run", "--check")
    assert checked.returncode == int({step["state"] for step in steps.values()} != {"current"}), checked.stdout + checked.stderr
    return steps, reasons


def root_causes(explanation: dict[str, Any]) -> list[str]:
    """Return the reasons at the end of the chain that an explanation follows."""
    if not explanation["causes"]:
        return list(explanation["reasons"])
    return [reason for cause in explanation["causes"] for reason in root_causes(cause)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_outputs(case: Case, users: Set[str] = frozenset()) -> None:
    """Assert that all steps are current and that files, manifests, sources and planned actions agree."""
    steps = case.ask("plan")["steps"]
    assert {step["state"] for step in steps} == {"current"}
    keys = {step["key"] for step in steps if step["kind"] != "emit"}
    manifests = list(case.folder.glob("dist/**/manifest.json"))
    assert manifests
    for manifest in manifests:
        document = json.loads(manifest.read_text(encoding="utf-8"))
        folder = manifest.parent
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert found == {file["path"] for file in document["files"]} | {"manifest.json"} | users
        for file in document["files"]:
            assert (digest(folder / file["path"]), (folder / file["path"]).stat().st_size) == (file["sha256"], file["size"])
        for model in document["models"]:
            assert model["action_key"] in keys
            assert model["source"]["sha256"] == digest(case.folder / f"{model['name']}.onnx")
            assert model["source"]["external_data"] == {"weights.bin": digest(case.folder / "weights.bin")}


def check_run(case: Case, does: dict[str, int], users: Set[str] = frozenset()) -> None:
    """Assert that a build runs these steps only, leaves the right files behind, and that the next build has nothing to do."""
    events = case.build()
    outcomes = Counter(event["outcome"] for event in events if event["event"] == "step_finished")
    assert outcomes == does
    [end] = [event for event in events if event["event"] == "run_finished"]
    assert end["built"] == does.get("built", 0) + does.get("emitted", 0)
    assert (end["restored"], end["current"], end["failed"]) == (does.get("restored", 0), does.get("current", 0), 0)
    check_outputs(case, users)


def kept(case: Case) -> dict[str, bytes]:
    """Return the files that changed since epbuild wrote them, by the names under which a build saves them."""
    found = {}
    for manifest in case.folder.glob("dist/**/manifest.json"):
        for file in json.loads(manifest.read_text(encoding="utf-8"))["files"]:
            path = manifest.parent / file["path"]
            if path.exists() and digest(path) != file["sha256"]:
                found[f"{file['path']}.saved"] = path.read_bytes()
    return found


@dataclass(frozen=True)
class Row:
    """A change and its expected effect: states of the session group and of the output, causes, and outcomes of the steps."""

    change: Callable[[Case], object]
    group: str
    output: str
    causes: tuple[str, ...]
    does: dict[str, int]


COMPILED = {"built": 3, "emitted": 1}
EMITTED = {"current": 3, "emitted": 1}
NOTHING = {"current": 4}


def compiles(change: Callable[[Case], object], *causes: str, steps: int = 3) -> Row:
    """Expect a new compile of the group."""
    return Row(change, "out of date", "out of date", causes, {"built": steps, "emitted": 1})


def restores_outputs(change: Callable[[Case], object], cause: str) -> Row:
    """Expect that emitted files are restored without a compile."""
    return Row(change, "current", "restorable", (cause,), EMITTED)


def emits_again(change: Callable[[Case], object], cause: str) -> Row:
    """Expect a new manifest, but no compile."""
    return Row(change, "current", "out of date", (cause,), EMITTED)


def has_no_effect(change: Callable[[Case], object]) -> Row:
    """Expect no effect."""
    return Row(change, "current", "current", (), NOTHING)


# -- The changes -------------------------------------------------------------------------------------------------------


def edit(old: str, new: str) -> Callable[[Case], None]:
    return lambda case: case.edit(old, new)


def swap_members(case: Case) -> None:
    prefill, decode, aside = (case.folder / name for name in ("prefill.onnx", "decode.onnx", "aside"))
    prefill.rename(aside)
    decode.rename(prefill)
    aside.rename(decode)


def with_unchanged_time(name: str) -> Callable[[Case], None]:
    """Write different bytes of the same size into a file and restore its modification time."""

    def change(case: Case) -> None:
        path = case.folder / name
        before, content = path.stat(), path.read_bytes()
        with path.open("r+b") as file:
            file.write(bytes([content[0] ^ 1]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        after = path.stat()
        assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)

    return change


def use_another_runtime(case: Case) -> None:
    provision(Requirements((OTHER_ORT, QNN)), find_toolchain_directory(), name="qnn", where=None)
    case.edit(ORT, OTHER_ORT)


def set_variable(case: Case) -> None:
    case.environment["EPBUILD_TEST_SETTING"] = "two"


def reorder_and_comment(case: Case) -> None:
    parts = RECIPE.split("\ntargets:\n")
    head, models = parts[0].split("\nmodels:\n")
    lines = "\n".join(reversed([f"{line}  # a remark" for line in models.splitlines()]))
    targets, groups = parts[1].split("\ngroups:\n")
    options = "      backend_type: htp\n      soc_model: SM8750\n"
    assert options in targets
    targets = targets.replace(options, "      soc_model: SM8750\n      backend_type: htp\n")
    text = f"# The groups come first now.\n{head}\ngroups:\n{groups.rstrip()}\nmodels:\n{lines}\n\ntargets:\n{targets}\n"
    assert text != RECIPE
    case.recipe.write_text(text, encoding="utf-8")


def touch_everything(case: Case) -> None:
    for path in case.folder.rglob("*"):
        if ".epbuild" not in path.parts:
            os.utime(path)


def write_again(case: Case) -> None:
    """Write the same bytes into new files, as a checkout of the same revision does."""
    for path in case.folder.rglob("*"):
        if path.is_file() and ".epbuild" not in path.parts:
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)


def below_output(change: Callable[[Path], object]) -> Callable[[Case], object]:
    return lambda case: change(case.folder / BINARY)


ROWS: dict[str, Row] = {
    # Inputs. Some build tools hash the sorted list of files, trust modification times, or ignore external data.
    "external data replaced": compiles(
        lambda case: (case.folder / "weights.bin").write_bytes(_weights(2)),
        "model prefill: external data weights.bin changed: ",
        "model decode: external data weights.bin changed: ",
    ),
    "two members' contents swapped": compiles(swap_members, "model prefill changed: ", "model decode changed: "),
    "an option changed": compiles(edit("quality: 3", "quality: 2"), f"{OPTION} changed: 3 -> 2"),
    "a member added": compiles(edit("[prefill, decode]", "[prefill, decode, draft]"), "model draft added", steps=4),
    "a member removed": compiles(edit("[prefill, decode]", "[prefill]"), "model decode removed", steps=2),
    "the members' order changed": compiles(
        edit("[prefill, decode]", "[decode, prefill]"), "member order changed: prefill, decode -> decode, prefill"
    ),
    "an environment variable of the target changed": compiles(
        edit("STATED: one", "STATED: two"), "environment variable STATED changed: one -> two"
    ),
    "an environment variable that the recipe reads changed": compiles(
        set_variable, "environment variable PASSED_ON changed: one -> two"
    ),
    "another version of a toolchain's package": compiles(
        use_another_runtime, "package onnxruntime changed: 1.31.1 -> 1.31.0", "library onnxruntime/"
    ),
    # Settings that only the runtime reads and the name of a recipe are in the manifest. They cause no compile.
    "an option that only the runtime reads": emits_again(
        edit("backend_type: htp\n", "backend_type: htp\n      htp_performance_mode: burst\n"),
        "option htp_performance_mode of QNNExecutionProvider added: burst",
    ),
    "the recipe renamed": emits_again(edit("name: changes", "name: other"), "the recipe's name changed: changes -> other"),
    # Outputs. Some build tools only check that a file exists.
    "an output edited": restores_outputs(
        below_output(lambda path: path.write_bytes(path.read_bytes() + b"more")),
        "prefill_qnn.bin has 81924 bytes instead of 81920",
    ),
    "an output truncated": restores_outputs(
        below_output(lambda path: os.truncate(path, 0)), "prefill_qnn.bin has 0 bytes instead of 81920"
    ),
    "an output deleted": restores_outputs(below_output(Path.unlink), "prefill_qnn.bin is missing"),
    "a manifest deleted": restores_outputs(
        below_output(lambda path: (path.parent / "manifest.json").unlink()), "manifest.json is missing"
    ),
    "a whole output folder deleted": restores_outputs(
        below_output(lambda path: shutil.rmtree(path.parent)), "prefill_qnn.bin is missing"
    ),
    # No change. Some build tools compare modification times, or the text of the configuration.
    "keys reordered and remarks added": has_no_effect(reorder_and_comment),
    "everything touched": has_no_effect(touch_everything),
    "everything written again": has_no_effect(write_again),
}
SECRET_ROWS: dict[str, Row] = {
    "a source changed with its size and time kept": compiles(
        with_unchanged_time("weights.bin"), "model prefill: external data weights.bin"
    ),
    "a file that an option names changed with its size and time kept": compiles(
        with_unchanged_time("ir.bin"), "the file of option qnn_ir_backend_path of QNNExecutionProvider changed: "
    ),
    "an output with different content of the same size and time": restores_outputs(
        with_unchanged_time(BINARY), "prefill_qnn.bin was changed"
    ),
}
_ALONE = 20  # copies for the tests outside the table
_COPIES: int = 2 * (len(ROWS) + len(SECRET_ROWS)) + _ALONE


_CASES = [
    *(pytest.param(row, id=name) for name, row in ROWS.items()),
    *(pytest.param(row, id=name, marks=needs_ctime) for name, row in SECRET_ROWS.items()),
]


@pytest.mark.parametrize("row", list(sampled(_CASES, 3)))
def test_each_change_is_detected_reported_and_rebuilt(row: Row, case: Case) -> None:
    row.change(case)
    saved = kept(case)
    if case.fast:
        done = case.epbuild("run")
        assert ("Nothing to do" in done.stdout) == (row.does == NOTHING), done.stdout + done.stderr
        assert all(f"is kept as dist/pair/{name}" in done.stderr for name in saved), done.stderr
        check_outputs(case, saved.keys())
        assert {name: data for name, data in case.files("dist/pair").items() if name in saved} == saved
        return
    steps, reasons = read_steps(case)
    assert (steps[SHARE]["state"], steps[EMIT]["state"]) == (row.group, row.output)
    found = root_causes(reasons[EMIT])
    assert bool(found) == bool(row.causes)
    for cause in row.causes:
        assert any(reason.startswith(cause) for reason in found), (cause, found)
    assert sum("will be kept" in reason for reason in steps[EMIT]["reasons"]) == len(saved)
    if row.does == NOTHING:
        assert all(step["key"] == step["previous_key"] and step["built"] for step in reasons.values())
    check_run(case, row.does, saved.keys())


# -- Changes outside the table -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Copy the toolchain and return the interpreter of the copy."""
    python = provision(Requirements((ORT, QNN)), find_toolchain_directory(), name="qnn", where=None)
    source, copy = python.parents[1], tmp_path_factory.mktemp("toolchain") / "copy"
    shutil.copytree(source, copy, symlinks=True)
    yield copy / python.relative_to(source)
    shutil.rmtree(copy)


def test_a_replaced_ep_library_of_equal_version_is_another_toolchain(case: Case, environment: Path) -> None:
    case.edit(f"{{packages: [{ORT}, {QNN}]}}", f"{{interpreter: '{environment.as_posix()}'}}")
    check_run(case, NOTHING)  # the same packages and libraries in another place are the same toolchain
    time.sleep(_SETTLED_SECONDS)
    case.settle()

    name = "QnnHtp.dll" if os.name == "nt" else "libQnnHtp.so"
    [library] = environment.parents[1].rglob(name)
    content, before = library.read_bytes(), library.stat()
    library.write_bytes(content + b"\0")
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    try:
        steps, reasons = read_steps(case)
        assert steps[SHARE]["state"] == "out of date"
        [cause] = root_causes(reasons[EMIT])
        assert cause.startswith(f"library onnxruntime_qnn/{name} changed: ")
        [change] = reasons[SHARE]["changes"]
        assert (change["old"], change["new"]) == tuple(hashlib.sha256(data).hexdigest() for data in (content, content + b"\0"))
        check_run(case, COMPILED)
    finally:
        library.write_bytes(content)


def test_going_back_to_an_earlier_recipe_restores_and_compiles_nothing(built: Case) -> None:
    first = built.files()
    built.edit("quality: 3", "quality: 1")
    check_run(built, COMPILED)
    assert built.files() != first
    built.edit("quality: 1", "quality: 3")
    steps, reasons = read_steps(built)
    assert (steps[SHARE]["state"], steps[EMIT]["state"]) == ("restorable", "out of date")
    assert root_causes(reasons[EMIT]) == [f"{OPTION} changed: 1 -> 3"]
    check_run(built, {"restored": 3, "emitted": 1})
    assert built.files() == first


def test_a_compile_with_equal_output_changes_only_the_manifest(built: Case) -> None:
    first = built.files()
    blobs = {path.name for path in (built.cache / "cas").rglob("*") if path.is_file()}
    (built.folder / "ir.bin").write_bytes(b"looked at by nobody, once more")
    check_run(built, COMPILED)
    assert {name for name, content in built.files().items() if content != first[name]} == {"pair/manifest.json"}
    added = {path for path in (built.cache / "cas").rglob("*") if path.is_file() and path.name not in blobs}
    assert not [path for path in added if path.read_bytes() in first.values()]


def test_a_recipe_moved_with_all_its_files_stays_current(case: Case) -> None:
    place = case.folder.with_name("elsewhere") / "deeper"
    place.parent.mkdir()
    case.folder.rename(place)
    moved = case.moved(place)
    assert {step["state"] for step in read_steps(moved)[0].values()} == {"current"}
    check_run(moved, NOTHING)


def test_a_full_copy_has_its_own_state(case: Case) -> None:
    copy = case.moved(case.folder.with_name("copy"))
    shutil.copytree(case.folder, copy.folder)
    with_unchanged_time("weights.bin")(copy)
    assert read_steps(case)[0][SHARE]["state"] == "current"
    assert read_steps(copy)[0][SHARE]["state"] == "out of date"


def test_a_new_clone_restores_and_compiles_nothing(built: Case) -> None:
    clone = built.moved(built.folder.with_name("clone"))
    shutil.copytree(built.folder, clone.folder, ignore=shutil.ignore_patterns(".epbuild", "dist"))
    steps, reasons = read_steps(clone)
    assert (steps[SHARE]["state"], steps[EMIT]["state"]) == ("restorable", "new")
    assert reasons[SHARE]["previous_key"] is None
    check_run(clone, {"restored": 3, "emitted": 1})
    assert clone.files() == built.files()


def in_place(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)


def by_rename(path: Path, content: bytes) -> None:
    aside = path.with_name("aside")
    aside.write_bytes(content)
    aside.replace(path)


@pytest.mark.parametrize("way", [in_place, by_rename])
def test_a_source_that_changes_during_its_compile_fails_the_step(built: Case, way: Callable[[Path, bytes], None]) -> None:
    first, records = built.files(), set((built.cache / "actions").rglob("*.json"))
    built.edit("quality: 3", "quality: 1")
    process = start(built, "run", "--json")
    assert process.stdout is not None
    events, changed = [], False
    for line in process.stdout:
        events.append(json.loads(line))
        if events[-1].get("doing") == "compiling" and events[-1]["step"].endswith("/prefill"):
            way(built.folder / "weights.bin", _weights(3))
            changed = True
    assert changed
    assert process.wait(timeout=60) == 1
    [failure] = [event for event in events if event["event"] == "step_failed"]
    [problem] = failure["problems"]
    assert problem["code"] == "EPB415"
    assert "model prefill: external data weights.bin changed: " in problem["message"]
    assert built.files() == first
    assert set((built.cache / "actions").rglob("*.json")) == records
    found = root_causes(read_steps(built)[1][EMIT])
    assert f"{OPTION} changed: 3 -> 1" in found
    assert any(reason.startswith("model prefill: external data weights.bin changed: ") for reason in found)
    check_run(built, COMPILED)


def test_a_users_file_in_an_output_folder_is_kept_when_the_output_is_emitted_again(built: Case) -> None:
    note = built.folder / "dist/pair/notes.txt"
    note.write_text("12 ms", encoding="utf-8")
    check_run(built, NOTHING, {"notes.txt"})
    built.edit("quality: 3", "quality: 1")
    check_run(built, COMPILED, {"notes.txt"})
    assert note.read_text(encoding="utf-8") == "12 ms"


def test_a_users_file_at_an_output_path_is_kept_and_reported(built: Case) -> None:
    mine = built.folder / "dist/pair/renamed.onnx"
    mine.write_text("mine", encoding="utf-8")
    built.edit('path: "dist/${group}"', 'path: "dist/${group}", model: "${model}.onnx"')
    built.edit("models: [prefill, decode]", "models: [prefill, renamed]")
    built.edit("decode: decode.onnx", "renamed: decode.onnx")
    before = built.files()
    done = built.epbuild("run")
    assert done.returncode == 1
    assert "pair/renamed.onnx already exists and was not created by epbuild. Move it away" in done.stderr
    assert "[EPB423]" in done.stderr
    assert built.files() == before


def test_an_output_that_the_recipe_no_longer_asks_for_is_removed(case: Case) -> None:
    case.edit("dist/${group}", "dist/${recipe.name}/${group}")
    first = case.files("dist/pair")
    planned = case.ask("plan")
    assert [Path(orphan["directory"]) for orphan in planned["orphans"]] == [case.folder / "dist/pair"]
    done = case.epbuild("run")
    assert done.returncode == 0, done.stderr
    assert case.files("dist/changes/pair") == first
    assert not (case.folder / "dist/pair").exists()
    assert "dist/pair  4 files that the recipe no longer defines" in done.stdout
    assert case.ask("plan")["orphans"] == []
    check_outputs(case)


def test_removing_an_output_keeps_and_reports_edited_files(built: Case) -> None:
    binary = built.folder / BINARY
    binary.write_bytes(b"patched by hand")
    built.edit("dist/${group}", "dist/${recipe.name}/${group}")
    done = built.epbuild("run")
    assert done.returncode == 0, done.stderr
    assert list(binary.parent.iterdir()) == [binary]
    assert binary.read_bytes() == b"patched by hand"
    assert f"{BINARY}  changed after epbuild wrote it" in done.stdout


def test_removing_an_output_keeps_and_reports_the_users_files(built: Case) -> None:
    note = built.folder / "dist/pair/notes.txt"
    note.write_text("12 ms", encoding="utf-8")
    built.edit("dist/${group}", "dist/${recipe.name}/${group}")
    done = built.epbuild("run")
    assert done.returncode == 0, done.stderr
    assert list(note.parent.iterdir()) == [note]
    assert note.read_text(encoding="utf-8") == "12 ms"
    assert "dist/pair/notes.txt" in done.stdout
