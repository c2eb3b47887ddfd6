"""Description of an environment: `python -I probe.py MODULE...`.

Prints one JSON document about the Python that runs the script, and about the named modules.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
import sysconfig


def list_distributions() -> dict[str, str]:
    """Return the version of every installed distribution, by its normalized name."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            versions.setdefault(name.lower().replace("_", "-").replace(".", "-"), distribution.version)
    return versions


def find_package_folder(module: str) -> str | None:
    """Return the folder of a package without importing the package, or None if the package does not exist."""
    try:
        specification = importlib.util.find_spec(module)
    except ImportError:  # its parent package is missing
        return None
    if specification is None or not specification.submodule_search_locations:
        return None
    # Links are not resolved, as their targets may change.
    return os.path.join(os.getcwd(), next(iter(specification.submodule_search_locations)))  # noqa: PTH109, PTH118


def main(modules: list[str]) -> None:
    version = sys.version_info
    document = {
        "python": f"{sys.implementation.name}-{version[0]}.{version[1]}",
        "python_version": platform.python_version(),
        "platform": sysconfig.get_platform(),
        "distributions": list_distributions(),
        "site": [os.path.join(os.getcwd(), path) for path in sys.path if os.path.isdir(path)],  # noqa: PTH109, PTH112, PTH118
        "modules": {module: find_package_folder(module) for module in modules},
    }
    print(json.dumps(document, sort_keys=True))  # noqa: T201 - the document is the result


if __name__ == "__main__":
    main(sys.argv[1:])
