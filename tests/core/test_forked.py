"""Work in a process that was forked off: what it comes to, and that none is left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

HEAD = """
import os, time
from epbuild.core.forked import Forked, has_threads, processes

def none_is_left():
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False
"""


def said_by(code: str) -> str:
    """What a program prints: forks need one without threads, which test runners have."""
    done = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_work_comes_to_comes_back() -> None:
    code = "forked = Forked.begin(lambda: [('name', 1, b'x' * 200_000)])\nprint(forked.result()[0][:2], none_is_left())"
    assert said_by(code) == "('name', 1) True"


def test_work_that_fails_comes_to_nothing_and_says_nothing() -> None:
    code = """
forked = Forked.begin(lambda: 1 / 0)
try:
    forked.result()
except EOFError:
    print("nothing", none_is_left())
"""
    assert said_by(code) == "nothing True"


def test_what_is_not_wanted_any_more_ends_at_once() -> None:
    code = """
begin = time.monotonic()
forked = Forked.begin(lambda: time.sleep(600))
forked.end()
forked.end()
print(time.monotonic() - begin < 60, none_is_left())
"""
    assert said_by(code) == "True True"


def test_a_program_with_threads_forks_nothing_off() -> None:
    code = """
import threading
before = processes(), has_threads()
wait = threading.Event()
threading.Thread(target=wait.wait).start()
print(before == (os.cpu_count(), False), processes(), has_threads())
wait.set()
"""
    assert said_by(code) == "True 1 True"
