"""Facts read from a context, at any position in a file and of any size."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, helper

from epbuild.onnxfile.read.payload import Payload
from epbuild.onnxfile.read.wire import encode_varint
from tests.support.compiled_models import QNN, SHARED

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("payload") / "file.bin"


@given(
    content=st.lists(st.sampled_from([b"soc=", b"SM8750", b";", b"x", b"123", b"=="]), max_size=40).map(b"".join),
    start=st.integers(0, 20),
    chunk=st.integers(1, 64),
)
def test_matches_across_chunk_boundaries_are_found(file: Path, content: bytes, start: int, chunk: int) -> None:
    """Check matches up to the length of the overlap between two chunks."""
    pattern = rb"soc=[A-Z0-9]{1,12}(?=;)"
    file.write_bytes(bytes(start) + content + b"soc=AFTER;")
    found = [match[0] for match in Payload(file, start, len(content)).find_matches(pattern, chunk=chunk, longest=32)]
    assert found == re.findall(pattern, content)


def test_the_end_of_a_match_is_no_second_match(file: Path) -> None:
    file.write_bytes(b"x" * 10 + b"name soc=1;" + b"x" * 10)
    for chunk in range(1, 32):
        found = Payload.whole(file).find_matches(rb"(?:name )?soc=[0-9];", chunk=chunk, longest=12)
        assert [match[0] for match in found] == [b"name soc=1;"]


def test_a_digest_covers_only_its_range(file: Path) -> None:
    file.write_bytes(b"before" + SHARED + b"after")
    assert Payload(file, 6, len(SHARED)).sha256() == hashlib.sha256(SHARED).hexdigest()


SCRIPT = """
import json, sys
from pathlib import Path
from epbuild.verify.artifact import find_artifacts
from epbuild.verify.inspection import inspect_model
from epbuild.verify.static import check_artifact
model = Path(sys.argv[1])
[node] = inspect_model(model)["ep_context_nodes"]
failed = [f.code for artifact in find_artifacts(model) for f in check_artifact(artifact) if f.outcome == "failed"]
# Not getrusage, which begins with what the process had that started this one.
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
print(json.dumps([node["size"], node["target"], node["sha256"], failed, peak]))
"""


def open_ended(number: int, head: bytes, left: int) -> bytes:
    """Return a field of a message that ends `left` bytes early."""
    return encode_varint(number << 3 | 2) + encode_varint(len(head) + left) + head


@pytest.mark.gate
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is measured as Linux tells it")
def test_a_single_file_of_nearly_two_gigabytes_is_read_in_300_megabytes(tmp_path: Path, exhaustive: bool) -> None:
    """Use a sparse file with one embedded context of 1.9 or 0.5 GB, whose target is at its very end."""
    size, marker = 1_900_000_000 if exhaustive else 500_000_000, b"soc_type=SM8750;arch=79"
    node = helper.make_node("EPContext", ["x"], ["y"], "context", domain="com.microsoft", source=QNN).SerializeToString()
    attribute = AttributeProto(name="ep_cache_context", type=AttributeProto.STRING).SerializeToString()
    head = open_ended(4, b"", size)
    for number, before in ((5, attribute), (1, node), (7, b"")):
        head = open_ended(number, before + head, size)
    model = tmp_path / "large.onnx"
    with model.open("wb") as file:
        file.write(head)
        file.seek(size - len(marker), os.SEEK_CUR)
        file.write(marker)
    expected = hashlib.sha256()
    with model.open("rb") as file:
        file.seek(len(head))
        while chunk := file.read(1 << 20):
            expected.update(chunk)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    found, target, digest, failed, peak = json.loads(done.stdout)
    assert (found, target, digest, failed) == (size, "SM8750", expected.hexdigest(), [])
    assert peak < 300_000_000
