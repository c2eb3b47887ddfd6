"""The HTTP client costs nothing where nothing is fetched or pushed; what it does is tested where it is used."""

from __future__ import annotations

import subprocess
import sys


def test_a_build_without_remote_files_does_not_import_it() -> None:
    code = "import sys, epbuild.cli.run, epbuild.commands.run, epbuild.publish.publisher; print('urllib3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
