"""Ctrl-C at any moment, imports and the fast path included: exit code 130 and one message."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.projects import Project
from tests.support.quick_builds import PATIENCE

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends signals as a terminal does")
INTERRUPTED = "epbuild: interrupted; finished work is kept"
SEED = 20_260_401
MOMENTS, SAMPLE = 50, 3

# Runs `main`, sends itself the signal at the Nth call of a Python function, and finally prints the number of calls.
AT_CALL = """
import os, _signal, sys
count, moment = 0, int(sys.argv.pop(1))
def trace(frame, event, argument):
    global count
    count += 1
    if count == moment:
        sys.settrace(None)
        os.kill(os.getpid(), _signal.SIGINT)
leave = os._exit
def told(code):
    os.write(2, b"" if count >= moment > 0 else b"calls: %d\\n" % count)
    leave(code)
from epbuild.__main__ import main
os._exit = told
def begin():  # once Ctrl-C is looked after
    sys.settrace(trace)
import epbuild.__main__ as process
first = process._exit_on_interrupt
def looked_after():
    first()
    process._exit_on_interrupt = first
    begin()
process._exit_on_interrupt = looked_after
main()
"""


def run_until(project: Project, moment: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.run_script(AT_CALL, str(moment), *arguments, timeout=PATIENCE)


def check_moments(project: Project, moments: int, *arguments: str) -> None:
    """Interrupt the command at random calls, most of them at its beginning, where imports are."""
    draw = random.Random(SEED)
    whole = run_until(project, 0, *arguments)
    calls = int(whole.stderr.rpartition("calls: ")[2])
    for _ in range(moments):
        moment = max(1, int(calls ** draw.random()) if draw.random() < 0.5 else draw.randrange(calls))
        done = run_until(project, moment, *arguments)
        assert done.returncode in (130, whole.returncode), (moment, done)
        assert "Traceback" not in done.stderr + done.stdout, (moment, done.stderr)
        if done.returncode == 130:
            assert done.stderr.strip().endswith(INTERRUPTED), (moment, done.stderr)
            assert done.stderr.count(INTERRUPTED) == 1, moment


@pytest.fixture
def built(quick: Project) -> Project:
    quick.build()
    return quick


@pytest.mark.parametrize("arguments", [("plan",), ("run", "--check"), ("validate", "nosuch.yaml")], ids=" ".join)
def test_a_command_interrupted_at_any_call_prints_one_message(
    built: Project, arguments: tuple[str, ...], exhaustive: bool
) -> None:
    check_moments(built, MOMENTS if exhaustive else SAMPLE, *arguments)


def test_the_fast_path_can_be_interrupted_at_any_call(built: Project, exhaustive: bool) -> None:
    time.sleep(2.1)
    for _ in range(2):
        assert built.epbuild("run").returncode == 0
    assert built.snapshots()
    check_moments(built, MOMENTS if exhaustive else SAMPLE, "run")
    # The file system may inspect some of the files in a separate process.
    assert built.epbuild("run").stdout.startswith("Nothing to do")


def test_an_interrupt_while_python_creates_a_class_prints_one_message(quick: Project) -> None:
    """Until 3.11, Python raises a RuntimeError in place of the KeyboardInterrupt."""
    script = """
import os, signal, sys
def trace(frame, event, argument):
    if frame.f_code.co_name == "__set_name__" and signal.getsignal(signal.SIGINT) is app._interrupt_once:
        sys.settrace(None)
        os.kill(os.getpid(), signal.SIGINT)
import epbuild.cli.app as app
from epbuild import __main__ as process
sys.settrace(trace)
process.main()
"""
    done = quick.run_script(script, "plan", timeout=PATIENCE)
    assert (done.returncode, done.stderr.strip()) == (130, INTERRUPTED)


def test_an_interrupt_that_python_drops_is_raised_again(tmp_path: Path) -> None:
    """Raise an interrupt where Python prints its traceback and drops it, as at the end of an import."""
    script = """
import sys, time
import epbuild.cli.app as app
from epbuild import __main__ as process
class Dropped:
    def __del__(self):
        raise KeyboardInterrupt
def execute(arguments):
    try:
        made = Dropped()
        del made
        for _ in range(200):
            time.sleep(0.1)
    except KeyboardInterrupt:
        sys.stderr.write("came again\\n")
        return 130
    return 0
app.execute = execute
process.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "plan"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (130, "came again\n")
