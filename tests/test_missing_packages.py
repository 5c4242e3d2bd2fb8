"""A package that is missing is named with the command that installs it, and no other package is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuprof_widgets.exceptions import in_words, missing_package

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "tests" / "data" / "gpu" / "torch_profiler_two_steps.json.gz"

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, *rest):
        if name == {name!r}:
            raise {error}
sys.meta_path.insert(0, Blocker())
"""
CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {cells!r}:
    print("raised", type(shell.run_cell(cell).error_in_exec).__name__)
"""
LOAD = "%load_ext gpuprof_widgets"
PROFILE = "%%gpuprofile\n1 + 1"


def output_without(name: str, code: str, folder: Path, error: str = "") -> str:
    """What the code prints in a process in which importing that module raises the error."""
    error = error or f"ModuleNotFoundError({f'No module named {name!r}'!r}, name={name!r})"
    environment = {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", BLOCK.format(name=name, error=error) + code],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    return done.stdout + done.stderr


def cells(*sources: str) -> str:
    return CELLS.format(cells=sources)


@pytest.mark.parametrize("name", ["torch", "typing_extensions"])
def test_loading_names_what_torch_lacks_or_torch(name: str, tmp_path: Path) -> None:
    said = output_without(name, cells(LOAD), tmp_path)
    assert f"Type `%pip install {name}`, restart the kernel" in said
    assert said.count("pip install") == said.count(f"%pip install {name}`")
    assert "raised UsageError" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "error", ["ImportError('libcudart.so: cannot open')", "ImportError('DLL', name='torch._C')"]
)
def test_a_torch_that_is_broken_is_not_to_be_installed(error: str, tmp_path: Path) -> None:
    said = output_without("torch", cells(LOAD), tmp_path, error)
    assert "It is installed, but broken" in said
    assert "pip install" not in said


@pytest.mark.parametrize(
    ("name", "package"), [("matplotlib", "matplotlib"), ("bokeh", "bokeh"), ("PIL", "pillow")]
)
def test_what_a_report_needs_is_named_and_the_cell_runs(
    name: str, package: str, tmp_path: Path
) -> None:
    said = output_without(name, cells(LOAD, PROFILE), tmp_path)
    command = f"{package} is not installed: type `%pip install {package}`"
    assert f"gpuprofile: the profile could not be shown: {command}" in said
    assert said.count("pip install") == 1
    assert said.count("raised NoneType") == 2


def test_what_the_magic_needs_is_named_before_the_cell_runs(tmp_path: Path) -> None:
    said = output_without("pandas", cells(LOAD, "%%gpuprofile\nprint('has', 'run')"), tmp_path)
    assert "UsageError: pandas is not installed: type `%pip install pandas`" in said
    assert "has run" not in said


def test_a_missing_snakeviz_is_named_also_where_there_is_no_browser(tmp_path: Path) -> None:
    code = (
        "sys.modules['snakeviz'] = None\n"
        "import gpuprof_widgets\n"
        f"gpuprof_widgets.load({str(TRACE.parent / 'ddp_with_nccl.gpuprof')!r}).snakeviz()"
    )
    said = output_without("snakeviz", code, tmp_path)
    assert "RecordingError: snakeviz is not installed: type `pip install snakeviz`" in said
    assert "No local browser" not in said


@pytest.mark.parametrize(
    ("name", "words"),
    [("pandas", ["findings", str(TRACE)]), ("bokeh", ["view", str(TRACE), "-o", "page.html"])],
)
def test_the_command_line_says_it_in_one_line(name: str, words: list[str], tmp_path: Path) -> None:
    code = f"from gpuprof_widgets.cli import main\nprint(main({words!r}))"
    said = output_without(name, code, tmp_path)
    assert said.splitlines() == [
        "1",
        f"gpuprof: {name} is not installed: type `pip install {name}`",
    ]


def test_a_script_that_lacks_a_package_of_its_own_has_its_traceback(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import there_is_no_such_package\n")
    code = f"from gpuprof_widgets.cli import main\nprint(main(['run', {str(script)!r}]))"
    said = output_without("", code, tmp_path)
    assert "ModuleNotFoundError: No module named 'there_is_no_such_package'" in said
    assert "pip install" not in said


def test_a_module_that_a_package_lacks_is_not_a_missing_package() -> None:
    error = ModuleNotFoundError("No module named 'torch.new'", name="torch.new")
    assert missing_package(error) is None
    assert in_words(error) == "ModuleNotFoundError: No module named 'torch.new'"


@pytest.mark.parametrize("name", ["_sqlite3", "lzma", "torch._C"])
def test_what_pip_does_not_install_is_not_to_be_installed(name: str) -> None:
    error = ModuleNotFoundError(f"No module named {name!r}", name=name)
    assert missing_package(error) is None
    assert in_words(error) == f"ModuleNotFoundError: No module named {name!r}"


def test_a_package_with_another_name_than_its_module_is_named_as_pip_does() -> None:
    assert missing_package(ModuleNotFoundError("no", name="yaml")) == "pyyaml"
