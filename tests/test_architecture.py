"""The layers of the package: who may import whom, who may name which library; how large each is.

Every import counts, wherever it stands: in a function, under TYPE_CHECKING, in a try.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import gpuprof_widgets

ROOT = Path(gpuprof_widgets.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if "extension" not in path.parts)

LAYERS = {
    "registry": set(),
    "exceptions": set(),
    "progress": set(),
    "trace": {"exceptions", "registry"},
    "options": {"exceptions"},
    "option_parsing": {"exceptions", "options", "analyses"},
    "capture": {"exceptions", "options", "progress", "trace"},
    "analyses": {"exceptions", "registry", "trace"},
    "views": {"exceptions", "progress", "trace", "analyses"},
    "analysed": {"exceptions", "trace", "analyses"},
    "exports": {"exceptions", "trace", "analyses", "views"},
    "profiles": {
        *("exceptions", "trace", "analyses", "analysed", "views", "exports"),
        *("comparisons", "explorer", "runtime_carrier", "snakeviz_server"),
    },
    "explorer": {"exceptions", "trace", "analyses", "analysed", "views", "runtime_carrier"},
    "comparisons": {"exceptions", "trace", "analyses", "views", "runtime_carrier"},
    "many_ranks": {
        *("exceptions", "trace", "analyses", "views", "profiles", "explorer", "runtime_carrier"),
        "progress",
    },
    "snakeviz_server": {"exceptions", "trace"},
    "profiling": {
        *("exceptions", "options", "trace", "capture", "analyses", "views", "profiles"),
        *("progress", "run_history", "runtime_carrier"),
    },
    "run_history": {
        *("exceptions", "options", "analyses", "profiles", "comparisons"),
    },
    "runtime_carrier": {"progress"},
    "warm_up": {"exceptions", "options", "trace", "capture", "views", "run_history"},
    "commands": {
        *("exceptions", "trace", "capture", "analyses", "views", "profiles", "profiling"),
        *("comparisons", "many_ranks", "exports"),
        *("options", "option_parsing", "warm_up"),
    },
}
"""What each layer may import of ours, besides itself."""

FRONT_DOORS = {"magic", "cli", "integrations"}
BELOW_FRONT_DOORS = set(LAYERS)

LIBRARIES = {
    "trace": {"numpy", "pandas", "msgspec", "zstandard", "isal", "fsspec", "aiohttp"},
    "capture": {"torch", "cProfile", "numpy", "pandas"},
    "analyses": {"numpy", "pandas"},
    "views": {"bokeh", "numpy", "pandas", "matplotlib", "PIL", "rich"},
    "magic": {"IPython", "traitlets"},
    "warm_up": {"torch"},
    "explorer": {"anywidget", "bokeh", "ipywidgets", "numpy", "pandas", "traitlets"},
    "integrations": {"lightning", "pytorch_lightning", "transformers"},
    "exports": {"pandas"},
    "analysed": {"pandas"},
    "comparisons": {"pandas"},
    "run_history": {"numpy"},
    "many_ranks": {"numpy", "pandas", "dask", "distributed", "loky"},
    "option_parsing": {"click"},
    "commands": {"jupyter_client", "click", "rich", "pandas"},
    "cli": {"click", "rich"},
}
"""Libraries that a layer may name; cProfile is here because only capture may run it."""

WATCHED_STDLIB = {"cProfile"}


@dataclass(frozen=True)
class Import:
    """One import statement: the module it is in, its line, and the module it names."""

    module: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.module.relative_to(ROOT.parent)}:{self.line} imports {self.name}"

    @property
    def source(self) -> str:
        return layer_of(self.module.relative_to(ROOT).with_suffix("").parts)

    @property
    def target(self) -> str | None:
        """The layer of ours that it names, or None for other people's modules."""
        first, *rest = self.name.split(".")
        return layer_of(tuple(rest)) if first == ROOT.name else None


def layer_of(parts: tuple[str, ...]) -> str:
    """The top-level module or package that a module of ours is in."""
    return parts[0] if parts and parts[0] != "__init__" else "package"


def imports_in(path: Path, text: str | None = None) -> list[Import]:
    """All imports of a module, lazy ones included, `from a import b` as a.b where b is a module."""
    found = []
    for node in ast.walk(ast.parse(path.read_text() if text is None else text)):
        if isinstance(node, ast.Import):
            found += [Import(path, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            home = node.module or ""
            found += [Import(path, node.lineno, _named(home, alias.name)) for alias in node.names]
    return found


def _named(home: str, name: str) -> str:
    inside = ROOT.parent.joinpath(*home.split("."), name)
    is_module = inside.is_dir() or inside.with_suffix(".py").exists() or name in FRONT_DOORS
    return f"{home}.{name}" if home.split(".")[0] == ROOT.name and is_module else home


@cache
def all_imports() -> list[Import]:
    return [found for path in MODULES for found in imports_in(path)]


def allowed(layer: str) -> set[str]:
    """The layers of ours that this one may import."""
    if layer in FRONT_DOORS:
        return BELOW_FRONT_DOORS | {"package"}
    return LAYERS[layer]


def breaks_layers(found: Import) -> bool:
    source, target = found.source, found.target
    if target is None or source in (target, "package", "__main__"):
        return False
    if target == "package":  # it names what is in all others
        return source not in FRONT_DOORS
    return target not in allowed(source)


def test_imports_follow_the_layers() -> None:
    assert [str(found) for found in all_imports() if breaks_layers(found)] == []


def test_every_module_has_a_layer() -> None:
    known = set(LAYERS) | FRONT_DOORS | {"package", "__main__"}
    assert {found.source for found in all_imports()} <= known


def names_foreign_library(found: Import) -> bool:
    library = found.name.split(".")[0]
    ours = library == ROOT.name
    standard = library in sys.stdlib_module_names and library not in WATCHED_STDLIB
    if ours or standard or library == "__future__":
        return False
    return library not in LIBRARIES.get(found.source, set())


def test_libraries_are_named_by_their_layer_only() -> None:
    assert [str(found) for found in all_imports() if names_foreign_library(found)] == []


def test_no_two_modules_import_each_other() -> None:
    """No cycle of any length, lazy imports included, nor through the package of a module.

    Who imports a module of another package runs that package's ``__init__`` first.
    """
    edges: dict[str, set[str]] = defaultdict(set)
    for found in all_imports():
        if found.target is not None:
            source = _module_name(found.module)
            edges[source] |= {found.name, *_packages_entered(source, found.name)}
    done: set[str] = set()
    for start in list(edges):
        _visit(start, edges, [], done)


def test_no_files_of_the_page_import_each_other_in_a_ring() -> None:
    folder = ROOT / "views" / "extension"
    imports = {
        path: [
            (path.parent / name).with_suffix(".ts").resolve()
            for name in re.findall(r'from "(\.[^"]+)"', path.read_text(encoding="utf-8"))
        ]
        for path in [*folder.resolve().glob("*.ts"), *folder.resolve().glob("engine/*.ts")]
    }
    assert len(imports) > 50
    TopologicalSorter(imports).prepare()  # raises a CycleError that names the ring


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _packages_entered(source: str, target: str) -> set[str]:
    """The packages that hold the target and not the source."""
    parts = target.split(".")
    packages = {".".join(parts[:depth]) for depth in range(2, len(parts))}
    return {package for package in packages if not f"{source}.".startswith(f"{package}.")}


def _visit(module: str, edges: dict[str, set[str]], path: list[str], done: set[str]) -> None:
    assert module not in path, " -> ".join([*path[path.index(module) :], module])
    if module in done:
        return
    for target in sorted(edges.get(module, ())):
        _visit(target, edges, [*path, module], done)
    done.add(module)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("trace/model.py", "import gpuprof_widgets.analyses.operators"),
        ("trace/model.py", "def f():\n    from gpuprof_widgets.capture import recorder"),
        ("magic.py", "from gpuprof_widgets import cli"),
        ("profiles.py", "from gpuprof_widgets.capture import recorder"),
        ("trace/model.py", "import gpuprof_widgets"),
    ],
)
def test_the_check_sees_a_wrong_layer(module: str, line: str) -> None:
    assert all(breaks_layers(found) for found in imports_in(ROOT / module, line))


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("analyses/idle.py", "import torch"),
        (
            "trace/model.py",
            "try:\n    from bokeh.models import Plot\nexcept ImportError:\n    pass",
        ),
        ("profiling.py", "from lightning.pytorch import Callback"),
        ("analyses/idle.py", "import cProfile"),
        ("options.py", "import click"),
    ],
)
def test_the_check_sees_a_foreign_library(module: str, line: str) -> None:
    assert all(names_foreign_library(found) for found in imports_in(ROOT / module, line))


ROOMS = {
    "findings": (7699, 4500),
    "analyses": (16063, 14500),
    "trace": (12835, 12500),
    "capture": (10366, 8500),
    "views": (5714, 5000),
    "front doors": (6944, 6500),
    "page": (15184, 13000),
    "tests": (67353, 42000),
    "docs": (49953, 45000),
}
"""The most lines that a room may have (of the docs: words), and what it is to have in the end.

A limit above its budget only ever goes down: whoever makes a room smaller lowers it. The page
Contributing says how to argue for another one.
"""

SLACK = 100
"""So much below its limit a room may be before the limit has to follow."""

BUILT = {"dist", "build", "node_modules"}


def room_of(path: Path) -> str | None:
    """The room that a file of the repository counts for; None for none."""
    top, *rest = path.relative_to(ROOT.parent).parts
    if BUILT.intersection(rest) or rest[0] == "labextension":
        return None
    if top == ROOT.name and path.suffix in (".ts", ".js"):
        return None if path.name.endswith(".test.ts") else "page"
    if path.suffix != {"docs": ".md"}.get(top, ".py"):
        return None
    if top != ROOT.name:
        return top
    if rest[:2] == ["analyses", "findings"]:
        return "findings"
    return rest[0] if rest[0] in ROOMS else "front doors"


@cache
def sizes() -> Counter[str]:
    """The lines of each room, docstrings included, as ``wc -l`` counts them; of docs the words."""
    counted: Counter[str] = Counter()
    for top in (ROOT, ROOT.parent / "docs", ROOT.parent / "tests"):
        for path in top.rglob("*.*"):
            if path.is_file() and (room := room_of(path)):
                text = path.read_text(encoding="utf-8")
                counted[room] += len(text.split()) if room == "docs" else text.count("\n")
    return counted


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_grows(room: str) -> None:
    limit, budget = ROOMS[room]
    size = sizes()[room]
    assert size <= limit, f"{room}: {size - limit} too many: take something out"
    is_followed = size > limit - SLACK or limit == budget
    assert is_followed, f"{room} is smaller: lower its limit to {max(size, budget)}"


def test_every_file_counts_for_a_room_with_a_limit() -> None:
    assert set(sizes()) == set(ROOMS)
