"""snakeviz on a profile's Python calls: its server, in a process that cannot outlive ours."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.trace.model import Calls
from gpuprof_widgets.trace.pstats import save_pstats

SERVE = """
import os, shutil, sys, threading
def leave_with_the_parent():
    sys.stdin.read()
    shutil.rmtree(os.path.dirname(sys.argv[-1]), ignore_errors=True)
    os._exit(0)
threading.Thread(target=leave_with_the_parent, daemon=True).start()
from snakeviz.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs snakeviz until its standard input closes, which our process's end does in any case."""


class SnakevizServer:
    """A running snakeviz: ``url`` of its page, ``path`` of the file that it shows.

    It ends with `close`, at the latest with the interpreter, and takes the file with it.
    """

    def __init__(self, calls: Calls, *, name: str) -> None:
        self.path = prof_file(calls, name=name)
        folder = self.path.parent
        try:
            with (folder / "server.log").open("wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-u", "-c", SERVE, "--server", *_address(), str(self.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._owner = os.getpid()
        atexit.register(self.close)
        try:
            self.url = self._announced_url()
        except BaseException:
            self.close()
            raise

    def _announced_url(self) -> str:
        """Return the URL that snakeviz prints once it listens, perhaps on another port."""
        lines = []
        for line in self._process.stdout or ():
            if line.startswith("http://"):
                return line.strip()
            lines.append(line)
        log = (self.path.parent / "server.log").read_text(errors="replace").strip()
        last = (log or "".join(lines)).splitlines()[-1:]
        raise RecordingError(f"snakeviz did not start: {''.join(last) or 'it said nothing'}")

    def close(self) -> None:
        """Stop the server and remove its file; may be called again."""
        if os.getpid() != self._owner:  # a fork of our process ends, which inherited the server
            return
        atexit.unregister(self.close)
        self._process.terminate()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<snakeviz at {self.url}>"


def show_in_snakeviz(calls: Calls, *, name: str) -> SnakevizServer | None:
    """Open snakeviz in a tab of the local browser; without one, print where the file is."""
    browser = local_browser()
    if browser is None:
        path = prof_file(calls, name=name)
        atexit.register(_remove_folder, path.parent, os.getpid())
        print(f"No local browser can be reached. The calls are in {path}: `snakeviz {path}`")
        return None
    server = SnakevizServer(calls, name=name)
    print(server.url if browser.open(server.url, new=2) else f"Open {server.url} in a browser")
    return server


def prof_file(calls: Calls, *, name: str) -> Path:
    """Write the calls as a .prof in a temporary folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="gpuprof-snakeviz-"))
    readable = re.sub(r"[^\w.-]+", "_", name).strip("._")
    return save_pstats(calls, folder / f"{readable or 'cell'}.prof")


def _remove_folder(folder: Path, owner: int) -> None:
    """Remove the folder as its process ends; a fork of that process leaves it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def local_browser(environment: Mapping[str, str] | None = None) -> Any:
    """Return the browser on the user's own screen, if this process can reach one; else None."""
    environment = os.environ if environment is None else environment
    if "google.colab" in sys.modules:
        return None
    has_screen = any(environment.get(key) for key in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not has_screen and (sys.platform.startswith("linux") or "SSH_CONNECTION" in environment):
        return None
    try:
        return webbrowser.get()
    except webbrowser.Error:
        return None


def _address() -> list[str]:
    """Return options with a free port that only this machine can reach."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return ["--hostname", "127.0.0.1", "--port", str(probe.getsockname()[1])]
