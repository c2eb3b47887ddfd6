"""Sample reports: small ones, one like the zoo recipe's with failures, a large one and a hostile one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

Document = dict[str, Any]

HOSTILE = "</script><script>window.harmed=1</script><!--<script>--><img src=x onerror='window.harmed=1'>&quot;`${window.harmed=1}`\u2028"
"""A name that runs a script in a page that interprets any part of it as markup."""
SOCS = ("SM8650", "SM8750", "SC8380XP", "SM8550", "QCS6490")
_CPU_REASON = "Operators of type `MatMulInteger` are not supported by QNN EP"
_CRASH = "Unable to compile any nodes. Check that the session EPs support compilation and can execute at least one subgraph in the model"
_WORDS = (
    "yolo",
    "ocr-det",
    "ocr-rec",
    "ocr-cls",
    "vad",
    "magika",
    "t5-encoder",
    "basic-pitch",
    "dnsmos",
    "megnet",
    "iclabel",
    "aecmos",
)


def zoo_report() -> Document:
    """Return a report of twelve models and a shared group for five SoCs. Some are partial, failed or unchanged."""
    document = made_report(_WORDS, SOCS, shared=("decoder",))
    return {**document, "against": changes(document)}


def small_report() -> Document:
    return made_report(("classifier",), ("SM8750",), fails=0)


def large_report(models: int = 620) -> Document:
    """Return a report of slightly more than 10,000 steps."""
    return made_report([f"model-{at:03}" for at in range(models)], SOCS, shared=[f"pair-{at:02}" for at in range(20)], jobs=16)


def hostile_report() -> Document:
    """Return a report whose every free text is hostile."""
    document = made_report(("yolo",), ("SM8750",), shared=("decoder",))
    fixed = {"outcome", "kind", "state", "was", "made_at", "began", "layout"}

    def harmed(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: harmed(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [harmed(item, key) for item in value]
        is_fixed = key in fixed or (key == "on" and value in {"device", "emulator"})
        return f"{HOSTILE}{value}" if isinstance(value, str) and not is_fixed else value

    changed: Document = harmed(document)
    return changed


def made_report(
    models: Sequence[str], socs: Sequence[str], *, shared: Sequence[str] = (), fails: int = 9, jobs: int = 4
) -> Document:
    """Return a report of the `models`, each a group of its own, and of `shared` groups of two. Some fail or are partial."""
    maker = _Maker(jobs, fails)
    targets = [f"phone-{soc}" for soc in socs]
    for name in models:
        prepared = maker.step("prepare", f"{name}/1-simplify", None, None, [], 0.8)
        maker.model(name, [name])
        for target in targets:
            maker.member(name, target, [name], prepared)
    for group in shared:
        for member in ("prefill", "decode"):
            maker.model(f"{group}-{member}", [group])
        for target in targets:
            maker.member(group, target, ["prefill", "decode"], None)
    return maker.document(targets, socs)


def changes(document: Document) -> Document:
    """Return the changes since an earlier report, in which some models were better and some worse."""
    models = [
        {**{key: row[key] for key in ("group", "member", "target")}, "before": before(row, at), "after": side(row)}
        for at, row in enumerate(document["coverage"])
        if at % 7 == 0
    ]
    outputs = [
        {
            **{key: output[key] for key in ("path", "groups", "targets")},
            "before": output["size"] + 4100,
            "after": output["size"],
            "files": [
                {
                    "path": file["path"],
                    "before": {"size": file["size"] + 4100, "sha256": digest(file["path"])},
                    "after": after(file),
                }
                for file in output["files"][:1]
            ],
        }
        for output in document["outputs"][::9]
        if output["files"]
    ]
    return {
        "path": "last/report.html",
        "kind": "report",
        "recipe": document["recipe"]["name"],
        "made_at": "2026-11-16T09:30:00Z",
        "epbuild": "0.3.0",
        "build_seconds": 151.5,
        "models": models,
        "outputs": outputs,
        "versions": [{"toolchain": "qnn", "package": "onnxruntime-qnn", "before": "2.6.0", "after": "2.7.0"}],
        "sources": [{"model": "yolo", "before": digest("older"), "after": digest("yolo"), "data": False}],
    }


def side(row: Document) -> Document:
    return {key: row[key] for key in ("outcome", "ep_context_nodes", "fallback_nodes", "size", "seconds", "accuracy")}


def before(row: Document, at: int) -> Document | None:
    """Return the earlier state of a model: None if it is new, whole, partial, or of another size."""
    whole = {"outcome": "whole", "ep_context_nodes": 1, "fallback_nodes": 0, "accuracy": {"cosine": 0.99999, "snr_db": 51.0}}
    partial = {**whole, "outcome": "partial", "fallback_nodes": 5}
    size, took = (row["size"] or 10**6) + 8200, (row["seconds"] or 1.0) * 1.2
    sides = (None, {**whole, "size": size, "seconds": took}, {**partial, "size": size, "seconds": took})
    return sides[at % 3]


def context(model: str) -> Document:
    parts = [{"kind": "shared weights", "name": "", "size": 60_000}, {"kind": "graph", "name": model, "size": 30_000}]
    return {"file": f"{model}.bin", "size": 98_304, "parts": parts}


def after(file: Document) -> Document:
    return {key: file[key] for key in ("size", "sha256")}


def measurement(row: Document) -> Document:
    """Return the figures of a verified model. The latency of inaccurate models is above its limit."""
    return {
        **{key: row[key] for key in ("group", "target", "member")},
        "step": f"measure:{row['group']}/{row['target']}",
        "figures": {"load_ms": 250.5, "latency_ms.p50": 4.25 if row["outcome"] == "passed" else 6.5, "peak_memory": 181_000_000},
        "limits": {"latency_ms.p50": 5, "latency_ms.p95": 6},
        "on": "device",
        "device": "SM-S918B",
        "files": [],
    }


def task_metric(row: Document) -> Document:
    unknown = dict.fromkeys(("samples", "evidence", "on"))
    reason = "accuracy is 0.923, and 0.931 for the source"
    return {**row, "output": "metric accuracy", "outcome": "passed", "reason": reason, "figures": {}, "limits": {}, **unknown}


def past_figures(rows: Sequence[Document], day: int) -> list[Document]:
    """Return the figures of verified models on a day. They were measured on an emulator before day 21."""
    place = {"on": "device", "device": "SM-S918B"} if day > 20 else {"on": "emulator", "device": "cpu from Example"}
    ran = {"kind": "measurement", "figures": {"load_ms": 250.5, "latency_ms.p50": day / 5, "peak_memory": 181_000_000 + day}}
    metrics = {"kind": "metrics", "figures": {"accuracy": 0.9 + day / 1000}, "on": None, "device": None}
    names = [{key: row[key] for key in ("group", "target", "member")} for row in rows]
    return [{**name, **ran, **place} for name in names] + [{**name, **metrics} for name in names[:1]]


class _Maker:
    def __init__(self, jobs: int, fails: int) -> None:
        self._random = random.Random(17)
        self._free = [0.0] * jobs
        self._ended: dict[str, float] = {}
        self._fails = fails
        self._actions = 0
        self.steps: list[Document] = []
        self.models: list[Document] = []
        self.coverage: list[Document] = []
        self.outputs: list[Document] = []
        self.sharing: list[Document] = []
        self.accuracy: list[Document] = []
        self.published: list[Document] = []

    def model(self, name: str, groups: list[str]) -> None:
        size = self._random.randint(10**5, 10**8)
        data = [{"location": f"{name}.data", "size": size, "sha256": digest(name + "data")}] if size > 6 * 10**7 else []
        source = f"package:{name}==1.0/{name}.onnx"
        self.models.append({"name": name, "groups": groups, "source": source, "sha256": digest(name), "data": data, "size": size})

    def member(self, group: str, target: str, members: list[str], prepared: str | None) -> None:
        """Add the steps of a group for a target."""
        self._actions += 1
        kind = "whole"
        if self._fails:
            kind = {self._fails - 1: "failed", self._fails // 2: "partial"}.get(self._actions % self._fails, "whole")
        compiles = [self._compile(group, target, member, prepared, kind) for member in members]
        last = compiles[-1]
        if len(members) > 1:
            last = self.step("share", f"{group}/{target}", group, target, compiles, 1.1, failed=kind == "failed")
            self._as_one_action(compiles, last)
            alone = self._random.randint(10**6, 10**8)
            saved = int(alone * self._random.uniform(0.1, 0.48))
            if kind != "failed":
                place = {"step": last, "group": group, "target": target}
                amounts = {"alone": alone, "shared": alone - saved, "saved": saved}
                self.sharing.append({**place, **amounts, "measured": self._actions % 3 > 0, "made": alone - saved})
        checked = self.step("verify", f"{group}/{target}", group, target, [last], 0.6, after_failure=kind == "failed")
        for member in members:
            self._figures(checked, group, target, member, kind)
        self._emit(group, target, checked, kind)

    def _compile(self, group: str, target: str, member: str, prepared: str | None, kind: str) -> str:
        took = self._random.lognormvariate(0.7, 0.8)
        needs = [prepared] if prepared else []
        error = kind == "failed"
        step = self.step("compile", f"{group}/{target}/{member}", group, target, needs, took, failed=error)
        outside = []
        if kind == "partial":
            for operator, count in (("DynamicQuantizeLinear", 16), ("Gather", 3)):
                nodes = [f"/layer.{at}/{operator}" for at in range(count)]
                reason = _CPU_REASON if operator != "Gather" else None
                advice = ["Use static quantization: the EP compiles QuantizeLinear with constant scales."] if reason else []
                outside.append({"operator": operator, "count": count, "nodes": nodes, "reason": reason, "advice": advice})
        self.coverage.append(
            {
                "step": step,
                "model": group if member == group else f"{group}/{member}",
                "member": member,
                "group": group,
                "target": target,
                "outcome": kind,
                "ep_context_nodes": None if error else 1,
                "fallback_nodes": None if error else sum(one["count"] for one in outside),
                "outside": outside,
                "reason": _CRASH if error else None,
                "size": None if error else self._random.randint(10**5, 5 * 10**7),
                "seconds": None if error else round(took, 3),
                "accuracy": None if error else {"cosine": 0.999997, "snr_db": 52.4},
                "contexts": [] if error else [context(member)],
            }
        )
        return step

    def step(
        self,
        kind: str,
        name: str,
        group: str | None,
        target: str | None,
        needs: list[str],
        took: float,
        *,
        failed: bool = False,
        after_failure: bool = False,
    ) -> str:
        step = f"{kind}:{name}"
        outcome = "failed" if failed else "skipped" if after_failure else "emitted" if kind == "emit" else "built"
        worker = min(range(len(self._free)), key=self._free.__getitem__)
        begins = max([self._free[worker], *(self._ended.get(need, 0.0) for need in needs)])
        runs = outcome != "skipped"
        if runs:
            self._free[worker] = self._ended[step] = begins + took
        errors = [{"code": "EPB401", "message": f"{_CRASH}.", "reason": _CRASH, "hint": "Look into the whole log.", "step": None}]
        self.steps.append(
            {
                "id": step,
                "kind": kind,
                "action": step,
                "group": group,
                "target": target,
                "needs": needs,
                "state": "failed" if failed else "new" if after_failure else "current",
                "remote": False,
                "reasons": ["it failed the last time"] if failed else ["never built"] if after_failure else [],
                "key": digest(step),
                "seconds": round(took, 3) if runs else None,
                "size": self._random.randint(10**4, 10**7) if outcome in {"built", "emitted"} else None,
                "memory": self._random.randint(10**8, 2 * 10**9) if kind == "compile" else None,
                "note": "",
                "outcome": outcome,
                "was": "new" if outcome is not None else None,
                "because": [],
                "took": round(took, 3) if runs else None,
                "work": round(took, 3) if runs else None,
                "started": round(begins, 3) if runs else None,
                "ended": round(begins + took, 3) if runs else None,
                "worker": worker if runs else None,
                "machine": None,
                "origin": None,
                "errors": errors if failed else [],
                "log": "\n".join(f"{step}: line {line}" for line in range(100)) if failed else None,
            }
        )
        return step

    def _as_one_action(self, compiles: list[str], last: str) -> None:
        """Move the time and the memory of the compiles to the share step."""
        *members, share = (one for one in self.steps[-1 - len(compiles) :] if one["id"] in {*compiles, last})
        for step in members:
            step["action"] = last
            share["memory"], step["memory"] = max(share["memory"] or 0, step["memory"]), None
        share["started"] = min(step["started"] for step in members)
        share["took"] = round(share["work"] + sum(step["work"] for step in members), 3)

    def _figures(self, step: str, group: str, target: str, member: str, kind: str) -> None:
        if kind == "failed":
            return
        poor = kind == "partial" and self._actions % 2 == 0
        self.accuracy.append(
            {
                "step": step,
                "group": group,
                "target": target,
                "member": member,
                "output": "logits",
                "outcome": "failed" if poor else "passed",
                "reason": "cosine is 0.91, and 0.99 is the limit" if poor else None,
                "figures": {"cosine": 0.91 if poor else 0.999997, "snr_db": 8.5 if poor else 52.4},
                "limits": {"cosine": 0.99},
                "samples": 4,
                "evidence": "made",
                "on": "CPU, made up inputs",
                "reference": "the source",
            }
        )

    def _emit(self, group: str, target: str, checked: str, kind: str) -> None:
        step = self.step("emit", f"{group}/{target}/directory", group, target, [checked], 0.1, after_failure=kind == "failed")
        path = f"dist/zoo/{group}/{target}"
        there = kind != "failed"
        sizes = {f"{group}_qnn.bin": self._random.randint(10**5, 5 * 10**7), f"{group}_ctx.onnx": self._random.randint(300, 9000)}
        files = [{"path": name, "size": size, "sha256": digest(path + name)} for name, size in sizes.items()] if there else []
        self.outputs.append(
            {
                "step": step,
                "path": path,
                "layout": "directory",
                "archive": None,
                "registry": None,
                "groups": [group],
                "targets": [target],
                "in_place": there,
                "key": digest(step) if there else None,
                "provenance": f"{path}.intoto.json" if there else None,
                "size": sum(one["size"] for one in files),
                "files": files,
            }
        )
        if there and self._actions % 4 == 0:
            after = sum(sizes.values())
            before = None if self._actions % 8 == 0 else after + self._random.randint(-9000, 9000)
            name, size = next(iter(sizes.items()))
            changed = [{"path": name, "before": None if before is None else size - after + before, "after": size}]
            self.published.append({"step": step, "path": path, "before": before, "after": after, "files": changed})

    def document(self, targets: Sequence[str], socs: Sequence[str]) -> Document:
        outcomes: dict[str, int] = {}
        for step in self.steps:
            outcomes[step["outcome"]] = outcomes.get(step["outcome"], 0) + 1
        ep = {"ep": "QNNExecutionProvider", "package": "onnxruntime-qnn", "version": "2.7.0", "device": "NPU"}
        packages = [
            {"name": name, "version": "1.31.1", "sha256": [digest(name), digest(name + "arm")]}
            for name in ("flatbuffers", "numpy", "onnxruntime", "onnxruntime-qnn", "protobuf")
        ]
        return {
            "format": 1,
            "epbuild": "0.4.0",
            "made_at": "2026-11-23T03:50:00Z",
            "recipe": {"name": "zoo", "description": "Real models.", "path": "recipes/zoo.yaml", "sha256": digest("zoo")},
            "machine": {"name": "builder", "platform": "linux-x86_64", "cpu": "Example", "cpus": 4, "memory": 16 * 2**30},
            "toolchains": [
                {
                    "name": "qnn",
                    "requires": ["onnxruntime==1.31.1", "onnxruntime-qnn==2.7.0"],
                    "interpreter": None,
                    "python": "cpython-3.11",
                    "platform": "manylinux_2_36_x86_64",
                    "locked": True,
                    "packages": packages,
                }
            ],
            "targets": [
                {
                    "name": target,
                    "toolchain": "qnn",
                    "platforms": [],
                    "soc": soc,
                    "eps": [{**ep, "options": {"soc_model": soc, "htp_performance_mode": "burst"}}],
                }
                for target, soc in zip(targets, socs, strict=True)
            ],
            "models": self.models,
            "steps": self.steps,
            "coverage": self.coverage,
            "outputs": self.outputs,
            "sharing": self.sharing,
            "accuracy": [*self.accuracy, *map(task_metric, self.accuracy[:1])],
            "measurements": [*map(measurement, self.accuracy)],
            "build": {
                "began": "2026-11-23T03:48:00Z",
                "seconds": round(max(self._ended.values()) + 0.2, 3),
                "exit_code": 1 if self._fails else 0,
                "epbuild": "0.4.0",
                "machine": "builder",
                "jobs": len(self._free),
                "steps": len(self.steps),
                "todo": len(self.steps),
                "outcomes": outcomes,
                "spans": [{"kind": "toolchain", "name": "qnn", "started": 0.0, "ended": 1.4, "failed": False}],
                "published": self.published,
                "remote": [],
            },
            "warnings": [],
            "failures": [
                {
                    "code": "EPB401",
                    "reason": _CRASH,
                    "hint": "Look into the whole log.",
                    "steps": [step["id"] for step in self.steps if step["errors"]],
                    "allowed": False,
                }
            ]
            if any(step["errors"] for step in self.steps)
            else [],
            "against": None,
            "history": [
                {
                    "began": f"2026-11-{day}T03:48:00Z",
                    "seconds": 140.0 - day,
                    "exit_code": 1,
                    "totals": None
                    if day == 20
                    else {
                        "size": 10**9 + (day - 20) ** 2 * 10**7,
                        "coverage": {"whole": 40 + day, "partial": 7},
                        "accuracy": {"cosine": 0.91, "snr_db": day / 2},
                        "figures": past_figures(self.accuracy[:9], day),
                    },
                }
                for day in range(18, 24)
            ],
        }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
