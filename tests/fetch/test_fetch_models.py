"""Remote models: the graph and its external data, all with the pinned digests, read like a local model."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping

import onnx
import pytest
from onnx import TensorProto, helper

from epbuild.cache.blobs import BlobStore
from epbuild.core.errors import EpbuildError
from epbuild.fetch.models import Pins, RemoteModel, fetch_model, make_file_name
from epbuild.onnxfile.read.headers import read_header
from epbuild.recipe.address import parse_address
from tests.support.fake_fetcher import Arrivals
from tests.support.file_server import File, FileServer, client_without_tls

WEIGHTS = bytes(range(256)) * 64


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def graph(*locations: str) -> bytes:
    """Return an ONNX model whose weights are at `locations`."""
    weights = []
    for number, location in enumerate(locations):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        weights.append(tensor)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    made = helper.make_graph([helper.make_node("Relu", ["x"], ["x2"])], "g", [value], [value], initializer=weights)
    data: bytes = helper.make_model(made).SerializeToString()
    return data


def fetched(
    text: str, store: BlobStore, pin: str | None, pins: Mapping[str, str] | None = None, arrivals: Arrivals | None = None
) -> RemoteModel:
    progress = arrivals if arrivals is not None else Arrivals()
    found = Pins(pin, pins or {})
    return fetch_model(text, found, store, progress=progress, cancelled=threading.Event(), client=client_without_tls())


def refusal(text: str, store: BlobStore, pin: str | None, pins: Mapping[str, str] | None = None) -> tuple[str, int, str]:
    with pytest.raises(EpbuildError) as failure:
        fetched(text, store, pin, pins)
    (problem,) = failure.value.problems
    return problem.code, failure.value.exit_code, problem.text


def served(server: FileServer, *locations: str) -> tuple[str, str]:
    """Serve a graph with data at `locations`, and return the graph's address and digest."""
    data = graph(*locations)
    for location in locations:
        server.serve(f"/tiny/{location}", File(WEIGHTS))
    return server.serve("/tiny/m.onnx", File(data)).text, sha256(data)


def test_remote_model_is_a_file_under_its_own_name(server: FileServer, store: BlobStore) -> None:
    text, pin = served(server)
    model = fetched(text, store, pin)
    assert model.graph.name == "m.onnx"
    assert model.graph.read_bytes() == graph()
    assert model.digests == {model.graph: pin}
    assert list(model.graph.parent.iterdir()) == [model.graph]


def test_external_data_is_placed_beside_its_graph(server: FileServer, store: BlobStore) -> None:
    text, pin = served(server, "w.bin", "data/w2.bin")
    arrivals = Arrivals()
    model = fetched(text, store, pin, {"w.bin": sha256(WEIGHTS), "data/w2.bin": sha256(WEIGHTS)}, arrivals)
    assert (model.graph.parent / "w.bin").read_bytes() == WEIGHTS
    assert (model.graph.parent / "data" / "w2.bin").read_bytes() == WEIGHTS
    assert set(model.digests.values()) == {pin, sha256(WEIGHTS)}
    assert read_header(model.graph).external_locations == ("w.bin", "data/w2.bin")
    onnx.load(str(model.graph), load_external_data=True)
    # The second file has the content of the first and need not be fetched.
    assert [address for address, done, total in arrivals if done == total] == [text, text.replace("m.onnx", "w.bin")]


def test_existing_model_needs_no_network(server: FileServer, store: BlobStore) -> None:
    text, pin = served(server, "w.bin")
    first = fetched(text, store, pin, {"w.bin": sha256(WEIGHTS)})
    server.files.clear()
    server.requests.clear()
    before = first.graph.stat()
    assert fetched(text, store, pin, {"w.bin": sha256(WEIGHTS)}) == first
    assert server.requests == []
    assert first.graph.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("name", ["m.onnx", "w.bin"])
@pytest.mark.parametrize("damage", ["removed", "cut short"])
def test_damaged_file_is_restored_from_the_store(server: FileServer, store: BlobStore, name: str, damage: str) -> None:
    text, pin = served(server, "w.bin")
    model = fetched(text, store, pin, {"w.bin": sha256(WEIGHTS)})
    server.files.clear()
    victim = model.graph.parent / name
    victim.chmod(0o644)
    if damage == "removed":
        victim.unlink()
    else:
        os.truncate(victim, 10)
    fetched(text, store, pin, {"w.bin": sha256(WEIGHTS)})
    assert {sha256(path.read_bytes()) for path in model.digests} == set(model.digests.values())


def test_damaged_blob_is_fetched_again(server: FileServer, store: BlobStore) -> None:
    text, pin = served(server)
    model = fetched(text, store, pin)
    blob = store.root / "cas" / "sha256" / pin[:2] / pin
    blob.chmod(0o644)
    blob.write_bytes(b"bit rot")
    model.graph.chmod(0o644)
    model.graph.unlink()
    assert fetched(text, store, pin).graph.read_bytes() == graph()


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX permissions")
def test_fetched_model_is_read_only(server: FileServer, store: BlobStore) -> None:
    text, pin = served(server)
    assert fetched(text, store, pin).graph.stat().st_mode & 0o222 == 0


def test_unpinned_data_is_not_fetched(server: FileServer, store: BlobStore) -> None:
    text, pin = served(server, "w.bin")
    code, exit_code, message = refusal(text, store, pin)
    assert (code, exit_code) == ("EPB208", 2)
    assert text.replace("m.onnx", "w.bin") in message
    assert [request.path for request in server.requests] == ["/tiny/m.onnx"]


def test_data_that_differs_from_its_pin_is_refused(server: FileServer, store: BlobStore) -> None:
    text, pin = served(server, "w.bin")
    assert refusal(text, store, pin, {"w.bin": "0" * 64})[:2] == ("EPB511", 3)


def test_pin_for_a_file_that_the_model_lacks_is_a_mistake(server: FileServer, store: BlobStore) -> None:
    text, pin = served(server)
    code, exit_code, message = refusal(text, store, pin, {"weights.bin": sha256(WEIGHTS)})
    assert (code, exit_code) == ("EPB208", 2)
    assert "weights.bin" in message


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "C:\\w.bin", "data\\w.bin", "M.onnx", "./m.onnx"])
def test_data_outside_the_folder_or_over_the_graph_is_refused(server: FileServer, store: BlobStore, location: str) -> None:
    data = graph(location)
    text = server.serve("/tiny/m.onnx", File(data)).text
    code, exit_code, message = refusal(text, store, sha256(data), {location: sha256(WEIGHTS)})
    assert (code, exit_code) == ("EPB204", 2)
    assert location in message
    assert len(server.requests) == 1


def test_invalid_model_is_left_for_the_planner(server: FileServer, store: BlobStore) -> None:
    page = b"<html>Sign in</html>"
    text = server.serve("/tiny/m.onnx", File(page)).text
    assert fetched(text, store, sha256(page)).graph.read_bytes() == page


def test_models_with_equal_names_are_kept_separately(server: FileServer, store: BlobStore) -> None:
    first, second = graph(), graph() + b"\x08\x08"
    one = fetched(server.serve("/a/m.onnx", File(first)).text, store, sha256(first))
    two = fetched(server.serve("/b/m.onnx", File(second)).text, store, sha256(second))
    assert (one.graph.read_bytes(), two.graph.read_bytes()) == (first, second)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://example.com:8443/m.onnx?sig=s3cret", "m.onnx"),
        ("https://[::1]/m%20x.onnx", "m x.onnx"),
        ("https://example.com/a%2Fb%5Cc.onnx", "b_c.onnx"),
        ("gs://models/decode:2.onnx", "decode_2.onnx"),
        ("hf://org/repo/onnx/m@2.onnx@refs/pr/7", "m@2.onnx"),
    ],
)
def test_remote_file_gets_a_portable_name(text: str, name: str) -> None:
    assert make_file_name(parse_address(text)) == name
