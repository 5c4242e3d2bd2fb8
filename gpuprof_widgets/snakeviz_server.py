"""snakeviz on a profile's Python calls: its server, in a process that cannot outlive ours."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import webbrowser
from importlib.util import find_spec
from pathlib import Path

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
"""Runs snakeviz until its standard input closes, which our process's end does in any case.

snakeviz cannot run in our process: its web application restarts the process when a module changes.
"""


class SnakevizServer:
    """A running snakeviz: ``url`` of its page, ``path`` of the file that it shows.

    It ends with `close`, at the latest with the interpreter, and takes the file with it.
    """

    def __init__(self, calls: Calls, *, name: str) -> None:
        self.path = prof_file(calls, name=name)
        log_path = self.path.parent / "server.log"
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", SERVE, "--server", str(self.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        atexit.register(self._end)  # also keeps it open if nobody keeps the server
        lines = self._process.stdout or ()
        self.url = next((line.strip() for line in lines if line.startswith("http://")), "")
        if not self.url:
            reason = log_path.read_text(errors="replace").strip() or "it said nothing"
            self.close()
            raise RecordingError(f"snakeviz did not start: {reason.splitlines()[-1]}")

    def close(self) -> None:
        """Stop the server and remove its file; may be called again."""
        atexit.unregister(self._end)
        with self._process:  # closes its standard input and waits
            pass
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def _end(self) -> None:
        """Let the server end; in a fork of our process, which has the pipe too, it goes on."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __repr__(self) -> str:
        return f"<snakeviz at {self.url}>"


def show_in_snakeviz(calls: Calls, *, name: str) -> SnakevizServer | None:
    """Open snakeviz in a tab of the local browser; without one, print where the file is."""
    if find_spec("snakeviz") is None:
        raise RecordingError("snakeviz is not installed: type `pip install snakeviz`")
    browser = local_browser()
    if browser is None:
        path = prof_file(calls, name=name)
        atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
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


def local_browser() -> webbrowser.BaseBrowser | None:
    """Return the browser on the user's own screen, if this process can reach one; else None."""
    has_screen = any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))
    if not has_screen and (sys.platform.startswith("linux") or "SSH_CONNECTION" in os.environ):
        return None  # webbrowser would take one of the terminal
    try:
        return webbrowser.get()
    except webbrowser.Error:
        return None
