"""Prepared models: a preparation runs once, later steps depend on its result, and invalid results are not compiled.

The worker of a preparation is a function here. It writes a text that depends on its model, its files and its command.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec.structs import replace
from onnx import TensorProto, helper
from onnx.external_data_helper import convert_model_to_external_data

from epbuild.commands.gc import find_needed_entries
from epbuild.commands.plan import explain
from epbuild.commands.run import run
from epbuild.core.errors import PlanError
from epbuild.engine.events import EventList, NoProgress, StepFailed, StepFinished, StepStarted
from epbuild.plan.preparing import Preparation, estimate_built_in_memory
from epbuild.session.events import StepCompared
from epbuild.session.rebuild import get_kept_folder
from epbuild.toolchain.process import Ending
from tests.support.fake_builds import COMPILES, EMIT_DECODER, SHARE, Workshop, context_model, source_model

PREPARED = """\
models:
  prefill:
    path: prefill.onnx
    prepare:
      - {run: [python, fold.py, "${in}", "${out}"], files: [fold.py], toolchain: tools}
      - {run: [python, add.py, "${in}", "${out}", 8], files: [add.py, "samples/*.npz"], toolchain: tools}
  decode: decode.onnx
  classifier:
    path: classifier.onnx
    prepare: [{run: [python, fold.py, "${in}", "${out}"], files: [fold.py], toolchain: tools, timeout: 60}]
"""
FOLD, ADD, FOLD_CLASSIFIER = "prepare:prefill/1-run", "prepare:prefill/2-run", "prepare:classifier/1-run"
"""Step ids."""


class Preparer(Workshop):
    """Checkout whose prefill is prepared twice, and whose classifier once."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, cache, monkeypatch)
        self.write_recipe(
            ("models: {prefill: prefill.onnx, decode: decode.onnx, classifier: classifier.onnx}\n", PREPARED),
            ("toolchains:\n", "toolchains:\n  tools: {packages: [onnx==1.19.1]}\n"),
        )
        for name in ("fold.py", "add.py", "samples/0.npz"):
            self.write(name, f"# {name}\n")
        self.prepared: list[str] = []
        self.seen: list[list[str]] = []
        """Files that each preparation could see, as paths in its folder."""
        self.leave: Leaves = leave_a_model

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_text(text, encoding="utf-8")

    def change_recipe(self, old: str, new: str) -> None:
        text = (self.folder / "epbuild.yaml").read_text(encoding="utf-8")
        assert old in text
        (self.folder / "epbuild.yaml").write_text(text.replace(old, new), encoding="utf-8")

    def worker(self, command: object, folder: Path, log: Path, **options: Any) -> Ending:
        request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
        work = self.preparer if "command" in request else super().worker
        return work(command, folder, log, **options)

    def preparer(self, command: object, folder: Path, log: Path, **options: object) -> Ending:
        """Stand in for the process of a preparation. It ignores comments in scripts."""
        words = json.loads((folder / "request.json").read_text(encoding="utf-8"))["command"][1:]
        self.prepared.append(words[0].removeprefix("files/"))
        self.seen.append(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
        read = [path for part in ("in", "files") for path in sorted((folder / part).rglob("*")) if path.is_file()]
        content = b"".join(line for path in read for line in path.read_bytes().splitlines() if not line.startswith(b"#"))
        log.write_text("prepared\n", encoding="utf-8")
        output = folder / next(word for word in words if word.startswith("out/"))
        ending = self.leave(output, hashlib.sha256(content + json.dumps(words).encode()).digest())
        return ending or Ending("exited", 0, ({"event": "finished", "peak_memory": 1_000_000},), ())

    def build_all(self, *selection: str) -> tuple[list[str], list[str]]:
        """Build successfully, and return the prepared and the compiled models."""
        self.prepared.clear()
        assert self.build(*selection).exit_code == 0, [event for event in self.events if isinstance(event, StepFailed)]
        return list(self.prepared), list(self.compiled)


Leaves = Callable[[Path, bytes], Ending | None]


def leave_a_model(output: Path, seed: bytes) -> None:
    output.write_bytes(source_model(float(seed[0]) + float(seed[1]) / 256))


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Preparer:
    return Preparer(tmp_path / "checkout", tmp_path / "cache", monkeypatch)


# -- The plan ----------------------------------------------------------------------------------------------------------


def test_each_preparation_is_a_step_before_its_compiles(workshop: Preparer) -> None:
    plan = workshop.survey().plan
    needs = {step.id: step.needs for step in plan.steps}
    assert needs[FOLD] == ()
    assert needs[ADD] == (FOLD,)
    assert needs[COMPILES[0]] == (ADD,)
    assert needs[COMPILES[1]] == ()
    assert [step.kind for step in plan.steps if step.id in (FOLD, ADD)] == ["prepare", "prepare"]
    ids = [step.id for step in plan.steps]
    assert all(ids.index(need) < ids.index(ident) for ident in ids for need in needs[ident])


def test_unneeded_preparation_is_neither_run_nor_checked(workshop: Preparer) -> None:
    (workshop.folder / "add.py").unlink()
    assert workshop.build_all("emit:classifier/*") == (["fold.py"], ["classifier"])
    with pytest.raises(PlanError, match=r"file not found: 'add\.py'"):
        workshop.build()


def test_two_groups_prepare_a_common_model_once(workshop: Preparer) -> None:
    workshop.change_recipe(
        "  classifier:\n    models: [classifier]\n",
        "  twin: {models: [classifier], targets: [npu], expect: {fallback_nodes: 1}}\n  classifier:\n    models: [classifier]\n",
    )
    prepared, compiled = workshop.build_all()
    assert prepared.count("fold.py") == 2  # of the prefill, and of the classifier
    assert compiled.count("classifier") == 2


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (('"${in}", "${out}", 8]', '"${in}"]'), "EPB270", "does not use ${out}"),
        (("files: [fold.py], toolchain: tools}\n      -", "toolchain: tools}\n      -"), "EPB272", "refers to 'fold.py'"),
        (("samples/*.npz", "samples/*.npy"), "EPB271", "no file matches 'samples/*.npy'"),
        (("samples/*.npz", "/**/*"), "EPB273", "'/**/*' would search all of"),
        (("samples/*.npz", ".."), "EPB273", "'..' would search all of"),
    ],
)
def test_invalid_command_is_refused_with_its_place(workshop: Preparer, change: tuple[str, str], code: str, said: str) -> None:
    workshop.change_recipe(*change)
    with pytest.raises(PlanError) as caught:
        workshop.build()
    [problem] = caught.value.problems
    assert problem.code == code
    assert said in problem.message
    assert str(problem.where).startswith(str(workshop.folder / "epbuild.yaml:"))


# -- Repeated and reused preparations ----------------------------------------------------------------------------------


def test_build_prepares_in_order_and_then_has_nothing_to_do(workshop: Preparer) -> None:
    prepared, compiled = workshop.build_all()
    assert sorted(prepared) == ["add.py", "fold.py", "fold.py"]
    assert sorted(compiled) == ["classifier", "prefill+decode"]
    assert workshop.build_all() == ([], [])
    assert set(workshop.states().values()) == {"current"}


def test_preparation_sees_only_its_model_and_files(workshop: Preparer) -> None:
    workshop.build_all("prepare:prefill/*")
    assert workshop.seen == [
        ["files/fold.py", "in/prefill.onnx", "request.json"],
        ["files/add.py", "files/samples/0.npz", "in/prefill.onnx", "request.json"],
    ]


def test_preparation_writes_to_copies_of_user_files(workshop: Preparer) -> None:
    before = (workshop.folder / "prefill.onnx").read_bytes()

    def spoil(output: Path, seed: bytes) -> None:
        for name in ("in/prefill.onnx", "files/fold.py"):
            (output.parents[1] / name).write_bytes(b"spoilt")
        leave_a_model(output, seed)

    workshop.leave = spoil
    workshop.build_all(FOLD)
    assert (workshop.folder / "prefill.onnx").read_bytes() == before
    assert (workshop.folder / "fold.py").read_text(encoding="utf-8") == "# fold.py\n"


def test_prepared_model_is_the_compiled_model(workshop: Preparer) -> None:
    workshop.build_all()
    record = workshop.record(SHARE)
    prepared = workshop.record(ADD).result["artifacts"]["prefill.onnx"]["digest"]
    assert record.key_document["members"][0]["graph"] == prepared
    assert prepared != hashlib.sha256((workshop.folder / "prefill.onnx").read_bytes()).hexdigest()


def test_memory_of_a_large_preparation_is_told_when_it_starts(workshop: Preparer) -> None:
    workshop.change_recipe("timeout: 60", "timeout: 60, memory: 12.7GB")
    workshop.build_all("prepare:*")
    told = [event.doing for event in workshop.events if isinstance(event, StepStarted) and event.doing.startswith("preparing")]
    assert sorted(told) == ["preparing", "preparing", "preparing, which needs an estimated 12.7 GB of memory"]


def test_memory_of_built_in_preparations_is_estimated_from_the_model(workshop: Preparer) -> None:
    data = workshop.folder / "large.data"
    with data.open("wb") as file:
        file.truncate(2_500_000_000)
    plan = workshop.survey().plan
    action = plan.actions[FOLD_CLASSIFIER]
    assert isinstance(action, Preparation)
    assert estimate_built_in_memory(action) is None
    assert action.source is not None
    source = replace(action.source, external={"large.data": data})
    needed = estimate_built_in_memory(replace(action, kind="quantize", source=source, staged={}))
    assert needed == pytest.approx(12_700_000_000, rel=0.01)


def test_script_edit_without_effect_causes_no_compile(workshop: Preparer) -> None:
    workshop.build_all()
    workshop.write("add.py", "# another comment\n")
    states = workshop.states()
    assert (states[FOLD], states[ADD], states[SHARE]) == ("current", "out of date", "out of date")
    assert workshop.reasons(ADD) == (workshop.reasons(ADD)[0],)
    assert workshop.reasons(ADD)[0].startswith("add.py changed: ")
    assert workshop.reasons(SHARE) == (f"needs {ADD}",)
    assert workshop.build_all() == (["add.py"], [])
    outcomes = {event.step: event.outcome for event in workshop.events if isinstance(event, StepFinished)}
    assert outcomes[ADD] == "built"
    assert (outcomes[SHARE], outcomes[EMIT_DECODER]) == ("current", "current")
    assert workshop.build_all() == ([], [])


@pytest.mark.parametrize("name", ["fold.py", "add.py", "samples/0.npz", "samples/1.npz"])
def test_file_edit_with_effect_causes_a_compile(workshop: Preparer, name: str) -> None:
    workshop.build_all()
    workshop.write(name, "print(2)\n")
    prepared, compiled = workshop.build_all()
    assert prepared[-1] == "add.py"
    assert "prefill+decode" in compiled
    assert workshop.build_all() == ([], [])


def test_unchanged_preparation_result_stops_the_next_preparation(workshop: Preparer) -> None:
    workshop.build_all()
    workshop.write("fold.py", "# without effect\n")
    prepared, compiled = workshop.build_all()
    assert (sorted(prepared), compiled) == (["fold.py", "fold.py"], [])


def test_explain_names_the_edited_file_of_a_preparation(workshop: Preparer) -> None:
    workshop.build_all()
    workshop.write("add.py", "print(2)\n")
    [explained] = explain(workshop.request, [EMIT_DECODER])
    [share] = explained.causes
    [add] = share.causes
    assert [add.step.id, [change.what for change in add.changes]] == [ADD, ["add.py"]]


def test_another_checkout_restores_prepared_models_from_the_store(
    workshop: Preparer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.build_all()
    other = Preparer(tmp_path / "other", workshop.cache, monkeypatch)
    assert other.build_all() == ([], [])
    assert other.contents() == workshop.contents()


def test_lost_prepared_model_is_prepared_again_when_needed(workshop: Preparer) -> None:
    workshop.build_all()
    workshop.lose_blobs()
    assert workshop.build_all() == ([], [])  # all outputs are in place
    workshop.change_recipe("  npu:\n    toolchain: qnn\n", "  npu:\n    toolchain: qnn\n    environment: {A: b}\n")
    prepared, compiled = workshop.build_all()
    assert (prepared, compiled) == (["fold.py", "add.py"], ["prefill+decode"])


def test_damaged_prepared_model_is_prepared_again(workshop: Preparer) -> None:
    workshop.build_all()
    digest = workshop.record(ADD).result["artifacts"]["prefill.onnx"]["digest"]
    [blob] = [path for path in workshop.blobs() if path.name == digest]
    blob.chmod(0o644)
    blob.write_bytes(bytes(blob.stat().st_size))
    workshop.change_recipe("  npu:\n    toolchain: qnn\n", "  npu:\n    toolchain: qnn\n    environment: {A: b}\n")
    prepared, compiled = workshop.build_all()
    assert (prepared, compiled) == (["add.py"], ["prefill+decode"])
    assert workshop.record(SHARE).key_document["members"][0]["graph"] == digest


def test_gc_keeps_prepared_models_of_the_next_compile(workshop: Preparer) -> None:
    workshop.build_all()
    digest = workshop.record(ADD).result["artifacts"]["prefill.onnx"]["digest"]
    assert digest in find_needed_entries([workshop.folder / ".epbuild"], workshop.cache).blobs


# -- Invalid results ---------------------------------------------------------------------------------------------------


def leave(content: bytes) -> Callable[[Path, bytes], None]:
    def left(output: Path, seed: bytes) -> None:
        output.write_bytes(content)

    return left


def leave_no_outputs(output: Path, seed: bytes) -> None:
    model = onnx.load_from_string(source_model(1.0))
    del model.graph.output[:]
    onnx.save(model, output)


def leave_nothing(output: Path, seed: bytes) -> None:
    (output.parent / "other.onnx").write_bytes(source_model(1.0))


def leave_a_compiled_model(output: Path, seed: bytes) -> None:
    onnx.save(context_model({"QNNExecutionProvider": "x.bin"}), output)


def leave_a_link(output: Path, seed: bytes) -> None:
    output.symlink_to(output.parents[1] / "in" / output.name)


def external_model() -> onnx.ModelProto:
    model = onnx.load_from_string(source_model(3.0))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.FLOAT, [4], bytes(16), raw=True))
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    return model


def leave_external_data(output: Path, seed: bytes) -> None:
    onnx.save(external_model(), output)


def leave_without_its_data(output: Path, seed: bytes) -> None:
    leave_external_data(output, seed)
    (output.parent / "weights.bin").unlink()


def leave_data_elsewhere(output: Path, seed: bytes) -> None:
    model = external_model()
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "../in/weights.bin"
    output.write_bytes(model.SerializeToString())


def ends(
    *reports: Mapping[str, object], cause: str = "exited", status: int = 1, tail: tuple[str, ...] = ()
) -> Callable[..., Ending]:
    return lambda output, seed: Ending(cause, status, reports, tail)  # type: ignore[arg-type]


FAILED = {"event": "failed", "kind": "error", "type": "ExitStatus", "message": "1"}
TRACEBACK = ("folding", "Traceback (most recent call last):", '  File "fold.py", line 3', "ValueError: nothing to fold")


@pytest.mark.parametrize(
    ("left", "code", "said"),
    [
        (leave(b"not a model at all" * 9), "EPB457", "incomplete or invalid ONNX file"),
        (leave(b""), "EPB457", "the file is empty"),
        (leave_no_outputs, "EPB457", "without outputs"),
        (leave_nothing, "EPB457", "did not write out/classifier.onnx; it wrote other.onnx instead"),
        (leave_a_compiled_model, "EPB457", "already compiled"),
        (leave_a_link, "EPB457", "wrote a link"),
        (leave_without_its_data, "EPB457", "without its external data weights.bin"),
        (leave_data_elsewhere, "EPB457", "data outside its folder"),
        (ends(FAILED, tail=TRACEBACK), "EPB455", "exited with status 1. It printed: ValueError: nothing to fold"),
        (ends({**FAILED, "message": "-11"}), "EPB458", "crashed (SIGSEGV)"),
        (ends({**FAILED, "message": "139"}), "EPB458", "exited with status 139"),
        (ends({**FAILED, "message": str(0xC0000005)}), "EPB458", "crashed (an access violation)"),
        (ends({**FAILED, "message": "-9"}), "EPB454", "SIGKILL"),
        (ends(FAILED, tail=("MemoryError",)), "EPB454", "ran out of memory"),
        (ends(FAILED, tail=("OSError: [Errno 28] No space left on device",)), "EPB459", "No space left"),
        (ends(status=-11), "EPB458", "crashed (SIGSEGV)"),
        (
            ends(cause="timed out", status=-9, tail=("step 3",)),
            "EPB453",
            "did not finish within 60 s and was stopped. It printed: step 3",
        ),
        (ends({**FAILED, "kind": "unfit", "message": "No such file"}), "EPB456", "No such file"),
    ],
)
def test_failed_preparation_is_reported_and_nothing_is_compiled(workshop: Preparer, left: Leaves, code: str, said: str) -> None:
    workshop.leave = left
    assert workshop.build("emit:classifier/*").exit_code != 0
    assert workshop.compiled == []
    [problem] = [problem for event in workshop.events if hasattr(event, "problems") for problem in event.problems]
    assert (problem.code, str(problem.where)) == (code, FOLD_CLASSIFIER)
    assert said in problem.message
    assert "prepare+classifier+1-run.log" in str(problem.hint)
    workshop.leave = leave_a_model
    workshop.prepared.clear()
    assert run(replace(workshop.request, selection=("emit:classifier/*",), retry=True), NoProgress()) == 0
    assert (workshop.prepared, workshop.compiled) == (["fold.py"], ["classifier"])  # the failure stored nothing


OWN_FAILURES = [ends(FAILED, tail=TRACEBACK), leave_nothing]
NOT_ITS_OWN = [
    ends({**FAILED, "message": "-11"}),
    ends({**FAILED, "message": "139"}),
    ends({**FAILED, "message": "-9"}),
    ends(FAILED, tail=("MemoryError",)),
    ends(FAILED, tail=("OSError: [Errno 28] No space left on device",)),
    ends(status=3),
    ends(cause="timed out", status=-9),
    ends({**FAILED, "kind": "unfit", "message": "No such file"}),
]


@pytest.mark.parametrize("left", OWN_FAILURES, ids=["a status", "no model"])
def test_failure_of_the_program_is_remembered_until_an_input_changes(workshop: Preparer, left: Leaves) -> None:
    workshop.leave = left
    workshop.build("emit:classifier/*")
    [first] = workshop.problems
    workshop.prepared.clear()
    assert workshop.build("emit:classifier/*").exit_code == 1
    [again] = workshop.problems
    assert workshop.prepared == []
    assert (again.code, again.message) == (first.code, first.message)
    assert "`epbuild run --retry`" in str(again.hint)
    workshop.leave = leave_a_model
    workshop.write("fold.py", "print('mended')\n")
    assert workshop.build_all("emit:classifier/*") == (["fold.py"], ["classifier"])


@pytest.mark.parametrize("left", NOT_ITS_OWN)
def test_failure_outside_the_program_is_retried(workshop: Preparer, left: Leaves) -> None:
    workshop.leave = left
    assert workshop.build("emit:classifier/*").exit_code != 0
    workshop.leave = leave_a_model
    assert workshop.build_all("emit:classifier/*") == (["fold.py"], ["classifier"])


def test_external_data_beside_the_result_is_included(workshop: Preparer) -> None:
    workshop.leave = leave_external_data
    workshop.build_all("emit:classifier/*")
    [member] = workshop.record("compile:classifier/plain/classifier").key_document["members"]
    assert list(member["external"]) == ["weights.bin"]


def test_input_that_changes_during_preparation_voids_the_result(workshop: Preparer) -> None:
    def meanwhile(output: Path, seed: bytes) -> None:
        leave_a_model(output, seed)
        workshop.write("fold.py", "print('edited')\n")

    workshop.leave = meanwhile
    assert workshop.build("emit:classifier/*").exit_code == 1
    assert workshop.failures == ["EPB415"]


def test_prepared_model_that_no_ep_can_open_is_refused(workshop: Preparer) -> None:
    """Check a prepared model. Its header does not exist yet when the plan checks the headers of other models."""
    workshop.change_recipe("    path: classifier.onnx\n", "    path: classifier.onnx\n    dimensions: {batch: 1}\n")
    assert workshop.build("emit:classifier/*").exit_code == 2
    assert workshop.failures == ["EPB263"]
    assert workshop.compiled == []


# -- Reproducibility ---------------------------------------------------------------------------------------------------


def test_irreproducible_preparation_is_reported(workshop: Preparer) -> None:
    count = 0

    def write_different_bytes(output: Path, seed: bytes) -> None:
        nonlocal count
        count += 1
        leave_a_model(output, bytes([count, count]))

    workshop.leave = write_different_bytes
    request = replace(workshop.request, selection=("emit:classifier/*",), rebuild_and_compare=True)
    events = EventList()
    assert run(request, events) == 1
    verdicts = {event.step: event for event in events if isinstance(event, StepCompared)}
    assert verdicts[FOLD_CLASSIFIER].verdict == "different"
    [problem] = verdicts[FOLD_CLASSIFIER].problems
    assert problem.code == "EPB650"
    assert verdicts["compile:classifier/plain/classifier"].verdict == "same"
    assert (get_kept_folder(workshop.folder / ".epbuild", FOLD_CLASSIFIER) / "rebuilt" / "classifier.onnx").is_file()


# -- Arbitrary edits ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_build_after_any_edits_equals_a_clean_build(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, exhaustive: bool
) -> None:
    class Edits(RuleBasedStateMachine):
        """Changes of files and commands and their reversals. Some changes have no effect."""

        @initialize()
        def begin(self) -> None:
            folder = tmp_path_factory.mktemp("edits")
            self.count = 0
            self.folder = folder
            self.workshop = Preparer(folder / "checkout", folder / "cache", monkeypatch)

        @rule(
            name=st.sampled_from(["fold.py", "add.py", "samples/0.npz"]), text=st.sampled_from(["# a\n", "# b\n", "print(1)\n"])
        )
        def edit(self, name: str, text: str) -> None:
            self.workshop.write(name, text)

        @rule(value=st.sampled_from([1.0, 2.0]))
        def edit_the_model(self, value: float) -> None:
            (self.workshop.folder / "prefill.onnx").write_bytes(source_model(value))

        @rule()
        def lose_the_store(self) -> None:
            self.workshop.lose_blobs()

        @rule()
        def build(self) -> None:
            monkeypatch.setenv("EPBUILD_CACHE_DIR", str(self.workshop.cache))
            self.workshop.build_all()
            assert self.workshop.build_all() == ([], [])
            self.count += 1
            fresh = Preparer(self.folder / f"fresh-{self.count}", self.folder / f"cache-{self.count}", monkeypatch)
            for path in self.workshop.folder.rglob("*"):
                relative = path.relative_to(self.workshop.folder)
                if path.is_file() and relative.parts[0] not in (".epbuild", "dist"):
                    (fresh.folder / relative).write_bytes(path.read_bytes())
            fresh.build_all()
            assert self.workshop.contents() == fresh.contents()
            assert self.workshop.contents("classifier") == fresh.contents("classifier")
            monkeypatch.setenv("EPBUILD_CACHE_DIR", str(self.workshop.cache))

    run_state_machine_as_test(Edits, settings=settings(max_examples=200 if exhaustive else 3, stateful_step_count=8))
