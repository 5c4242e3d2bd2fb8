"""The ways from a trace file to tables and answers that `benchmarks.large_traces` compares.

Perfetto's trace_processor is not among them: its Python package does not contain the program but
downloads it when it is first used.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.child_process import ROOT, ChildError, Usage, run


@dataclass(frozen=True)
class Environment:
    """An interpreter, and the packages whose versions belong to the results.

    Without a ``folder`` it is the interpreter that runs the benchmark.
    """

    title: str
    packages: tuple[str, ...]
    folder: Path | None = None

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python" if self.folder else Path(sys.executable)

    def versions(self) -> dict[str, str]:
        """Return the versions of those packages that are installed."""
        code = (
            "import importlib.metadata as m, json, sys\n"
            "names = {d.metadata['Name'] for d in m.distributions()}\n"
            "print(json.dumps({p: m.version(p) for p in sys.argv[1:] if p in names}))"
        )
        if not self.interpreter.exists():
            return {}
        words = [str(self.interpreter), "-c", code, *self.packages]
        found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        return dict(json.loads(found.stdout))

    def why_not_installed(self, error: str) -> str:
        """Return pip's own reason, if it left one where `make bench` has it write, or the error."""
        log = self.folder / "pip.log" if self.folder else None
        lines = log.read_text(encoding="utf-8").splitlines() if log and log.exists() else []
        errors = [line for line in lines if line.startswith("ERROR:")]
        return errors[-1] if errors else error


PEERS = ROOT / "build" / "bench"
OURS = Environment(
    "gpuprof_widgets", ("gpuprof-widgets", "msgspec", "numpy", "pandas", "zstandard", "isal")
)
HTA = Environment("HTA", ("HolisticTraceAnalysis", "numpy", "pandas"), PEERS / "hta")
TENSORBOARD = Environment(
    "TensorBoard plugin",
    ("torch-tb-profiler", "tensorboard", "numpy", "pandas"),
    PEERS / "tensorboard",
)
PYTHON = Environment("bare Python", OURS.packages)
ENVIRONMENTS = (OURS, HTA, TENSORBOARD)


@dataclass(frozen=True)
class Route:
    """Code that is run with the names FILE, the trace, and FOLDER, where it may write.

    What the ``imports`` cost is not counted. Where there are none, the whole process counts. What
    is ``prepared`` in FOLDER, in a process before that, is not counted either.
    """

    environment: Environment
    title: str
    job: str
    imports: str = ""
    prepared: str = ""

    @property
    def name(self) -> str:
        whole = "" if self.imports else " (whole process)"
        return f"{self.environment.title}: {self.title}{whole}"

    def usage(self, trace: Path, folder: Path, seconds: float) -> Usage:
        """Run all of it in a process of its own."""
        if self.prepared:
            self._run(f"{self.imports}\n{self.prepared}", trace, folder, seconds)
        return self._run(f"{self.imports}\n{self.job}", trace, folder, seconds)

    def usage_of_imports(self, trace: Path, folder: Path, seconds: float) -> Usage:
        """Run the imports alone; they are nothing where the whole process counts."""
        if not self.imports:
            return Usage(0.0, 0)
        return self._run(self.imports, trace, folder, seconds)

    def _run(self, code: str, trace: Path, folder: Path, seconds: float) -> Usage:
        code = f"import sys\nFILE, FOLDER = sys.argv[1:]\n{code}"
        interpreter = self.environment.interpreter
        if not interpreter.exists():
            raise ChildError("`make bench` installs it")
        return run(interpreter, code, str(trace), str(folder), seconds=seconds)


def _command(words: str) -> str:
    return f"from gpuprof_widgets.cli import main\nsys.exit(main([{words}]))"


OUR_IMPORTS = "import gpuprof_widgets\nload = gpuprof_widgets.load"
STREAMED = """\
def blocks(decompress):
    with open(FILE, "rb") as file:
        while packed := file.read(1 << 12):
            yield decompress(packed)
"""
"""In blocks so small that what is unpacked stays in the cache of a core."""

ZLIB = "blocks(zlib.decompressobj(31).decompress)"

LOAD = Route(OURS, "`load`", "load(FILE)", OUR_IMPORTS)
"""What all others are compared with."""

GUNZIP = Route(PYTHON, "gunzip with zlib", f"for _ in {ZLIB}: pass", f"import zlib\n{STREAMED}")
SCAN = Route(
    PYTHON,
    "gunzip and one byte counted",
    f"sum(block.count(b'{{') for block in {ZLIB})",
    f"import zlib\n{STREAMED}",
)
JSON = Route(
    PYTHON,
    "gunzip and `json.loads`",
    "json.loads(gzip.decompress(open(FILE, 'rb').read()))",
    "import gzip, json",
)
ROUTES = (
    LOAD,
    Route(
        OURS,
        "`load` of the profile saved from it",
        "load(FOLDER + '/run.gpuprof')",
        OUR_IMPORTS,
        "load(FILE).save(FOLDER + '/run.gpuprof')",
    ),
    Route(OURS, "`load` and `findings()`", "load(FILE).findings()", OUR_IMPORTS),
    Route(OURS, "`gpuprof findings`", _command("'findings', FILE")),
    Route(
        OURS, "`gpuprof view`", _command("'view', FILE, '-o', FOLDER + '/view.html', '--no-open'")
    ),
    Route(
        HTA,
        "`parse_trace_file`",
        "parse_trace_file(FILE)",
        "from hta.common.trace import parse_trace_file",
    ),
    Route(
        HTA,
        "`TraceAnalysis` of one rank",
        "TraceAnalysis(trace_files={0: FILE}, trace_dir=FOLDER)",
        "from hta.trace_analysis import TraceAnalysis",
    ),
    Route(
        TENSORBOARD,
        "`RunProfileData.parse`",
        "RunProfileData.parse('worker', None, FILE, FOLDER)",
        "from torch_tb_profiler.profiler.data import RunProfileData",
    ),
    GUNZIP,
    Route(
        PYTHON,
        "gunzip with isal",
        "for _ in blocks(isal_zlib.decompressobj(31).decompress): pass",
        f"from isal import isal_zlib\n{STREAMED}",
    ),
    SCAN,
    JSON,
)
