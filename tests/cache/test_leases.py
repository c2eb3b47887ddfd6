"""Leases: two builds that need the same action at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from epbuild.cache.leases import lease, lease_if_free, try_lock
from epbuild.core.errors import Cancelled, StoreError

HOLD = """
import sys, time
from pathlib import Path
from epbuild.cache.leases import lease
with lease(Path(sys.argv[1]), "action"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_second_build_waits_for_the_first_and_is_notified_once(tmp_path: Path) -> None:
    told: list[str] = []
    order: list[str] = []

    def second() -> None:
        with lease(tmp_path, "action", on_wait=lambda: told.append("waiting")):
            order.append("second")

    with lease(tmp_path, "action"):
        thread = threading.Thread(target=second)
        thread.start()
        deadline = time.monotonic() + 5
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.25)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]
    assert told == ["waiting"]


def test_build_that_need_not_wait_is_not_notified(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        with lease(tmp_path, "action", on_wait=lambda: told.append("waiting")):
            pass
    assert told == []


def test_different_actions_do_not_wait_for_each_other(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with lease(tmp_path, "one"), lease(tmp_path, "two", cancelled=stop):
        pass


def test_interrupted_build_stops_waiting_and_leaves_the_lease_free(tmp_path: Path) -> None:
    stop = threading.Event()
    given_up = pytest.raises(Cancelled)
    with lease(tmp_path, "action"), given_up, lease(tmp_path, "action", on_wait=stop.set, cancelled=stop):
        pytest.fail("the lease was held twice")
    with lease(tmp_path, "action"):
        pass


def test_killed_build_holds_no_lease(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout as output:
        assert output.readline().split() == [b"held"]
        stop = threading.Event()
        with pytest.raises(Cancelled), lease(tmp_path, "action", on_wait=stop.set, cancelled=stop):
            pytest.fail("the lease was held twice")
        holder.kill()
        holder.wait(5)
    with lease(tmp_path, "action", on_wait=partial(pytest.fail, "it is still held")):
        pass


def test_lease_ends_when_its_action_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), lease(tmp_path, "action"):
        raise RuntimeError
    with lease(tmp_path, "action", on_wait=partial(pytest.fail, "it is still held")):
        pass


def test_lease_key_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid lease name"), lease(tmp_path, "../other"):
        pass


def test_cache_without_lock_files_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="EPBUILD_CACHE_DIR"), lease(tmp_path / "file", "action"):
        pass


def test_lease_and_filelock_exclude_each_other(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "leases" / "key.lock")
    with lease(tmp_path, "key"):
        with pytest.raises(Timeout):
            lock.acquire(timeout=0)
        assert try_lock(tmp_path / "leases" / "key.lock") is None
    with lock, lease_if_free(tmp_path, "key") as free:
        assert not free
    with lease_if_free(tmp_path, "key") as free:
        assert free


def test_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "leases").mkdir()
    try:
        (tmp_path / "leases" / "key.lock").symlink_to(tmp_path / "elsewhere")
    except OSError:
        pytest.skip("no links here")
    with pytest.raises(StoreError), lease(tmp_path, "key"):
        pass
    assert not (tmp_path / "elsewhere").exists()
