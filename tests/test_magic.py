"""The extension in real kernels: loading, help, completion, what is kept and what may fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuprof_widgets.views.report import REPORT_TYPE
from tests.kernels import STATE, Kernel, loaded_kernel

pytestmark = pytest.mark.kernel
__all__ = ["loaded_kernel"]

LAST = "__import__('gpuprof_widgets').last"

WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def kernel(loaded_kernel: Kernel) -> Iterator[Kernel]:
    """The kernel; whatever the test ran in it must have left nothing behind."""
    yield loaded_kernel
    loaded_kernel.check_unchanged()


INSTALLED = """
ip = get_ipython()
state = (
    "gpuprofile" in ip.magics_manager.magics["line"],
    "gpuprofile" in ip.magics_manager.magics["cell"],
    "GpuprofMagics" in ip.magics_manager.registry,
    sum("gpuprof" in type(f).__module__ for f in ip.input_transformers_cleanup),
    sum(
        "gpuprof" in f.__module__
        for event in ("pre_run_cell", "post_run_cell")
        for f in ip.events.callbacks[event]
    ),
    sum("gpuprofile" in key for key in ip.strdispatchers["complete_command"].strs),
)
"""


def installed(kernel: Kernel) -> tuple[object, ...]:
    kernel.run(INSTALLED)
    return tuple(kernel.value("state"))


def test_unload_takes_everything_out_and_load_puts_it_back_once(kernel: Kernel) -> None:
    there, gone = (True, True, True, 1, 3, 2), (False, False, False, 0, 0, 0)
    assert installed(kernel) == there
    for line, expected in (
        ("%unload_ext gpuprof_widgets", gone),
        ("%load_ext gpuprof_widgets", there),
        ("%reload_ext gpuprof_widgets", there),
        ("import gpuprof_widgets\ngpuprof_widgets.load_ipython_extension(ip)", there),
    ):
        outcome = kernel.run(line)
        assert (outcome.status, outcome.order) == ("ok", []), line
        assert installed(kernel) == expected, line
    assert kernel.run("%%gpuprofile -q\n1 + 1").result == "2"


def test_question_mark_shows_the_help(kernel: Kernel) -> None:
    shown = []
    for magic in ("%%gpuprofile?", "%gpuprofile?"):
        reply = kernel.client.execute(magic)
        message = kernel.client.get_shell_msg(timeout=60)
        while message["parent_header"].get("msg_id") != reply:
            message = kernel.client.get_shell_msg(timeout=60)
        (payload,) = message["content"]["payload"]
        shown.append(payload["data"]["text/plain"])
    for text in shown:
        assert "--python HOW" in text
        assert "Example:" in text


@pytest.mark.parametrize("magic", ["%gpuprofile", "%%gpuprofile"])
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (" --shapes --sta", "--stack"),
        (" --sort cpu_s", "cpu_self"),
        (" --record ops,li", "lines"),
    ],
)
def test_tab_completes_options(kernel: Kernel, magic: str, typed: str, expected: str) -> None:
    line = magic + typed
    message = kernel.client.complete(line, len(line), reply=True, timeout=60)["content"]
    assert expected in message["matches"]
    kernel.run("from IPython.core.completer import provisionalcompleter")
    newer = (
        "(lambda c: [m.text for m in c])(list(get_ipython().Completer.completions("
        f"{line!r}, {len(line)})))"
    )
    kernel.run(f"with provisionalcompleter():\n    found = {newer}")
    assert expected in kernel.value("found")
    older = f"get_ipython().complete(None, {line!r}, {len(line)})[1]"
    assert expected in kernel.value(older)


def test_a_line_magic_returns_the_value_and_shows_the_profile(kernel: Kernel) -> None:
    kernel.run("import torch")
    outcome = kernel.run("%gpuprofile --name 'one line' torch.ones(3).sum().item()")
    assert outcome.result == "3.0"
    assert "aten::sum" in outcome.profile_text
    assert kernel.value(f"{LAST}.metadata['label']") == "one line"
    kernel.run("value = %gpuprofile -q torch.ones(4).sum().item()")
    assert kernel.value("value") == 4.0
    assert kernel.run("%gpuprofile -q torch.ones(4).sum();").result is None
    assert kernel.run("%gpuprofile -q other = 7").result is None
    assert kernel.value("other") == 7


@pytest.mark.parametrize(
    ("statement", "words"),
    [("foo(", "SyntaxError"), ("await foo()", "cannot await"), ("--shapes", "needs a statement")],
)
def test_a_line_that_cannot_run_is_one_line_without_frames(
    kernel: Kernel, statement: str, words: str
) -> None:
    outcome = kernel.run(f"%gpuprofile {statement}")
    assert outcome.status == "error"
    assert len(outcome.stderr.strip().splitlines()) == 1
    assert words in outcome.stderr
    assert not outcome.displays


def test_a_line_may_hold_what_only_ipython_understands(kernel: Kernel) -> None:
    assert kernel.run("%gpuprofile -q !echo from the shell").stdout == "from the shell\r\n"
    assert kernel.run("%gpuprofile -q %who_ls str").status == "ok"


def test_the_profile_goes_into_the_variable_and_is_the_last(kernel: Kernel) -> None:
    outcome = kernel.run("%%gpuprofile -q -o run\nimport torch\ntorch.ones(3)")
    assert outcome.order == ["execute_result"]
    assert kernel.value(f"run is {LAST}")
    assert kernel.value("type(run).__name__") == "Profile"
    number = kernel.value("run.metadata['execution_count']")
    assert kernel.value("run.metadata['label']") == f"Cell [{number}]"
    assert kernel.value("run.metadata['cell_source']") == "import torch\ntorch.ones(3)\n"


def test_with_stacks_no_frame_is_ours(kernel: Kernel) -> None:
    """Nor the magic's own, which ends the recording of a whole cell."""
    kernel.run("%%gpuprofile -q --stack\ndef work(): return sum(range(9))\nwork()")
    frames = f"{LAST}.trace.slices.query(\"category == 'python_function'\")['name'].tolist()"
    names = kernel.value(frames)
    assert [name for name in names if name.endswith(": work")]
    assert [name for name in names if "gpuprof_widgets" in name] == []


@pytest.mark.parametrize(("flag", "name"), [("--explore", "explorer"), ("--explore=ex", "ex")])
def test_the_explorer_is_shown_and_is_the_variable(kernel: Kernel, flag: str, name: str) -> None:
    outcome = kernel.run(f"%%gpuprofile {flag} -o run\n1 + 1")
    assert outcome.result == "2"
    views = [data for data in outcome.displays if WIDGET in data]
    assert len(views) == 1
    assert len(outcome.displays) == 4  # beside the three outputs of a profile
    assert kernel.value(f"{name}.profile is run")


def test_a_quiet_explorer_is_the_variable_alone(kernel: Kernel) -> None:
    outcome = kernel.run("%gpuprofile -q --explore=ex 1 + 1")
    assert not outcome.displays
    assert kernel.value("type(ex).__name__") == "Explorer"


def test_three_outputs_and_bokehjs_only_in_the_first(kernel: Kernel) -> None:
    kernel.run("%unload_ext gpuprof_widgets")
    kernel.run("%load_ext gpuprof_widgets")
    first, second = (kernel.run(f"%%gpuprofile\nx = {n}") for n in range(2))
    for outcome in (first, second):
        html, picture, script = outcome.displays
        assert set(html) == {"text/html", "text/plain"}
        assert set(picture) == {"image/png", "text/plain"}
        assert set(script) == {REPORT_TYPE, "application/javascript", "text/plain"}
    sizes = [len(outcome.displays[2]["application/javascript"]) for outcome in (first, second)]
    assert sizes[0] > 300_000
    assert sizes[1] < 50_000
    kernel.run("%reload_ext gpuprof_widgets")
    reloaded = kernel.run("%%gpuprofile\nx = 2")
    assert len(reloaded.displays[2]["application/javascript"]) < 50_000
    again = kernel.run("%%gpuprofile\nx = 0")  # the carrier's code: its output is replaced
    assert len(again.displays[2]["application/javascript"]) > 300_000


FAILURES = {
    "start": ("torch_profiler.TorchRecording", "start", "recording could not start"),
    "stop": ("torch_profiler.TorchRecording", "stop", "recording could not stop"),
    "read": ("torch_profiler.TorchRecording", "trace", "recording could not be read"),
}

BREAK = """
from gpuprof_widgets.capture import torch_profiler
from gpuprof_widgets.views import report
owner, name = {owner}, {name!r}
intact = getattr(owner, name)
def broken(*args, **kwargs):
    if name == "stop":
        intact(*args)
    raise RuntimeError("broken")
setattr(owner, name, broken)
"""
MEND = "setattr(owner, name, intact)"


@pytest.mark.parametrize(
    ("owner", "name", "words"),
    [*FAILURES.values(), ("report", "outputs", "could not be shown")],
    ids=[*FAILURES, "report"],
)
def test_a_failure_of_profiling_is_one_line_and_the_result_stands(
    kernel: Kernel, owner: str, name: str, words: str
) -> None:
    kernel.run(BREAK.format(owner=owner, name=name))
    good = kernel.run("%%gpuprofile\nimport torch\ntorch.ones(3).sum().item()")
    bad = kernel.run("%%gpuprofile\n1 / 0")
    assert kernel.run(MEND).status == "ok"
    assert (good.status, good.result) == ("ok", "3.0")
    assert good.order == ["stream", "execute_result"]
    assert (bad.status, bad.errors[0]["ename"]) == ("error", "ZeroDivisionError")
    for outcome in (good, bad):
        (line,) = outcome.stderr.splitlines()
        assert words in line
        assert "broken" in line
    assert kernel.run("%%gpuprofile -q\n5").result == "5"


def test_a_file_that_cannot_be_written_is_a_usage_error_before_the_cell_runs(
    kernel: Kernel,
) -> None:
    kernel.run("ran = False")
    outcome = kernel.run("%%gpuprofile --save /no/such/folder/run.zip\nran = True")
    assert (outcome.status, kernel.value("ran")) == ("error", False)
    assert "no folder /no/such/folder" in outcome.stderr
    assert not outcome.displays


@pytest.mark.parametrize("quiet", ["", "-q"])
def test_a_nested_profile_has_no_content_and_says_so(kernel: Kernel, quiet: str) -> None:
    outcome = kernel.run(f"%%gpuprofile -q\n%gpuprofile {quiet} -o inner 1 + 1")
    assert outcome.status == "ok"
    assert "outer gpuprof profile" in kernel.value("repr(inner)")
    (line,) = outcome.stderr.splitlines()
    assert "outer gpuprof profile" in line
    assert line.endswith("; inner has no content")
    used = kernel.run("inner.operators()")
    assert [error["ename"] for error in used.errors] == ["RecordingError"]
    assert kernel.run("inner").result == kernel.value("repr(inner)")


@pytest.mark.parametrize(
    ("setting", "cell", "result", "printed"),
    [
        ("all", "1\n2", "2", "1"),
        ("last_expr_or_assign", "x = 3", "3", ""),
        ("last_expr_or_assign", "x: int = 4", "4", ""),
        ("last_expr", "x = 3", None, ""),
    ],
)
def test_the_shells_own_way_of_showing_values_is_kept(
    kernel: Kernel, setting: str, cell: str, result: str | None, printed: str
) -> None:
    kernel.run(f"get_ipython().ast_node_interactivity = {setting!r}")
    outcome = kernel.run(f"%%gpuprofile -q\n{cell}")
    kernel.run("get_ipython().ast_node_interactivity = 'last_expr'")
    results = [
        message["content"]["data"]["text/plain"]
        for message in outcome.messages
        if message["msg_type"] == "execute_result"
    ]
    assert results == [text for text in (printed, result) if text]


def test_the_users_transformers_apply_to_the_cell(kernel: Kernel) -> None:
    kernel.run(
        "import ast\nclass Bigger(ast.NodeTransformer):\n"
        "    def visit_Constant(self, node):\n"
        "        return ast.copy_location(ast.Constant(node.value + 1), node)"
        " if node.value == 41 else node\n"
        "bigger = Bigger()\nget_ipython().ast_transformers.append(bigger)"
    )
    outcome = kernel.run("%%gpuprofile -q\n41")
    kernel.run("get_ipython().ast_transformers.remove(bigger)")
    assert outcome.result == "42"


def test_the_transformer_breaks_no_other_cell(kernel: Kernel) -> None:
    for cell in ("%%time\nx = 1", "%%gpuprofileX\n1", "%%capture\nprint(1)", "", "\n", "%%"):
        kernel.run(cell)
    assert kernel.run("'still fine'").result == "'still fine'"
    assert "gpuprof" not in kernel.run(STATE, store_history=False).stderr
