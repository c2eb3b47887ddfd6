"""Remote cache of a worker: invalid settings are refused before the worker starts."""

from __future__ import annotations

import json

import pytest

from epbuild.cluster.dask_worker import decode_event, encode_event, resolve_worker_settings
from epbuild.core.errors import EpbuildError
from epbuild.engine.events import Event, StepAdvanced, StepOutput, StepStarted
from epbuild.remote.keys import SigningKey

OURS = SigningKey.generate()
CACHE = {"EPBUILD_REMOTE_CACHE": "https://cache.example/x"}
KEY = {"EPBUILD_SIGNING_KEY": OURS.text}


@pytest.mark.parametrize(
    ("environment", "code", "words"),
    [
        (CACHE, "EPB277", "a worker cannot sign its results"),
        ({**CACHE, "EPBUILD_SIGNING_KEY": "nonsense"}, "EPB277", "does not contain a signing key"),
        (KEY, "EPB275", "no remote cache is configured"),
        ({**KEY, "EPBUILD_REMOTE_CACHE": "off"}, "EPB275", "no remote cache is configured"),
        ({**KEY, "EPBUILD_REMOTE_CACHE": "http://elsewhere.example/x"}, "EPB275", "without TLS"),
    ],
    ids=["no key", "not a key", "no cache", "off", "without TLS"],
)
def test_missing_worker_setting_is_one_sentence(environment: dict[str, str], code: str, words: str) -> None:
    with pytest.raises(EpbuildError) as caught:
        resolve_worker_settings(environment)
    [problem] = caught.value.problems
    assert (problem.code, words in problem.message) == (code, True)


def test_worker_trusts_its_own_signing_key() -> None:
    settings = resolve_worker_settings({**CACHE, **KEY})
    assert settings.trust == frozenset({OURS.public})
    assert settings.signer is not None


@pytest.mark.parametrize(
    "event",
    [
        StepStarted("compile:x", "compiling"),
        StepOutput("compile:x", "50 %", status=False),
        StepAdvanced("compile:x", "uploading the result", 1, 4, 3.0),
        StepAdvanced("compile:x", "uploading the result", 4, 4, 0),
    ],
)
def test_events_of_a_worker_reach_the_client_unchanged(event: Event) -> None:
    assert decode_event(json.loads(json.dumps(encode_event(event)))) == event
