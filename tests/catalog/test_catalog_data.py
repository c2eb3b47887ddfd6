"""Data files of the catalog: a mistake in a row would pass a wrong option to an EP, which does not check it either."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema
import pytest
from msgspec import Struct

import epbuild.catalog
from epbuild.catalog.catalog import (
    entries_for,
    entry,
    find_source_entry,
    known_eps,
    list_session_keys,
    name_source_ep,
    read_session_revision,
)
from epbuild.catalog.entries import EpEntry
from epbuild.catalog.normalize import normalize
from epbuild.catalog.options import Option
from epbuild.catalog.preparations import get_preparation
from epbuild.catalog.userfile import find_problems
from epbuild.core.canonical import read_schema

DATA = Path(epbuild.catalog.__file__).parent / "data"
EP_FILES = [path for path in sorted(DATA.glob("*.toml")) if path.stem != "session"]
ENTRIES = [found for ep in known_eps() for found in entries_for(ep)]


def rows() -> Iterator[tuple[str, Option, tuple[str, str], Mapping[str, str]]]:
    """Yield every option of every EP and every session key, with the arguments that `normalize` needs."""
    for found in ENTRIES:
        for name, option in found.options.items():
            yield f"{found.short}-{found.kind}.{name}", option, found.booleans, found.canonical_names(name)
    for name, option in list_session_keys().options.items():
        yield name, option, ("0", "1"), {}


ROWS = list(rows())
each_entry = pytest.mark.parametrize("found", ENTRIES, ids=lambda found: f"{found.short}-{found.kind}")
each_file = pytest.mark.parametrize("path", EP_FILES, ids=lambda path: path.stem)


def document(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def test_every_promised_ep_is_in_the_catalog_and_others_are_key_errors() -> None:
    assert known_eps() == (
        "CPUExecutionProvider",
        "CoreMLExecutionProvider",
        "MIGraphXExecutionProvider",
        "NvTensorRTRTXExecutionProvider",
        "OpenVINOExecutionProvider",
        "QNNExecutionProvider",
        "TensorrtExecutionProvider",
        "VitisAIExecutionProvider",
        "WebGpuExecutionProvider",
    )
    with pytest.raises(KeyError):
        entry("NoSuchExecutionProvider")


@each_file
def test_data_file_matches_its_schema_without_contradictions(path: Path) -> None:
    assert list(find_problems(document(path))) == []


@each_file
def test_first_line_of_a_data_file_names_the_ep(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f'ep = "{document(path)["ep"]}"'


def test_session_keys_match_their_schema() -> None:
    whole = read_schema("catalog")
    validator = jsonschema.Draft202012Validator({**whole["$defs"]["session"], "$defs": whole["$defs"]})
    assert [error.message for error in validator.iter_errors(document(DATA / "session.toml"))] == []


def test_catalog_schema_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(read_schema("catalog"))


def test_every_listed_value_is_accepted_unchanged() -> None:
    for row, option, booleans, names in ROWS:
        offered = [*option.values, *names.values()]
        if option.pattern is not None:
            offered += (option.example or "").split(", ")
        if option.default:
            offered.append(option.default)
        if option.type == "boolean":
            offered += booleans
        offered += [str(int(bound)) for bound in (option.minimum, option.maximum) if bound is not None]
        assert [normalize(option, value, booleans=booleans, names=names) for value in offered] == offered, row


def test_every_row_names_its_origin() -> None:
    for row, option, *_ in ROWS:
        assert re.match(r"(measured|doc|string in)\b", option.origin), row
        assert option.meaning.endswith("."), f"{row}: a meaning is a sentence"


def test_session_only_option_is_not_part_of_a_key() -> None:
    assert [row for row, option, *_ in ROWS if option.runtime and option.changes_output] == []


def test_option_file_is_part_of_the_key() -> None:
    files = [(row, option) for row, option, *_ in ROWS if option.type == "file" or option.files_pattern is not None]
    assert files
    assert [row for row, option in files if not option.changes_output] == []


@each_entry
def test_entry_has_all_facts_that_a_build_needs(found: EpEntry) -> None:
    assert found.revision >= 1
    assert found.module.isidentifier()
    assert found.distribution == found.distributions[0]
    assert found.sharing.possible or found.sharing.reason, "a refusal needs its reason"
    assert not found.sharing.possible or found.sharing.what, "what is shared and how"
    assert found.cannot, "every EP has something that it cannot do here"
    assert set(found.virtual_devices) <= set(found.devices)
    assert set(found.emulator_devices) <= set(found.devices)
    assert found.device_option is None or found.device_option in found.options
    assert {row.driver for row in found.cannot} - {None} <= {driver.name for driver in found.host.drivers}


def test_short_names_of_eps_are_unique() -> None:
    shorts = {found.ep: found.short for found in ENTRIES}
    assert len(set(shorts.values())) == len(shorts)


def test_every_build_of_onnx_runtime_has_the_cpu_ep() -> None:
    builds = {name for ep in known_eps() for found in entries_for(ep) if found.kind == "provider" for name in found.distributions}
    assert "onnxruntime-gpu" in builds
    assert builds <= set(entry("CPUExecutionProvider").distributions)


@pytest.mark.parametrize("ep", known_eps())
def test_exactly_one_packaging_is_the_default(ep: str) -> None:
    assert [found.default for found in entries_for(ep)].count(True) == 1


def test_session_key_belongs_to_the_user_or_to_epbuild() -> None:
    keys = list_session_keys()
    assert not set(keys.options) & set(keys.reserved)
    assert all(len(key) <= keys.limits.key for key in keys.known)


def test_the_first_line_of_the_session_keys_is_their_revision() -> None:
    assert read_session_revision() == list_session_keys().revision


@each_entry
def test_no_ep_option_has_the_name_of_a_session_key(found: EpEntry) -> None:
    assert not set(found.options) & set(list_session_keys().known)


def test_soc_number_identifies_one_soc() -> None:
    table = entry("QNNExecutionProvider").names["soc_model"].rows
    assert len({row.facts["number"] for row in table}) == len({row.name for row in table}) == len(table)
    assert {row.facts["arch"] for row in table} == {"68", "69", "73", "75", "79", "81", "85"}


def test_soc_with_a_name_unknown_to_the_ep_is_passed_by_number() -> None:
    rows_by_name = {row.name: row for row in entry("QNNExecutionProvider").names["soc_model"].rows}
    assert rows_by_name["SM8750"].canonical == "SM8750"
    assert rows_by_name["SM8735"].canonical == "85"
    assert rows_by_name["CQ8750S"].canonical == "105"


@pytest.mark.parametrize(
    ("soc", "expected"),
    [("SC8380XP", "SC8380XP"), ("85", "SM8735"), ("40", "sm6225"), ("SM8750,85", "SM8750,SM8735"), ("SM9999", "SM9999")],
)
def test_expected_binary_target_is_known_for_every_soc(soc: str, expected: str | None) -> None:
    assert entry("QNNExecutionProvider").binary_target({"soc_model": soc}) == expected


@pytest.mark.parametrize("source", ["QNNExecutionProvider", "QnnExecutionProvider", "QNN", "Qnn", "qnn"])
def test_source_is_recognized_in_every_spelling_that_qnn_accepts(source: str) -> None:
    assert name_source_ep(source) == "QNNExecutionProvider"


@pytest.mark.parametrize("source", ["QnnEP", "openvinoexecutionprovider", "", None])
def test_source_that_no_ep_accepts_has_no_ep(source: str | None) -> None:
    assert find_source_entry(source) is None
    assert name_source_ep(source) == source


def test_target_is_read_from_a_qnn_context_binary() -> None:
    pattern = entry("QNNExecutionProvider").binary.target_pattern
    assert pattern is not None
    match = re.search(pattern, "...;soc_type=SC8380XP;arch=73;...")
    assert match is not None
    assert match[1] == "SC8380XP"


def test_soc_is_read_from_the_compatibility_string() -> None:
    fields = entry("QNNExecutionProvider").read_compatibility("v2:6:2.51.0:5.51.0:75,79:60,69:0,0:0")
    assert fields is not None
    assert (fields["soc_model"], fields["htp_arch"], fields["sdk"]) == ("SC8380XP,SM8750", "75,79", "2.51.0")
    assert entry("QNNExecutionProvider").read_compatibility("something else") is None
    assert entry("CPUExecutionProvider").read_compatibility("v2:6") is None


def test_openvino_version_is_read_with_and_without_nodes() -> None:
    plugin = entry("OpenVINOExecutionProvider", ["onnxruntime-ep-openvino"])
    text = '{"ovep_compat_ver":"1.0","ovep_ver":"1.8.1+95d534b.ci.79","ovep_bin_ver":"1.1","ov_compat_string":"%s"}'
    fields = plugin.read_compatibility(text % "meta=1.0;ov=2026.4.1;isa=Intel AVX-512")
    assert fields == {"version": "1.8.1+95d534b.ci.79", "openvino": "2026.4.1", "isa": "Intel AVX-512"}
    assert plugin.read_compatibility(text % "") == {"version": "1.8.1+95d534b.ci.79"}


def test_missing_npu_compiler_is_recognized_in_openvino_messages() -> None:
    said = 'VCL compiler loading failed, aborting. Cannot load library "libopenvino_intel_npu_compiler_loader.so"'
    plugin = entry("OpenVINOExecutionProvider", ["onnxruntime-ep-openvino"])
    found = [row for row in plugin.cannot if row.symptom and re.search(row.symptom, said)]
    assert [row.device for row in found] == ["npu"]
    assert "Windows" in found[0].why


@pytest.mark.parametrize(("value", "refused"), [("SM8750", False), ("SM8750,SC8380XP", True), ("", False)])
def test_only_a_list_of_socs_prevents_sharing(value: str, refused: bool) -> None:
    (refusal,) = entry("QNNExecutionProvider").sharing.refused_values
    assert refusal.matches(value) is refused


@pytest.mark.parametrize(
    ("key", "version", "known"),
    [
        ("ep.enable_weightless", "1.24.1", False),
        ("ep.enable_weightless", "1.31.1", True),
        ("ep.enable_weightless_mode", "1.31.1", False),
        ("ep.enable_weightless_ep_context_nodes", "1.30.2", True),
        ("ep.enable_weightless_ep_context_nodes", "1.31.1", False),
        ("session.disable_quant_qdq", "1.18.0", True),
        ("ep.enable_weightless", "nightly", True),
    ],
)
def test_key_is_known_to_the_versions_that_have_the_key(key: str, version: str, known: bool) -> None:
    assert list_session_keys().options[key].known_in(version) is known


@pytest.mark.parametrize(
    ("since", "until", "known", "unknown"),
    [
        ("1.24", None, ("1.24", "1.24.0", "1.24.1", "1.100", "2.0"), ("1.23.9", "1", "0.99")),
        ("1.24.0", None, ("1.24", "1.24.0", "1.25"), ("1.23",)),
        ("1.24.1", None, ("1.24.1", "1.24.1.post1", "1.24.2rc1"), ("1.24", "1.24.0")),
        (None, "1.22", ("1.22", "1.22.9", "1.9", "0"), ("1.23", "1.23.0", "2")),
        (None, "1.22.1", ("1.22", "1.22.1", "1.22.1.1"), ("1.22.2", "1.23")),
        ("1.21", "1.22", ("1.21", "1.22.3"), ("1.20.9", "1.23")),
    ],
)
def test_row_is_known_from_its_first_release_to_its_last_patch(
    since: str | None, until: str | None, known: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    row = Option("x", "text", "none", "It does.", "measured", since=since, until=until)
    assert [version for version in (*known, *unknown) if row.known_in(version)] == list(known)


def test_row_missing_from_some_releases_names_its_releases() -> None:
    for row, option, *_ in ROWS:
        assert bool(option.releases) == (option.since is not None or option.until is not None), row
        assert all(bound in option.releases for bound in (option.since, option.until) if bound is not None), row


@pytest.mark.parametrize(
    ("ep", "packages", "name", "value", "files"),
    [
        ("VitisAIExecutionProvider", [], "config_file", "vaip.json", ("vaip.json",)),
        ("QNNExecutionProvider", [], "backend_path", "libQnnHtp.so", ()),
        ("QNNExecutionProvider", [], "backend_path", "libs/libQnnHtp.so", ("libs/libQnnHtp.so",)),
        ("QNNExecutionProvider", [], "op_packages", "A:x/a.so:F:CPU,B:C:/b.dll:G", ("x/a.so", "C:/b.dll")),
        ("QNNExecutionProvider", [], "soc_model", "SM8750", ()),
        ("TensorrtExecutionProvider", [], "trt_extra_plugin_lib_paths", "a.so;b.so", ("a.so", "b.so")),
        ("OpenVINOExecutionProvider", ["onnxruntime-ep-openvino"], "load_config", '{"CPU": {}}', ()),
        ("OpenVINOExecutionProvider", ["onnxruntime-ep-openvino"], "load_config", "ov.json", ("ov.json",)),
    ],
)
def test_option_files_are_found_and_other_values_are_not_paths(
    ep: str, packages: list[str], name: str, value: str, files: tuple[str, ...]
) -> None:
    assert entry(ep, packages).options[name].files(value) == files


def test_entry_fields_equal_the_keys_of_catalog_files() -> None:
    properties = read_schema("catalog")["properties"]
    assert {*EpEntry.__struct_encode_fields__} == {*properties, "user_file"}
    sections = [(name, kind) for name, hint in get_type_hints(EpEntry).items() for kind in (hint, *get_args(hint))]
    found = {name: kind for name, kind in sections if isinstance(kind, type) and issubclass(kind, Struct)}
    written = {name: section["properties"] for name, section in properties.items() if "properties" in section}
    assert found.keys() - written.keys() == {"cannot", "names", "options", "refuse", "rewrites"}, "tables of rows"
    for name, keys in written.items():
        assert {*found[name].__struct_encode_fields__, "origin"} == {*keys, "origin"}, name


def test_rewrite_replaces_the_last_node_of_its_pattern() -> None:
    rewritten = {found.short: found.rewrites for found in ENTRIES if found.rewrites}
    assert set(get_preparation("rewrite").options["ep"].values) == rewritten.keys()
    for row in itertools.chain.from_iterable(rewritten.values()):
        assert row.replacement.output == row.nodes[-1].output
        assert {*row.replacement.inputs} <= {name for node in row.nodes for name in (*node.inputs, node.output)}
