"""Run a compiled model on an Android phone: adb-verify.py IN OUT.

The folder `/data/local/tmp/ort` of the phone has your program `run_model MODEL INPUTS OUTPUTS`, which reads and writes `.npz`.
"""

import json
import subprocess
import sys
from pathlib import Path

given, out = Path(sys.argv[1]), Path(sys.argv[2])
facts = json.loads((given / "facts.json").read_text(encoding="utf-8"))
place = "/data/local/tmp/ort"


def adb(*words: str) -> str:
    done = subprocess.run(["adb", *words], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S607
    if done.returncode != 0:
        sys.exit(done.stdout)
    return done.stdout


for name in facts["files"]:
    adb("push", str(given / "model" / name), f"{place}/{name}")
for inputs in sorted((given / "inputs").iterdir()):
    adb("push", str(inputs), f"{place}/inputs.npz")
    adb("shell", f"cd {place} && ./run_model {facts['file']} inputs.npz outputs.npz")
    adb("pull", f"{place}/outputs.npz", str(out / inputs.name))
(out / "device.txt").write_text(adb("shell", "getprop ro.product.model"), encoding="utf-8")
