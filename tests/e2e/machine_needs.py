"""Requirements of tests that a machine may lack.

A test checks them before it begins, and is skipped with the reason if one is not met.
"""

from __future__ import annotations

import json
import subprocess

import pytest

from epbuild.cache.location import find_toolchain_directory
from epbuild.toolchain.provision import Requirements, provision

# An EP may offer devices only on the processors of its vendor, as the OpenVINO plugin does.
_DEVICES = """\
import importlib, json, sys
import onnxruntime
ep, module = sys.argv[1:]
onnxruntime.register_execution_provider_library(ep, importlib.import_module(module).get_library_path())
devices = [device.device.type.name for device in onnxruntime.get_ep_devices() if device.ep_name == ep]
sys.stderr.write(json.dumps(devices))
"""


def need_device(kind: str, *, ep: str, module: str, packages: tuple[str, ...]) -> None:
    """Skip the test unless the plugin EP in `module` offers a device of the `kind` ("CPU", "GPU", "NPU") on this machine.

    The toolchain with the `packages` is provisioned for the check.
    """
    python = provision(Requirements(packages), find_toolchain_directory(), name="asked", where=None)
    command = [str(python), "-I", "-c", _DEVICES, ep, module]
    asked = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)
    assert asked.returncode == 0, asked.stdout + asked.stderr
    offered = json.loads(asked.stderr.splitlines()[-1])
    if kind not in offered:
        pytest.skip(f"{ep} offers no {kind} on this machine; it offers: {', '.join(offered) or 'none'}")
