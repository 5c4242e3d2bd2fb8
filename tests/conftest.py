"""Fixtures that many tests share."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from gpuprof_widgets.analyses.compare import sentences
from gpuprof_widgets.analyses.findings import FINDINGS
from gpuprof_widgets.analyses.ranks.findings import FINDINGS as OF_RANKS
from gpuprof_widgets.capture.cell import cell_numbers
from gpuprof_widgets.capture.recorder import Recorder
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views import comparison as comparison_page
from tests import cells
from tests.finding_titles import with_checked_titles
from tests.leftovers import AFTER_RECORDING, LEFTOVERS, freeze, instrumented_libraries
from tests.traces import Shared

# torch reads it at the first profile of a process, and tests use torch's profiler directly as well.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.pop("COLUMNS", None)  # of the terminal in which the tests run: tables go by it
# It takes a second to import; jsonschema does without it, and only checks of addresses need it.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)

freeze()

# No test depends on speed or chance. For a longer search: pytest --hypothesis-profile=thorough
settings.register_profile("unhurried", deadline=None, max_examples=25, derandomize=True)
settings.register_profile("fast", deadline=None, max_examples=5)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("unhurried")

_SHARED = Path(__file__).parents[2] / "shared" / "traces"
"""Other people's real traces, beside the checkout: only the fixtures below know of them."""

ALIKE = {
    *(f"megatron-tp8/rank{rank}.json.gz" for rank in range(1, 8)),
    "kineto/resnet50_v100_num_workers_4.json.gz",
    "hta/diff_test_v100_rank1_of_2.json.gz",
}
"""Ranks of one job and runs alike, of which one is enough for what holds of any trace."""
KINETO = [
    name
    for name in sorted(str(path.relative_to(_SHARED)) for path in _SHARED.glob("*/*.json.gz"))
    if not name.startswith("tf-timeline/") and name not in ALIKE
]
FEW = [
    "hta/amd_mi250.json.gz",
    "hta/cpu_only_gloo_rank34_of_300.json.gz",
    "hta/nccl_a100_rank0_of_2.json.gz",
    "luatil/rtx3060_compile_cuda_graphs_05.json.gz",
    "tracelens/falconsai_h100_stacks_memory.json.gz",
]
"""Those of which each has something that no other has: AMD, no GPU, NCCL, CUDA graphs, stacks."""
_loaded: dict[Path, Record] = {}  # all of them have the size of one library


def pytest_addoption(parser: pytest.Parser) -> None:
    """``make traces`` asks for all."""
    parser.addoption("--all-traces", action="store_true", help="read all real traces, not five")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take ``shared_trace`` run once for each real trace; without any they skip."""
    if "shared_trace" in metafunc.fixturenames:
        names = KINETO if KINETO and metafunc.config.getoption("all_traces") else FEW
        metafunc.parametrize("shared_trace", names, indirect=True, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Count all that reads real traces as slow."""
    if isinstance(item, pytest.Function) and "shared" in item.fixturenames:
        item.add_marker(pytest.mark.slow)
    if isinstance(item, pytest.Function) and "shared_trace" in item.fixturenames:
        item.add_marker(pytest.mark.traces)


def pytest_collection_finish() -> None:
    """The tests and what they import are there."""
    freeze()


@pytest.fixture(scope="session")
def shared() -> Shared:
    """The way to a file or folder of the real traces, by its name there.

    The test that asks for one skips where it is absent, as in a checkout with nothing beside it.
    """

    def path_of(name: str) -> Path:
        path = _SHARED / name
        if not path.exists():
            pytest.skip(f"{name} of the real traces is not beside the checkout")
        return path

    return path_of


@pytest.fixture(scope="session")
def shared_trace(request: pytest.FixtureRequest, shared: Shared) -> Path:
    """Each real trace of Kineto in turn."""
    return shared(request.param)


@pytest.fixture(scope="session")
def shared_record(shared_trace: Path) -> Record:
    """The record of a real trace, read once per run."""
    if shared_trace not in _loaded:
        _loaded[shared_trace] = load(shared_trace)
    return _loaded[shared_trace]


@pytest.fixture(scope="session", autouse=True)
def own_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary files where no other process puts any, so that what stays is ours."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("temporary"))
    yield
    tempfile.tempdir = before


@pytest.fixture(scope="session", autouse=True)
def findings_with_titles() -> Iterator[None]:
    """Whatever a rule of ours finds in any test has a title that a row of the page can show."""
    with pytest.MonkeyPatch.context() as patch:
        for rules in (FINDINGS, OF_RANKS):
            for name, rule in rules.items():
                patch.setitem(rules, name, with_checked_titles(rule))
        compares = with_checked_titles(sentences.comparison_findings)
        for user in (sentences, comparison_page):
            patch.setattr(user, "comparison_findings", compares)
        yield


@pytest.fixture(autouse=True)
def no_cells_of_other_tests() -> Iterator[None]:
    """What one cell compiles keeps its code in all others of its notebook: a test is a notebook."""
    yield
    if cells.shell.cache_info().currsize:
        cell_numbers(cells.shell()).clear()


@pytest.fixture(scope="module", autouse=True)
def libraries_as_they_were() -> Iterator[None]:
    """No test of a file leaves a library's or a test's function with code of ours in it."""
    freeze()  # what the files before it have left would be looked at after each test that records
    yield
    assert instrumented_libraries() == []


@pytest.fixture(autouse=True)
def no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of ours stays after a test: no hook, patch, file, thread or changed function."""
    recorded = []
    start = Recorder.__enter__

    def noted(recorder: Recorder) -> Recorder:
        recorded.append(recorder._label)  # not itself: it is to be freed
        return start(recorder)

    before = {name: look() for name, look in LEFTOVERS.items()}
    Recorder.__enter__ = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Recorder.__enter__ = start  # type: ignore[method-assign]
    monkeypatch.undo()  # what the test itself has patched is not what we look for
    assert {name: look() for name, look in LEFTOVERS.items()} == before
    if recorded:
        assert {name: found for name, look in AFTER_RECORDING.items() if (found := look())} == {}


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for one another on a busy machine would take all the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
