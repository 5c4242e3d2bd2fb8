"""The files that list dependencies name the same things: pyproject, constraints, conda, docs."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from trove_classifiers import classifiers

import gpuprof_widgets

ROOT = Path(__file__).parents[1]
CONDA_NAMES = {
    "torch": "pytorch",
    "matplotlib": "matplotlib-base",
    "jupyter-client": "jupyter_client",
    "isal": "python-isal",  # conda-forge's isal is the library in C
}
FOR_USERS = ("dask", "parquet", "remote")
OLDEST_CPU_TORCH = "2.13.0"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OTHERS = [
    requirement
    for extra in EXTRAS.values()
    for requirement in extra
    if not requirement.startswith(PROJECT["name"])
]
EVERYTHING = [*PROJECT["dependencies"], *OTHERS]


def name_of(requirement: str) -> str:
    return re.split(r"[<>=\[ ]", requirement)[0]


def conda_spelling(requirement: str) -> str:
    name = name_of(requirement)
    bound = requirement.removeprefix(name).partition(";")[0]
    return CONDA_NAMES.get(name, name) + bound


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_conda_installs_the_dependencies_of_the_project() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *conda, pip = environment["dependencies"]
    assert conda[0] == f"python{PROJECT['requires-python']}"
    assert conda[1] == "pip"
    assert sorted(conda[2:]) == sorted(map(conda_spelling, PROJECT["dependencies"]))
    assert pip == {"pip": ["-e ."]}


def test_the_lowest_versions_are_those_of_pyproject() -> None:
    """But for torch, whose lowest version has no build without CUDA on a package index."""
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pinned = {
        canonicalize_name(name): Version(version)
        for name, version in (line.split("==") for line in lines if not line.startswith("#"))
    }
    users = [*PROJECT["dependencies"], *(one for extra in FOR_USERS for one in EXTRAS[extra])]
    bounds = {
        canonicalize_name(one.name): Version(bound.version)
        for one in map(Requirement, users)
        for bound in one.specifier
    }
    bounds["torch"] = Version(OLDEST_CPU_TORCH)
    assert {name: pinned[name] for name in bounds} == bounds
    scripts = runpy.run_path(str(ROOT / "scripts" / "lowest_versions.py"))
    assert (scripts["FOR_USERS"], scripts["OLDEST_CPU_TORCH"]) == (FOR_USERS, OLDEST_CPU_TORCH)


def test_every_address_of_the_project_is_in_its_repository() -> None:
    repository = PROJECT["urls"]["Repository"]
    assert set(PROJECT["urls"]) == {
        *("Homepage", "Documentation", "Repository", "Issues", "Changelog"),
    }
    named = [
        *(ROOT / name for name in ("CITATION.cff", "SECURITY.md", "CODE_OF_CONDUCT.md")),
        *sorted((ROOT / ".github").rglob("*.yml")),
    ]
    texts = [*PROJECT["urls"].values(), *(path.read_text() for path in named)]
    found = {
        url for text in texts for url in re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", text)
    }
    assert found == {repository}


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == gpuprof_widgets.__version__
    assert citation["license"] == PROJECT["license"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{citation['version']}] - {citation['date-released']}\n" in changelog


def test_the_changelog_has_a_date_for_each_version() -> None:
    headings = re.findall("(?m)^## (.*)$", (ROOT / "CHANGELOG.md").read_text())
    assert headings[0] == "[Unreleased]"
    for heading in headings[1:]:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", heading), heading


def test_the_classifiers_exist_and_name_the_pythons_that_ci_runs() -> None:
    assert set(PROJECT["classifiers"]) <= classifiers
    named = {one.split(" :: ")[-1] for one in PROJECT["classifiers"] if ":: Python :: 3." in one}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    matrix = workflow["jobs"]["all"]["strategy"]["matrix"]["include"]
    assert {entry["python"] for entry in matrix} == named
    script = (ROOT / "scripts" / "other_pythons.sh").read_text()
    assert f"versions='{' '.join(sorted(named))}'" in script


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")))
def test_issue_forms_ask_for_versions(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert set(form) == {"name", "description", "labels", "body"}
    by_id = {field["id"]: field for field in form["body"]}
    assert len(by_id) == len(form["body"])
    assert by_id["versions"]["validations"] == {"required": True}
    assert all(field["attributes"]["label"] for field in form["body"])


def test_constraints_pin_torch_without_a_local_version() -> None:
    assert pins()["torch"] == "2.13.0"


def test_every_dependency_has_its_reason() -> None:
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    named = map(name_of, EVERYTHING)
    assert [name for name in named if f"| {name} |" not in reasons] == []


def reached() -> Iterator[Requirement]:
    """What the project asks for, what that asks for, and so on, as it is installed here."""
    waiting = [Requirement(text) for text in EVERYTHING]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        yield requirement
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        waiting += asked_by(requirement)


def asked_by(requirement: Requirement) -> list[Requirement]:
    """What an installed package asks for on this platform, with its extras."""
    asked = map(Requirement, distribution(requirement.name).requires or ())
    return [one for one in asked if one.marker is None or wanted(one.marker, requirement.extras)]


def wanted(marker: Marker, extras: set[str]) -> bool:
    return any(marker.evaluate({"extra": extra}) for extra in {"", *extras})


def test_constraints_pin_all_that_is_reached_at_versions_that_are_asked_for() -> None:
    """No package comes along that CI does not know, and none in a version that another forbids."""
    pinned = {canonicalize_name(name): version for name, version in pins().items()}
    asked = [one for one in reached() if not PLATFORM.match(one.name)]
    assert len(asked) > 150
    assert {one.name for one in asked if canonicalize_name(one.name) not in pinned} == set()
    wrong = [str(o) for o in asked if pinned[canonicalize_name(o.name)] not in o.specifier]
    assert wrong == []


PLATFORM = re.compile("nvidia-|cuda-|triton|setuptools")
"""What a torch for GPUs brings along, which CI has not, and what every environment has."""
