"""Files of named arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a `.npz` file. Unlike `numpy.savez`, this function accepts every name."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def write_named_arrays(path: Path, file: Path, names: Sequence[str]) -> None:
    """Write a `.npz` file, and its folder, with the arrays `arr_0`, `arr_1` and so on of another file under their names."""
    import numpy as np

    path.parent.mkdir(parents=True, exist_ok=True)
    with np.load(file, allow_pickle=False) as arrays:
        write_arrays(path, {name: arrays[f"arr_{index}"] for index, name in enumerate(names)})
