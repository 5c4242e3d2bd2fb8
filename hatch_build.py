"""Compiles the scanner of Chrome traces into the wheel, where there is a C compiler.

Without one the wheel is pure Python, and traces are read more slowly.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sysconfig
from contextlib import suppress
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
