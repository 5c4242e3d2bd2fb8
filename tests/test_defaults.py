"""`%config GpuProfile`: the options' defaults, for a session or from a configuration file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets import TraitError

from gpuprof_widgets import load_ipython_extension, unload_ipython_extension
from gpuprof_widgets.magic import GpuProfile
from gpuprof_widgets.options import OPTIONS, Options
from tests.kernels import Kernel
from tests.shells import a_shell, loaded

OF_ONE_CELL = {"name", "output", "explore", "compare", "save", "every"}


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    with loaded() as made:
        yield made


def defaults_in(shell: InteractiveShell) -> Any:
    """What `%config GpuProfile` acts on."""
    (found,) = (one for one in shell.configurables if isinstance(one, GpuProfile))
    return found


def last_options(shell: InteractiveShell, line: str = "") -> dict[str, Any]:
    """The options with which a cell is really recorded."""
    shell.run_cell_magic("gpuprofile", f"-q -o made {line}", "1 + 1")
    options: dict[str, Any] = shell.user_ns["made"].metadata["options"]
    return options


def test_every_option_of_more_than_one_cell_has_a_default_to_set() -> None:
    traits = GpuProfile.class_traits(config=True)
    expected = {name: row.default for name, row in OPTIONS.items() if name not in OF_ONE_CELL}
    assert {name: trait.default_value for name, trait in traits.items()} == {
        **expected,
        "embed": "auto",
    }
    assert GpuProfile().options() == Options()


def test_config_lists_the_defaults_with_their_help(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_line_magic("config", "")
    assert "GpuProfile" in capsys.readouterr().out.split()
    shell.run_line_magic("config", "GpuProfile")
    shown = " ".join(capsys.readouterr().out.split())
    for name, option in OPTIONS.items():
        if name not in OF_ONE_CELL:
            assert f"GpuProfile.{name}=<" in shown
            assert option.help in shown


def test_a_default_holds_for_the_cells_that_follow(shell: InteractiveShell) -> None:
    shell.run_line_magic("config", "GpuProfile.shapes = True")
    shell.run_line_magic("config", "GpuProfile.top = 30")
    assert shell.run_line_magic("config", "GpuProfile.top") == 30
    options = last_options(shell)
    assert (options["shapes"], options["top"]) == (True, 30)


def test_the_line_of_the_magic_wins(shell: InteractiveShell) -> None:
    shell.run_line_magic("config", "GpuProfile.shapes = True")
    shell.run_line_magic("config", "GpuProfile.top = 30")
    options = last_options(shell, "--no-shapes --top 3")
    assert (options["shapes"], options["top"]) == (False, 3)
    assert last_options(shell, "--record ops")["shapes"] is False
    assert last_options(shell)["shapes"] is True  # of that cell alone


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("GpuProfile.top = 0", "GpuProfile.top: top is at least 1, not 0"),
        ("GpuProfile.top = 'ten'", "'top' trait of a GpuProfile instance expected an int"),
        ("GpuProfile.steps = 0", "GpuProfile.steps: steps is at least 1, not 0"),
        ("GpuProfile.python = 'of'", "not 'of'. Did you mean off?"),
        ("GpuProfile.sort = 'cpu_slef'", "Did you mean 'cpu_self'?"),
        ("GpuProfile.embed = 'never'", "expected any of ['auto', 'always'], not the str 'never'"),
        ("GpuProfile.record = 'ops,shape'", "GpuProfile.record: record knows no topic 'shape'"),
    ],
)
def test_a_wrong_default_is_refused_when_it_is_set(
    shell: InteractiveShell, statement: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    shell.run_line_magic("config", statement)  # which logs what goes wrong
    assert words in caplog.text
    assert defaults_in(shell).options() == Options()


def test_defaults_that_contradict_each_other_are_refused() -> None:
    made = GpuProfile(lines=False)
    with pytest.raises(TraitError, match=r"GpuProfile.record: record asks for lines"):
        made.record = "lines"
    assert made.options() == Options(lines=False)


def test_a_configuration_file_sets_defaults() -> None:
    with loaded(top=30, steps=8, warmup=1) as shell:
        assert defaults_in(shell).options() == Options(top=30, steps=8, warmup=1)


def test_a_wrong_configuration_file_is_named_when_the_extension_is_loaded() -> None:
    shell = a_shell(top=0)
    with pytest.raises(UsageError, match=r"configuration of this kernel is wrong: GpuProfile.top"):
        load_ipython_extension(shell)
    assert "gpuprofile" not in shell.magics_manager.magics["cell"]
    assert not [one for one in shell.configurables if "Gpu" in type(one).__name__]


def test_a_loop_default_leaves_the_line_magic_alone(shell: InteractiveShell) -> None:
    shell.run_line_magic("config", "GpuProfile.steps = 8")
    assert shell.run_line_magic("gpuprofile", "-q 6 * 7") == 42
    with pytest.raises(UsageError, match=r"%gpuprofile: --steps bounds the loop of a cell"):
        shell.run_line_magic("gpuprofile", "--steps 8 6 * 7")


def test_unloading_takes_the_defaults_back() -> None:
    shell = a_shell()
    before = list(shell.configurables)
    load_ipython_extension(shell)
    assert len(shell.configurables) > len(before)
    unload_ipython_extension(shell)
    assert shell.configurables == before


@pytest.mark.kernel
def test_a_kernel_takes_defaults_from_its_profile_and_from_config(tmp_path: Path) -> None:
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_config.py").write_text("c = get_config()\nc.GpuProfile.top = 30\n")
    kernel = Kernel(None, tmp_path)
    try:
        assert kernel.run("%load_ext gpuprof_widgets").order == []
        assert kernel.run("%config GpuProfile.shapes = True").order == []
        assert kernel.run("%%gpuprofile -q -o made\n1").status == "ok"
        options = kernel.value("made.metadata['options']")
        assert (options["top"], options["shapes"]) == (30, True)
        assert "top is at least 1, not 0" in kernel.run("%config GpuProfile.top = 0").stderr
    finally:
        kernel.stop()
