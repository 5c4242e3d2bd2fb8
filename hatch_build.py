"""Compiles the scanner of Chrome traces into the wheel, where there is a C compiler.

Without one the wheel is pure Python, and traces are read more slowly.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("gpuprof_widgets/trace/event_scanner.c")
LIBRARY = SOURCE.with_name("_event_scanner.so")


class CustomBuildHook(BuildHookInterface[Any]):
    """Compiles before the files of the wheel are collected; for editable installs in place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say in the wheel's tag for which platform."""
        library = Path(self.root) / LIBRARY
        if not self._compiled(library):
            library.unlink(missing_ok=True)  # of another source
            return
        build_data["artifacts"].append(LIBRARY.as_posix())
        build_data["pure_python"] = False
        # The scanner does not use Python's headers, so one wheel serves all versions of Python.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def _compiled(self, library: Path) -> bool:
        compiler = shlex.split(os.environ.get("CC") or "cc")
        new = library.with_suffix(f".{os.getpid()}.new")  # a running process may have the old one
        command = [*compiler, "-O3", "-std=c11", "-shared", "-fPIC", "-o", str(new)]
        try:
            subprocess.run([*command, str(Path(self.root) / SOURCE)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"No compiled scanner, as there is no C compiler: {error}")
            return False
        new.replace(library)
        return True
