"""The sixteen rules for running a cell, in a real kernel; a few of them with IPython 8."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.kernels import Kernel, Outcome, ipython_8, loaded_kernel, plain, started

pytestmark = pytest.mark.kernel
__all__ = ["loaded_kernel"]

PROFILED_OPS = "print(sorted(set(run.trace.slices.query('category == \"cpu_op\"')['name'])))"


@pytest.fixture(autouse=True)
def kernel(loaded_kernel: Kernel) -> Iterator[Kernel]:
    """The kernel; whatever the test ran in it must have left nothing behind."""
    yield loaded_kernel
    loaded_kernel.check_unchanged()


def notes(kernel: Kernel) -> list[str]:
    return list(kernel.value("__import__('gpuprof_widgets').last.metadata['notes']"))


def test_point_01_the_cells_names_are_the_users_and_nothing_else_is_added(kernel: Kernel) -> None:
    names = "sorted(name for name in globals() if not name.startswith('_'))"
    before = set(kernel.value(names))
    kernel.run("%%gpuprofile -q\nimport pickle\nnumber = 1\ndef f(): return number\nclass C: pass")
    assert set(kernel.value(names)) - before == {"pickle", "number", "f", "C"}
    assert kernel.value("pickle.loads(pickle.dumps((f, C))) == (f, C)")
    assert kernel.value("(f.__module__, C.__module__)") == ("__main__", "__main__")


def test_point_02_the_last_expression_is_the_output_after_the_profile(kernel: Kernel) -> None:
    outcome = kernel.run("%%gpuprofile\nprint('one')\ndisplay('rich')\nprint('two')\n40 + 2")
    assert outcome.order[:3] == ["stream", "display_data", "stream"]
    assert outcome.order[-1] == "execute_result"
    assert set(outcome.order[3:-1]) == {"display_data"}
    assert (outcome.stdout, outcome.result, kernel.value("_")) == ("one\ntwo\n", "42", 42)
    number = outcome.messages[-1]["content"].get("execution_count") or int(kernel.value("len(In)"))
    assert kernel.value("[n for n, value in Out.items() if value == 42][-1]") <= number


def test_point_02_a_trailing_semicolon_suppresses_the_output(kernel: Kernel) -> None:
    kernel.run("'kept'")
    outcome = kernel.run("%%gpuprofile\n40 + 3;  # not shown")
    assert (outcome.status, outcome.result, kernel.value("_")) == ("ok", None, "kept")
    assert outcome.displays


def test_point_03_a_raise_shows_the_profile_then_the_users_exception(kernel: Kernel) -> None:
    outcome = kernel.run("%%gpuprofile\nimport torch\ntorch.ones(3).sum()\nraise ValueError('no')")
    assert outcome.status == "error"
    assert outcome.order[0] == "display_data"
    assert outcome.order[-1] == "error"
    assert [(e["ename"], e["evalue"]) for e in outcome.errors] == [("ValueError", "no")]
    assert "aten::sum" in outcome.profile_text
    assert kernel.value("__import__('gpuprof_widgets').last.metadata['error']") == "ValueError: no"


def test_point_04_an_interrupt_shows_the_profile_so_far(kernel: Kernel) -> None:
    cell = "%%gpuprofile\nimport time\nprint('ready')\ntime.sleep(60)"
    outcome = kernel.run_interrupted(cell)
    assert outcome.status == "error"
    assert outcome.errors[0]["ename"] == "KeyboardInterrupt"
    assert outcome.displays
    assert kernel.value("__import__('gpuprof_widgets').last.metadata['interrupted']") is True
    assert "interrupted" in outcome.profile_text


def test_point_05_system_exit_is_as_in_a_plain_cell(kernel: Kernel) -> None:
    plain = kernel.run("raise SystemExit(3)")
    profiled = kernel.run("%%gpuprofile -q\nraise SystemExit(3)")
    assert profiled.status == plain.status
    assert profiled.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    assert [e["ename"] for e in profiled.errors] == [e["ename"] for e in plain.errors]
    assert kernel.value("'still here'") == "still here"


AWAIT = """%%gpuprofile -q
import asyncio, threading
await asyncio.sleep(0)
here = (asyncio.get_running_loop() is loop, threading.current_thread() is thread)
async with asyncio.timeout(5):
    await asyncio.sleep(0)
async def double(n):
    return 2 * n
await double(21)"""


def test_point_06_top_level_await_runs_on_the_same_loop_and_thread(kernel: Kernel) -> None:
    kernel.run(
        "import asyncio, threading\nloop = asyncio.get_running_loop()\n"
        "thread = threading.current_thread()\nawait asyncio.sleep(0)"
    )
    outcome = kernel.run(AWAIT)
    assert (outcome.status, outcome.result) == ("ok", "42")
    assert kernel.value("here") == (True, True)
    silent = kernel.run(AWAIT + ";")
    assert (silent.status, silent.result) == ("ok", None)


def test_point_06_await_still_works_after_an_interrupt(kernel: Kernel) -> None:
    kernel.run("import asyncio, threading\nloop = asyncio.get_running_loop()")
    kernel.run("thread = threading.current_thread()")
    cell = "%%gpuprofile\nprint('ready')\nawait asyncio.sleep(10)"
    outcome = kernel.run_interrupted(cell)
    assert outcome.status == "error"
    assert outcome.errors[0]["ename"] in ("CancelledError", "KeyboardInterrupt")
    assert "interrupted" in outcome.profile_text
    assert (kernel.run(AWAIT).result, kernel.value("here")) == ("42", (True, True))


def test_point_06_a_raise_after_an_await_shows_the_profile(kernel: Kernel) -> None:
    outcome = kernel.run("%%gpuprofile\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0")
    assert outcome.status == "error"
    assert outcome.order[0] == "display_data"
    assert outcome.errors[0]["ename"] == "ZeroDivisionError"
    assert "----> 4 1 / 0" in outcome.traceback


@pytest.mark.parametrize(
    "body", ["x = (1 +", "def f(:\n    pass", "return 4", "await f(", "x = 'a"]
)
def test_point_07_a_syntax_error_is_one_error_without_profile(kernel: Kernel, body: str) -> None:
    plain = kernel.run(f"# line 1\n{body}")
    profiled = kernel.run(f"%%gpuprofile\n{body}")
    assert profiled.order == ["error"]
    assert profiled.errors[0]["ename"] == plain.errors[0]["ename"]
    assert plain.errors[0]["ename"] in {"SyntaxError", "_IncompleteInputError"}  # as of 3.13
    shown = [re.sub(r"In\[\d+\]", "In[n]", each.traceback) for each in (profiled, plain)]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--shape", "--shapes"),
        ("work()", "takes only options"),
    ],
)
def test_point_07_a_wrong_option_is_a_usage_error_before_the_cell_runs(
    kernel: Kernel, line: str, words: str
) -> None:
    kernel.run("ran = False")
    for body in ("ran = True", "ran = True\nimport asyncio\nawait asyncio.sleep(0)"):
        outcome = kernel.run(f"%%gpuprofile {line}\n{body}")
        assert outcome.status == "error"
        assert "UsageError" in outcome.stderr
        assert words in outcome.stderr
        assert not outcome.displays
        assert kernel.value("ran") is False


def test_point_08_a_run_without_history_names_its_cell_as_a_plain_one_does(kernel: Kernel) -> None:
    plain = kernel.run("1 / 0", store_history=False).traceback
    profiled = kernel.run("%%gpuprofile -q\n1 / 0", store_history=False).traceback
    # IPython 8 names the line behind the cell, and it is the second one under the magic.
    name = re.search(r"Cell In\[\d+\]", plain)
    assert name
    assert name[0] in profiled
    assert "----> 2 1 / 0" in profiled


def test_point_08_a_line_magic_points_at_its_own_line(kernel: Kernel) -> None:
    trace = kernel.run("x = 0\n%gpuprofile -q 1 / x").traceback
    assert "----> 2 1 / x" in trace
    assert "gpuprof_widgets" not in trace


@pytest.mark.parametrize(
    "body",
    [
        "%time x = 3\nprint(x)",
        "!echo from the shell",
        "out = !echo captured\nprint(out)",
        "from __future__ import annotations\ndef f(x: nowhere): ...\nprint(f.__annotations__)",
        'print("""one\n    two\nthree""")',
        "# only a comment",
        "print(1)\n# the last line is a comment",
        "\n\nprint('after blank lines')\n\n",
        "    print('indented')\n    print('twice')",
        "if True:\n    print('block')",
        "lambda: 0\n[n for n in range(3)]",
    ],
)
def test_point_09_special_bodies_behave_as_in_a_plain_cell(kernel: Kernel, body: str) -> None:
    plain, profiled = kernel.run(body), kernel.run(f"%%gpuprofile -q\n{body}")
    assert (profiled.status, profiled.result) == (plain.status, plain.result)
    ours, theirs = profiled.stdout.splitlines(), plain.stdout.splitlines()
    times = ("CPU times", "Wall time")
    assert [line for line in ours if not line.startswith(times)] == [
        line for line in theirs if not line.startswith(times)
    ]
    assert [line.split(":")[0] for line in ours] == [line.split(":")[0] for line in theirs]


def test_point_09_a_future_import_holds_for_later_cells_as_in_a_plain_one(kernel: Kernel) -> None:
    kernel.run("%%gpuprofile -q\nfrom __future__ import annotations")
    outcome = kernel.run("%%gpuprofile -q\ndef f(x: nowhere): ...\nf.__annotations__['x']")
    assert outcome.result == "'nowhere'"


def test_point_10_a_nested_magic_leaves_the_outer_profile_whole(kernel: Kernel) -> None:
    outcome = kernel.run(
        "%%gpuprofile -q -o run\nimport torch\ntorch.ones(3)\n"
        "inner = %gpuprofile torch.zeros(3).sum()\ntorch.arange(3)"
    )
    assert outcome.status == "ok"
    assert "outer gpuprof profile" in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1
    assert kernel.value("inner.item()") == 0.0
    ops = kernel.run(PROFILED_OPS).stdout
    assert all(op in ops for op in ("aten::ones", "aten::sum", "aten::arange"))


USERS_TORCH = """%%gpuprofile -o run
import torch
torch.ones(3)
with torch.profiler.profile() as own:
    torch.zeros(3)
torch.arange(3)
names = sorted({e.name for e in own.events()})"""


def test_point_10_the_users_torch_profiler_in_the_cell_keeps_its_ops(kernel: Kernel) -> None:
    outcome = kernel.run(USERS_TORCH)
    assert (outcome.status, outcome.stderr) == ("ok", "")
    assert "aten::zeros" in kernel.value("names")
    assert "aten::ones" in kernel.run(PROFILED_OPS).stdout
    assert [note for note in notes(kernel) if "your own torch.profiler started" in note]
    assert "your own torch.profiler started" in " ".join(outcome.profile_text.split())


def test_point_10_the_users_torch_profiler_around_the_cell_keeps_its_ops(kernel: Kernel) -> None:
    kernel.run("import torch\nown = torch.profiler.profile()\nown.start()\ntorch.zeros(3)")
    outcome = kernel.run("%%gpuprofile -o run\ntorch.ones(3)\ndef f(): pass\nf()")
    kernel.run("own.stop()\nnames = sorted({e.name for e in own.events()})")
    assert outcome.status == "ok"
    assert {"aten::zeros", "aten::ones"} <= set(kernel.value("names"))
    assert [note for note in notes(kernel) if "already running" in note]
    assert "f" in kernel.value("list(run.calls.functions['name'])")


def test_point_10_the_users_torch_profiler_left_running_goes_on(kernel: Kernel) -> None:
    kernel.run("%%gpuprofile -q\nimport torch\nown = torch.profiler.profile()\nown.start()")
    kernel.run("torch.zeros(3)\nown.stop()")
    assert "aten::zeros" in kernel.value("sorted({e.name for e in own.events()})")


USERS_CPROFILE = """%%gpuprofile -o run
import cProfile, pstats
def before(): pass
def within(): pass
before()
own = cProfile.Profile()
own.enable()
within()
own.disable()
names = sorted(name for _, _, name in pstats.Stats(own).stats)"""


def test_point_10_the_users_cprofile_in_the_cell_keeps_its_calls(kernel: Kernel) -> None:
    outcome = kernel.run(USERS_CPROFILE)
    assert (outcome.status, outcome.stderr) == ("ok", "")
    assert "within" in kernel.value("names")
    recorded = kernel.value("list(run.calls.functions['name'])")
    assert "before" in recorded
    assert "within" not in recorded
    assert [note for note in notes(kernel) if "your own cProfile started" in note]
    assert "your own cProfile started" in " ".join(outcome.profile_text.split())


def test_point_10_the_users_cprofile_around_the_cell_keeps_its_calls(kernel: Kernel) -> None:
    # The enabled profiler must not see the test's own cells: all in one cell, on a line magic.
    outcome = kernel.run(
        "import cProfile, pstats, torch\ndef within(): return torch.ones(3)\n"
        "own = cProfile.Profile()\nown.enable()\n"
        "%gpuprofile -q -o run within()\n"
        "own.disable()\nnames = [name for _, _, name in pstats.Stats(own).stats]"
    )
    assert outcome.status == "ok", outcome.traceback
    assert "within" in kernel.value("names")
    assert kernel.value("run.calls is None")
    assert [note for note in notes(kernel) if "already running" in note]
    assert "aten::ones" in kernel.run(PROFILED_OPS).stdout


def test_point_10_prun_in_the_cell_works(kernel: Kernel) -> None:
    outcome = kernel.run("%%gpuprofile -q\nstats = %prun -q -r sum(range(10))\nstats is not None")
    assert (outcome.status, outcome.result) == ("ok", "True")


def test_point_12_a_cell_without_torch_says_what_it_saw(kernel: Kernel) -> None:
    outcome = kernel.run("%%gpuprofile\nsum(range(1000))")
    assert (outcome.status, outcome.result) == ("ok", "499500")
    text = " ".join(outcome.profile_text.split())
    assert text.count("No PyTorch op ran in this cell, which took") == 1
    assert "GPU" not in text.split("No PyTorch op ran")[1].split("explain.")[0]


def test_point_14_torch_prints_nothing_of_its_own(kernel: Kernel) -> None:
    kernel.run("import torch\nx = torch.ones(1000, 1000)")
    outcome = kernel.run("%%gpuprofile --stack --memory\nx = x + 1")
    # torch's C++ log says so of memory that was there before; only the environment silences it.
    said = [line for line in outcome.stderr.splitlines() if "before the profiling" not in line]
    assert (outcome.status, said, outcome.stdout) == ("ok", [], "")
    assert kernel.value("__import__('os').environ['KINETO_LOG_LEVEL']") == "99"


def test_point_15_the_kernels_own_calls_stay_out(kernel: Kernel) -> None:
    kernel.run("%%gpuprofile -q -o run\nimport asyncio\nawait asyncio.sleep(0.05)")
    files = kernel.value("sorted(set(run.calls.functions['file']))")
    assert [
        file for file in files if "ipykernel" in file or "zmq" in file or "tornado" in file
    ] == []
    assert [file for file in files if "gpuprof_widgets" in file] == []
    assert any(file.startswith("Cell [") for file in files)


WATCHER = """import threading, time
done = threading.Event()
def look(): time.sleep(0.001)
def watch():
    while not done.is_set(): look()
watcher = threading.Thread(target=watch)
watcher.start()"""


def test_point_15_the_kernels_own_threads_stay_out_of_the_trace(kernel: Kernel) -> None:
    cell = "%%gpuprofile -q --stack -o run\nimport asyncio\nprint(1)\nawait asyncio.sleep(0.2)"
    kernel.run(cell)
    python = "run.trace.tracks.query('kind == \"python\"')"
    used = f"int({python}.index.isin(run.trace.slices['track']).sum())"
    assert kernel.value(used) == 1
    kernel.run(WATCHER)
    kernel.run(cell)
    kernel.run("done.set()\nwatcher.join()")
    names = "sorted(set(run.trace.slices['name'].astype(str)))"
    assert [name for name in kernel.value(names) if name.endswith(": look")]


def test_point_16_the_cell_runs_once_and_the_device_is_waited_for(kernel: Kernel) -> None:
    kernel.run(
        "import gpuprof_widgets.capture.torch_profiler as recording\nran, waited = [], []\n"
        "original = recording.wait_for_device\n"
        "recording.wait_for_device = lambda: waited.append(recording.profiler_is_running())"
    )
    kernel.run("%%gpuprofile\nran.append(1)\nimport torch\ntorch.ones(3)")
    kernel.run("recording.wait_for_device = original")
    assert kernel.value("(ran, waited)") == ([1], [True])


LINES = "run.trace.slices.query('category == \"cell_line\"')['name'].astype(str).tolist()"


def test_an_interrupt_inside_of_many_regions_points_at_the_line(kernel: Kernel) -> None:
    outcome = kernel.run_interrupted(
        "%%gpuprofile -q\nimport time\ndef work():\n    for i in range(9):\n"
        "        with open('/dev/null'):\n            print('ready')\n"
        "            time.sleep(60)\nwork()"
    )
    assert outcome.errors[0]["ename"] == "KeyboardInterrupt"
    assert "----> 8 work()" in outcome.traceback
    assert "7             time.sleep(60)" in outcome.traceback
    assert "gpuprof_widgets" not in outcome.traceback
    after = kernel.run("%%gpuprofile -q -o run\nx = 1\nx")
    assert after.result == "1"
    assert kernel.value(LINES) == ["2: x = 1", "3: x"]


RAISING = {
    "a statement": "x = 1\n1 / 0\n",
    "the last expression": "x = 1\nint('a')",
    "a function": "def f(a):\n    return a / 0\nf(3)",
    "a comprehension": "[1 / i for i in\n  range(2)]",
    "a library": "import json\njson.loads('{')",
    "a cause": "try:\n    1 / 0\nexcept ValueError as e:\n    raise KeyError(1) from e",
    "a group": "raise ExceptionGroup('g', [ValueError(1)])",
    "a statement after an await": "import asyncio\nawait asyncio.sleep(0)\n1 / 0",
    "an awaited function": "import asyncio\nasync def fails():\n    await asyncio.sleep(0)\n"
    "    1 / 0\n[await fails() for _ in '1']",
    "a task": "import asyncio\nasync def fails(): 1 / 0\nawait asyncio.gather(fails())",
    "a group of tasks": "import asyncio\nasync def fails(): 1 / 0\n"
    "async with asyncio.TaskGroup() as tasks:\n    tasks.create_task(fails())",
}


@pytest.mark.parametrize("body", RAISING.values(), ids=RAISING)
def test_a_traceback_is_that_of_the_cell_without_the_magic(kernel: Kernel, body: str) -> None:
    expected = _traceback(kernel.run(f"# plain\n{body}"))
    assert _traceback(kernel.run(f"%%gpuprofile -q\n{body}")) == expected
    assert kernel.value("get_ipython().custom_exceptions") == ()


CAUGHT = """try: get_ipython().run_cell_magic("gpuprofile", "-q", "1 / 0")
except ZeroDivisionError: raise {error}"""
CAUGHT_CALL = (
    "t.assertRaises(ZeroDivisionError, get_ipython().run_cell_magic, 'gpuprofile', '-q', '1 / 0')"
)


def test_the_users_own_handler_of_errors_is_on_where_the_cell_caught_ours(kernel: Kernel) -> None:
    kernel.run(
        "def mine(shell, kind, error, traceback, tb_offset=None): print('mine', repr(error))\n"
        "get_ipython().set_custom_exc((KeyError,), mine)\nhandler = get_ipython().CustomTB"
    )
    try:
        assert "mine KeyError(1)" in kernel.run(CAUGHT.format(error="KeyError(1)")).stdout
        assert kernel.value("get_ipython().CustomTB == handler")
        raised = kernel.run(CAUGHT.format(error="ZeroDivisionError('mine')"))
        assert plain(raised.errors[0]["traceback"][-1]) == "ZeroDivisionError: mine"
        assert kernel.value("get_ipython().CustomTB == handler")
        kernel.run(f"import unittest; t = unittest.TestCase(); {CAUGHT_CALL}; {CAUGHT_CALL}")
        assert kernel.value("get_ipython().CustomTB == handler")
        kernel.run("get_ipython().set_custom_exc((), None)")
        kernel.run(CAUGHT.replace("raise {error}", "pass"))
        assert kernel.value("get_ipython().custom_exceptions") == ()
    finally:
        kernel.run("get_ipython().set_custom_exc((), None); del mine, handler, t")


def _traceback(outcome: Outcome) -> list[str]:
    """The lines of a traceback, without what numbers the cell, and the first line of the cell."""
    shown = [line for error in outcome.errors for line in error["traceback"]]
    text = re.sub(r"In\[\d+\]|ipykernel_\d+/\d+", "", plain("\n".join([*shown, outcome.stderr])))
    return [line for line in text.splitlines() if not re.search(r"\d # (plain|%%)", line)]


def test_a_marked_function_of_an_earlier_cell_shows_its_lines(kernel: Kernel) -> None:
    kernel.run("import gpuprof_widgets\n@gpuprof_widgets.lines\ndef f(x):\n    return x + 1")
    kernel.run("%%gpuprofile -q -o run\nf(2)")
    assert kernel.value(LINES) == ["2: f(2)", "4: return x + 1"]
    cells = kernel.value(
        "[(c['label'], c['first_line'], c['source']) for c in run.metadata['lines']['cells']]"
    )
    assert len({label for label, _, _ in cells}) == 2
    assert cells[1][1:] == (2, "@gpuprof_widgets.lines\ndef f(x):\n    return x + 1\n")


ON_IPYTHON_8 = (
    test_point_02_the_last_expression_is_the_output_after_the_profile,
    test_point_03_a_raise_shows_the_profile_then_the_users_exception,
    test_point_04_an_interrupt_shows_the_profile_so_far,
    test_point_06_top_level_await_runs_on_the_same_loop_and_thread,
    test_a_marked_function_of_an_earlier_cell_shows_its_lines,
)


def test_it_works_on_ipython_8_too(tmp_path_factory: pytest.TempPathFactory) -> None:
    with started(tmp_path_factory, ipython_8()) as older:
        assert older.value("__import__('IPython').version_info[0]") == 8
        for works in ON_IPYTHON_8:
            works(older)
            older.check_unchanged()
        for body in (RAISING["a statement"], RAISING["an awaited function"]):
            test_a_traceback_is_that_of_the_cell_without_the_magic(older, body)
