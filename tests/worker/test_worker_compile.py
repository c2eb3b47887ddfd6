"""Compile worker: the requested device, the contract of a group, and a truthful end."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from epbuild.recipe.model import GraphOptimization
from epbuild.toolchain.process import Ending, supervise
from tests.support.worker_listener import WorkerWords
from tests.worker import fake_onnxruntime as fake
from tests.worker import old_onnxruntime
from tests.worker.fake_onnxruntime import device
from tests.worker.scripts import FOLDER, load

worker: Any = load("compile")

QNN = "QNNExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
NO_WISH: dict[str, Any] = {"type": None, "vendor": None, "metadata": {}, "virtual": False}

CPU = device(QNN, "CPU", "GenuineIntel")
GPU = device(QNN, "GPU", "NVIDIA")
NPU = device(QNN, "NPU", "Qualcomm", driver="1.0", soc="60")
SECOND_NPU = device(QNN, "NPU", "Qualcomm", driver="2.0", soc="69")
VIRTUAL = device(QNN, "NPU", "Qualcomm", is_virtual="1")
OTHER_EP = device(OPENVINO, "NPU", "Intel")


def chosen(*devices: Any, prefer: tuple[str, ...] = (), **wishes: Any) -> Any:
    onnxruntime = SimpleNamespace(get_ep_devices=lambda: list(devices))
    return worker.choose_device(onnxruntime, {"name": QNN, "device": {**NO_WISH, **wishes}, "prefer": prefer})


@pytest.mark.parametrize(
    ("wishes", "expected"),
    [
        ({}, CPU),
        ({"prefer": ["npu", "cpu"]}, NPU),
        ({"prefer": ["tpu", "gpu"]}, GPU),
        ({"type": "gpu"}, GPU),
        ({"vendor": "qualcomm"}, NPU),
        ({"vendor": "QUALCOMM", "type": "npu"}, NPU),
        ({"metadata": {"driver": "2.0"}}, SECOND_NPU),
        ({"metadata": {"driver": "2.0", "hardware": "1"}}, SECOND_NPU),
        ({"virtual": True}, VIRTUAL),
        ({"type": "cpu", "prefer": ["npu"]}, CPU),
    ],
)
def test_requested_device_is_used(wishes: dict[str, Any], expected: Any) -> None:
    assert chosen(OTHER_EP, CPU, GPU, NPU, SECOND_NPU, VIRTUAL, **wishes) is expected


@pytest.mark.parametrize(
    "wishes",
    [
        {"type": "tpu"},
        {"vendor": "Intel"},
        {"metadata": {"driver": "3.0"}},
        {"metadata": {"unknown": ""}},
        {"virtual": True},
        {"type": "cpu", "vendor": "Qualcomm"},
    ],
)
def test_missing_device_is_refused_with_the_present_devices(wishes: dict[str, Any]) -> None:
    with pytest.raises(worker.Unfit, match=f"{QNN} has no suitable device; available: cpu from GenuineIntel, npu from Qualcomm"):
        chosen(OTHER_EP, CPU, NPU, **wishes)


def test_ep_without_devices_is_reported() -> None:
    with pytest.raises(worker.Unfit, match="available: none"):
        chosen(OTHER_EP)


def plugin(**changes: Any) -> dict[str, Any]:
    """Return an EP from a plugin library, as a request names it."""
    return {
        "name": QNN,
        "kind": "plugin",
        "module": "fake_qnn_package",
        "library": None,
        "registration": QNN,
        "device": NO_WISH,
        "prefer": [],
        "options": {"backend_type": "htp"},
        **changes,
    }


def built_in(**changes: Any) -> dict[str, Any]:
    """Return an EP that is part of its onnxruntime, as a request names it."""
    options = {"device_type": "CPU"}
    return plugin(
        **{"name": OPENVINO, "kind": "provider", "module": None, "registration": OPENVINO, "options": options, **changes}
    )


COMPILE = {
    "embed": False,
    "graph_optimization_level": "disable_all",
    "initializers": "inline",
    "external_file": None,
    "external_threshold": 1024,
    "node_name_prefix": None,
    "initializer_names": [],
}


def member(name: str, **changes: Any) -> dict[str, Any]:
    """Return a member of a request. `changes` may also apply to its compile settings."""
    return {
        "name": name,
        "source": f"in/{name}/{name}.onnx",
        "output": f"out/{name}_ctx.onnx",
        "read": "file",
        "free_dimensions": {},
        "denoted_dimensions": {},
        "compile": {**COMPILE, **{key: value for key, value in changes.items() if key in COMPILE}},
        **{key: value for key, value in changes.items() if key not in COMPILE},
    }


def sent(asked: dict[str, Any]) -> str:
    """Return a request in the form in which it is sent, with the facts that only this machine knows."""
    here = {"eps": [{} for _ in asked["eps"]], "custom_ops": asked["custom_ops"], "node_log": asked["node_log"]}
    return json.dumps({**asked, "here": here})


def request(*, prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "eps": [plugin()],
        "session_options": {"session.intra_op_thread_affinities": "1"},
        "custom_ops": [],
        "node_log": None,
        "share_weights": True,
        "members": [member("prefill", **(prefill or {})), member("decode", **(decode or {}))],
        **changes,
    }


def custom_ops(name: str, library: str | None = None) -> dict[str, Any]:
    return {"name": name, "module": name, "library": library}


@pytest.fixture
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a package with custom operators."""
    package = tmp_path / "acme_ops"
    package.mkdir()
    (package / "_ops.so").touch()
    text = "import pathlib\n\ndef get_library_path():\n    return str(pathlib.Path(__file__).with_name('_ops.so'))\n"
    (package / "__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "acme_ops", raising=False)
    return package


def test_every_session_gets_custom_operators_of_libraries_and_packages(operators: Path, tmp_path: Path) -> None:
    library = tmp_path / "libmine.so"
    library.touch()
    asked = request(custom_ops=[custom_ops("acme_ops"), custom_ops("libmine.so", str(library))])
    for member_ in asked["members"]:
        options = worker.make_session_options(fake, asked, member_, [NPU])
        assert options.custom_ops == [str(operators / "_ops.so"), str(library)]


def test_package_with_a_library_elsewhere_is_refused(operators: Path) -> None:
    elsewhere = operators.with_name("acme_ops_elsewhere.so")  # its path begins with the path of the package
    elsewhere.touch()
    (operators / "__init__.py").write_text(f"def get_library_path():\n    return {str(elsewhere)!r}\n", encoding="utf-8")
    with pytest.raises(worker.NotRegistered, match="is outside the package; add the library itself"):
        worker.find_operator_library(custom_ops("acme_ops"))


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("raise ImportError('libmissing.so')", "unfit", "no Python package 'acme_ops': libmissing.so"),
        ("", "custom_ops", "'acme_ops' does not provide the path of its custom operator library"),
        (
            "def get_library_path():\n    return __file__ + '.nosuch'",
            "custom_ops",
            "cannot be registered: Failed to load library",
        ),
    ],
)
def test_custom_operator_failure_is_reported_without_blaming_a_model(operators: Path, text: str, kind: str, words: str) -> None:
    (operators / "__init__.py").write_text(text, encoding="utf-8")
    with pytest.raises(Exception, match=words) as caught:
        worker.register_custom_ops(fake.SessionOptions(), [custom_ops("acme_ops")])
    assert worker.classify_error(caught.value) == kind


@pytest.mark.parametrize(
    ("share", "last", "entries"),
    [
        (False, True, {}),
        (True, False, {"ep.share_ep_contexts": "1"}),
        (True, True, {"ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": "1"}),
    ],
)
def test_only_the_last_member_of_a_sharing_group_stops_sharing(share: bool, last: bool, entries: dict[str, str]) -> None:
    asked = request(share_weights=share)
    options = worker.make_session_options(fake, asked, asked["members"][-1 if last else 0], [NPU])
    assert options.entries == {**asked["session_options"], **entries}
    assert options.providers == [[["NPU"], {"backend_type": "htp"}]]


def test_built_in_provider_gets_its_options_by_name() -> None:
    asked = request(eps=[built_in()], share=False)
    options = worker.make_session_options(fake, asked, asked["members"][0], [None])
    assert options.providers == [[OPENVINO, {"device_type": "CPU"}]]


def test_several_eps_are_added_in_recipe_order_with_their_own_options() -> None:
    first, second = [["NPU"], {"backend_type": "htp"}], [OPENVINO, {"device_type": "CPU"}]
    for eps, devices, expected in (
        ([plugin(), built_in()], [NPU, None], [first, second]),
        ([built_in(), plugin()], [None, NPU], [second, first]),
    ):
        asked = request(eps=eps)
        assert worker.make_session_options(fake, asked, asked["members"][0], devices).providers == expected


def test_member_session_has_only_its_own_settings() -> None:
    sizes: dict[str, Any] = {"free_dimensions": {"batch": 1, "sequence": 64}, "denoted_dimensions": {"DATA_BATCH": 2}}
    asked = request(prefill={**sizes, "node_name_prefix": "prefill_", "read": "bytes"})
    prefill, decode = (worker.make_session_options(fake, asked, item, [NPU]) for item in asked["members"])
    assert prefill.dimensions == {"name": {"batch": 1, "sequence": 64}, "denotation": {"DATA_BATCH": 2}}
    assert prefill.entries == {
        **asked["session_options"],
        "ep.share_ep_contexts": "1",
        "ep.context_node_name_prefix": "prefill_",
        "session.model_external_initializers_file_folder_path": "in/prefill",
    }
    assert decode.dimensions == {"name": {}, "denotation": {}}
    assert decode.entries == {**asked["session_options"], "ep.share_ep_contexts": "1", "ep.stop_share_ep_contexts": "1"}


def test_an_ep_that_compiled_a_part_of_the_source_is_left_out(group: Group) -> None:
    other = plugin(name="OtherExecutionProvider", registration="OtherExecutionProvider", library="libother.so")
    group.compile(request(eps=[other, plugin()], prefill={"compiled_by": [QNN]}))
    assert [len(group.compiled(name)["providers"]) for name in ("prefill", "decode")] == [1, 2]


def test_every_optimization_level_of_a_recipe_is_known_to_onnx_runtime() -> None:
    assert set(worker.OPTIMIZATION_LEVELS) == set(get_args(GraphOptimization))
    assert all(hasattr(fake.GraphOptimizationLevel, name) for name in worker.OPTIMIZATION_LEVELS.values())


def test_toolchain_without_the_ep_package_is_unfit() -> None:
    with pytest.raises(worker.Unfit, match="the toolchain has no Python package 'no_such_package'"):
        worker.find_ep_library(plugin(module="no_such_package"))


def test_custom_library_needs_no_package() -> None:
    assert worker.find_ep_library(plugin(library="/opt/own/libep.so", module="no_such_package")) == "/opt/own/libep.so"
    assert worker.find_ep_library(plugin(library="/opt/own/libep.so", module=None)) == "/opt/own/libep.so"


@pytest.mark.parametrize("script", ["compile", "probe"])
def test_worker_script_needs_no_epbuild_and_supports_older_python(script: str) -> None:
    tree = ast.parse((FOLDER / f"{script}.py").read_text(encoding="utf-8"), feature_version=(3, 9))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} - sys.stdlib_module_names == (
        {"onnxruntime"} if script == "compile" else set()
    )


class Group:
    """Staging directory with a request, and the worker's process in it with the fake onnxruntime."""

    def __init__(self, folder: Path, release: Any = fake) -> None:
        self.folder = folder
        (folder / "out").mkdir()
        packages = folder / "packages"
        packages.mkdir()
        (packages / "onnxruntime.py").write_text(Path(release.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        package = "def get_library_path(): return 'libqnn.so'\n"
        (packages / "fake_qnn_package.py").write_text(package, encoding="utf-8")
        self.code = textwrap.dedent(f"""
            import runpy, sys
            sys.path.insert(0, {str(packages)!r})
            sys.argv = ["compile.py", "request.json"]
            runpy.run_path({str(FOLDER / "compile.py")!r}, run_name="__main__")
        """)
        self.worker = WorkerWords()

    def compile(self, asked: dict[str, Any], **sources: str) -> Ending:
        for name in ("prefill", "decode"):
            source = self.folder / "in" / name / f"{name}.onnx"
            source.parent.mkdir(parents=True)
            source.write_text(sources.get(name, "model"), encoding="utf-8")
        (self.folder / "request.json").write_text(sent(asked), encoding="utf-8")
        return supervise(
            [sys.executable, "-I", "-c", self.code],
            self.folder,
            self.folder / "log",
            self.worker,
            timeout=60,
            environment={},
            cancelled=threading.Event(),
        )

    def compiled(self, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder / "out" / f"{name}_ctx.onnx").read_text(encoding="utf-8"))
        return document


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


def events(ending: Ending) -> list[str]:
    return [report["event"] + (f" {report['member']}" if "member" in report else "") for report in ending.reports]


def test_group_is_compiled_in_order_in_one_process_with_reports(group: Group) -> None:
    ending = group.compile(request())
    assert (ending.cause, ending.status) == ("exited", 0)
    assert events(ending) == [
        "started",
        "device",
        "member_started prefill",
        "member_finished prefill",
        "member_started decode",
        "member_finished decode",
        "finished",
    ]
    assert ending.reports[0]["onnxruntime"] == "1.99.0"
    assert ending.reports[1] == {
        "event": "device",
        "ep": QNN,
        "type": "cpu",
        "vendor": "Acme",
        "metadata": {"hardware": "1", "library": "libqnn.so"},
    }


def test_each_member_is_compiled_with_the_expected_settings(group: Group) -> None:
    group.compile(request())
    settings = {"embed_compiled_data_into_model": False, "flags": 1, "graph_optimization_level": 0}
    for name, entries in {"prefill": {}, "decode": {"ep.stop_share_ep_contexts": "1"}}.items():
        assert group.compiled(name) == {
            "entries": {"session.intra_op_thread_affinities": "1", "ep.share_ep_contexts": "1", **entries},
            "providers": [[["CPU"], {"backend_type": "htp"}]],
            "dimensions": {"name": {}, "denotation": {}},
            "source": f"in/{name}/{name}.onnx",
            "settings": settings,
        }


def test_large_initializers_go_into_a_file_on_request(group: Group) -> None:
    group.compile(request(decode={"initializers": "external", "external_file": "decode.data", "external_threshold": 7}))
    external = {"external_initializers_file_path": "decode.data", "external_initializers_size_threshold": 7}
    assert external.items() <= group.compiled("decode")["settings"].items()
    assert not external.keys() & group.compiled("prefill")["settings"].keys()


def test_initializers_keep_their_place_on_request(group: Group) -> None:
    group.compile(request(decode={"initializers": "source"}))
    assert group.compiled("decode")["settings"]["get_initializer_location_func"] == [None, "where it is"]
    assert group.compiled("prefill")["settings"].keys() == {"embed_compiled_data_into_model", "flags", "graph_optimization_level"}


def test_only_named_initializers_keep_their_place(group: Group) -> None:
    group.compile(request(decode={"initializers": "source", "initializer_names": ["other.*"]}))
    assert group.compiled("decode")["settings"]["get_initializer_location_func"] == [None, None]


def test_graph_read_as_bytes_finds_its_data_in_the_staging_folder(group: Group) -> None:
    group.compile(request(prefill={"read": "bytes"}), prefill="the graph")
    prefill = group.compiled("prefill")
    assert prefill["source"] == {"bytes": "the graph"}
    folder = prefill["entries"]["session.model_external_initializers_file_folder_path"]
    # Relative, because the text is hashed into the output and each staging directory is different.
    assert folder == "in/prefill"
    assert (group.folder / folder / "prefill.onnx").is_file()
    assert group.compiled("decode")["source"] == "in/decode/decode.onnx"


def test_members_of_a_group_may_have_different_settings(group: Group) -> None:
    group.compile(request(decode={"embed": True, "graph_optimization_level": "all"}))
    settings = {name: group.compiled(name)["settings"] for name in ("prefill", "decode")}
    assert [item["embed_compiled_data_into_model"] for item in settings.values()] == [False, True]
    assert [item["graph_optimization_level"] for item in settings.values()] == [0, 99]


def test_custom_library_is_registered(group: Group) -> None:
    library = str(group.folder / "libown.so")
    ending = group.compile(request(eps=[plugin(library=library, module="not_installed")]))
    assert ending.status == 0
    assert ending.reports[1]["metadata"]["library"] == library


def test_every_ep_of_a_target_is_opened_before_any_model_is_compiled(group: Group) -> None:
    other = plugin(name="OtherExecutionProvider", registration="OtherExecutionProvider", library="libother.so")
    other["options"] = {"a": "b"}
    ending = group.compile(request(eps=[other, built_in(), plugin()]))
    assert events(ending)[:4] == ["started", "device", "device", "member_started prefill"]
    assert [report["ep"] for report in ending.reports[1:3]] == ["OtherExecutionProvider", QNN]
    assert group.compiled("decode")["providers"] == [
        [["CPU"], {"a": "b"}],
        [OPENVINO, {"device_type": "CPU"}],
        [["CPU"], {"backend_type": "htp"}],
    ]


def test_virtual_device_is_registered_under_a_virtual_name(group: Group) -> None:
    assert group.compile(request(eps=[plugin(registration=f"{QNN}.virtual")])).status == 0


def test_ep_output_is_logged_and_never_parsed_as_a_result(group: Group) -> None:
    ending = group.compile(request())
    assert events(ending).count("finished") == 1
    printed = '{"event": "finished"} natively on standard output'
    assert group.worker.words == [printed, "words of the EP"] * 2


def test_first_failure_ends_the_group_with_the_onnx_runtime_message(group: Group) -> None:
    ending = group.compile(request(), prefill="fail")
    assert (ending.status, events(ending)[-2:]) == (1, ["member_started prefill", "failed"])
    failed = ending.reports[-1]
    assert (failed["kind"], failed["type"]) == ("error", "RuntimeError")
    assert "Unable to compile any nodes" in failed["message"]
    assert not list((group.folder / "out").iterdir())


def test_huge_exception_text_is_shortened_in_the_middle(group: Group) -> None:
    ending = group.compile(request(), decode="say all")
    message = ending.reports[-1]["message"]
    assert len(message) < 20_000
    assert message.startswith("the reason is: xxx")
    assert " characters left out] xxx" in message
    assert message.endswith("xxx: the end")


def test_out_of_memory_is_reported_as_a_machine_fault(group: Group) -> None:
    failed = group.compile(request(), decode="out of memory").reports[-1]
    assert (failed["event"], failed["kind"], failed["type"]) == ("failed", "unfit", "MemoryError")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_crash_leaves_no_finished_report(group: Group) -> None:
    ending = group.compile(request(), decode="crash")
    assert ending.status < 0
    assert events(ending)[-1] == "member_started decode"


@pytest.mark.parametrize(
    ("eps", "words"),
    [
        ([plugin(module="not_installed")], "no Python package 'not_installed'"),
        ([plugin(registration="Other")], "available: none"),
        ([built_in(name=QNN)], f"this onnxruntime has no {QNN}; it has: {OPENVINO}, CPUExecutionProvider"),
        ([plugin(), built_in(name="VitisAIExecutionProvider")], "this onnxruntime has no VitisAIExecutionProvider"),
    ],
)
def test_unsuitable_toolchain_is_unfit_before_any_model_is_read(group: Group, eps: list[dict[str, Any]], words: str) -> None:
    ending = group.compile(request(eps=eps))
    failed = ending.reports[-1]
    assert (ending.status, failed["event"], failed["kind"]) == (1, "failed", "unfit")
    assert words in failed["message"]
    assert "member_started" not in " ".join(events(ending))


@pytest.fixture
def old(tmp_path: Path) -> Group:
    """Return a group whose onnxruntime has no ModelCompiler."""
    return Group(tmp_path, old_onnxruntime)


def test_session_writes_the_compiled_model_without_a_model_compiler(old: Group) -> None:
    level = {"graph_optimization_level": "basic"}
    external = {"initializers": "external", "external_file": "w.bin", "external_threshold": 0}
    sizes: dict[str, Any] = {"free_dimensions": {"batch": 1}, "denoted_dimensions": {"DATA_BATCH": 2}}
    prefill = {"read": "bytes", "node_name_prefix": "p_", **sizes}
    ending = old.compile(request(eps=[built_in()], prefill=prefill, decode={"embed": True, **level, **external}))
    assert (ending.status, events(ending)[-1]) == (0, "finished")
    first, second = old.compiled("prefill"), old.compiled("decode")
    assert first["providers"] == second["providers"] == [[OPENVINO, {"device_type": "CPU"}]]
    common = {"session.intra_op_thread_affinities": "1", "ep.share_ep_contexts": "1", "ep.context_enable": "1"}
    assert first["entries"] == {
        **common,
        "ep.context_file_path": "out/prefill_ctx.onnx",
        "ep.context_embed_mode": "0",
        "ep.context_node_name_prefix": "p_",
        "session.model_external_initializers_file_folder_path": "in/prefill",
    }
    assert second["entries"] == {
        **common,
        "ep.stop_share_ep_contexts": "1",
        "ep.context_file_path": "out/decode_ctx.onnx",
        "ep.context_embed_mode": "1",
        "ep.context_model_external_initializers_file_name": "w.bin",
    }
    assert (first["source"], second["source"]) == ({"bytes": "model"}, "in/decode/decode.onnx")
    assert (first["level"], second["level"]) == (0, 1)  # as with ModelCompiler, unlike sessions
    assert first["dimensions"] == {"batch": 1, "DATA_BATCH": 2}
    assert second["alive"] == ["prefill_ctx"]  # sessions hold the shared data


def test_ep_failure_is_reported_without_a_model_compiler(old: Group) -> None:
    ending = old.compile(request(eps=[built_in()]), prefill="fail")
    failed = ending.reports[-1]
    assert (failed["event"], failed["kind"]) == ("failed", "error")
    assert "the EP gives its reason" in failed["message"]


def test_empty_result_is_a_failure_without_a_model_compiler(old: Group) -> None:
    failed = old.compile(request(eps=[built_in()]), prefill="nothing").reports[-1]
    assert (failed["event"], failed["kind"]) == ("failed", "error")
    assert failed["message"].startswith("Unable to compile any nodes. ")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"initializers": "source"}, "this onnxruntime, 1.21.0, cannot leave the initializers of 'prefill' in the source model"),
        (
            {"initializers": "external", "external_file": "w"},
            "of any size into the external file; set the threshold of 'prefill' to 0",
        ),
        (
            {"initializers": "external", "external_file": "w", "external_threshold": 0, "initializer_names": ["w"]},
            "this onnxruntime, 1.21.0, cannot store the initializers of 'prefill' by name",
        ),
    ],
)
def test_settings_that_need_a_model_compiler_are_refused_early(old: Group, settings: dict[str, Any], words: str) -> None:
    ending = old.compile(request(eps=[built_in()], prefill=settings))
    assert (ending.reports[-1]["event"], ending.reports[-1]["kind"]) == ("failed", "unfit")
    assert words in ending.reports[-1]["message"]
    assert "member_started" not in " ".join(events(ending))


def test_release_without_plugin_eps_names_the_first_suitable_release(old: Group) -> None:
    failed = old.compile(request(eps=[plugin()])).reports[-1]
    assert failed["kind"] == "unfit"
    assert failed["message"] == f"this onnxruntime, 1.21.0, cannot load plugin EPs such as {QNN}; use 1.23 or later"


def test_worker_ends_when_epbuild_is_gone() -> None:
    code = textwrap.dedent(f"""
        import runpy, time
        runpy.run_path({str(FOLDER / "compile.py")!r}, run_name="worker")["follow_parent"]()
        print("ready", flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-I", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline().strip() == b"ready"
        process.stdin.close()
        assert process.wait(30) == worker.ORPHANED


def test_peak_memory_of_a_worker_is_in_bytes() -> None:
    peak = worker.measure_peak_memory()
    assert peak is None or 2**20 < peak < 2**40


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped")
def test_memory_limit_is_reported_even_if_no_library_can_load() -> None:
    code = f"""if True:
        import resource, runpy, sys
        resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))
        worker = runpy.run_path({str(FOLDER / "compile.py")!r})
        sys.modules["resource"] = None  # as one that cannot be loaded
        told = worker["measure_address_space"]()
        assert told["mappable"] == 2**40 and 2**20 < told["mapped"] < 2**40, told
        assert worker["measure_peak_memory"]() > 2**20
    """
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=60)
