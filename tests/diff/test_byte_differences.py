"""Byte differences of two files: exact to the byte, and only real times and padding are reported as such."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epbuild.diff.byte_differences import FileDifference, compare_bytes
from tests.support.compiled_models import context_node, save

STAMP, LATER = b'"timestamp": "2026-11-22 00:11:01 UTC"', b'"timestamp": "2026-11-22 00:12:05 UTC"'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs")


MIB = 1 << 20
"""Size of a chunk in a comparison."""


def differ(folder: Path, old: bytes, new: bytes, name: str = "x.bin") -> FileDifference | None:
    paths = [folder / side / name for side in ("old", "new")]
    for path, content in zip(paths, (old, new), strict=True):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return compare_bytes(name, *paths)


def found(folder: Path, old: bytes, new: bytes, name: str = "x.bin") -> list[tuple[str, str, int, int]]:
    """Return the meaning, the part, the offset and the number of differing bytes of each reported difference."""
    difference = differ(folder, old, new, name)
    assert difference is not None
    return [(item.meaning, item.part, item.offset, item.count) for item in difference.found]


def archive(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name, content in members.items():
            made.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def tile(*unset: int) -> bytes:
    """Return 128 bytes of float16 numbers, of which every second one is set. `unset` is the content of the others."""
    slots = numpy.zeros((32, 2), numpy.uint16)
    slots[:, 0] = numpy.linspace(0.9, 1.1, 32).astype(numpy.float16).view(numpy.uint16)
    slots[: len(unset), 1] = unset
    return slots.tobytes()


@given(content=st.binary(max_size=300))
def test_equal_files_do_not_differ(content: bytes, folder: Path) -> None:
    assert differ(folder, content, content) is None


small_alphabet = st.integers(0, 2).map(lambda number: bytes([number]))
contents = st.lists(small_alphabet, max_size=200).map(b"".join)


@given(old=contents, new=contents, before=st.sampled_from([0, MIB - 1, MIB - 7, MIB - 64]))
def test_first_difference_and_byte_count_equal_those_of_a_loop(old: bytes, new: bytes, before: int, folder: Path) -> None:
    """Check this also for differences on both sides of a chunk boundary."""
    old, new = bytes(before) + old, bytes(before) + new
    told = differ(folder, old, new)
    places = [at for at in range(before, max(len(old), len(new))) if old[at : at + 1] != new[at : at + 1]]
    if not places:
        assert told is None
        return
    assert told is not None
    assert (told.old_size, told.new_size, told.offset, told.count) == (len(old), len(new), places[0], len(places))
    if len(old) == len(new):  # then each of them is reported with a meaning
        assert sum(item.count for item in told.found) == len(places)
        assert min(item.offset for item in told.found) == places[0]


@given(before=st.binary(max_size=120), after=st.binary(max_size=120), at=st.sampled_from([0, MIB - 8, MIB - 61]))
def test_time_of_day_is_recognized_anywhere(before: bytes, after: bytes, at: int, folder: Path) -> None:
    before = bytes(at) + before
    told = differ(folder, before + STAMP + after, before + LATER + after)
    assert told is not None
    assert {item.meaning for item in told.found} == {"timestamp"}
    [item] = told.found
    assert (item.offset, item.count) == (len(before) + STAMP.index(b"1:01 UTC"), 2)
    assert (item.old, item.new) == ("2026-11-22 00:11:01 UTC", "2026-11-22 00:12:05 UTC")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"2026-13-22 00:11:01 UTC", b"2026-13-22 00:11:02 UTC"),
        (b"2026-11-22 25:11:01 UTC", b"2026-11-22 25:11:02 UTC"),
        (b"12026-11-22 00:11:01", b"12026-11-22 00:11:02"),
        (b"2026-11-22 00:11:011", b"2026-11-22 00:11:021"),
        (b"2026-11-22 00:11:01", b"2026-11-22 00:11:0x"),
        (b"v 1.2.3 of 20261122", b"v 1.2.4 of 20261122"),
    ],
)
def test_difference_without_a_time_of_day_on_both_sides_is_plain_bytes(old: bytes, new: bytes, folder: Path) -> None:
    assert {meaning for meaning, *_ in found(folder, old, new)} == {"bytes"}


def test_byte_beside_a_time_is_reported_separately(folder: Path) -> None:
    assert found(folder, b"a" + STAMP + b"\0", b"b" + LATER + b"\0") == [("bytes", "", 0, 1), ("timestamp", "", 30, 2)]


def test_uninitialized_padding_is_recognized_by_the_used_slots_around(folder: Path) -> None:
    zeros = bytes(4096)
    old, new = tile(1, 0, 0xF5, 3, 0, 9), tile(0, 14, 0xF6, 0, 2, 9)
    assert found(folder, zeros + old + zeros, zeros + new + zeros) == [("padding", "", 4096 + 2, 5)]


def test_scattered_slots_add_up_to_padding(folder: Path) -> None:
    zeros = bytes(4096)
    old = (tile(1, 0) + zeros) * 3
    new = (tile(0, 2) + zeros) * 3
    difference = differ(folder, old, new)
    assert difference is not None
    assert [(item.meaning, item.count, item.runs) for item in difference.found] == [("padding", 6, 3)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Two bytes may occur anywhere.
        (tile(1, 0), tile(0, 2)),
        # Numbers of 32 bits whose last digits differ.
        (
            numpy.linspace(1, 2, 32, dtype=numpy.float32).tobytes(),
            (numpy.linspace(1, 2, 32, dtype=numpy.float32).view(numpy.uint32) ^ 0x1F).tobytes(),
        ),
        # Used slots differ too.
        (tile(1, 2, 3, 4, 5), b"\x01" + tile(6, 7, 8, 9, 10)[1:]),
        # Nothing shows that the preceding slot is in use.
        (bytes(128), bytes((0, 0, 7, 7)) * 32),
    ],
    ids=["two bytes", "32-bit numbers", "used slots", "no used slots"],
)
def test_ambiguous_bytes_are_not_reported_as_padding(old: bytes, new: bytes, folder: Path) -> None:
    assert {meaning for meaning, *_ in found(folder, old, new)} == {"bytes"}


def test_archive_bytes_are_reported_by_member(folder: Path) -> None:
    cache = bytes(2000)
    old = archive({"htp.cache.sm8750.0": cache, "dlc.metadata": STAMP})
    new = archive({"htp.cache.sm8750.0": cache[:-1] + b"!", "dlc.metadata": LATER})
    told = found(folder, old, new)
    assert ("timestamp", "member dlc.metadata", old.index(STAMP) + STAMP.index(b"1:01 UTC"), 2) in told
    assert ("bytes", "member htp.cache.sm8750.0", old.index(cache) + len(cache) - 1, 1) in told
    assert {part for meaning, part, *_ in told} == {
        "",
        "member dlc.metadata",
        "member htp.cache.sm8750.0",
    }  # no part contains the checksums


def test_member_named_after_its_content_is_compared_with_its_counterpart(folder: Path) -> None:
    zeros = bytes(2000)
    old = archive({"weights.<aaa>": zeros + tile(1, 2, 3, 4, 5)})
    new = archive({"weights.<bbb>": zeros + tile(6, 7, 8, 9, 10)})
    told = found(folder, old, new)
    assert ("padding", "member weights.<aaa>", old.index(zeros) + len(zeros) + 2, 5) in told
    assert ("bytes", "") in {item[:2] for item in told}  # the name


def test_member_of_only_one_archive_is_reported(folder: Path) -> None:
    more = bytes(1500)
    told = found(folder, archive({"a": more, "b": b"1"}), archive({"a": more, "c": b"1234"}))
    assert {item[:2] for item in told} == {("missing", "member b"), ("added", "member c")}


def test_broken_archive_is_compared_as_plain_bytes(folder: Path) -> None:
    whole = archive({"a": bytes(1500), "b": bytes(1500)})
    broken = whole[:40] + b"\xff" * 20 + whole[60:]
    for old, new in ((whole, broken), (broken, whole)):
        difference = differ(folder, old, new)
        assert difference is not None
        assert difference.count == 20


def model(folder: Path, metadata: Mapping[str, str], **attributes: Any) -> bytes:
    return save(folder / "made.onnx", context_node(**attributes), metadata=dict(metadata)).read_bytes()


def test_model_difference_names_attribute_and_metadata_with_their_texts(folder: Path) -> None:
    old = model(folder, {"made": "for a phone"}, reference="llm.bin", source="QNN", name="one")
    new = model(folder, {"made": "for a watch"}, reference="llm2.bin", source="QNN", name="one")
    difference = differ(folder, old, new, "x.onnx")
    assert difference is not None
    assert [(item.meaning, item.part, item.old, item.new) for item in difference.found] == [
        ("text", "node 1, attribute ep_cache_context", "llm.bin", "llm2.bin"),
        ("text", "metadata 'made'", "for a phone", "for a watch"),
    ]


def test_difference_in_an_embedded_archive_names_its_member(folder: Path) -> None:
    contexts = [archive({"cache": bytes(1500), "metadata": stamp}) for stamp in (STAMP, LATER)]
    old, new = (model(folder, {}, reference=context, embed_mode=1) for context in contexts)
    told = found(folder, old, new, "x.onnx")
    place = "node 1, attribute ep_cache_context, member metadata"
    assert ("timestamp", place, old.index(STAMP) + STAMP.index(b"1:01 UTC"), 2) in told


def test_empty_part_is_not_a_difference(folder: Path) -> None:
    """Check this because ONNX Runtime writes an empty documentation of the graph."""
    made = []
    for text in ("one", "two"):
        graph = onnx.helper.make_graph([], "g", [], [])
        graph.doc_string = ""
        made.append(onnx.helper.make_model(graph, producer_name=text).SerializeToString())
    assert [item[0] for item in found(folder, made[0], made[1], "x.onnx")] == ["text"]


def test_changed_initializer_is_named(folder: Path) -> None:
    made = []
    for number in (1.0, 2.0):
        weights = [onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [2], [number, 0.0]) for name in ("w",)]
        graph = onnx.helper.make_graph([], "g", [], [], weights)
        made.append(onnx.helper.make_model(graph).SerializeToString())
    assert {item[:2] for item in found(folder, made[0], made[1], "x.onnx")} == {("bytes", "initializer 'w'")}


def test_model_with_reordered_parts_is_not_equal(folder: Path) -> None:
    made = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []), producer_name="one")
    first, second = (onnx.ModelProto() for _ in range(2))
    first.CopyFrom(made)
    second.producer_version = "two"
    old = first.SerializeToString() + second.SerializeToString()
    new = second.SerializeToString() + first.SerializeToString()
    difference = differ(folder, old, new, "x.onnx")
    assert difference is not None
    assert [(item.meaning, item.part) for item in difference.found] == [("bytes", "")]


def test_invalid_model_is_compared_as_plain_bytes(folder: Path) -> None:
    assert found(folder, b"\xff one", b"\xff two", "x.onnx") == [("bytes", "", 2, 3)]


@pytest.mark.slow
def test_completely_different_files_are_compared_in_constant_memory(tmp_path: Path) -> None:
    size = 96 << 20
    for name, byte in (("old.bin", b"a"), ("new.bin", b"b")):
        with (tmp_path / name).open("wb") as file:
            for _ in range(size >> 20):
                file.write(byte * (1 << 20))
    tracemalloc.start()
    try:
        difference = compare_bytes("x.bin", tmp_path / "old.bin", tmp_path / "new.bin")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert difference is not None
    assert difference.count == sum(item.count for item in difference.found) == size
    assert peak < 48 << 20
