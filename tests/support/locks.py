"""Small lock with distinguishable digests."""

from __future__ import annotations

import hashlib

from epbuild.toolchain.lock import Lock, LockedEnvironment, LockedModel, LockedToolchain, Package


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def package(name: str, version: str = "1.0", *files: str) -> Package:
    """Return a package with a file for each text, or with one file."""
    return Package(name, version, tuple(sorted(digest(file) for file in files or (f"{name} {version}",))))


def environment(*packages: Package, python: str = "cpython-3.11") -> LockedEnvironment:
    return LockedEnvironment(python, tuple(sorted(packages)))


ONNXRUNTIME = package("onnxruntime", "1.31.1")
NUMPY = package("numpy", "2.4.6", "numpy as a wheel", "numpy as another wheel")

LOCK = Lock(
    recipe="tiny",
    toolchains={
        "qnn": LockedToolchain(
            ("onnxruntime==1.31.1",),
            {
                "linux-x86_64": environment(NUMPY, ONNXRUNTIME),
                "windows-arm64": environment(NUMPY, ONNXRUNTIME, package("pyreadline3", "3.5.6")),
            },
        ),
        "ryzen": LockedToolchain(
            (), {"windows-x86_64": environment(Package("onnxruntime-vitisai", "1.22.1"), python="cpython-3.10")}
        ),
    },
    models={"decode": LockedModel(digest("graph"), {"decode.bin": digest("data"), "with space/50%.bin": digest("more data")})},
    catalog={"QNNExecutionProvider/onnxruntime-qnn": f"1 sha256:{digest('entry')}", "session-keys": "2"},
    wheels=(package("my-models", "1.0", "a wheel", "another wheel"), package("my-models", "1.1")),
)
