"""Print the lowest versions that pyproject.toml allows, one `name==version` a line.

`make constraints-lowest` installs these and pins all that comes with them. torch is the exception:
its bound has no build without CUDA on a package index, so the oldest that has one stands for it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
FOR_USERS = ("dask", "parquet", "remote")
"""The extras that users install; the tools of the tests have to be no older than their newest."""

OLDEST_CPU_TORCH = "2.13.0"


def lowest() -> dict[str, str]:
    """Return the lowest version of each dependency, by its name in pyproject.toml."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = [one for name in FOR_USERS for one in project["optional-dependencies"][name]]
    requirements = map(Requirement, [*project["dependencies"], *extras])
    return {one.name: bound_of(one) for one in requirements}


def bound_of(requirement: Requirement) -> str:
    (bound,) = (one.version for one in requirement.specifier if one.operator == ">=")
    return bound


if __name__ == "__main__":
    for name, version in lowest().items():
        print(f"{name}=={OLDEST_CPU_TORCH if name == 'torch' else version}")
