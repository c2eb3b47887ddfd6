"""Messages for failed workers: the model, ONNX Runtime's error, and the reason that only the EP logged."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from epbuild.catalog.facts import Limitation
from epbuild.compile.failure import make_compile_error
from epbuild.core.errors import BuildError, EnvironmentFailure
from epbuild.plan.result import FallbackNode
from epbuild.plan.steps import SessionGroup
from epbuild.toolchain.diagnosis import extract_last_lines, is_progress_line, merge_reasons
from epbuild.toolchain.process import Ending, strip_colors
from tests.support.fake_builds import COMPILES, sharing_group

GROUP = sharing_group("prefill", "decode", timeout=90)
LOG = ".epbuild/logs/decoder.log"

STARTED: Mapping[str, Any] = {"event": "started", "onnxruntime": "1.31.1"}
PREFILL = {"event": "member_started", "member": "prefill"}
PREFILL_DONE = {"event": "member_finished", "member": "prefill", "seconds": 1.0}
DECODE = {"event": "member_started", "member": "decode"}
FINISHED: Mapping[str, Any] = {"event": "finished", "peak_memory": 1}
AT_DECODE = (STARTED, PREFILL, PREFILL_DONE, DECODE)

STAMP = "2026-11-20 12:36:57.215867164"
NOISE = (
    f"\x1b[0;93m{STAMP} [W:onnxruntime:, qnn_ep.cc:88 QnnEp] File mapped weights feature is only available on Windows arm64\x1b[m",
    f"\x1b[0;93m{STAMP} [W:onnxruntime:, qnn_ep.cc:90 QnnEp] EPContext encryption config unavailable\x1b[m",
    " # LIBNATIVE: No alternate configuration present in libnative_tls.conf or from LIBNATIVE_CONFIG environment variable",
    f"{STAMP} [I:onnxruntime:, inference_session.cc:1 Initialize] Initializing session.",
)
NOT_COMPILED = (
    "[ONNXRuntimeError] : 1 : FAIL : Unable to compile any nodes. "
    "Check that the session EPs support compilation and can execute at least one subgraph in the model."
)

NO_MEMORY_OF_QNN = "[ONNXRuntimeError] : 11 : EP_FAIL : Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC"
MORE_THAN_ANY_MACHINE = 1 << 60


def failed(message: str, kind: str = "error", error: str = "Fail") -> Mapping[str, Any]:
    return {"event": "failed", "kind": kind, "type": error, "message": message, "peak_memory": 1}


class Case(NamedTuple):
    """End of a worker, and the expected message."""

    reports: tuple[Mapping[str, Any], ...]
    status: int
    said: tuple[str, ...]
    code: str
    kind: type[BuildError]
    words: tuple[str, ...]
    cause: Literal["exited", "timed out"] = "exited"
    options: Mapping[str, str] = {}


CASES = {
    "a custom operator without a library": Case(
        (
            *AT_DECODE,
            failed("[ONNXRuntimeError] : 1 : FAIL : Fatal error: ai.onnx.contrib:Inverse(-1) is not a registered function/op"),
        ),
        1,
        (),
        "EPB401",
        BuildError,
        (
            "compiling 'decode' for npu failed: Fatal error",
            "If ai.onnx.contrib:Inverse is a custom operator, add its library or package to 'custom_ops'.",
        ),
    ),
    "two custom operator libraries with one domain": Case(
        (*AT_DECODE, failed("[ONNXRuntimeError] : 1 : FAIL : Domain already set in registry")),
        1,
        (),
        "EPB401",
        BuildError,
        (
            "failed: Domain already set in registry.",
            "Two entries of 'custom_ops' have operators of the same domain. Keep only one of these entries.",
        ),
    ),
    "an unloadable custom operator library": Case(
        (
            STARTED,
            PREFILL,
            failed("the custom operators of liba.so cannot be registered: invalid ELF header", "custom_ops", "NotRegistered"),
        ),
        1,
        (),
        "EPB444",
        EnvironmentFailure,
        (
            "the custom operators of liba.so cannot be registered: invalid ELF header.",
            "Use a library that was built for this machine",
        ),
    ),
    "a SoC unknown to the EP": Case(
        (*AT_DECODE, failed(NOT_COMPILED)),
        1,
        (
            (
                f"\x1b[1;31m{STAMP} [E:onnxruntime:, qnn_execution_provider.cc:2290 GetCapabilityImpl] QNN SetupBackend failed "
                "Failed to create device. Error: QNN_DEVICE_ERROR_INVALID_CONFIG: Invalid config values\x1b[m"
            ),
        ),
        "EPB401",
        BuildError,
        (
            "compiling 'decode' for npu failed: Unable to compile any nodes.",
            (
                "The EP logged: QNN SetupBackend failed Failed to create device. "
                "Error: QNN_DEVICE_ERROR_INVALID_CONFIG: Invalid config values."
            ),
        ),
    ),
    "a backend library that cannot be loaded": Case(
        (STARTED, PREFILL, failed(NOT_COMPILED)),
        1,
        (
            (
                f"{STAMP} [E:onnxruntime:, qnn_execution_provider.cc:2290 GetCapabilityImpl] QNN SetupBackend failed Unable to load "
                "backend, error: libQnnHtp.so: failed to map segment from shared object"
            ),
        ),
        "EPB401",
        BuildError,
        ("compiling 'prefill' for npu failed", "libQnnHtp.so: failed to map segment from shared object."),
    ),
    "a failure without an EP message": Case(
        (*AT_DECODE, failed(NOT_COMPILED)),
        1,
        (),
        "EPB401",
        BuildError,
        (
            "can execute at least one subgraph in the model. Usually, the model has open dimensions, which need sizes (`input_shapes`)",
        ),
    ),
    "an option that the EP refuses in its own log format": Case(
        (*AT_DECODE, failed("[ONNXRuntimeError] : 11 : EP_FAIL : Failed to compose Qnn graph.", error="EPFail")),
        1,
        ("     12.3ms [ ERROR ] Failed to create tensor conv_w. error code: 7004", "     12.4ms [WARN] something else"),
        "EPB401",
        BuildError,
        ("failed: Failed to compose Qnn graph. The EP logged: Failed to create tensor conv_w. error code: 7004.",),
    ),
    "missing external data": Case(
        (STARTED, PREFILL, failed('[ONNXRuntimeError] : 1 : FAIL : External data path does not exist: "w.data"')),
        1,
        (),
        "EPB401",
        BuildError,
        ("compiling 'prefill' for npu failed: External data path does not exist: \"w.data\".",),
    ),
    "an error that is raised as a RuntimeError": Case(
        (
            *AT_DECODE,
            failed("[ONNXRuntimeError] : 21 : GENERAL ERROR : open file out/x.onnx\nfail, errcode = 21 - Is a directory"),
        ),
        1,
        (),
        "EPB401",
        BuildError,
        ("failed: open file out/x.onnx fail, errcode = 21 - Is a directory.",),
    ),
    "a missing device": Case(
        (STARTED, failed("QNNExecutionProvider has no suitable device; available: cpu from GenuineIntel", "unfit", "Unfit")),
        1,
        (),
        "EPB411",
        EnvironmentFailure,
        ("has no suitable device; available: cpu from GenuineIntel.",),
    ),
    "a MemoryError without a message": Case(
        (*AT_DECODE, failed("", "unfit", "MemoryError")),
        1,
        (),
        "EPB404",
        EnvironmentFailure,
        ("the worker ran out of memory while compiling 'decode' for npu: MemoryError.",),
    ),
    "an allocation that fails inside ONNX Runtime": Case(
        (*AT_DECODE, failed("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc")),
        1,
        (),
        "EPB404",
        EnvironmentFailure,
        ("the worker ran out of memory while compiling 'decode' for npu: std::bad_alloc.",),
    ),
    "an abort for lack of memory": Case(
        AT_DECODE,
        -6,
        ("terminate called after throwing an instance of 'std::bad_alloc'", "  what():  std::bad_alloc"),
        "EPB404",
        EnvironmentFailure,
        (
            "the worker ran out of memory while compiling 'decode' for npu.",
            "std::bad_alloc",
            "Make more memory available, or run fewer actions at once (-j).",
        ),
    ),
    "a library without room for thread-local data": Case(
        AT_DECODE,
        127,
        ("cannot allocate memory for thread-local data: ABORT",),
        "EPB404",
        EnvironmentFailure,
        ("the worker ran out of memory while compiling 'decode' for npu.",),
    ),
    "an external kill": Case(
        AT_DECODE,
        -9,
        (),
        "EPB404",
        EnvironmentFailure,
        (
            "the worker was killed by an external signal (SIGKILL) while compiling 'decode' for npu.",
            "Unless the worker was stopped deliberately, it probably ran out of memory",
        ),
    ),
    "a failed QNN allocation": Case(
        (
            *AT_DECODE,
            {**failed(NO_MEMORY_OF_QNN), "peak_memory": MORE_THAN_ANY_MACHINE},
        ),
        1,
        (),
        "EPB404",
        EnvironmentFailure,
        (
            "ran out of memory while compiling 'decode' for npu: Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC.",
            "Make more memory available, or run fewer actions at once (-j).",
        ),
    ),
    "a failed QNN allocation with unknown memory": Case(
        (*AT_DECODE, {**failed(NO_MEMORY_OF_QNN), "peak_memory": None}),
        1,
        (),
        "EPB404",
        EnvironmentFailure,
        ("ran out of memory while compiling 'decode' for npu: Failed to finalize QNN graph.",),
    ),
    "a failed QNN allocation with free memory": Case(
        (*AT_DECODE, {**failed(NO_MEMORY_OF_QNN), "peak_memory": 138_000_000}),
        1,
        (),
        "EPB401",
        BuildError,
        (
            "compiling 'decode' for npu failed: Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC.",
            "The worker used only 138 of ",
            " MB, so memory did not run out: the EP rejected the graph.",
            "Split the model, make its inputs smaller, or quantize it.",
        ),
    ),
    "a graph too large for the SoC": Case(
        (
            *AT_DECODE,
            failed(NO_MEMORY_OF_QNN),
        ),
        1,
        (),
        "EPB401",
        BuildError,
        (
            "compiling 'decode' for npu failed: Failed to finalize QNN graph. Error: QNN_COMMON_ERROR_MEM_ALLOC.",
            "QNNExecutionProvider cannot compile this graph for SM8350: the graph needs more memory than this SoC",
        ),
        options={"soc_model": "SM8350"},
    ),
    "an external kill after a failed QNN allocation": Case(
        AT_DECODE,
        -9,
        ("[ERROR] QNN_COMMON_ERROR_MEM_ALLOC",),
        "EPB404",
        EnvironmentFailure,
        ("ran out of memory while compiling 'decode' for npu",),
        options={"soc_model": "SM8350"},
    ),
    "an unwritable result": Case(
        (*AT_DECODE, failed("[ONNXRuntimeError] : 1 : FAIL : Failed to write context cache file.")),
        1,
        (),
        "EPB405",
        EnvironmentFailure,
        ("compiling 'decode' for npu failed: Failed to write context cache file.", "Check the free space in .epbuild/tmp"),
    ),
    "an access violation on Windows": Case(
        AT_DECODE,
        0xC0000005,
        (),
        "EPB402",
        BuildError,
        ("the worker crashed (an access violation) while compiling 'decode' for npu",),
    ),
    "a missing library on Windows": Case(
        AT_DECODE, 0xC0000135, (), "EPB402", BuildError, ("the worker crashed (a missing DLL) while compiling 'decode' for npu",)
    ),
    "an unknown status on Windows": Case(
        AT_DECODE, 0x80000100, (), "EPB402", BuildError, ("the worker exited with status 0x80000100 while compiling",)
    ),
    "a hang": Case(
        AT_DECODE,
        -9,
        (),
        "EPB403",
        BuildError,
        ("compiling 'decode' for npu did not finish within 90 s and was stopped",),
        "timed out",
    ),
    "a silent exit": Case(
        AT_DECODE, 0, (), "EPB402", BuildError, ("the worker exited with status 0 while compiling 'decode' for npu",)
    ),
    "an interpreter that cannot start": Case(
        (),
        1,
        ("Traceback (most recent call last):", '  File "compile.py", line 3', "ModuleNotFoundError: No module named 'json'"),
        "EPB402",
        BuildError,
        ("the worker exited with status 1 while compiling 'prefill' for npu", "ModuleNotFoundError: No module named 'json'"),
    ),
    "an unclean end after the last model": Case(
        (*AT_DECODE, FINISHED),
        3,
        (),
        "EPB402",
        BuildError,
        ("the worker exited with status 3 at exit, after it had compiled every model for npu",),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_compile_failure_is_reported_by_its_cause(name: str) -> None:
    case = CASES[name]
    tail = tuple(text for line in (*NOISE, *case.said, NOISE[0]) if (text := strip_colors(line)))
    ep = replace(GROUP.target.eps[0], provider_options=case.options)
    group = replace(GROUP, target=replace(GROUP.target, eps=(ep,)))
    error = make_compile_error(group, Ending(case.cause, case.status, case.reports, tail), LOG)
    assert type(error) is case.kind
    [problem] = error.problems
    assert problem.code == case.code
    for words in case.words:
        assert words in problem.text
    for noise in ("\x1b", "2026-", "File mapped weights", "encryption", "LIBNATIVE", "ONNXRuntimeError", "..", "\n"):
        if case.said or noise not in ("2026-",):
            assert noise not in problem.text.replace(LOG, "")
    assert problem.text.endswith(f"See the whole log: {LOG}.")
    last = [report["member"] for report in case.reports if report["event"] == "member_started"]
    assert problem.where == (COMPILES[1] if "decode" in last else COMPILES[0])


def test_node_reasons_are_reported_if_no_node_was_compiled() -> None:
    raised = "[ONNXRuntimeError] : 1 : FAIL : Unable to compile any nodes. Check that the session EPs support compilation"
    ending = Ending("exited", 1, (*AT_DECODE, failed(raised)), ())
    refused = [FallbackNode(f"conv{number}", "Conv", "Cannot get shape") for number in range(3)]
    error = make_compile_error(GROUP, ending, LOG, refused)
    assert error is not None
    [problem] = error.problems
    assert (problem.code, problem.hint) == (
        "EPB401",
        (
            "Set a size for every open dimension with the model's `input_shapes`, and leave graph_optimization_level at `basic`, "
            f"which folds shape computations. See the whole log: {LOG}."
        ),
    )
    assert "The EP compiled none of 3 nodes, and logged: Cannot get shape (3 nodes)." in problem.message


def test_onnx_runtime_refusal_is_quoted_without_its_source_location() -> None:
    where = "/onnxruntime_src/onnxruntime/core/graph/graph.cc:1421 onnxruntime::Graph::Graph(const onnxruntime::Model&, bool)"
    why = "Initializer 'If_0' references an ORT in-memory address marker, which is not allowed in a model protobuf."
    raised = f"Exception during initialization: {where} !utils::HasExternalDataInMemory(tensor) was false. {why}"
    error = make_compile_error(GROUP, Ending("exited", 1, (*AT_DECODE, failed(raised)), ()), LOG)
    assert error is not None
    [problem] = error.problems
    assert problem.code == "EPB401"
    assert problem.message == f"compiling 'decode' for npu failed: {why}"
    assert problem.hint is not None
    assert "Set a size for every open dimension" in problem.hint


LIMITATION = Limitation(
    what="compile for a GPU that the machine does not have",
    why="the compiler asks the GPU itself",
    platforms=(),
    device=None,
    symptom=r"libcuda\.so\.1|no (CUDA|ROCm)-capable device",
    origin="a test",
)


def group_of(*limitations: Limitation, ep: int = 0) -> SessionGroup:
    """Return a group for a target of two EPs. The EP at index `ep` has these limitations."""
    first = GROUP.target.eps[0]
    eps = [replace(first, entry=replace(first.entry, ep=name, cannot=())) for name in ("FirstEP", "SecondEP")]
    eps[ep] = replace(eps[ep], entry=replace(eps[ep].entry, cannot=limitations))
    return replace(GROUP, target=replace(GROUP.target, eps=tuple(eps)))


LOADER = "OSError: libcuda.so.1: cannot open shared object file"
SHOWN: dict[str, tuple[tuple[Mapping[str, Any], ...], int, tuple[str, ...]]] = {
    "in the exception of ONNX Runtime": ((STARTED, failed("Failed to load: libcuda.so.1: no such file")), 1, ()),
    "in the log of the EP": ((*AT_DECODE, failed(NOT_COMPILED)), 1, (LOADER,)),
    "before a crash": (AT_DECODE, -11, (LOADER, "words after it")),
    "before an unfit report": ((STARTED, failed("it offers: none", "unfit", "Unfit")), 1, (LOADER,)),
}


@pytest.mark.parametrize("ep", [0, 1])
@pytest.mark.parametrize("shown", SHOWN)
def test_known_limitation_is_reported_in_one_sentence(shown: str, ep: int) -> None:
    reports, status, said = SHOWN[shown]
    error = make_compile_error(group_of(LIMITATION, ep=ep), Ending("exited", status, reports, said), LOG)
    assert isinstance(error, EnvironmentFailure)
    assert error.exit_code == 3
    [problem] = error.problems
    name = ("FirstEP", "SecondEP")[ep]
    assert problem.code == "EPB416"
    assert (
        f"{name} cannot compile for a GPU that the machine does not have here: the compiler asks the GPU itself." in problem.text
    )
    assert problem.text.endswith(f"See the whole log: {LOG}.")


def test_platform_limitation_is_reported_on_its_platform() -> None:
    here = replace(LIMITATION, platforms=("another", sys.platform))
    error = make_compile_error(group_of(here), Ending("exited", 1, AT_DECODE, (LOADER,)), LOG)
    assert error is not None
    assert [problem.code for problem in error.problems] == ["EPB416"]


def test_advice_about_the_model_is_omitted_if_this_machine_is_the_cause() -> None:
    of_machine = replace(LIMITATION, hint="Install the driver.")
    said = (*AT_DECODE, failed(NOT_COMPILED))
    for log, is_known in (((LOADER,), True), ((), False)):
        error = make_compile_error(group_of(of_machine), Ending("exited", 1, said, log), LOG)
        assert error is not None
        assert ("Install the driver." in error.problems[0].text) == is_known
        assert ("`input_shapes`" in error.problems[0].text) != is_known


@pytest.mark.parametrize(
    ("limitation", "said"),
    [
        (LIMITATION, "libcudnn.so.9: cannot open shared object file"),
        (replace(LIMITATION, platforms=("another",)), LOADER),
        (replace(LIMITATION, symptom=None), LOADER),
    ],
    ids=["no symptom in the log", "a limitation of another platform", "a limitation without a symptom"],
)
def test_failure_is_not_blamed_on_an_unrelated_limitation(limitation: Limitation, said: str) -> None:
    error = make_compile_error(group_of(limitation), Ending("exited", 1, (*AT_DECODE, failed(NOT_COMPILED)), (said,)), LOG)
    assert isinstance(error, BuildError)
    assert [problem.code for problem in error.problems] == ["EPB401"]


def test_limitation_of_other_options_does_not_explain_a_failure() -> None:
    said = (STARTED, failed("no CUDA-capable device"))
    for limitation in (replace(LIMITATION, when={"device": "^GPU"}), replace(LIMITATION, during="load")):
        error = make_compile_error(group_of(limitation), Ending("exited", 1, said, ()), LOG)
        assert error is not None
        assert error.problems[0].code == "EPB401"


def test_successful_worker_has_no_limitation_despite_ep_messages() -> None:
    assert make_compile_error(group_of(LIMITATION), Ending("exited", 0, (*AT_DECODE, FINISHED), (LOADER,)), LOG) is None


def test_hanging_worker_is_a_timeout_despite_ep_messages() -> None:
    error = make_compile_error(group_of(LIMITATION), Ending("timed out", -9, AT_DECODE, (LOADER,)), LOG)
    assert error is not None
    assert [problem.code for problem in error.problems] == ["EPB403"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_worker_killed_for_lack_of_memory_is_reported() -> None:
    error = make_compile_error(GROUP, Ending("exited", -9, AT_DECODE, (), out_of_memory=True), LOG)
    assert isinstance(error, EnvironmentFailure)
    assert (
        "the worker was killed by the kernel for lack of memory (SIGKILL) while compiling 'decode' for npu. Make more memory"
        in str(error)
    )


def test_memory_shortage_of_another_program_does_not_explain_a_crash() -> None:
    error = make_compile_error(GROUP, Ending("exited", -11, AT_DECODE, (), out_of_memory=True), LOG)
    assert error is not None
    assert [problem.code for problem in error.problems] == ["EPB402"]


@pytest.mark.parametrize(("mapped", "code"), [(590_000_000, "EPB404"), (300_000_000, "EPB401")])
def test_failure_close_to_a_memory_limit_is_not_blamed_on_the_model(mapped: int, code: str) -> None:
    report = {**failed(NOT_COMPILED), "mapped": mapped, "mappable": 600_000_000}
    error = make_compile_error(GROUP, Ending("exited", 1, (*AT_DECODE, report), ()), LOG)
    assert error is not None
    [problem] = error.problems
    assert problem.code == code
    told = (
        "compiling 'decode' for npu failed after mapping 590 of the 600 MB that a process may map (`ulimit -v`): "
        "Unable to compile any nodes."
    )
    assert (told in problem.message) == (code == "EPB404")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGILL])
def test_crash_is_reported_with_the_name_of_its_signal(number: signal.Signals) -> None:
    error = make_compile_error(GROUP, Ending("exited", -number, AT_DECODE, ()), LOG)
    assert error is not None
    assert f"the worker crashed ({number.name}) while compiling 'decode' for npu" in str(error)
    assert error.exit_code == 1


def test_unnamed_signal_is_reported_by_its_number() -> None:
    assert "crashed (signal 200)" in str(make_compile_error(GROUP, Ending("exited", -200, AT_DECODE, ()), LOG))


def test_successful_worker_is_no_failure_despite_ep_messages() -> None:
    said = (f"{STAMP} [E:onnxruntime:, x.cc:1 f] an error that did not matter",)
    assert make_compile_error(GROUP, Ending("exited", 0, (*AT_DECODE, FINISHED), said), LOG) is None


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), ""),
        (NOISE[1:3], ""),
        (
            ("Failed to create DXGI factory.", f"{STAMP} [W:onnxruntime:, a.cc:1 f] Unrecognized soc_model"),
            "Unrecognized soc_model",
        ),
        (("first", "second"), "first | second"),
        ((f"{STAMP} [W:onnxruntime:, a.cc:1 f] a warning", "anything"), "a warning"),
        ((f"{STAMP} [W:onnxruntime:, a.cc:1 f] a warning", f"{STAMP} [F:onnxruntime:, a.cc:1 f] the end"), "the end"),
        (("error 1", "error 2", "error 3", "error 4", "later words"), "error 2 | error 3 | error 4"),
        (("error 1", "error 1", "error 1", "error 2"), "error 1 | error 2"),
        (("0.5ms [ ERROR ] one", "0.6ms [ WARN ] two"), "one"),
        (("no failures here", "plain"), "no failures here | plain"),
        ((f"{STAMP} [V:onnxruntime:, a.cc:1 f] partitioning", f"{STAMP} [I:onnxruntime:, a.cc:1 f] done"), ""),
    ],
)
def test_relevant_lines_of_the_ep_are_quoted(lines: tuple[str, ...], words: str) -> None:
    assert extract_last_lines([strip_colors(line) for line in lines]) == words


def test_long_ep_output_is_quoted_in_part() -> None:
    assert len(extract_last_lines([f"error {'x' * 10_000}", f"error {'y' * 10_000}"])) < 1000


@given(lines=st.lists(st.text()))
def test_quote_is_one_line_for_any_ep_output(lines: list[str]) -> None:
    assert len(extract_last_lines(lines).splitlines()) <= 1


SETUP = "QNN SetupBackend failed Failed to create device. Error: QNN_DEVICE_ERROR_INVALID_CONFIG: Invalid config values"


@pytest.mark.parametrize(
    ("raised", "said", "reason", "quote"),
    [
        pytest.param(
            "Unable to compile any nodes",
            [
                f"{STAMP} [E:onnxruntime:, qnn_execution_provider.cc:2290 GetCapabilityImpl] {SETUP}",
                (
                    f"{STAMP} [E:onnxruntime:, ep_plugin_provider_interfaces.cc:10 GetCapability] OrtEp::GetCapability() for "
                    f"QNNExecutionProvider failed with error: [ONNXRuntimeError] : 11 : EP_FAIL : {SETUP}"
                ),
            ],
            "Unable to compile any nodes",
            f" The EP logged: {SETUP}",
            id="EP message inside an ONNX Runtime message",
        ),
        pytest.param(
            "Exception during initialization: broken",
            [f"{STAMP} [E:onnxruntime:, inference_session.cc:2544 operator()] Exception during initialization: broken."],
            "Exception during initialization: broken",
            "",
            id="equal log and exception",
        ),
        pytest.param(
            "Failed to finalize the graph",
            [f"{STAMP} [E:onnxruntime:, a.cc:1 f] node conv_7: failed to finalize the graph, error 1002"],
            "node conv_7: failed to finalize the graph, error 1002",
            "",
            id="more detail in the log",
        ),
        pytest.param("one", ["12.3ms [ ERROR ] another"], "one", " The EP logged: another", id="two reasons"),
        pytest.param(None, ["error: a", "error: b: error: a"], None, " The EP logged: error: a", id="no exception"),
    ],
)
def test_repeated_reason_is_reported_once(raised: str | None, said: list[str], reason: str | None, quote: str) -> None:
    assert merge_reasons(raised, said) == (reason, quote)


def test_huge_reason_is_shortened_in_the_middle() -> None:
    message = f"[ONNXRuntimeError] : 1 : FAIL : Load failed: {'weights ' * 50_000}: the reason at the end"
    error = make_compile_error(GROUP, Ending("exited", 1, (*AT_DECODE, failed(message)), ("error: " + "x" * 100_000,)), LOG)
    assert error is not None
    [problem] = error.problems
    assert len(problem.text) < 1_000
    assert problem.message.startswith("compiling 'decode' for npu failed: Load failed: weights")
    assert " [...] " in problem.message
    assert "the reason at the end. The EP logged: error: xxx" in problem.message
    assert problem.text.endswith(f"See the whole log: {LOG}.")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"{STAMP} [W:onnxruntime:, graph.cc:9 f] Unable to get producer node for OrtValueInfo 'r72'", False),
        (f"{STAMP} [W:onnxruntime:, graph.cc:9 f] 80 % of the nodes are not supported", False),
        (f"{STAMP} [I:onnxruntime:, session.cc:9 f] Initializing session.", False),
        ("12.3ms [WARN] 3 of 7 tensors are large", False),
        ("loading /opt/qnn/2/51/libQnnHtp.so", False),
        ("version 2.51.0", False),
        ("graph 3 of 7", True),
        ("[ 3/7] conv_1", True),
        ("Processing graph: 50%", True),
        (f"{STAMP} [I:onnxruntime:, ep.cc:9 f] compiled 12/40 nodes", True),
    ],
)
def test_only_progress_lines_of_an_ep_count_as_status(line: str, told: bool) -> None:
    assert is_progress_line(line) is told
