"""Remote models: fetched once, for builds only, with progress reports."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from epbuild.cache.blobs import BlobStore
from epbuild.cache.workspace import Workspace
from epbuild.commands.plan import survey
from epbuild.core.errors import StoreError
from epbuild.engine.events import Event, EventList, RunStarted
from epbuild.fetch.models import Pins
from epbuild.recipe.model import ModelSpec
from epbuild.session.events import Fetched, Fetching
from epbuild.session.planning import RemoteModels
from tests.support.fake_builds import (
    CLASSIFIER,
    COMPILES,
    EMIT_CLASSIFIER,
    EMIT_DECODER,
    HERE,
    SHARE,
    STEPS,
    Workshop,
    source_model,
)
from tests.support.fake_fetcher import SIZE, FakeFetcher

ADDRESS = "https://models.example/decode.onnx"
PIN = "a" * 64
MODEL = ModelSpec("decode", HERE, ADDRESS, HERE, sha256=PIN)
NEVER = threading.Event()


@pytest.fixture
def network(tmp_path: Path) -> FakeFetcher:
    return FakeFetcher(tmp_path, {"remote.onnx": source_model(2.0)})


@pytest.fixture
def models(tmp_path: Path, network: FakeFetcher) -> RemoteModels:
    return RemoteModels(Workspace.open(tmp_path / ".epbuild"), BlobStore(tmp_path / "cache"), fetcher=network)


def fetched(models: RemoteModels, model: ModelSpec = MODEL) -> tuple[Path, list[Event]]:
    told = EventList()
    return models.fetched(model, told, NEVER), told


def test_an_unfetched_model_is_unknown_and_causes_no_request(models: RemoteModels, network: FakeFetcher) -> None:
    assert models.known(MODEL) is None
    assert network.asked == []


def test_a_model_is_requested_with_all_its_pins(models: RemoteModels, network: FakeFetcher) -> None:
    model = replace(MODEL, data_sha256={"decode.bin": "b" * 64})
    graph, told = fetched(models, model)
    assert graph == network.graph
    assert network.asked == [(ADDRESS, Pins(PIN, {"decode.bin": "b" * 64}))]
    assert told[-1] == Fetched("decode")


def test_a_local_model_is_not_fetched_or_reported_again(models: RemoteModels, network: FakeFetcher) -> None:
    first, _ = fetched(models)
    assert fetched(models) == (first, [])
    assert models.known(MODEL) == first
    assert len(network.asked) == 1


def test_a_model_with_a_deleted_file_is_fetched_again(models: RemoteModels, network: FakeFetcher) -> None:
    fetched(models)
    network.graph.unlink()
    assert models.known(MODEL) is None
    assert fetched(models)[0].is_file()
    assert len(network.asked) == 2


@pytest.mark.parametrize(
    "other",
    [
        replace(MODEL, path="https://models.example/other.onnx"),
        replace(MODEL, sha256="b" * 64),
        replace(MODEL, sha256=None),
        replace(MODEL, data_sha256={"decode.bin": "b" * 64}),
    ],
    ids=["address", "digest", "no digest", "data"],
)
def test_a_different_address_or_pin_is_a_different_model(models: RemoteModels, network: FakeFetcher, other: ModelSpec) -> None:
    fetched(models)
    assert models.known(other) is None
    fetched(models, other)
    assert len(network.asked) == 2


def test_a_renamed_model_in_the_recipe_is_the_same_model(models: RemoteModels, network: FakeFetcher) -> None:
    graph, _ = fetched(models)
    assert models.known(replace(MODEL, name="renamed")) == graph


def test_a_failed_fetch_leaves_no_model(models: RemoteModels, network: FakeFetcher) -> None:
    network.out_of_reach = True
    told = EventList()
    with pytest.raises(StoreError):
        models.fetched(MODEL, told, NEVER)
    assert models.known(MODEL) is None
    assert told == []


def test_progress_of_a_large_model_is_reported_at_intervals(
    models: RemoteModels, network: FakeFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    network.between = lambda: clock.append(clock.pop() + 1)
    _, told = fetched(models)
    assert told == [Fetching("decode", ADDRESS, 0, SIZE), Fetching("decode", ADDRESS, SIZE, SIZE, 0.0), Fetched("decode")]


REMOTE = ("decode: decode.onnx", f"decode: {{path: '{ADDRESS}', sha256: {PIN}}}")
DECODER = [*COMPILES, SHARE]


@pytest.fixture
def workshop(tmp_path: Path, network: FakeFetcher, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    made = Workshop(tmp_path / "checkout", tmp_path / "cache", monkeypatch)
    made.fetcher = network
    content = source_model(2.0)
    made.write_recipe((REMOTE[0], REMOTE[1].replace(PIN, hashlib.sha256(content).hexdigest())))
    return made


def test_a_survey_fetches_nothing_and_names_unfetched_models(workshop: Workshop, network: FakeFetcher) -> None:
    assert workshop.states() == dict.fromkeys(STEPS, "new")
    for step in DECODER:
        assert "the model 'decode' has not been fetched yet" in workshop.reasons(step)
    assert "has not been fetched yet" not in " ".join(workshop.reasons(CLASSIFIER))
    assert network.asked == []
    assert not (workshop.folder / ".epbuild").exists()


def test_a_build_fetches_before_it_starts_and_the_next_build_fetches_nothing(workshop: Workshop, network: FakeFetcher) -> None:
    assert workshop.build().exit_code == 0
    kinds = [type(event) for event in workshop.events]
    assert kinds.index(Fetching) < kinds.index(Fetched) < kinds.index(RunStarted)
    assert workshop.compiled == ["prefill+decode", "classifier"]
    network.out_of_reach = True
    assert workshop.states() == dict.fromkeys(STEPS, "current")
    assert workshop.build().exit_code == 0
    assert workshop.compiled == []
    assert len(network.asked) == 1


def test_steps_without_remote_models_build_without_the_network(workshop: Workshop, network: FakeFetcher) -> None:
    network.out_of_reach = True
    assert workshop.build("*:classifier/*").exit_code == 0
    assert workshop.compiled == ["classifier"]
    states = workshop.states()
    assert (states[CLASSIFIER], states[EMIT_CLASSIFIER], states[SHARE]) == ("current", "current", "new")


def test_an_output_whose_remote_model_was_deleted_is_out_of_date(workshop: Workshop, network: FakeFetcher) -> None:
    workshop.build()
    network.graph.unlink()
    states = workshop.states()
    assert (states[SHARE], states[EMIT_DECODER], states[CLASSIFIER]) == ("out of date", "out of date", "current")
    assert workshop.reasons(SHARE) == ("the model 'decode' has not been fetched yet",)
    before = workshop.contents()
    assert workshop.build().exit_code == 0
    assert workshop.compiled == []
    assert workshop.contents() == before


@pytest.mark.parametrize("output", ["provenance: true", "sbom: true", "provenance: true, sbom: true"])
def test_another_secret_leads_to_the_same_output_and_none_is_printed(
    workshop: Workshop, network: FakeFetcher, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    recipe = (workshop.folder / "epbuild.yaml").read_text(encoding="utf-8")
    text = recipe.replace(ADDRESS, f"{ADDRESS}?token=${{env.TOKEN}}").replace(
        "{layout: directory", f"{{layout: directory, {output}"
    )
    (workshop.folder / "epbuild.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("TOKEN", "s3cr3t")
    assert workshop.build(EMIT_DECODER).exit_code == 0, workshop.failures
    before = workshop.contents()
    assert not any(b"s3cr3t" in data for data in before.values())

    monkeypatch.setenv("TOKEN", "an0ther")
    assert workshop.build(EMIT_DECODER).exit_code == 0
    assert workshop.contents() == before
    found = survey(replace(workshop.request, selection=(EMIT_DECODER,)))
    assert "s3cr3t" not in repr(found.actions[EMIT_DECODER].document)
    assert "an0ther" not in repr(found.actions[EMIT_DECODER].document)


def test_the_absolute_path_of_a_model_does_not_change_provenance(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.write_recipe(
        ("classifier: classifier.onnx", 'classifier: "${env.PLACE}/classifier.onnx"'),
        ("{layout: directory", "{layout: directory, provenance: true"),
    )
    told = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "classifier.onnx").write_bytes(source_model(2.0))
        monkeypatch.setenv("PLACE", (tmp_path / name).as_posix())
        assert workshop.build(EMIT_CLASSIFIER).exit_code == 0, workshop.failures
        told.append(workshop.contents("classifier")["provenance.intoto.json"])
    assert told[0] == told[1]
