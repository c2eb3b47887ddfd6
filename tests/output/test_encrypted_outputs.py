"""Encrypted outputs: what is emitted, when it is emitted again, and where keys do not appear."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path

import onnx
import pytest

from epbuild.commands.artifacts import diff, inspect
from epbuild.commands.decrypt import decrypt as decrypt_artifact
from epbuild.core.digest import hash_bytes
from epbuild.core.errors import ChangeRefused, EnvironmentFailure, PlanError, VerifyError
from epbuild.core.shown import discard_line
from epbuild.diff.facts import Incomparable
from epbuild.runtime.encryption import MAGIC, decrypt, read_header
from epbuild.toolchain.process import Ending
from epbuild.verify.artifact import find_artifacts
from epbuild.verify.static import check_artifact
from tests.support.fake_builds import CLASSIFIER, EMIT_CLASSIFIER, Workshop, context_model

KEY = "5a" * 32
ENCRYPT = "encrypt: {key_variable: CONTEXT_KEY, key_id: first}"


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    monkeypatch.setenv("CONTEXT_KEY", KEY)
    write(workshop, ENCRYPT)
    return workshop


def write(workshop: Workshop, encrypt: str, *changes: tuple[str, str]) -> None:
    """Write a recipe that embeds and encrypts the context of the classifier."""
    workshop.write_recipe(
        ('"dist/${group}"}', f'"dist/${{group}}", groups: [classifier], {encrypt}}}'),
        ("    models: [classifier]\n", "    models: [classifier]\n    compile: {embed: true}\n"),
        *changes,
    )


def plain(workshop: Workshop) -> bytes:
    """Return the decrypted model of the classifier."""
    data = workshop.contents("classifier")["classifier_ctx.onnx"]
    header = read_header(io.BytesIO(data))
    assert header is not None
    return b"".join(decrypt(io.BytesIO(data), bytes.fromhex(KEY), "classifier_ctx.onnx", header.sha256)[1])


def test_output_has_the_model_only_in_encrypted_form(workshop: Workshop) -> None:
    assert workshop.build().exit_code == 0
    files = workshop.contents("classifier")
    model = plain(workshop)
    [node] = [node for node in onnx.load_from_string(model).graph.node if node.op_type == "EPContext"]
    [context] = [attribute.s for attribute in node.attribute if attribute.name == "ep_cache_context"]
    assert not any(context[:40] in data for data in files.values())
    assert [path.name for path in workshop.output("classifier").parent.iterdir()] == ["classifier"]
    manifest = json.loads(files["manifest.json"])
    [listed] = [file for file in manifest["files"] if file["path"] == "classifier_ctx.onnx"]
    encrypted = files["classifier_ctx.onnx"]
    assert encrypted.startswith(MAGIC)
    assert (listed["size"], listed["sha256"]) == (len(encrypted), hashlib.sha256(encrypted).hexdigest())
    assert listed["plain"] == {"size": len(model), "sha256": hashlib.sha256(model).hexdigest()}
    assert manifest["encryption"] == {"format": 1, "key_id": "first"}


def test_output_is_emitted_again_only_when_something_changes(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.build()
    first = workshop.contents("classifier")
    monkeypatch.delenv("CONTEXT_KEY")  # nothing to do needs no key
    assert workshop.states()[EMIT_CLASSIFIER] == "current"
    assert workshop.build().exit_code == 0
    monkeypatch.setenv("CONTEXT_KEY", KEY)
    (workshop.output("classifier") / "classifier_ctx.onnx").unlink()
    assert workshop.build().exit_code == 0
    assert workshop.contents("classifier") == first
    monkeypatch.setenv("CONTEXT_KEY", "6b" * 32)
    write(workshop, ENCRYPT.replace("first", "second"))
    assert (workshop.states()[CLASSIFIER], workshop.states()[EMIT_CLASSIFIER]) == ("current", "out of date")
    workshop.build()
    assert workshop.contents("classifier")["classifier_ctx.onnx"] != first["classifier_ctx.onnx"]


@pytest.mark.parametrize(
    ("encrypt", "key", "message"),
    [
        (ENCRYPT, None, "the key in the environment variable CONTEXT_KEY is not set"),
        (ENCRYPT, "my-key!" * 9, "the key in the environment variable CONTEXT_KEY is neither hex nor Base64"),
        (ENCRYPT, "c2VjcmV0IQ==", "the key in the environment variable CONTEXT_KEY has 7 bytes, but a key has 32"),
        ("encrypt: {key_command: [no-such-program]}", KEY, "the key from the command 'no-such-program' cannot be read"),
        (
            f"encrypt: {{key_command: ['{Path(sys.executable).as_posix()}', -c, 'print(\"{KEY}\"); exit(3)']}}",
            KEY,
            "cannot be read: the command failed with the exit code 3",
        ),
    ],
)
def test_key_that_cannot_be_read_stops_the_build_before_it_compiles(
    workshop: Workshop, encrypt: str, key: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(workshop, encrypt)
    monkeypatch.delenv("CONTEXT_KEY") if key is None else monkeypatch.setenv("CONTEXT_KEY", key)
    with pytest.raises(EnvironmentFailure) as raised:
        workshop.build()
    [problem] = raised.value.problems
    assert problem.code == "EPB437"
    assert message in problem.message
    assert (key or KEY) not in str(raised.value)
    assert workshop.compiled == []


def test_key_of_a_command_appears_nowhere(workshop: Workshop) -> None:
    (workshop.folder / "key.py").write_text(f"print({KEY!r})", encoding="utf-8")
    write(workshop, f"encrypt: {{key_command: ['{Path(sys.executable).as_posix()}', key.py]}}")  # from the recipe's folder
    assert workshop.build().exit_code == 0
    assert plain(workshop)
    assert KEY not in repr(list(workshop.events))
    (workshop.folder / "key.py").unlink()
    written = [path for folder in (workshop.folder, workshop.cache) for path in folder.rglob("*") if path.is_file()]
    forms = (KEY.encode(), bytes.fromhex(KEY))
    assert not [path for path in written if any(form in path.read_bytes() for form in forms)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ((("    compile: {embed: true}\n", ""),), "QNNExecutionProvider reads them only as plain files"),
        ((("layout: directory", "layout: ort-model-package"),), "ONNX Runtime opens its files itself"),
    ],
)
def test_output_that_only_plain_readers_open_is_refused(
    workshop: Workshop, changes: tuple[tuple[str, str], ...], message: str
) -> None:
    write(workshop, ENCRYPT, *changes)
    with pytest.raises(PlanError, match=message) as raised:
        workshop.survey()
    assert {problem.code for problem in raised.value.problems} == {"EPB267"}


def test_verify_checks_encrypted_files_without_the_key(workshop: Workshop) -> None:
    workshop.build()
    folder = workshop.output("classifier")
    [artifact] = find_artifacts(folder)
    found = {finding.check: finding for finding in check_artifact(artifact) if finding.subject == "classifier_ctx.onnx"}
    assert {name: finding.outcome for name, finding in found.items()} == {
        "files": "passed",
        "digests": "passed",
        "encryption": "skipped",
    }
    model = folder / "classifier_ctx.onnx"
    model.write_bytes(plain(workshop))
    [artifact] = find_artifacts(folder)
    failed = {finding.check: finding.message for finding in check_artifact(artifact) if finding.outcome == "failed"}
    assert failed["encryption"] == "It is not encrypted, but the manifest lists it as encrypted."


@pytest.mark.parametrize("archive", ["", ".zip"])
def test_decrypt_writes_a_plain_artifact_that_passes_all_checks(workshop: Workshop, tmp_path: Path, archive: str) -> None:
    packed = (('"dist/${group}"', f'"dist/${{group}}{archive}", archive: zip'),) if archive else ()
    write(workshop, f"provenance: true, {ENCRYPT}", *packed)
    workshop.build()
    source = workshop.folder / "dist" / f"classifier{archive}"
    made = decrypt_artifact(source, tmp_path / "plain", "CONTEXT_KEY", discard_line)
    assert made.files == ("classifier_ctx.onnx",)
    assert sorted(path.name for path in made.output.iterdir()) == ["classifier_ctx.onnx", "manifest.json"]
    [artifact] = find_artifacts(made.output)
    found = list(check_artifact(artifact))
    assert not [finding for finding in found if finding.outcome == "failed"]
    assert {"model", "schema", "signature"} <= {finding.check for finding in found}
    with pytest.raises(Incomparable, match="B has encrypted files"):
        diff(made.output, source, discard_line)
    assert not diff(source, source, discard_line).differences


def test_decrypt_ignores_plain_artifacts_in_the_same_folder(workshop: Workshop, tmp_path: Path) -> None:
    other = '  - {layout: ort-model-package, path: "dist/package", groups: [classifier]}'
    write(workshop, ENCRYPT, ("key_id: first}}\n", f"key_id: first}}}}\n{other}\n"))
    assert workshop.build("emit:classifier*", "emit:ort*").exit_code == 0
    made = decrypt_artifact(workshop.folder / "dist", tmp_path / "plain", "CONTEXT_KEY", discard_line)
    assert made.files == ("classifier/classifier_ctx.onnx",)
    assert [path.name for path in made.output.iterdir()] == ["classifier"]


def test_decrypt_writes_nothing_if_it_fails(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.build()
    monkeypatch.setenv("CONTEXT_KEY", "6b" * 32)
    folder = workshop.output("classifier")
    with pytest.raises(VerifyError, match=r"classifier_ctx\.onnx cannot be decrypted: it was encrypted with another key"):
        decrypt_artifact(folder, tmp_path / "new" / "plain", "CONTEXT_KEY", discard_line)
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(ChangeRefused, match="already exists"):
        decrypt_artifact(folder, tmp_path / "new", "CONTEXT_KEY", discard_line)
    with pytest.raises(VerifyError, match="Run `epbuild decrypt`"):
        inspect([folder / "classifier_ctx.onnx"])


CONTOSO = """\
ep = "ContosoExecutionProvider"
short = "contoso"
kind = "plugin"
origin = "doc Contoso EP 3.1"
module = "contoso_ep"
distributions = ["contoso-ep"]
sources = ["ContosoExecutionProvider"]

[binary]
read_callback = true
"""
BINARY = "classifier_contoso.bin"


def compile_for_contoso(command: object, folder: Path, log: Path, **options: object) -> Ending:
    """Act as the worker of an EP that writes a context binary."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    [member] = request["members"]
    onnx.save(context_model({"ContosoExecutionProvider": "its_own.bin"}), folder / member["output"])
    (folder / "out" / "its_own.bin").write_bytes(b"plain context" * 10_000)
    log.touch()
    return Ending("exited", 0, ({"event": "finished", "peak_memory": None},), ())


def test_context_binary_of_an_ep_with_the_callback_is_encrypted(workshop: Workshop) -> None:
    (workshop.folder / "contoso.toml").write_text(CONTOSO, encoding="utf-8")
    workshop.run_worker = compile_for_contoso
    workshop.write_recipe(
        ("name: small\n", "name: small\ncatalogs: [contoso.toml]\n"),
        ("packages: [onnxruntime-qnn==2.7.0]", "packages: [onnxruntime-qnn==2.7.0, contoso-ep==3.1]"),
        ("  plain: {toolchain: qnn, ep: QNNExecutionProvider}", "  plain: {toolchain: qnn, ep: ContosoExecutionProvider}"),
        ('"dist/${group}"}', f'"dist/${{group}}", groups: [classifier], {ENCRYPT}}}'),
    )
    workshop.packages["contoso-ep"] = "3.1"
    assert workshop.build(EMIT_CLASSIFIER).exit_code == 0, workshop.problems
    files = workshop.contents("classifier")
    [node] = [node for node in onnx.load_from_string(files["classifier_ctx.onnx"]).graph.node if node.op_type == "EPContext"]
    assert BINARY.encode() in [attribute.s for attribute in node.attribute]
    content = b"plain context" * 10_000
    assert b"".join(decrypt(io.BytesIO(files[BINARY]), bytes.fromhex(KEY), BINARY, hash_bytes(content))[1]) == content
    assert not any(b"plain context" in data for data in files.values())
    [artifact] = find_artifacts(workshop.output("classifier"))
    found = list(check_artifact(artifact))
    assert not [finding for finding in found if finding.outcome == "failed"]
    assert not [finding for finding in found if finding.check in {"target", "partitions"}]
