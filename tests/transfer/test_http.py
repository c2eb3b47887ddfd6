"""Costs of the HTTP client without a transfer: none. Its users' tests cover its behavior."""

from __future__ import annotations

import subprocess
import sys

import pytest

from epbuild.transfer.http import parse_retry_after


def test_build_without_remote_files_does_not_import_the_http_client() -> None:
    code = "import sys, epbuild.cli.run, epbuild.commands.run, epbuild.publish.emit; print('urllib3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("text", "shortest", "longest"),
    [
        ("7", 7, 7),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600, float("inf")),
        ("soon", 0, 0),
        ("-1", 0, 0),
        ("9" * 5000, 0, 0),
    ],
)
def test_pause_requested_by_a_server_may_be_a_number_or_a_date(text: str, shortest: float, longest: float) -> None:
    assert shortest <= parse_retry_after({"Retry-After": text}) <= longest
    assert parse_retry_after({}) == 0
