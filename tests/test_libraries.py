"""One rule tells the files of libraries from the user's, wherever either of them lies."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from gpuprof_widgets.analyses.python_calls import is_user_code
from gpuprof_widgets.capture.code import FunctionsElsewhere, is_installed, is_users
from gpuprof_widgets.capture.frame_filter import with_labels

IS_USERS = {
    "/home/me/.local/lib/python3.11/site-packages/torch/serialization.py": False,
    "/home/me/project/.venv/lib/python3.13t/site-packages/sympy/core/expr.py": False,
    "/usr/lib/python3/dist-packages/yaml/loader.py": False,
    "/opt/layers/base/lib64/python3.12/json/decoder.py": False,
    r"C:\Users\me\AppData\Roaming\Python\Python311\site-packages\numpy\ma.py": False,
    r"C:\Users\me\miniconda3\envs\torch\lib\subprocess.py": False,
    "/home/me/project/train.py": True,
    "/home/me/python3/lib/train.py": True,
    "/home/me/anaconda3/lib/project/train.py": True,
    "/opt/conda/project/train.py": True,
    "/usr/src/app/lib/train.py": True,
    "/home/me/project/.venv/train.py": True,
    "/home/me/python3.11/site.packages/train.py": True,
    r"C:\Users\me\conda\lab\train.py": True,
}


@pytest.mark.parametrize("file", IS_USERS)
def test_a_path_tells_whose_a_file_is(file: str) -> None:
    expected = IS_USERS[file]
    assert is_users(file, ()) is expected
    assert is_installed(file) is not expected
    assert is_user_code(pd.DataFrame({"file": [file]})).tolist() == [expected]


TRAINS = "def train(x):\n    x.backward()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of PYTHONPATH with a package that pip put there, and two of the user's."""
    for package in ("installed", "editable", "mine"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(TRAINS)
    (tmp_path / "installed-1.0.dist-info").mkdir()
    record = "installed/__init__.py,sha256=abc,42\ninstalled-1.0.dist-info/RECORD,,\n"
    (tmp_path / "installed-1.0.dist-info" / "RECORD").write_text(record)
    (tmp_path / "editable.egg-info").mkdir()
    (tmp_path / "editable.egg-info" / "SOURCES.txt").write_text("editable/__init__.py\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_what_pip_put_into_a_folder_is_a_library_and_what_it_linked_to_is_not(folder: Path) -> None:
    namespace = {}
    for name in ("installed", "editable", "mine"):
        module = ModuleType(name)
        module.__file__ = str(folder / name / "__init__.py")
        exec(compile(TRAINS, module.__file__, "exec"), vars(module))
        namespace[name] = module
    search = FunctionsElsewhere({*namespace, "train"}, namespace, ())
    files = {Path(one.__code__.co_filename).parent.name for one in search.that_train()}
    assert files == {"editable", "mine"}


def test_a_folder_of_the_path_may_be_relative(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [f"./{folder.name}"])
    monkeypatch.chdir(folder.parent)
    assert is_installed(str(folder / "installed" / "__init__.py"))


def test_a_list_beside_no_folder_that_python_imports_from_is_not_read(folder: Path) -> None:
    inside = folder / "installed"
    (inside / "a-1.0.dist-info").mkdir()
    (inside / "a-1.0.dist-info" / "RECORD").write_text("deep/train.py,,\n")
    assert not is_installed(str(inside / "deep" / "train.py"))


def test_calls_of_such_a_library_are_told_apart_in_the_record(folder: Path) -> None:
    files = [str(folder / name / "__init__.py") for name in ("installed", "mine")]
    shown = with_labels(pd.DataFrame({"file": files}), {})
    assert shown["file"].tolist() == ["site-packages/installed/__init__.py", files[1]]
    assert is_user_code(shown).tolist() == [False, True]
