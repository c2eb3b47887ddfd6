"""Properties of this machine and of its operating system."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the part of `signal` that needs no other import
import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

_MAX_CHARACTERS = 1 << 16
_FILENAME_TOO_LONG = 206  # ERROR_FILENAME_EXCED_RANGE of Windows
_CLASSES = r"SYSTEM\CurrentControlSet\Control\Class"
_INSTRUCTIONS = (
    "sse", "ssse", "pni", "avx", "amx", "fma", "f16c", "bmi", "abm", "popcnt", "movbe", "adx", "aes", "vaes", "pclmul", "vpclmul",
    "gfni", "sha_ni", "sha512", "sm3", "sm4", "xop", "mmx", "3dnow",
)  # fmt: skip
"""Prefixes of x86 CPU flags for instructions that compilers may use. All other flags concern kernels and mitigations."""


def is_windows() -> bool:
    return sys.platform == "win32"


def list_interrupts() -> list[int]:
    """Return the signals by which a user interrupts a command: Ctrl-C, and Ctrl-Break on Windows."""
    return [number for name in ("SIGINT", "SIGBREAK") if (number := getattr(_signal, name, None)) is not None]


def is_interrupt(error: BaseException) -> bool:
    """Return whether Python has replaced a KeyboardInterrupt by this error.

    Python does so before 3.12 if it interrupts `__set_name__`, and if it interrupts the wait of a condition, whose lock is then not held.
    """
    return isinstance(error.__cause__ or error.__context__, KeyboardInterrupt)


def is_broken_pipe(error: OSError) -> bool:
    """Return whether a write failed because the reader has closed the pipe.

    On Windows, the C library reports EINVAL. Errors of the system have a `winerror` or a file name.
    """
    if isinstance(error, BrokenPipeError):
        return True
    is_of_write = error.filename is None and getattr(error, "winerror", None) is None
    return is_windows() and error.errno == errno.EINVAL and is_of_write


def is_path_too_long(error: OSError) -> bool:
    """Return whether the system refused a path because of its length."""
    return error.errno == errno.ENAMETOOLONG or getattr(error, "winerror", None) == _FILENAME_TOO_LONG


def get_change_time_ns(path: str | os.PathLike[str], status: os.stat_result) -> int:
    """Return the change time of a file in nanoseconds since the epoch, or 0 if the file system has no change times.

    `status` is the file's `stat` or `lstat`. On Linux and macOS, the result is `ctime`. On Windows, Python's `ctime` is the
    creation time. A creation time does not change if a file is rewritten with its old size and modification time. On Windows,
    the file system's own change time is therefore used. FAT and exFAT have no change times. Callers then compare only size,
    modification time and identity.
    """
    if not is_windows():
        return status.st_ctime_ns
    from epbuild.core.windows import get_change_time_ns

    return get_change_time_ns(path, follow=not stat.S_ISLNK(status.st_mode))


def read_cpu_name() -> str:
    """Return the name of the CPU. Results depend on the CPU, because EPs that compile for the host use its instruction set."""
    name = _read_first_cpu().get("model name")
    if name is not None:
        return name
    uname = getattr(os, "uname", None)
    return os.environ.get("PROCESSOR_IDENTIFIER") or (uname().machine if uname else "unknown")


def read_cpu_features() -> str:
    """Return the CPU's vendor and instruction sets, or the CPU's name if the system does not list instruction sets."""
    if sys.platform == "linux":
        found = _read_first_cpu()
        flags = found.get("flags", "").split()
        chosen = [flag for flag in flags if flag.startswith(_INSTRUCTIONS)] if flags else found.get("Features", "").split()
        if chosen:
            vendor = found.get("vendor_id") or found.get("CPU implementer", "")
            return " ".join([vendor, *sorted(chosen)])
    import re

    if is_windows():  # a stepping does not change the instructions
        return re.sub(r" Stepping \d+| Revision \w+", "", read_cpu_name())
    if sys.platform == "darwin":
        return _read_brand() or read_cpu_name()
    return read_cpu_name()


def count_cpus() -> int:
    """Return the number of CPUs that this process and its workers may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def read_driver_version(files: Sequence[str], pattern: str, device_class: str, provider: str) -> str:
    """Return the versions of a driver or a device, or an empty string if it is not installed.

    On Linux, `files` are globs, and the first group of `pattern` matches a version in a file's name or content. On Windows, the
    drivers belong to `device_class`, and their manufacturer matches the regular expression `provider`.
    """
    import re

    if is_windows():
        return "; ".join(sorted(set(_list_installed_drivers(device_class, provider)))) if device_class else ""
    from glob import glob

    found = set()
    for place in sorted({place for each in files for place in glob(each)}):  # noqa: PTH207 - without pathlib
        text = place
        if place.startswith(("/proc/", "/sys/")):
            try:
                with open(place, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                    text = file.read(_MAX_CHARACTERS)
            except OSError:
                continue
        match = re.search(pattern, text)
        if match is not None:
            found.add(match[1].strip())
    return "; ".join(sorted(found))


def _list_installed_drivers(device_class: str, provider: str) -> Iterator[str]:
    """Yield the drivers of a device class in the Windows registry, with their versions."""
    import re
    import winreg

    registry: ModuleType = winreg
    try:
        with registry.OpenKey(registry.HKEY_LOCAL_MACHINE, f"{_CLASSES}\\{device_class}") as folder:
            for number in range(registry.QueryInfoKey(folder)[0]):
                values = {}
                try:
                    with registry.OpenKey(folder, registry.EnumKey(folder, number)) as device:
                        for name in ("ProviderName", "DriverDesc", "DriverVersion"):
                            values[name] = str(registry.QueryValueEx(device, name)[0])
                except OSError:  # an entry that is not a device
                    continue
                if re.search(provider, values["ProviderName"]):
                    yield f"{values['DriverDesc']} {values['DriverVersion']}"
    except OSError:
        return


def _read_first_cpu() -> dict[str, str]:
    """Return the properties of the first CPU on Linux, by name."""
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - read before anything is imported
            for line in file:
                name, colon, value = line.partition(":")
                if colon:
                    found.setdefault(name.strip(), value.strip())
                elif "model name" in found:
                    break  # the end of the first CPU
    except OSError:
        pass
    return found


def _read_brand() -> str:
    """Return the name of the CPU on macOS."""
    import subprocess

    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
