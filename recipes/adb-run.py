"""Measure a compiled model on an Android phone: adb-run.py MODEL FIGURES FACTS.

The folder `/data/local/tmp/ort` of the phone has onnxruntime_perf_test and the libraries of the EP.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

model, figures, facts = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))
place = "/data/local/tmp/ort"


def adb(*words: str) -> str:
    done = subprocess.run(["adb", *words], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S607
    if done.returncode != 0:
        sys.exit(done.stdout)
    return done.stdout


for name in facts["files"]:
    adb("push", str(model.with_name(name)), f"{place}/{name}")
options = {**facts["eps"][0]["options"], "profiling_level": "basic", "profiling_file_path": "profile.csv"}
chosen = " ".join(f"{name}|{value}" for name, value in options.items())
out = adb("shell", f"cd {place} && ./onnxruntime_perf_test -e qnn -i '{chosen}' -m times -r 100 -s -I {model.name}")
adb("pull", f"{place}/profile.csv", str(figures.with_name("profile.csv")))  # kept beside the log of the step
read = {name: float(value) for name, value in re.findall(r"^([\w ]+): ?([\d.]+)", out, re.MULTILINE)}
found = {
    "load_ms": 1000 * read["Session creation time cost"],
    "latency_ms": {
        "first": read["First inference time cost"],
        "p50": 1000 * read["P50 Latency"],
        "p95": 1000 * read["P95 Latency"],
    },
    "peak_memory": int(read["Peak working set size"]),
    "device": adb("shell", "getprop ro.product.model").strip(),
}
figures.write_text(json.dumps(found), encoding="utf-8")
