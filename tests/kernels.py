"""Real IPython kernels for tests, one per file of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parents[1]
IPYTHON_8 = ROOT / "build" / "ipython8"
TIMEOUT_S = 120

STATE = """
import sys as _s, threading as _t, os as _o, builtins as _b, cProfile as _c
import torch.autograd.profiler as _p
_ip = get_ipython()
print({
    "profile": _s.getprofile(), "trace": _s.gettrace(),
    "tools": [_s.monitoring.get_tool(n) for n in range(6)] if hasattr(_s, "monitoring") else [],
    "ast": list(map(repr, _ip.ast_transformers)),
    "input": [getattr(f, "__name__", type(f).__name__) for f in _ip.input_transformers_cleanup],
    "threads": sorted(t.name for t in _t.enumerate() if "HistorySaving" not in t.name),
    "cwd": _o.getcwd(), "files": sorted(_o.listdir()),
    "builtins": sorted(n for n in vars(_b) if not n.startswith("__pybind11_internals_")),
    "torch": (_p._is_profiler_enabled, _p._prepare_profiler.__name__, _p._enable_profiler.__name__),
    "cprofile": "enable" in vars(_c.Profile),
})
"""
"""Prints what a cell must leave as it found it (IPython itself restarts its history's thread, and
the compiled parts of matplotlib 3.9 keep a name among the builtins)."""


@dataclass
class Outcome:
    """What one execute request brought back."""

    status: str
    messages: list[dict[str, Any]] = field(default_factory=list)

    def _of(self, kind: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] == kind]

    def stream(self, name: str) -> str:
        return "".join(c["text"] for c in self._of("stream") if c["name"] == name)

    @property
    def stdout(self) -> str:
        return self.stream("stdout")

    @property
    def stderr(self) -> str:
        return self.stream("stderr")

    @property
    def displays(self) -> list[dict[str, Any]]:
        """What each display shows in the end, without emptied ones: of progress, which is gone."""
        shown: dict[Any, dict[str, Any]] = {}
        for number, message in enumerate(self.messages):
            if message["msg_type"] in ("display_data", "update_display_data"):
                content = message["content"]
                shown[content["transient"].get("display_id", number)] = content["data"]
        return [data for data in shown.values() if data]

    @property
    def result(self) -> str | None:
        results = self._of("execute_result")
        return results[0]["data"]["text/plain"] if results else None

    @property
    def errors(self) -> list[dict[str, Any]]:
        return self._of("error")

    @property
    def traceback(self) -> str:
        return plain("\n".join(self.errors[0]["traceback"]))

    @property
    def order(self) -> list[str]:
        """The kinds of output in the order in which they came; text in pieces counts once."""
        shown = ("stream", "display_data", "execute_result", "error")
        kinds: list[str] = []
        for message in self.messages:
            kind = message["msg_type"]
            if kind in shown and (kind != "stream" or kinds[-1:] != ["stream"]):
                kinds.append(kind)
        return kinds

    @property
    def profile_text(self) -> str:
        """The text of the profile under the cell, empty where none was shown."""
        return "\n".join(data.get("text/plain", "") for data in self.displays)


def plain(text: str) -> str:
    """The text without terminal colours."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Kernel:
    """A running kernel in which cells are executed as a notebook would."""

    def __init__(self, extra_path: Path | None, directory: Path, **variables: str) -> None:
        path = [str(extra_path)] if extra_path else []
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*path, str(ROOT)]),
            "IPYTHONDIR": str(directory / "ipython"),
            "TMPDIR": str(directory / "temporary"),  # what stays there is this kernel's
            **variables,
        }
        environment.pop("KINETO_LOG_LEVEL", None)
        (directory / "cwd").mkdir(exist_ok=True)
        (directory / "temporary").mkdir()
        self._state: str | None = None
        self._manager = KernelManager(kernel_name="python3")
        self._manager.kernel_spec.argv[0] = sys.executable
        self._manager.start_kernel(env=environment, cwd=str(directory / "cwd"))
        self.client = self._manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT_S)

    def run(self, code: str, *, store_history: bool = True, **metadata: Any) -> Outcome:
        """Execute one cell and wait for everything that it puts out."""
        outcome = Outcome("")
        reply = self.client.execute_interactive(
            code,
            store_history=store_history,
            allow_stdin=False,
            timeout=TIMEOUT_S,
            output_hook=outcome.messages.append,
        )
        outcome.status = reply["content"]["status"]
        return outcome

    def run_interrupted(self, code: str, when_printed: str = "ready") -> Outcome:
        """Execute a cell and press Ctrl-C once it has printed that word.

        It may not wait for the printing (``flush``): pressed meanwhile, Python's own locks may
        raise a RuntimeError instead.
        """
        outcome = Outcome("")

        def watch(message: dict[str, Any]) -> None:
            outcome.messages.append(message)
            if when_printed in message["content"].get("text", ""):
                self._manager.interrupt_kernel()

        reply = self.client.execute_interactive(
            code, allow_stdin=False, timeout=TIMEOUT_S, output_hook=watch
        )
        outcome.status = reply["content"]["status"]
        return outcome

    def value(self, expression: str) -> Any:
        """The value of an expression that has a literal repr."""
        import ast

        outcome = self.run(f"print(repr({expression}))", store_history=False)
        assert outcome.status == "ok", outcome.errors
        return ast.literal_eval(outcome.stdout)

    def state(self) -> str:
        """Everything that a cell must leave behind unchanged."""
        outcome = self.run(STATE, store_history=False)
        assert outcome.status == "ok", outcome.traceback
        return outcome.stdout

    def check_unchanged(self) -> None:
        """Compare the state with that of the check before; the first only takes note of it."""
        before, self._state = self._state, self.state()
        assert before is None or self._state == before

    def stop(self) -> None:
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def ipython_8() -> Path:
    """A directory with the newest IPython 8 to put first on the path; made once."""
    if not (IPYTHON_8 / "IPython").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(IPYTHON_8)]
        done = subprocess.run([*command, "ipython<9"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"IPython 8 could not be installed: {done.stderr.strip().splitlines()[-1]}")
    return IPYTHON_8


@pytest.fixture(scope="module")
def loaded_kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel of the newest IPython with the extension loaded, one per file of tests."""
    with started(tmp_path_factory) as running:
        yield running


@contextmanager
def started(folders: pytest.TempPathFactory, ipython: Path | None = None) -> Iterator[Kernel]:
    """A kernel with the extension loaded; ``ipython`` is the folder of another IPython."""
    running = Kernel(ipython, folders.mktemp("kernel"))
    try:
        # The first big output starts a thread of zmq, which is not what the tests look for.
        running.run("display({'text/plain': 'x' * 1_000_000}, raw=True)")
        loaded = running.run("%load_ext gpuprof_widgets")
        assert (loaded.status, loaded.order) == ("ok", []), loaded.messages
        running.check_unchanged()
        yield running
    finally:
        running.stop()
