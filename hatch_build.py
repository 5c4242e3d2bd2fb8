"""Compiles the scanner of traces into the wheel; leaves outputs of notebooks out of the sdist.

Without a C compiler the wheel is pure Python, and traces are read more slowly. The notebooks are
committed with what they put out, live views of 0.7 MB and more each, which nothing is built from.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("gpuprof_widgets/trace/event_scanner.c")
LIBRARY = SOURCE.with_name("_event_scanner.so")


def without_outputs(notebook: str) -> str:
    """Return the text of a notebook as it was before any cell of it ran."""
    content = json.loads(notebook)
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


class CustomBuildHook(BuildHookInterface[Any]):
    """Works before the files of a wheel or of an sdist are collected."""

    _bare: Path | None = None
    """The folder of the notebooks without outputs, while an sdist is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepare what the target needs beside the files of the repository."""
        if self.target_name == "sdist":
            self._leave_out_outputs(build_data)
        else:
            self._compile_for_wheel(build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the notebooks without outputs again."""
        if self._bare is not None:
            shutil.rmtree(self._bare)

    def _leave_out_outputs(self, build_data: dict[str, Any]) -> None:
        """Put copies into the sdist: pyproject.toml excludes the notebooks themselves."""
        self._bare = Path(tempfile.mkdtemp())
        for path in sorted(Path(self.root).glob("notebooks/*.ipynb")):
            copy = self._bare / path.name
            copy.write_text(without_outputs(path.read_text("utf-8")), "utf-8")
            build_data["force_include"][str(copy)] = f"notebooks/{path.name}"

    def _compile_for_wheel(self, build_data: dict[str, Any]) -> None:
        """Compile, and say in the wheel's tag for which platform; editable installs in place."""
        library = Path(self.root) / LIBRARY
        try:
            self._compile(library)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"Traces will be read in Python: no scanner, {error}")
            with suppress(OSError):
                library.unlink()  # of another source
            return
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        # The scanner does not use Python's headers, so one wheel serves all versions of Python.
        system = sysconfig.get_platform().replace("universal2", platform.machine())
        build_data["tag"] = f"py3-none-{system.replace('-', '_').replace('.', '_')}"

    def _compile(self, library: Path) -> None:
        """Compile, then put the new library in the place of an old one, which may be in use."""
        compiler = shlex.split(os.environ.get("CC") or "cc")
        new = library.with_suffix(f".{os.getpid()}.new")
        command = [*compiler, "-O3", "-std=c11", "-shared", "-fPIC", "-o", str(new)]
        subprocess.run([*command, str(Path(self.root) / SOURCE)], check=True)
        new.replace(library)
