"""Calls of `gpuprof`, each in a process of its own, that pay for importing torch once.

This file is also the program that makes them: it imports everything, then forks per call, and each
child goes on to the end of the program as `gpuprof` does.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120


@dataclass(frozen=True)
class Done:
    """How a process ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Calls:
    """A process that forks the calls."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def __call__(
        self, *words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Done:
        """Call `gpuprof` with these words, and these variables beside the others."""
        out, err = self._folder / "out", self._folder / "err"
        place = {"cwd": str(cwd or Path.cwd()), "out": str(out), "err": str(err)}
        asked = {"words": words, "env": dict(env or {}), **place}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return Done(code, out.read_text(), err.read_text())


@contextmanager
def calls(folder: Path) -> Iterator[Calls]:
    """Start the process; it ends with the block."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, __file__]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        yield Calls(process, folder)
        process.stdin.close()


def _serve() -> list[str]:
    """Fork a child per line of standard input; a child gets its words."""
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            signal.alarm(TIMEOUT_S)
            os.environ.update(asked["env"])
            os.chdir(asked["cwd"])
            for descriptor, target in ((0, os.devnull), (1, asked["out"]), (2, asked["err"])):
                mode = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                os.dup2(os.open(target, mode), descriptor)
            return list(asked["words"])
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)


if __name__ == "__main__":
    import gpuprof_widgets.capture.recorder
    import gpuprof_widgets.profiles
    import gpuprof_widgets.views.report  # noqa: F401
    from gpuprof_widgets.cli import main

    # What torch imports when its profiler first starts; starting it would leave threads behind.
    for name in ("torch._dynamo", "torch._inductor.utils"):
        import_module(name)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()  # else each child copies and frees all of torch's objects when it ends
    words = _serve()
    sys.argv[0] = "gpuprof"
    sys.exit(main(words))
