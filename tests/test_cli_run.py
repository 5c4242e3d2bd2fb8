"""`gpuprof run`: a script runs as `python script.py` would run it, and is recorded beside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from gpuprof_widgets.cli import SIGPIPE_STATUS
from gpuprof_widgets.commands.run import run
from gpuprof_widgets.profiles import Profile
from tests.command_lines import TIMEOUT_S
from tests.forked_calls import ROOT, Calls, Done, calls

pytestmark = pytest.mark.slow

SEEN = """
    '''What a program sees.'''
    from __future__ import annotations
    import json, os, sys, pickle
    main = sys.modules["__main__"]
    def here(): pass
    class Kept: pass
    print(json.dumps({
        "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0],
        "doc": __doc__, "package": __package__, "spec": str(__spec__ and __spec__.name),
        "cached": str(__cached__), "loader": type(__loader__).__name__,
        "is main": main.here is here and vars(main) is globals(),
        "pickled": pickle.loads(pickle.dumps(Kept)) is Kept,
        "code": here.__code__.co_filename, "line": here.__code__.co_firstlineno,
        "annotations": __annotations__,
    }, indent=1))
"""


@pytest.fixture(scope="module")
def gpuprof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """Calls of `gpuprof`, each in a process of its own."""
    with calls(tmp_path_factory.mktemp("calls")) as made:
        yield made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the programs of a test stand, and in which they run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def script(text: str, name: str = "program.py") -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


def python(*words: str, **given: Any) -> subprocess.CompletedProcess[str]:
    """What Python itself makes of these words."""
    settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": TIMEOUT_S}
    return subprocess.run([sys.executable, *words], **settings | given)


def assert_same(gpuprof: Calls, *words: str) -> Done:
    """Output, errors and exit code are those of Python; `gpuprof` adds nothing under ``-q``."""
    plain = python(*words)
    recorded = gpuprof("run", "-q", *words)
    assert recorded.stdout == plain.stdout
    assert recorded.stderr == plain.stderr
    assert recorded.returncode == plain.returncode
    return recorded


def test_a_script_sees_what_it_would_see_without_us(gpuprof: Calls) -> None:
    done = assert_same(gpuprof, script(SEEN, "sub/program.py"), "--top", "a b", "-o", "--", "-m")
    assert '"--top"' in done.stdout


def test_a_module_sees_what_it_would_see_without_us(gpuprof: Calls) -> None:
    script("", "package/__init__.py")
    script(SEEN.replace("import json", "from . import sibling; import json"), "package/tool.py")
    script("print('imported as', __name__)", "package/sibling.py")
    script("from .sibling import __name__ as n; print('main of', __package__, n)",
           "package/__main__.py")  # fmt: skip
    assert_same(gpuprof, "-m", "package.tool", "--top", "3")
    assert "main of package" in assert_same(gpuprof, "-m", "package").stdout


@pytest.mark.parametrize(
    "ending",
    [
        "sys.exit(3)",
        "sys.exit('no data')",
        "def f():\n    raise ValueError('[red]no[/] luck')\nf()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
        "sys.excepthook = lambda *a: print('mine', a[0].__name__)\n1 / 0",
        "import atexit\natexit.register(print, 'at exit')\n1 / 0",
        "x = (1,\n  2\nprint('not reached')",
        "raise KeyboardInterrupt('mine')",
    ],
)
def test_a_program_ends_as_it_would_without_us(gpuprof: Calls, ending: str) -> None:
    assert_same(gpuprof, script(f"import sys\nprint('running')\nx = 2\n{ending}\n"))


def test_an_interrupt_reaches_the_program_and_ends_the_process_by_the_signal() -> None:
    name = script(
        """
        import time
        try:
            print("ready", flush=True)
            time.sleep(600)
        finally:
            print("cleaned up", flush=True)
        """
    )
    command = [sys.executable, "-m", "gpuprof_widgets", "run", name]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert out == "cleaned up\n"
    assert err.startswith("Traceback (most recent call last):\n  File")
    assert err.count("KeyboardInterrupt\n") == 1
    assert "gpuprof_widgets" not in err
    assert process.returncode == -signal.SIGINT


def test_processes_that_it_spawns_run_their_part_alone(gpuprof: Calls) -> None:
    name = script(
        """
        import multiprocessing, os
        print("module", __name__, flush=True)  # the pool may end it before it writes
        def square(x):
            return x * x
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(square, [1, 2, 3]))
        """
    )
    assert_same(gpuprof, name)


def test_a_process_that_it_forks_reports_nothing(gpuprof: Calls) -> None:
    name = script(
        """
        import os, sys
        child = os.fork()
        if child == 0:
            print("child")
            sys.exit(5)
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    done = gpuprof("run", "-o", "run.gpuprof", name)
    assert done.stdout == "child\nchild ended with 5\n"
    assert done.stderr.count("saved:") == 1
    assert done.returncode == 0


def test_findings_and_ops_are_printed_on_stderr_alone(gpuprof: Calls) -> None:
    name = script("import torch\nx = torch.ones(64, 64)\nprint('result', float((x @ x).sum()))\n")
    done = gpuprof("run", name)
    assert (done.returncode, done.stdout) == (0, "result 262144.0\n")
    assert "aten::mm" in done.stderr
    assert "Ops by CPU self" in done.stderr
    quiet = gpuprof("run", "--quiet", name)
    assert (quiet.stdout, quiet.stderr) == (done.stdout, "")


def test_it_is_saved_whatever_the_program_ends_with(gpuprof: Calls) -> None:
    text = "import torch\ntorch.ones(9) + 1\ntorch.ones(8).exp()\nraise SystemExit(4)\n"
    done = gpuprof("run", "-o", "run.gpuprof", script(text))
    assert done.returncode == 4
    assert "saved: run.gpuprof" in done.stderr
    profile = Profile.load("run.gpuprof")
    assert profile.metadata["label"] == "program.py"
    assert profile.metadata["error"] is None
    assert {"aten::add", "aten::exp"} <= set(profile.operators()["name"])
    failed = gpuprof("run", "-q", "--save", "failed.gpuprof", script("1 / 0"))
    assert failed.returncode == 1
    assert "ZeroDivisionError" in str(Profile.load("failed.gpuprof").metadata["error"])


def test_another_format_is_what_the_end_of_the_name_says(gpuprof: Calls) -> None:
    done = gpuprof("run", "-o", "run.JSON.gz", script("import torch\ntorch.ones(1) + 1"))
    assert (done.returncode, "written: run.JSON.gz" in done.stderr) == (0, True)
    assert Path("run.JSON.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert "aten::add" in set(Profile.load("run.JSON.gz").operators()["name"])


@pytest.mark.parametrize("name", ["run.gpuprof", "report.html"])
def test_a_file_is_where_it_was_asked_for_whatever_folder_the_program_changes_to(
    gpuprof: Calls, folder: Path, name: str
) -> None:
    (folder / "elsewhere").mkdir()
    text = "import os, torch\nos.chdir('elsewhere')\ntorch.ones(1)\nos.rmdir('../elsewhere')"
    done = gpuprof("run", "-o", name, script(text))
    assert (done.returncode, f": {name}" in done.stderr) == (0, True)
    assert (folder / name).stat().st_size > 0


TRAINS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(4, 4)

def main():
    for p in net.parameters():
        p.requires_grad_(True)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    ran = 0
    for epoch in range(10):
        for (x,) in DataLoader(TensorDataset(torch.ones(28, 4))):
            net(x).sum().backward()
            opt.step()
            ran += 1
        print("validated")
    print("ended", ran)

if __name__ == "__main__":
    main()
"""


def test_a_loop_in_main_is_bounded_said_and_ends_with_its_epochs(gpuprof: Calls) -> None:
    words = ("--steps", "4", "--warmup", "2", "-o", "run.gpuprof", script(TRAINS))
    done = gpuprof("run", *words)
    assert (done.returncode, done.stdout) == (0, "validated\nended 6\n")
    assert done.stderr.startswith("gpuprof: bounding the loop of line 12 (for x, in DataLoader(")
    assert list(Profile.load("run.gpuprof").steps()["step"]) == [2, 3, 4, 5]


def test_a_training_goes_on_and_is_recorded_again_into_files_of_its_own(gpuprof: Calls) -> None:
    options = "--steps 4 --warmup 2 --keep-going --every 100 -o run.gpuprof"
    done = gpuprof("run", *options.split(), script(TRAINS))
    assert (done.returncode, done.stdout) == (0, "validated\n" * 10 + "ended 280\n")
    files = sorted(path.name for path in Path.cwd().glob("*.gpuprof"))
    assert files == ["run_step102.gpuprof", "run_step2.gpuprof", "run_step202.gpuprof"]
    for file in files:
        profile = Profile.load(file)
        first = int(file.removeprefix("run_step").removesuffix(".gpuprof"))
        assert list(profile.steps()["step"]) == list(range(first, first + 4))
        assert profile.operators().set_index("name")["calls"]["aten::addmm"] == 4
        assert profile.metadata["steps"]["iterations"][0]["step"] == first - 2
    assert all(name in done.stderr for name in files[-1:])


def test_a_training_that_runs_twice_goes_on_counting(gpuprof: Calls) -> None:
    text = TRAINS.replace("range(10)", "range(2)").replace(
        "    main()\n", "    main()\n    main()\n"
    )
    options = "--steps 2 --warmup 1 --keep-going --every 50 -o run.gpuprof"
    done = gpuprof("run", *options.split(), script(text))
    assert (done.returncode, done.stdout.count("validated")) == (0, 4)
    files = sorted(path.name for path in Path.cwd().glob("*.gpuprof"))
    assert files == ["run_step1.gpuprof", "run_step101.gpuprof", "run_step51.gpuprof"]
    assert done.stderr.count("bounding") == 1
    assert "saved: run_step101.gpuprof" in done.stderr


def test_lines_steps_and_modules_are_recorded_as_in_a_cell(gpuprof: Calls) -> None:
    name = script(
        """
        '''Trains.'''
        from __future__ import annotations
        import torch
        model = torch.nn.Linear(8, 8)
        for step in range(100):
            loss = model(torch.ones(4, 8)).sum()
            loss.backward()
        print("last", step)
        """
    )
    words = ("--steps", "3", "--warmup", "2", "--modules", "-o", "run.gpuprof", name)
    done = gpuprof("run", *words)
    assert (done.returncode, done.stdout) == (0, "last 4\n")
    profile = Profile.load("run.gpuprof")
    assert list(profile.steps()["step"]) == [2, 3, 4]
    lines = profile.lines().set_index("code")["calls"]
    assert lines["loss.backward()"] == 3
    assert set(profile.lines()["cell"]) == {"program.py"}
    assert "model" in set(profile.attribution("module")["name"])


def test_neither_our_frames_nor_clicks_are_in_the_record(gpuprof: Calls) -> None:
    text = "import torch\ndef mine():\n    return torch.ones(3).sum()\nmine()\n"
    gpuprof("run", "-q", "-o", "calls.gpuprof", script(text))
    gpuprof("run", "-q", "--stack", "-o", "stack.gpuprof", script(text))
    calls = Profile.load("calls.gpuprof").python_calls()
    stack = Profile.load("stack.gpuprof")
    frames = set(stack.trace.slices["name"][stack.trace.slices["category"] == "python_function"])
    names = {*frames, *(calls["file"] + ":" + calls["name"])}
    assert any("mine" in name for name in frames)
    assert any("mine" in name for name in calls["name"])
    ours = [name for name in names if "gpuprof_widgets" in name or "click" in name]
    assert ours == []


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["missing.py"], 1, "gpuprof: missing.py: cannot be run (No such file or directory)"),
        (["-m", "no_such_package.tool"], 1, "gpuprof: there is no module no_such_package.tool"),
        (["-m", "json"], 1, "gpuprof: there is no module json.__main__ to run"),
        (["--warmup", "2", "program.py"], 1, "--warmup is for a bounded loop"),
        (["--record", "opps", "program.py"], 1, "Did you mean ops?"),
        (["-o", "/nowhere/run.gpuprof", "program.py"], 1, "there is no folder /nowhere"),
        (["-o", "/nowhere/run.html", "program.py"], 1, "there is no folder /nowhere"),
        (["--top", "x", "program.py"], 2, "'x' is not a valid integer"),
        (["-o", "a.gpuprof", "--save", "b.gpuprof", "program.py"], 2, "-o and --save"),
    ],
)
def test_what_cannot_be_recorded_does_not_run(
    gpuprof: Calls, words: list[str], code: int, told: str
) -> None:
    script("print('ran')")
    done = gpuprof("run", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_of_its_output_may_stop_reading() -> None:
    name = script("import os, sys\nsys.stdout.write('x' * 10**6)\nsys.stdout.flush()\n")
    plain, recorded = (
        _with_closed_output([sys.executable, *words, name])
        for words in ([], ["-m", "gpuprof_widgets", "run", "-q"])
    )
    assert recorded == plain
    assert recorded[0] not in (0, SIGPIPE_STATUS)


def _with_closed_output(command: list[str]) -> tuple[int, str]:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--modules a.py", {"modules": "all", "script": "a.py"}),
        ("--modules=m a.py", {"modules": "m", "script": "a.py"}),
        ("--top 3 --modules a.py --modules",
         {"top": 3, "modules": "all", "script": "a.py", "words": ("--modules",)}),
        ("--name --modules a.py", {"name": "--modules", "script": "a.py"}),
        ("-m --modules a", {"is_module": True, "modules": "all", "script": "a"}),
        ("-- --modules", {"script": "--modules"}),
        ("- --modules", {"script": "-", "words": ("--modules",)}),
        ("--shapes --no-shapes --shapes a.py", {"shapes": True, "script": "a.py"}),
        ("--steps 3 --no-steps a.py", {"steps": None, "script": "a.py"}),
        ("--no-steps --steps 3 a.py", {"steps": 3, "script": "a.py"}),
    ],
)  # fmt: skip
def test_the_options_end_where_the_script_begins(words: str, expected: dict[str, Any]) -> None:
    rest = {"is_module": False, "target": None, "words": ()}
    assert run.make_context("run", words.split()).params == rest | expected


@pytest.mark.parametrize(
    ("words", "typed", "offered"),
    [
        (["--record"], "ops,m", ["ops,modules", "ops,memory"]),
        (["--sort"], "tott", ["tottime"]),
        ([], "--no-st", ["--no-steps", "--no-stack"]),
        (["--shapes"], "--sh", []),
    ],
)
def test_a_shell_completes_options_and_their_values(
    words: list[str], typed: str, offered: list[str]
) -> None:
    items = ShellComplete(run, {}, "gpuprof run", "").get_completions(words, typed)
    assert sorted(item.value for item in items) == sorted(offered)
