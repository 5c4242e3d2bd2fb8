"""`%%gpuprofile --steps` in real kernels: a loop is bounded, everything else is as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernels import Kernel, loaded_kernel

pytestmark = pytest.mark.kernel
__all__ = ["loaded_kernel"]

LAST = "__import__('gpuprof_widgets').last"
OPTIONS = "--steps 4 --warmup 2"
SETUP = """
import itertools, time, torch, gpuprof_widgets, multiprocessing
from tqdm import tqdm
tqdm.monitor_interval = 0
def work(item):
    torch.full((1,), float(item))
"""


@pytest.fixture(scope="module")
def prepared(loaded_kernel: Kernel) -> Kernel:
    assert loaded_kernel.run(SETUP).status == "ok"
    return loaded_kernel


@pytest.fixture(autouse=True)
def kernel(prepared: Kernel) -> Iterator[Kernel]:
    """The kernel; whatever the test ran in it must have left nothing behind."""
    yield prepared
    prepared.check_unchanged()


def profiled(kernel: Kernel, body: str, options: str = OPTIONS) -> Any:
    return kernel.run(f"%%gpuprofile {options} -q\n{body}")


def steps(kernel: Kernel) -> list[int]:
    found: list[int] = kernel.value(f"{LAST}.steps()['step'].tolist()")
    return found


def notes(kernel: Kernel) -> list[str]:
    found: list[str] = kernel.value(f"{LAST}.metadata['notes']")
    return found


LOOPS = {
    "for": "for i in range(100):\n    seen.append(i); work(i)",
    "enumerate": "for i, x in enumerate('a' * 100):\n    seen.append(i); work(i)",
    "zip": "for i, x in zip(range(100), itertools.count()):\n    seen.append(i); work(i)",
    "generator": "for i in (n for n in range(100)):\n    seen.append(i); work(i)",
    "tqdm": "for i in tqdm(range(100)):\n    seen.append(i); work(i)",
    "enumerate of tqdm": "for i, _ in enumerate(tqdm(range(100))):\n    seen.append(i); work(i)",
    "zip of tqdm": "for i, x in zip(tqdm(range(100)), range(99)):\n    seen.append(i); work(i)",
    "strict": "for i, x in zip(range(100), range(100), strict=True):\n    seen.append(i); work(i)",
    "await": (
        "import asyncio\nfor i in range(100):\n    await asyncio.sleep(0)\n"
        "    seen.append(i); work(i)"
    ),
    "while": "i = -1\nwhile i < 99:\n    i += 1; seen.append(i); work(i)",
    "async for": (
        "async def numbers():\n    for i in range(100):\n        yield i\n"
        "async for i in numbers():\n    seen.append(i); work(i)"
    ),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_is_bounded(kernel: Kernel, loop: str) -> None:
    outcome = profiled(kernel, f"seen = []\n{LOOPS[loop]}\nseen, i")
    assert outcome.status == "ok", outcome.traceback
    assert outcome.result == "([0, 1, 2, 3, 4, 5], 5)"
    assert steps(kernel) == [2, 3, 4, 5]
    assert notes(kernel) == []
    assert kernel.value(f"int(({LAST}.trace.slices['name'] == 'aten::full').sum())") == 4


NUMBERS = "async def numbers():\n    for i in range(100):\n        yield i\n"


@pytest.mark.parametrize(
    "loop",
    [
        "for i in range(100):",
        "i = -1\nwhile i < 99:\n    i += 1",
        f"{NUMBERS}async for i in numbers():",
    ],
)
def test_break_leaves_without_else_and_what_follows_is_not_recorded(
    kernel: Kernel, loop: str
) -> None:
    body = (
        f"ran = []\n{loop}\n    work(i)\n    if i == 3: break\n"
        "else:\n    ran.append('else')\ntorch.zeros(3)\nran"
    )
    assert profiled(kernel, body).result == "[]"
    assert steps(kernel) == [2, 3]
    assert kernel.value(f"'aten::zeros' in set({LAST}.trace.slices['name'])") is False
    (note,) = notes(kernel)
    assert note == "the loop was left after 4 iterations: 2 of the 4 steps asked for were recorded"


@pytest.mark.parametrize("loop", ["for i in range(4):", "i = -1\nwhile i < 3:\n    i += 1"])
def test_a_loop_that_ends_earlier_says_so(kernel: Kernel, loop: str) -> None:
    body = f"ran = []\n{loop}\n    work(i)\nelse:\n    ran.append('else')\nran, i"
    assert profiled(kernel, body).result == "(['else'], 3)"
    assert steps(kernel) == [2, 3]
    assert notes(kernel) == [
        "the loop ended after 4 iterations: 2 of the 4 steps asked for were recorded"
    ]
    table = f"{LAST}.trace.slices['name'].tolist()"
    assert "ProfilerStep#4" not in kernel.value(table)


@pytest.mark.parametrize("loop", ["for i in range(100):", "i = -1\nwhile i < 99:\n    i += 1"])
def test_an_error_has_the_traceback_that_it_has_without_us(kernel: Kernel, loop: str) -> None:
    body = f"{loop}\n    work(i)\n    1 / (3 - i)"
    plain = kernel.run(f"# first line\n{body}").traceback.splitlines()
    outcome = profiled(kernel, body)
    assert outcome.errors[0]["ename"] == "ZeroDivisionError"
    ours = outcome.traceback.splitlines()
    where = [line.strip() for line in plain if line.startswith("---->")]
    assert where[0] in [line.strip() for line in ours]
    assert not any("capture" in line for line in ours)
    assert steps(kernel) == [2, 3]
    assert kernel.value(f"{LAST}.metadata['error']") == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("loop", ["for i in range(10**9):", "i = 0\nwhile True:\n    i += 1"])
def test_an_interrupt_ends_it_and_keeps_what_ran(kernel: Kernel, loop: str) -> None:
    body = f"{loop}\n    work(i)\n    if i == 4: print('ready'); time.sleep(60)"
    outcome = kernel.run_interrupted(f"%%gpuprofile {OPTIONS} -q\n{body}")
    assert outcome.errors[0]["ename"] == "KeyboardInterrupt"
    assert kernel.value(f"{LAST}.metadata['interrupted']") is True
    assert steps(kernel)[:2] in ([2, 3], [1, 2])


@pytest.mark.parametrize("loop", [name for name in LOOPS if not name.startswith("a")])
def test_the_variables_after_a_short_loop_are_those_without_us(kernel: Kernel, loop: str) -> None:
    body = re.sub(r"\b(?:100|99)\b", "5", LOOPS[loop])
    names = "sorted(n for n in globals() if not n.startswith('_'))"
    kernel.run("seen = []; plain = ours = 0; i = j = x = None")
    kernel.run(f"seen = []\n{body}")
    plain = kernel.value(f"({names}, seen, i, j, x)")
    kernel.run("seen = []; i = j = x = None")
    assert profiled(kernel, f"seen = []\n{body}", "--steps 50 --warmup 2").status == "ok"
    assert kernel.value(f"({names}, seen, i, j, x)") == plain


def test_a_cell_without_a_loop_says_so_and_runs_once(kernel: Kernel) -> None:
    outcome = profiled(kernel, "def f():\n    for i in range(9): work(i)\nf()\n'done'")
    assert outcome.result == "'done'"
    assert notes(kernel) == [
        "--steps found no training loop: the code ran once and is recorded whole; to bound a "
        "loop write `for item in gpuprof_widgets.steps(items)`"
    ]
    assert kernel.value(f"int(({LAST}.trace.slices['name'] == 'aten::full').sum())") == 9


def test_a_loop_that_is_not_reached_says_so(kernel: Kernel) -> None:
    assert profiled(kernel, "if False:\n    for i in range(9): work(i)\n'done'").result == "'done'"
    assert notes(kernel) == ["the loop of line 3 was not seen to run: nothing was recorded"]
    assert kernel.value(f"len({LAST}.trace)") == 0


def test_loops_in_processes_that_the_code_starts_are_told_how_to_be_recorded(
    kernel: Kernel,
) -> None:
    loading = "list(torch.utils.data.DataLoader([0], num_workers=1))\n"
    body = (
        "def train(rank):\n    for i in range(9): rank\n"
        "context = multiprocessing.get_context('fork')\n"
        "group = [context.Process(target=train, args=(n,)) for n in range(2)]\n"
        "[one.start() or one.join() for one in group]\n"
    )
    profiled(kernel, body + loading)
    told = (
        "the code started 2 processes, where --steps bounds and records no loop: in `train` write"
    )
    assert [note for note in notes(kernel) if note.startswith(told)], notes(kernel)
    assert kernel.value("type(multiprocessing.process.BaseProcess.start).__name__") == "function"
    profiled(kernel, f"{body}for i in range(100): work(i)")
    assert notes(kernel) == []


def test_the_loop_of_the_branch_that_runs_is_bounded(kernel: Kernel) -> None:
    body = "if False:\n    for i in range(50): work(i)\nelse:\n    for i in range(100): work(i)\ni"
    assert profiled(kernel, body).result == "5"
    assert kernel.value(f"{LAST}.metadata['steps']['place']") == "line 5"


def test_a_loop_in_a_function_defined_in_the_bounded_one_is_not_named(kernel: Kernel) -> None:
    body = (
        "for i in range(100):\n    def inside():\n        for j in range(2): work(j)\n    inside()"
    )
    assert profiled(kernel, body).status == "ok"
    assert notes(kernel) == []


def test_the_cells_own_steps_inside_another_loop_go_before_the_option(kernel: Kernel) -> None:
    body = (
        "for epoch in range(7):\n"
        "    for i in gpuprof_widgets.steps(range(100), warmup=1, active=2): work(i)\n"
        "epoch, i"
    )
    assert profiled(kernel, body).result == "(6, 2)"
    assert steps(kernel) == [1, 2]
    assert any("bounds a loop itself" in note for note in notes(kernel))


def test_options_of_the_window_are_followed(kernel: Kernel) -> None:
    body = "seen = []\nfor i in range(100):\n    seen.append(i); work(i)\nlen(seen)"
    options = "--steps 2 --warmup 1 --wait 1 --repeat 2 --cprofile-steps 3"
    assert profiled(kernel, body, options).result == "10"
    assert steps(kernel) == [2, 3, 7, 8]
    calls = f"{LAST}.python_calls().set_index('name')['calls'].to_dict()"
    assert kernel.value(calls)["work"] == 6


def test_python_calls_of_the_loop_are_the_cells(kernel: Kernel) -> None:
    kernel.run(
        "def source():\n    for i in range(100):\n        yield helped(i)\ndef helped(i): return i"
    )
    profiled(kernel, "for i in source(): work(i)")
    calls = kernel.value(f"{LAST}.python_calls().set_index('name')['calls'].to_dict()")
    assert (calls["work"], calls["helped"]) == (4, 4)
    files = set(kernel.value(f"{LAST}.python_calls()['file'].tolist()"))
    assert all(file == "~" or file.startswith("Cell [") for file in files)


@pytest.mark.parametrize("items", ["bar", "enumerate(bar)", "gpuprof_widgets.steps(bar, active=3)"])
def test_a_progress_bar_of_a_notebook_ends_as_a_success(kernel: Kernel, items: str) -> None:
    kernel.run("from tqdm.notebook import tqdm as notebook_bar")
    outcome = profiled(kernel, f"bar = notebook_bar(range(100))\nfor i in {items}: work(3)")
    assert outcome.status == "ok", outcome.traceback
    progress = "bar.container.children[1]"
    style, value, most = kernel.value(f"({progress}.bar_style, {progress}.value, {progress}.max)")
    assert (style, value, most) == ("success", 6, 6)


GUARDED = """
def checkpoint(): torch.zeros(3)
def evaluate(): torch.zeros(3)
for step in range(1, 100):
    work(step)
    if step % 500 == 0:
        checkpoint()
    if step % 3 == 0:
        evaluate()
"""


def test_a_region_that_is_expected_and_did_not_run_is_a_finding(kernel: Kernel) -> None:
    outcome = profiled(kernel, GUARDED, f"{OPTIONS} --expect checkpoint,evaluate,work,validate")
    assert outcome.status == "ok"
    found = f"[f.text for f in {LAST}.findings() if f.rule == 'expected']"
    assert kernel.value(found) == [
        "`checkpoint` did not run in these 4 steps. Line 7 runs it only every 500 iterations.",
        "`validate` did not run in these 4 steps.",
    ]


def test_the_page_is_shown_with_its_notes(kernel: Kernel) -> None:
    outcome = kernel.run(f"%%gpuprofile {OPTIONS}\nfor i in range(3): work(i)")
    assert (outcome.status, outcome.stderr) == ("ok", "")
    assert outcome.stdout == (
        "gpuprof: bounding the loop of line 2 (for i in range(3)): 2 iterations to warm up, "
        "4 recorded, then it ends\n"
    )
    assert "1 of the 4 steps asked for" in outcome.profile_text


def test_alone_in_a_plain_cell_a_loop_shows_its_own_profile(kernel: Kernel) -> None:
    outcome = kernel.run(
        "for i in gpuprof_widgets.steps(range(100), warmup=2, active=2): work(i)\n"
        "else: print('else', i)"
    )
    assert outcome.order[-1] == "stream"
    assert outcome.stdout == "else 3\n"
    number = kernel.value("get_ipython().execution_count") - 1
    assert kernel.value(f"{LAST}.metadata['label']") == f"Cell [{number}], line 1"
    assert "display_data" in outcome.order
    assert steps(kernel) == [2, 3]
