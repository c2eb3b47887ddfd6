"""Changes of how compiled models store contexts: all sharers change together, and refusals lose nothing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from epbuild.catalog.catalog import find_source_entry
from epbuild.core.errors import ChangeRefused, EpbuildError
from epbuild.onnxfile.edit import packaging as edited
from epbuild.onnxfile.edit.packaging import Packaging
from epbuild.onnxfile.edit.rewrite import embed, relink
from epbuild.onnxfile.read.headers import read_header
from tests.onnxfile.context_models import OPENVINO, compiled, context, encapsulated, files, value, write
from tests.onnxfile.models import external_tensor
from tests.support.moments import at_each_return

repackage = partial(edited.repackage, find_ep=find_source_entry)


def reference(model: Path) -> str | None:
    return read_header(model).ep_context_nodes[0].reference


def shared_pair(folder: Path) -> tuple[Path, Path]:
    return compiled(folder / "a.onnx", binary="ab.bin"), compiled(folder / "b.onnx", binary="ab.bin")


def test_shared_binary_moves_for_all_models_and_the_old_file_is_removed(tmp_path: Path) -> None:
    pair = shared_pair(tmp_path)
    content = (tmp_path / "ab.bin").read_bytes()
    made = repackage(pair, "rename", binary="contexts/new.bin", destination=None)
    assert [reference(model) for model in pair] == ["contexts/new.bin"] * 2
    assert (made.models, made.binaries) == (pair, (tmp_path / "contexts/new.bin",))
    assert made.removed == (tmp_path / "ab.bin",)
    assert sorted(files(tmp_path)) == ["a.onnx", "b.onnx", "contexts/new.bin"]
    assert (tmp_path / "contexts/new.bin").read_bytes() == content
    repackage(pair, "rename", binary="ab.bin", destination=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "ab.bin", "b.onnx"]  # and no empty folder


def test_embedding_and_extracting_in_place_leaves_one_copy(tmp_path: Path) -> None:
    model = compiled(tmp_path / "m_ctx.onnx", binary="m_qnn.bin")
    before = files(tmp_path)
    repackage([model], "embed", binary=None, destination=None)
    assert list(files(tmp_path)) == ["m_ctx.onnx"]
    assert before["m_qnn.bin"] in model.read_bytes()
    repackage([model], "extract", binary="m_qnn.bin", destination=None)
    assert files(tmp_path) == before


def test_extracted_context_is_named_after_its_model_by_default(tmp_path: Path) -> None:
    models = [compiled(tmp_path / f"{name}.onnx", payload=name.encode()) for name in ("a", "b")]
    repackage(models, "extract", binary=None, destination=tmp_path / "out")
    assert {name: content for name, content in files(tmp_path / "out").items() if name.endswith(".bin")} == {
        "a.bin": b"a",
        "b.bin": b"b",
    }
    assert [reference(tmp_path / f"out/{name}.onnx") for name in ("a", "b")] == ["a.bin", "b.bin"]


def test_result_elsewhere_is_complete_and_leaves_the_sources_alone(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    model = compiled(folder / "m.onnx", initializer=[external_tensor("w", "data/w.bin")])
    (folder / "data").mkdir()
    (folder / "data/w.bin").write_bytes(bytes(16))
    before = files(folder)
    repackage([model], "rename", binary="c/n.bin", destination=tmp_path / "out")
    repackage([model], "embed", binary=None, destination=tmp_path / "one/whole.onnx")
    assert files(folder) == before
    assert sorted(files(tmp_path / "out")) == ["c/n.bin", "data/w.bin", "m.onnx"]
    assert sorted(files(tmp_path / "one")) == ["data/w.bin", "whole.onnx"]


def test_binary_stays_if_an_unreadable_model_may_need_the_file(tmp_path: Path) -> None:
    model = compiled(tmp_path / "m.onnx", binary="m.bin")
    (tmp_path / "broken.onnx").write_bytes(b"half a mod")
    write(tmp_path / "strange.onnx", [context(["x"], ["y"], embed_mode=0, ep_cache_context="\0")], [value("x")], [value("y")])
    made = repackage([model], "rename", binary="n.bin", destination=None)
    assert (made.removed, made.kept) == ((), (tmp_path / "m.bin",))
    strange = (
        () if sys.platform == "win32" else (tmp_path / "strange.onnx",)
    )  # Python on Windows resolves paths with a null character
    assert made.unreadable == (tmp_path / "broken.onnx", *strange)
    assert (tmp_path / "m.bin").exists()


def test_links_and_unrelated_models_in_the_folder_are_ignored(tmp_path: Path) -> None:
    model = compiled(tmp_path / "m.onnx", binary="m.bin")
    compiled(tmp_path / "other.onnx", binary="other.bin")
    compiled(tmp_path / "embedded.onnx", payload=b"context")
    (tmp_path / "link.onnx").symlink_to(model)  # the same model by another name
    assert repackage([model], "rename", binary="n.bin", destination=None).removed == (tmp_path / "m.bin",)


class ChangeRequest(NamedTuple):
    models: list[Path]
    packaging: Packaging
    binary: str | None
    destination: Path | None


def requested(
    models: list[Path], packaging: Packaging, binary: str | None = None, destination: Path | None = None
) -> ChangeRequest:
    return ChangeRequest(models, packaging, binary, destination)


def change(models: list[Path], packaging: Packaging, binary: str | None = None, destination: Path | None = None) -> None:
    repackage(models, packaging, binary=binary, destination=destination)


def two_contexts(folder: Path) -> Path:
    nodes = [context(["x"], [name], embed_mode=0, ep_cache_context=f"{name}.bin") for name in ("y", "z")]
    for name in ("y", "z"):
        (folder / f"{name}.bin").write_bytes(name.encode())
    return write(folder / "two.onnx", nodes, [value("x")], [value("y"), value("z")])


def two_nodes(folder: Path) -> Path:
    nodes = [context(["x"], [name], embed_mode=0, ep_cache_context="m.bin") for name in ("y", "z")]
    (folder / "m.bin").write_bytes(b"context")
    return write(folder / "two.onnx", nodes, [value("x")], [value("y"), value("z")])


def a_source(folder: Path) -> Path:
    from onnx import helper

    return write(folder / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], [value("x")], [value("y")])


def with_data(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(16))
    return compiled(folder / "m.onnx", initializer=[external_tensor("w", "w.bin")])


def linked(folder: Path) -> Path:
    (folder / "link.onnx").symlink_to(compiled(folder / "m.onnx"))
    return folder / "link.onnx"


def taken(folder: Path, name: str) -> Path:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"mine")
    return compiled(folder / "m.onnx", binary="m.bin")


REFUSED: dict[str, tuple[str, str, Callable[[Path], ChangeRequest]]] = {
    "not compiled": ("EPB620", "contains no EPContext node", lambda f: requested([a_source(f)], "embed")),
    "embedded already": (
        "EPB620",
        "its context is embedded",
        lambda f: requested([compiled(f / "m.onnx", payload=b"c")], "embed"),
    ),
    "no binary to rename": (
        "EPB620",
        "is embedded",
        lambda f: requested([compiled(f / "m.onnx", payload=b"c")], "rename", "n.bin"),
    ),
    "nothing embedded": ("EPB620", "no embedded context to extract", lambda f: requested([compiled(f / "m.onnx")], "extract")),
    "two binaries": ("EPB621", r"has 2 contexts \(y.bin, z.bin\)", lambda f: requested([two_contexts(f)], "rename", "n.bin")),
    "two binaries to embed": ("EPB621", "has 2 contexts", lambda f: requested([two_contexts(f)], "embed")),
    "two nodes of one binary": ("EPB621", "2 nodes of .* refer to m.bin", lambda f: requested([two_nodes(f)], "embed")),
    "only one of the sharing models": (
        "EPB622",
        "also used by b.onnx",
        lambda f: requested([shared_pair(f)[0]], "rename", "n.bin"),
    ),
    "only one of the sharing models, elsewhere": (
        "EPB622",
        "also used by b.onnx",
        lambda f: requested([shared_pair(f)[0]], "rename", "n.bin", f / "out"),
    ),
    "a shared binary embedded": ("EPB622", "ab.bin is shared by a.onnx, b.onnx", lambda f: requested([*shared_pair(f)], "embed")),
    "a shared binary embedded in one model": ("EPB622", "is shared by", lambda f: requested([shared_pair(f)[1]], "embed")),
    "one name for two binaries": (
        "EPB622",
        "only one can have the name n.bin",
        lambda f: requested([compiled(f / "a.onnx"), compiled(f / "b.onnx")], "rename", "n.bin"),
    ),
    "one name for two extracted contexts": (
        "EPB622",
        "different contexts",
        lambda f: requested([compiled(f / f"{name}.onnx", payload=b"c") for name in "ab"], "extract", "n.bin"),
    ),
    "two folders": (
        "EPB622",
        "in different folders",
        lambda f: requested([compiled(f / "a/m.onnx"), compiled(f / "b/n.onnx")], "embed"),
    ),
    "a name that leaves the folder": (
        "EPB624",
        r"contains '\.\.'",
        lambda f: requested([compiled(f / "m.onnx")], "rename", "../n.bin"),
    ),
    "an absolute name": ("EPB624", "absolute", lambda f: requested([compiled(f / "m.onnx")], "rename", "/n.bin")),
    "a folder as a name": ("EPB624", "names a folder", lambda f: requested([compiled(f / "m.onnx")], "rename", "sub/")),
    "a dot as a name": ("EPB624", "is a folder", lambda f: requested([compiled(f / "m.onnx")], "rename", "sub/.")),
    "a name of a device": ("EPB624", "'NUL' is not", lambda f: requested([compiled(f / "m.onnx")], "rename", "sub/NUL")),
    "an existing name": ("EPB624", "n.bin already exists", lambda f: requested([taken(f, "n.bin")], "rename", "n.bin")),
    "an existing result": (
        "EPB624",
        "m.onnx already exists",
        lambda f: requested([taken(f, "o/m.onnx")], "embed", None, f / "o"),
    ),
    "the source as the result": ("EPB624", "exists", lambda f: requested([compiled(f / "m.onnx")], "embed", None, f / "m.onnx")),
    "the model's own name": (
        "EPB624",
        "name of both the model",
        lambda f: requested([compiled(f / "m.onnx")], "rename", "n.onnx", f / "o/n.onnx"),
    ),
    "the name of external data": ("EPB624", "is external data", lambda f: requested([with_data(f)], "rename", "w.bin", f / "o")),
    "a link in place": ("EPB624", "is a link", lambda f: requested([linked(f)], "embed")),
    "a context of two files": (
        "EPB626",
        "is in two files, net.xml and net.bin, but a model can embed only one",
        lambda f: requested([encapsulated(f / "m.onnx")], "embed", None, f / "o"),
    ),
    "a name by which its weights are not found": (
        "EPB624",
        "'new.bin' must end in '.xml', because the EP finds the weights in net.bin by this name",
        lambda f: requested([encapsulated(f / "m.onnx")], "rename", "new.bin", f / "o"),
    ),
    "an existing name of its weights": (
        "EPB624",
        "new.bin already exists",
        lambda f: requested([taken(f, "new.bin"), encapsulated(f / "m.onnx")][1:], "rename", "new.xml"),
    ),
    "a missing model": ("EPB600", "cannot be read", lambda f: requested([f / "gone.onnx"], "embed")),
    "an invalid model": ("EPB602", "not a complete ONNX file", lambda f: requested([taken(f, "x.onnx"), f / "x.onnx"], "embed")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_change_is_refused_in_one_sentence_and_changes_nothing(tmp_path: Path, name: str) -> None:
    code, words, prepare = REFUSED[name]
    request = prepare(tmp_path)
    before = sorted(tmp_path.rglob("*")), files(tmp_path)
    with pytest.raises(EpbuildError, match=words) as refused:
        change(*request)
    (problem,) = refused.value.problems
    assert problem.code == code
    assert "\n" not in problem.message
    assert refused.value.exit_code == (2 if isinstance(refused.value, ChangeRefused) else 1)
    assert (sorted(tmp_path.rglob("*")), files(tmp_path)) == before


@pytest.mark.parametrize("in_place", [True, False])
def test_weights_beside_a_context_move_with_it(tmp_path: Path, in_place: bool) -> None:
    model = encapsulated(tmp_path / "m.onnx")
    before = files(tmp_path)
    folder = tmp_path if in_place else tmp_path / "out"
    made = repackage([model], "rename", binary="c/new.xml", destination=None if in_place else folder)
    assert made.binaries == (folder / "c/new.bin", folder / "c/new.xml")
    assert made.removed == ((tmp_path / "net.bin", tmp_path / "net.xml") if in_place else ())
    found = files(folder)
    assert sorted(found) == ["c/new.bin", "c/new.xml", "m.onnx"]
    assert (found["c/new.bin"], found["c/new.xml"]) == (before["net.bin"], before["net.xml"])


@pytest.mark.parametrize(
    ("left", "words"),
    [(None, "the weights 'net.bin' of the context 'net.xml' do not exist beside 'm.onnx'"), (31, "have 31 bytes; .* needs 32")],
)
def test_missing_or_short_weights_are_reported(tmp_path: Path, left: int | None, words: str) -> None:
    model = encapsulated(tmp_path / "m.onnx")
    (tmp_path / "net.bin").unlink() if left is None else (tmp_path / "net.bin").write_bytes(bytes(left))
    with pytest.raises(EpbuildError, match=words) as refused:
        change([model], "rename", "new.xml")
    assert refused.value.problems[0].code == "EPB605"


def test_context_without_weights_needs_no_second_file(tmp_path: Path) -> None:
    model = encapsulated(tmp_path / "m.onnx")
    (tmp_path / "net.xml").write_text("<?xml version='1.0'?><net name='n'></net>", encoding="utf-8")
    (tmp_path / "net.bin").unlink()
    assert repackage([model], "rename", binary="new.xml", destination=None).binaries == (tmp_path / "new.xml",)


def test_missing_binary_has_its_own_error(tmp_path: Path) -> None:
    model = compiled(tmp_path / "m.onnx", binary="m.bin", source=OPENVINO)
    (tmp_path / "m.bin").unlink()
    with pytest.raises(EpbuildError, match="does not exist") as refused:
        change([model], "embed")
    assert refused.value.problems[0].code == "EPB605"


def test_model_over_two_gigabytes_is_refused_before_writing(tmp_path: Path) -> None:
    model = compiled(tmp_path / "m.onnx", binary="m.bin")
    with (tmp_path / "m.bin").open("wb") as file:
        file.truncate(2**31 - 1)  # a hole: it takes no space
    with pytest.raises(ChangeRefused, match="over 2 GiB") as refused:
        change([model], "embed", None, tmp_path / "out")
    assert refused.value.problems[0].code == "EPB623"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("packaging", ["embed", "rename"])
def test_wrong_result_never_replaces_the_model(tmp_path: Path, packaging: Packaging) -> None:
    model = compiled(tmp_path / "m.onnx", binary="m.bin")
    other = compiled(tmp_path / "other/m.onnx", binary="m.bin", node="another")
    before = files(tmp_path)
    right = embed if packaging == "embed" else relink

    def do_wrong(done: Mapping[str, Any]) -> None:
        done["destination"].unlink()
        right(other, *(done[name] for name in list(inspect.signature(right).parameters)[1:]))

    with pytest.raises(EpbuildError, match="nothing was changed") as failed, at_each_return(right, do_wrong):
        change([model], packaging, None if packaging == "embed" else "n.bin")
    assert failed.value.problems[0].code == "EPB629"
    assert files(tmp_path) == before


def test_full_disk_between_two_models_leaves_both_models_loadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = shared_pair(tmp_path)
    replace = Path.replace

    def failing(source: Path, destination: Path) -> Path:
        if destination.name == "b.onnx":
            raise OSError(28, "No space left on device")
        return replace(source, destination)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="No space"):
        change([*pair], "rename", "n.bin")
    assert [reference(model) for model in pair] == ["n.bin", "ab.bin"]
    assert sorted(files(tmp_path)) == ["a.onnx", "ab.bin", "b.onnx", "n.bin"]
