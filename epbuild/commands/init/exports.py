"""Export scripts: programs that write a model's ONNX file from a checkpoint."""

from __future__ import annotations

import ast
import glob
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from epbuild.core.safepath import read_regular

_CHECKPOINTS = ("*.safetensors", "*.pt", "*.pth", "pytorch_model.bin")
_SCRIPTS = ("export*.py", "convert*.py", "*to_onnx*.py")
_SETTINGS = "*.json"
"""Pattern of the files that describe a checkpoint, such as `config.json`."""
_KNOWN_MODULES = {
    *("accelerate", "diffusers", "einops", "huggingface_hub", "numpy", "onnx", "onnxruntime", "onnxscript", "optimum", "peft"),
    *("safetensors", "sentencepiece", "timm", "torch", "torchaudio", "torchvision", "transformers"),
}
"""Modules that have the same name as their package. For other modules, a package of that name may be unrelated."""
_OF_TORCH_EXPORTS = ("onnx", "onnxscript")
"""Packages that `torch.onnx.export` imports."""


class ExportScript(Struct, frozen=True):
    """Script that probably exports a checkpoint, with its files relative to the script's folder."""

    name: str
    files: Sequence[str]
    """Names and patterns of the script, of the modules that it imports, and of the checkpoint."""
    packages: Sequence[str]
    """Packages of the known modules that the script imports, and those that exports from torch need.

    Without known modules, the script is assumed to export from torch.
    """
    unknown: Sequence[str]
    """Other modules that the script imports."""


def find_export_script(folder: Path) -> ExportScript | None:
    """Return the only export script in a folder with a checkpoint. Return None if there is no checkpoint, or not exactly one script."""
    checkpoints = [pattern for pattern in _CHECKPOINTS if _list_matches(folder, pattern)]
    scripts = {path.name: path for pattern in _SCRIPTS for path in _list_matches(folder, pattern)}
    if not checkpoints or len(scripts) != 1:
        return None
    [script] = scripts.values()
    own, modules = _find_imports(script, folder)
    settings = [_SETTINGS] if _list_matches(folder, _SETTINGS) else []
    known = modules & _KNOWN_MODULES
    packages = sorted(
        module.replace("_", "-") for module in known.union(_OF_TORCH_EXPORTS if "torch" in known or not known else ())
    )
    files = (*map(glob.escape, own), *checkpoints, *settings)
    return ExportScript(script.name, files, packages, sorted(modules - _KNOWN_MODULES))


def _list_matches(folder: Path, pattern: str) -> list[Path]:
    return [path for path in sorted(folder.glob(pattern)) if path.is_file() and not path.name.startswith(".")]


def _find_imports(script: Path, folder: Path) -> tuple[list[str], set[str]]:
    """Return the script with the files in `folder` that it imports, and all other modules except those of Python itself."""
    own: list[str] = [script.name]
    others: set[str] = set()
    unread = [script]
    while unread:
        for module in _list_modules(unread.pop()):
            file = folder / f"{module}.py"
            if file.is_file() and file.name not in own:
                own.append(file.name)
                unread.append(file)
            elif not file.is_file() and module not in sys.stdlib_module_names:
                others.add(module)
    return own, others


def _list_modules(script: Path) -> Iterator[str]:
    """Yield the top-level modules that a script imports. Yield nothing for a script that cannot be read."""
    try:
        with warnings.catch_warnings():  # about the script's own text
            warnings.simplefilter("ignore")
            tree = ast.parse(read_regular(script))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]
