"""No file that is opened is ever run: who may load, evaluate, start or ask for something, and why.

Every call counts, wherever it stands. What a reader needs beyond this has to be argued for here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpuprof_widgets

ROOT = Path(gpuprof_widgets.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if "extension" not in path.parts)

RUNS = {
    *("eval", "exec", "compile", "__import__"),
    *("entry_points", "import_module", "run_module", "run_path", "exec_module", "load_module"),
    *("os.system", "os.popen", "os.execv", "os.spawnv", "posix_spawn"),
    *("Popen", "check_call", "check_output", "getoutput", "create_subprocess_exec"),
    *("CDLL", "PyDLL", "LoadLibrary", "dlopen"),
}
"""What turns data into code, or starts a program."""

LOADS = {
    *("pickle.load", "pickle.loads", "Unpickler", "marshal.load", "marshal.loads", "shelve.open"),
    *(
        "torch.load",
        "read_pickle",
        "read_hdf",
        "joblib.load",
        "yaml.load",
        "np.load",
        "pstats.Stats",
    ),
    *("extractall", "unpack_archive", "mktemp"),
}
"""What builds whatever objects the data asks for, or writes wherever an archive says."""

ASKS = {"urlopen", "urlretrieve", "HTTPConnection", "HTTPSConnection", "create_connection"}
"""What asks a network for something."""

FOREIGN = {
    *("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "loky", "ctypes", "runpy"),
    *(
        "subprocess",
        "webbrowser",
        "socket",
        "urllib",
        "http",
        "requests",
        "ssl",
        "ftplib",
        "smtplib",
    ),
}
"""Modules whose import has to be argued for."""

ARGUED = {
    ("capture/cell.py", "eval"): "runs the cell that the user has typed",
    ("capture/cell.py", "compile"): "the same",
    ("capture/lines/sources.py", "compile"): "functions of that cell, with their lines marked",
    ("capture/module_calls.py", "compile"): "the function of torch that calls modules, marked",
    ("commands/run.py", "compile"): "runs the script that the user has named",
    ("capture/distributed.py", "pickle"): "functions and errors between our own processes",
    ("capture/distributed.py", "pickle.loads"): "what our own rank sent through its pipe",
    ("capture/distributed.py", "socket"): "a free port on this machine for the ranks to meet",
    ("capture/environment.py", "socket"): "the name of this machine",
    ("capture/interrupts.py", "ctypes"): "Python's own call that raises an error a little later",
    ("capture/lines/sources.py", "exec_module"): "loads TorchDynamo, which the cell imports",
    ("capture/stack_samplers.py", "ctypes"): "sets a timer of the system's for the main thread",
    ("capture/stack_samplers.py", "CDLL"): "the C library that runs already, for that timer",
    ("capture/stack_samplers.py", "PyDLL"): "the same",
    ("capture/worker_process.py", "marshal"): "what a worker of ours writes down, fast",
    (
        "capture/workers.py",
        "marshal",
    ): "reads it from a folder that only this user may enter",
    ("capture/workers.py", "marshal.loads"): "the same",
    ("trace/databases/nvprof.py", "subprocess"): "the C++ library's demangler, kept apart",
    ("trace/remote.py", "urllib"): "its `unquote`, which tells what %2e means and asks nothing",
    ("trace/scanned_events.py", "ctypes"): "calls our own scanner, which is part of the package",
    ("trace/scanned_events.py", "CDLL"): "loads it from the folder of the package",
    ("trace/pstats.py", "marshal"): "writes cProfile's files; `plain_data` reads them",
    ("trace/plain_data.py", "pickle"): "reads memory snapshots, see the next",
    (
        "trace/plain_data.py",
        "Unpickler",
    ): "refuses every name, thereby every call",
    ("many_ranks/reading.py", "loky"): "processes of ours, which read files as this one does",
    ("snakeviz_server.py", "subprocess"): "starts snakeviz where the user asks for it",
    ("snakeviz_server.py", "Popen"): "the same",
    ("snakeviz_server.py", "webbrowser"): "opens its page",
    ("commands/reports.py", "webbrowser"): "opens the report that was just written",
    ("cli.py", "import_module"): "loads one of our commands, by a name of the registry",
    ("__init__.py", "import_module"): "loads one of our public names",
    ("registry.py", "entry_points"): "loads what installed packages add to our tables",
    ("analyses/__init__.py", "import_module"): "loads one of our modules, named in the table",
}
"""Where each is used nevertheless, and why no file that is opened reaches it."""


@dataclass(frozen=True)
class Use:
    """A call, or an import, in a module of ours."""

    module: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} uses {self.what}"


def uses_in(module: str, text: str) -> Iterator[Use]:
    """What of the above a module imports or calls."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = (node.module or "").split(".")[0]
            names = [home, *(alias.name for alias in node.names)]
            names += [f"{home}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute | ast.Name):
            names = _names_of(node)
        elif isinstance(node, ast.keyword):
            names = [f"{node.arg}=True"] if _is_true(node.value) else []
        else:
            continue
        for name in names:
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            watched = RUNS | LOADS | ASKS | {"shell=True", "allow_pickle=True"}
            if name in watched or (is_import and name in FOREIGN):
                yield Use(module, node.lineno, name)


def _names_of(node: ast.Attribute | ast.Name) -> list[str]:
    """``loads`` of ``pickle.loads`` is both: itself, and of that module."""
    if isinstance(node, ast.Name):
        return [node.id]
    owner = node.value
    home = owner.id if isinstance(owner, ast.Name) else ""
    # `re.compile` and methods of that name make no code.
    alone = [] if node.attr in ("compile", "eval") else [node.attr]
    return [*alone, f"{home}.{node.attr}"]


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


@pytest.fixture(scope="module")
def uses() -> list[Use]:
    """All of the package."""
    return [
        use
        for path in MODULES
        for use in uses_in(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]


def test_nothing_that_is_opened_can_run(uses: list[Use]) -> None:
    assert [str(use) for use in uses if (use.module, use.what) not in ARGUED] == []


def test_every_exception_is_still_needed(uses: list[Use]) -> None:
    assert set(ARGUED) - {(use.module, use.what) for use in uses} == set()


def test_no_reader_is_among_the_exceptions() -> None:
    """What opens files never reads a format by which a file could name what is called."""
    loading = (RUNS | LOADS | ASKS) - {"Unpickler"}  # see test_plain_pickle
    loading -= {"CDLL"}  # see test_scanned_events
    assert [key for key in ARGUED if key[0].startswith("trace/") and key[1] in loading] == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import marshal as m\n    return m.loads(b'')",
        "marshal.loads(data)",
        "eval(text)",
        "exec(compile(text, path, 'exec'))",
        "pd.read_pickle(path)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "subprocess.run(words, shell=True)",
        "__import__(name)",
        "archive.extractall(folder)",
        "ctypes.CDLL('x')",
        "from urllib.request import urlopen",
        "pstats.Stats(path)",
    ],
)
def test_the_check_sees(line: str) -> None:
    assert list(uses_in("trace/readers/new.py", line))


@pytest.mark.parametrize("line", ["re.compile('x')", "pattern.compile()", "frame.eval('a + b')"])
def test_the_check_lets_pass(line: str) -> None:
    assert list(uses_in("trace/readers/new.py", line)) == []
