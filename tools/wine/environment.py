"""Windows CPython 3.11 under wine 10, with epbuild's dependencies, in one folder.

Debian's packages are unpacked, not installed: a process sees their `/usr` in a mount namespace of its own. Nothing outside of the folder
changes. The interpreter is `python311.dll` from the wheel of panda3d, with the standard library of the Python that runs this. mingw-w64
compiles the programs that the wheel lacks: `python.exe`, `python3.dll` and the launcher of virtual environments.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent
_DEBIAN = ("wine64", "libc-bin", "gcc-mingw-w64-x86-64-win32")
"""Packages of Debian 13. `libc-bin` has the locale C.UTF-8, without which wine creates no file with a non-ASCII name."""
_WHEELS = ("panda3d==1.10.16", "msvc-runtime==14.44.35112")
_WITHOUT_WHEEL = ("comrak",)
"""Dependencies of tests without a wheel for Windows and Python 3.11."""
_COMPILER = "/usr/bin/x86_64-w64-mingw32-gcc-win32"
_OBJDUMP = "/usr/bin/x86_64-w64-mingw32-objdump"
_WINE = "/usr/lib/wine/wine64"
_SERVER = "/usr/lib/wine/wineserver64"
_DLLS = "usr/lib/x86_64-linux-gnu/wine/x86_64-windows"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_APT_SOURCES = Path("/etc/apt")
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_NATIVE = ("ucrtbase", "msvcp140", "msvcp140_1", "msvcp140_2", "concrt140", "vcruntime140", "vcruntime140_1")
_PIPE_SECONDS = 5
"""Limit of the wait for the end of a program's output. The services of wine keep its pipes open when the program has ended."""
_SKIPPED_LIBRARY = ("test", "tests", "__pycache__", "lib-dynload", "config-3.11*", "site-packages", "idlelib", "tkinter", "*.so")
_COMPLEX_PARTS = {  # machine code: a float complex is in rcx, larger ones are at the address in rcx; the result is in xmm0
    b"crealf": "660f6ec1c3",
    b"cimagf": "48c1e920660f6ec1c3",
    b"creal": "f20f1001c3",
    b"creall": "f20f1001c3",
    b"cimag": "f20f104108c3",
    b"cimagl": "f20f104108c3",
}


class MissingError(Exception):
    """A program or a setting that the environment needs is missing on this machine."""


class Wine:
    """Windows Python in a folder. `setup` creates what is missing there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.debian = self.folder / "debian"
        self.python = self.folder / "python"
        self.prefix = self.folder / "prefix"
        self.drive = self.prefix / "drive_c"

    def setup(self) -> None:
        """Create the environment, or the parts of it that are missing or out of date. Raises MissingError."""
        _require_programs()
        self.folder.mkdir(parents=True, exist_ok=True)
        requirements = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
        steps: tuple[tuple[str, bytes, Callable[[], None]], ...] = (
            ("wine and mingw-w64 of Debian", repr(_DEBIAN).encode(), self._unpack_debian),
            ("Windows Python", repr((_WHEELS, sys.version)).encode(), self._create_python),
            ("a prefix of wine", b"", self._create_prefix),
            ("wheels for Windows", requirements, self._install_wheels),
        )
        done = ""
        for title, contents, create in steps:
            done = hashlib.sha256(done.encode() + contents).hexdigest()
            stamp = self.folder / f"{create.__name__.strip('_')}.stamp"
            if not stamp.is_file() or stamp.read_text(encoding="utf-8") != done:
                sys.stderr.write(f"setting up {title} ...\n")
                create()
                stamp.write_text(done, encoding="utf-8")

    def is_set_up(self) -> bool:
        """Return whether `setup` created the environment once."""
        return (self.folder / "install_wheels.stamp").is_file()

    def build_command(self, program: str, *arguments: str | Path) -> list[str]:
        """Return the command that runs a Linux program with Debian's `/usr`."""
        script = 'mount --bind "$0" /usr && exec "$@"'
        namespace = "-m" if os.geteuid() == 0 else "-rm"
        return ["unshare", namespace, "sh", "-c", script, str(self.debian / "usr"), program, *map(str, arguments)]

    def build_environment(self) -> dict[str, str]:
        """Return the environment variables for wine: few of this process, so that tests see no settings of Linux."""
        return {
            **{key: value for key, value in os.environ.items() if key.startswith("UV_") or key.lower().endswith("_proxy")},
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            "LC_ALL": "C.UTF-8",
            "WINEPREFIX": str(self.prefix),
            "WINESERVER": _SERVER,
            "WINEDEBUG": "-all",
            "WINEDLLOVERRIDES": "mscoree,mshtml=;winemenubuilder.exe=",
            "PYTHONPYCACHEPREFIX": "C:\\pycache",
            **({"SSL_CERT_FILE": to_windows_path(_CERTIFICATES)} if _CERTIFICATES.is_file() else {}),
        }

    def run_python(
        self,
        *arguments: str | Path,
        output: BinaryIO,
        errors: BinaryIO | None = None,
        cwd: Path = ROOT,
        variables: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> int:
        """Run python.exe and return its exit code. Errors go to `output` by default.

        Raises TimeoutExpired, after ending all Windows processes.
        """
        # Wine cannot write to a file that another process opened. So the output goes through pipes.
        process = subprocess.Popen(
            self.build_command(_WINE, self.python / "python.exe", *arguments),
            cwd=cwd,
            env={**self.build_environment(), **(variables or {})},
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors is None else subprocess.PIPE,
        )
        copies = [
            threading.Thread(target=shutil.copyfileobj, args=streams, daemon=True)
            for streams in ((process.stdout, output), (process.stderr, errors))
            if all(streams)
        ]
        for copy in copies:
            copy.start()
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            process.wait()
            raise
        finally:
            for copy in copies:
                copy.join(_PIPE_SECONDS)

    def stop(self) -> None:
        """End all Windows processes of this environment."""
        subprocess.run(self.build_command(_SERVER, "-k"), env=self.build_environment(), stderr=subprocess.DEVNULL, check=False)

    def _run(self, *command: str | Path, program: str = _WINE) -> str:
        return _run(self.build_command(program, *command), env=self.build_environment(), cwd=self.folder)

    def _unpack_debian(self) -> None:
        """Unpack packages of Debian 13, with apt's mirror and with state files of their own."""
        shutil.rmtree(self.debian, ignore_errors=True)
        apt = self.folder / "apt"
        for name in ("state/lists/partial", "cache/archives/partial"):
            (apt / name).mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        (apt / "sources.list").write_text(
            f"deb [signed-by={_KEYRING}] {find_mirror(_APT_SOURCES)} trixie main\n", encoding="utf-8"
        )
        places = {
            "Dir::State": apt / "state",
            "Dir::State::status": apt / "status",
            "Dir::Cache": apt / "cache",
            "Dir::Etc::sourcelist": apt / "sources.list",
            "Dir::Etc::sourceparts": os.devnull,
            "APT::Sandbox::User": "",
        }
        options = [word for name, value in places.items() for word in ("-o", f"{name}={value}")]
        install = ("-y", "--no-install-recommends", "--download-only", "install", *_DEBIAN)
        try:
            for arguments in (("update",), install):
                _run(["apt-get", *options, "-qq", *arguments])
        except SystemExit as error:
            raise MissingError(f"apt cannot download wine from its mirror: {str(error).splitlines()[-1]}") from error
        for package in sorted((apt / "cache" / "archives").glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(self.debian)])
        # What the installation script of libwine does.
        zlib = bytearray((self.debian / "usr/x86_64-w64-mingw32/lib/zlib1.dll").read_bytes())
        zlib[0x40:0x60] = b"Wine builtin DLL".ljust(0x20, b"\0")
        (self.debian / _DLLS / "zlib1.dll").write_bytes(zlib)
        shutil.rmtree(apt)

    def _create_python(self) -> None:
        """Create an installation of Python: DLLs of wheels, the standard library of this Python, and compiled programs."""
        wheels = self.folder / "wheels"
        for place in (wheels, self.python):
            shutil.rmtree(place, ignore_errors=True)
        _uv_install(wheels, "--no-deps", *_WHEELS)
        library = self.python / "Lib"
        shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*_SKIPPED_LIBRARY))
        metadata = library / "importlib" / "metadata" / "__init__.py"
        # Before 3.11.8, the method had no decorator. python311.dll, which is 3.11.9, needs it.
        undecorated = r"(?<!@classmethod)\n(    def invalidate_caches\(cls\))"
        text = re.sub(undecorated, r"\n    @classmethod\n\1", metadata.read_text(encoding="utf-8"))
        metadata.write_text(text, encoding="utf-8")
        launchers = library / "venv" / "scripts" / "nt"
        for place in (self.python / "DLLs", launchers):
            place.mkdir(parents=True, exist_ok=True)
        for path in (wheels / "deploy_libs").iterdir():
            name = path.name.lower()
            if not name.startswith(("api-ms-", "tcl", "tk", "_tkinter")):  # wine has its own C runtime
                shutil.copyfile(path, self.python / ("" if name in {"python311.dll", "vcruntime140.dll"} else "DLLs") / path.name)
        for path in wheels.rglob("*140*.dll"):
            if path.parent.name != "deploy_libs" and path.name.startswith(("msvcp", "vcruntime", "concrt")):
                shutil.copyfile(path, self.python / path.name)
        self._compile("python.c", self.python / "python.exe", "-municode", "-Wl,--stack,2000000")
        self._compile("venvlauncher.c", launchers / "python.exe", "-municode")
        shutil.copyfile(launchers / "python.exe", launchers / "pythonw.exe")
        self._compile("bcryptprimitives.c", self.python / "bcryptprimitives.dll", "-shared", "-ladvapi32")
        exports = self._run("-p", self.python / "python311.dll", program=_OBJDUMP).partition("[Ordinal/Name Pointer] Table")[2]
        names = sorted(set(re.findall(r"\s(_?Py\w+)$", exports, re.MULTILINE)))
        forwards = self.folder / "python3.def"
        lines = ["LIBRARY python3.dll", "EXPORTS", *(f"  {name}=python311.{name}" for name in names)]
        forwards.write_text("\n".join(lines) + "\n", encoding="ascii")
        self._compile(forwards, self.python / "python3.dll", "-shared", "-nostdlib", "-Wl,--entry=0")

    def _compile(self, source: str | Path, result: Path, *options: str) -> None:
        self._run("-O1", "-s", "-o", result, SOURCES / source, *options, program=_COMPILER)

    def _create_prefix(self) -> None:
        """Create drive C and the registry. Add to wine what NumPy 2 (`creal`) and Rust (`ProcessPrng`) need."""
        shutil.rmtree(self.prefix, ignore_errors=True)
        self.prefix.mkdir()
        self._run("wineboot", "--init")
        native = "".join(f'"{name}"="native,builtin"\n' for name in _NATIVE)
        settings = self.folder / "settings.reg"
        section = "[HKEY_CURRENT_USER\\Software\\Wine\\DllOverrides]"
        settings.write_text(f'REGEDIT4\n\n{section}\n{native}"winedbg.exe"=""\n', encoding="ascii")
        self._run("regedit", "/S", to_windows_path(settings))
        self.stop()
        system = self.drive / "windows" / "system32"
        shutil.copyfile(self.python / "bcryptprimitives.dll", system / "bcryptprimitives.dll")
        (system / "ucrtbase.dll").unlink(missing_ok=True)
        (system / "ucrtbase.dll").write_bytes(_with_complex_parts((self.debian / _DLLS / "ucrtbase.dll").read_bytes()))

    def _install_wheels(self) -> None:
        """Install the dependencies, and this checkout by its path."""
        packages = self.python / "Lib" / "site-packages"
        shutil.rmtree(packages, ignore_errors=True)
        excludes = self.folder / "excludes.txt"
        excludes.write_text("\n".join(_WITHOUT_WHEEL), encoding="utf-8")
        requirements = ("--requirement", "pyproject.toml", "--extra", "test", "--constraint", "constraints.txt")
        _uv_install(packages, *requirements, "--excludes", str(excludes))
        programs = self.python / "Scripts"
        programs.mkdir(exist_ok=True)
        for program in (packages / "bin").glob("*.exe"):
            shutil.copyfile(program, programs / program.name)
        (packages / "epbuild.pth").write_text(f"{to_windows_path(ROOT)}\n", encoding="utf-8")


def to_windows_path(path: Path) -> str:
    """Return a path of Linux as Windows programs name it."""
    return "Z:" + str(path).replace("/", "\\")


def find_mirror(settings: Path) -> str:
    """Return the mirror of Debian that apt uses. Raises MissingError."""
    for path in (settings / "sources.list", *sorted((settings / "sources.list.d").glob("*"))):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = re.search(r"^(?:URIs:|deb )(?:[^#\n]*\s)?(\w+://\S+/debian)/?(?:\s|$)", text, re.MULTILINE)
        if found:
            return found[1]
    raise MissingError("apt has no mirror of Debian: add one to /etc/apt/sources.list.d")


def _require_programs() -> None:
    for program in ("apt-get", "dpkg-deb", "unshare"):
        if shutil.which(program) is None:
            raise MissingError(f"{program} is missing: use Debian, or another Linux with apt and util-linux")
    if sys.version_info[:2] != (3, 11):
        raise MissingError(f"the standard library of CPython 3.11 is needed, and this is {sys.version.split()[0]}")
    if not _KEYRING.is_file():
        raise MissingError(f"{_KEYRING} is missing: install debian-archive-keyring")
    namespace = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "true"]
    if subprocess.run(namespace, capture_output=True, check=False).returncode != 0:
        raise MissingError("this user may not create mount namespaces: run as root, or allow user namespaces")


def _uv_install(target: Path, *arguments: str) -> None:
    platform = ("--python-platform", "x86_64-pc-windows-msvc", "--python-version", "3.11", "--only-binary", ":all:")
    _run([sys.executable, "-m", "uv", "pip", "install", "--quiet", *platform, "--target", str(target), *arguments], cwd=ROOT)


def _run(command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command and return its output. Exit with the end of the output if the command fails."""
    done = subprocess.run(
        command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if done.returncode != 0:
        raise SystemExit("\n".join([f"failed: {' '.join(command)}", *(done.stdout + done.stderr).splitlines()[-10:]]))
    return done.stdout


def _with_complex_parts(dll: bytes) -> bytes:
    """Return wine's ucrtbase.dll with functions that return the parts of complex numbers. In wine, they abort."""
    data = bytearray(dll)
    header = struct.unpack_from("<I", data, 0x3C)[0]
    count, optional = struct.unpack_from("<H", data, header + 6)[0], struct.unpack_from("<H", data, header + 20)[0]
    sections: list[tuple[int, ...]] = [
        struct.unpack_from("<IIII", data, header + 24 + optional + 40 * number + 8) for number in range(count)
    ]

    def offset(address: int) -> int:
        return next(address - start + at for size, start, length, at in sections if start <= address < start + max(size, length))

    exports = offset(struct.unpack_from("<I", data, header + 24 + 112)[0])
    names, functions, table, ordinals = struct.unpack_from("<IIII", data, exports + 24)
    for number in range(names):
        name = offset(struct.unpack_from("<I", data, offset(table) + 4 * number)[0])
        code = bytes.fromhex(_COMPLEX_PARTS.get(bytes(data[name : data.index(0, name)]), ""))
        ordinal = struct.unpack_from("<H", data, offset(ordinals) + 2 * number)[0]
        if code:
            start = offset(struct.unpack_from("<I", data, offset(functions) + 4 * ordinal)[0])
            data[start : start + len(code)] = code
    # Marked as builtin, it would be replaced by wine's own file.
    for mark in (b"Wine builtin DLL", b"Wine placeholder"):
        data[0x40:0x60] = data[0x40:0x60].replace(mark, b"Wine changed DLL")
    return bytes(data)
