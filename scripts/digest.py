"""A digest of everything that can be observed of profiles, to see what a change has changed.

    python scripts/digest.py FILES... --out before.json
    (change the code)
    python scripts/digest.py FILES... --against before.json
    python scripts/digest.py FILE --show "analysis/kernels"

Of each file: every analysis with each of its groupings, of the whole and of its middle third; how
the two compare; the findings; what the command line prints; the page's data, decoded; the static
part; the picture. Folders stand for all profiles in them. A test keeps the digest of the profiles
in tests/data: after a change that is meant, write it anew as `scripts/record_profiles.py` says.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pandas as pd
from click.testing import CliRunner

from gpuprof_widgets import Profile, load, ranks
from gpuprof_widgets.analyses import ANALYSES, Analysis, plain_analyses
from gpuprof_widgets.cli import GPUPROF
from gpuprof_widgets.comparisons import Comparison
from gpuprof_widgets.exceptions import GpuprofError
from gpuprof_widgets.views.encoding import encode
from gpuprof_widgets.views.picture import picture_png
from gpuprof_widgets.views.report import static_html, static_text

Options = dict[str, Any]

OPTIONS: Mapping[str, tuple[Options, ...]] = {
    "operators": (
        {"by_shape": True},
        {"stack_depth": 2},
        {"sort": "cpu_self", "top": 3},
    ),
    "kernels": ({"by": "geometry"}, {"by": "kind"}),
    "sequences": ({"length": 2}, {"op": "aten::addmm"}),
    "copies": ({"by": "kind"}, {"by": "op"}),
    "counters": ({"derived": False},),
    "breakdown": ({"by": "step"},),
    "overlaps": ({"by": "step"},),
    "idle": ({"by": "stream"}, {"back_to_back_ns": 100}),
    "streams": ({"by": "pair"}, {"by": "concurrency"}),
    "critical_path": tuple({"by": by} for by in ("kind", "op", "name", "module", "line")),
    "roofline": ({"by": "shape"}, {"by": "kernel"}),
    "analyze": (
        *({"side": side, "by": by} for side in ("device", "host") for by in ("name", "type")),
        *({"by": "name", "aggregate": aggregate} for aggregate in ("mean", "max", "min")),
        {"side": "host", "order_by": "+time", "top": 5},
    ),
    "collectives": ({"instances": True},),
    "call_tree": (
        *({"source": source} for source in ("ops", "merged", "cprofile")),
        *({"source": source, "time": "device"} for source in ("ops", "merged")),
    ),
    "attribution": tuple({"level": level} for level in ("op", "module", "line", "python")),
}
"""The groupings of each analysis besides its default."""

COMPARED = ("ops", "kernels", "modules", "lines", "functions", "breakdown", "steps", "call_tree")
"""The tables of a comparison."""

RANKS = ("breakdown", "steps", "stragglers", "collectives", "waits", "alignment", "functions")
"""The tables of several ranks."""

ASKED_OF_A_TRACE = 3
"""Of how many slices, names and workers those analyses are asked that take one."""


def observed(profile: Profile, path: Path) -> Iterator[tuple[str, str]]:
    """What can be observed of a profile that was read from there: name and text of each item.

    A name is a topic and, after a space, the options that it was computed with.
    """
    yield from _analyses("analysis", profile)
    start, end = profile.trace.start_ns, profile.trace.end_ns
    third = (end - start) // 3
    part = profile.window(start + third, end - third)
    yield from _analyses("middle", part)
    yield from _compared(profile.compare(part))
    for number, finding in enumerate(profile.findings()):
        yield f"finding/{finding.rule} {number}", repr(finding)
    yield from _printed(profile, path)
    yield from _page(profile)
    yield "static/html", static_html(profile)
    yield "static/text", static_text(profile)
    yield "picture", base64.b64encode(picture_png(profile)).decode()


def observed_ranks(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """What can be observed of the ranks of a job, side by side."""
    run = ranks([str(file) for file in files])
    for name in RANKS:
        yield f"ranks/{name}", table_text(getattr(run, name)())
    yield "ranks/collectives per rank", table_text(run.collectives(per_rank=True))
    yield "ranks/findings", repr(list(run.findings()))
    yield "ranks/static", json.dumps(run._repr_mimebundle_())


def _analyses(part: str, profile: Profile) -> Iterator[tuple[str, str]]:
    for analysis in plain_analyses():
        for options in ({}, *OPTIONS.get(analysis.name, ())):
            yield _answer(part, profile, analysis, options)
    for analysis in (row for row in ANALYSES.values() if row.example):
        for options in _questions(profile, analysis.name):
            yield _answer(part, profile, analysis, options)


def _questions(profile: Profile, name: str) -> Iterable[Options]:
    """What is asked of an analysis that has to be told of what."""
    if name == "what_if":
        names = profile.trace.slices["name"].value_counts().index[:ASKED_OF_A_TRACE]
        return [{"name": str(name), "scale": 0.5} for name in names]
    if name == "owners":
        rows = len(profile.trace)
        return [{"row": rows * part // ASKED_OF_A_TRACE} for part in range(ASKED_OF_A_TRACE)]
    if name == "worker_calls":
        return [
            {"worker": worker} for worker in range(min(ASKED_OF_A_TRACE, len(profile.workers())))
        ]
    return OPTIONS[name]


def _answer(part: str, profile: Profile, analysis: Analysis, options: Options) -> tuple[str, str]:
    name = " ".join([analysis.name, *(f"{key}={value}" for key, value in options.items())])
    try:
        text = table_text(analysis.function(profile, **options))
    except Exception as error:  # a crash is an answer as well: it is to be seen
        text = f"{type(error).__name__}: {error}"
    return f"{part}/{name}", text


def table_text(table: pd.DataFrame) -> str:
    """All of a table: columns, types, index, what is said of it, and its values.

    Numbers that are no whole ones have nine digits: the last ones depend on the order of sums.
    """
    types = ", ".join(f"{name}: {kind}" for name, kind in table.dtypes.items())
    attrs = {key: _plain(value) for key, value in sorted(table.attrs.items())}
    values = table.to_csv(float_format="%.9g", lineterminator="\n")
    return f"{types}\n{attrs}\n{values}"


def _plain(value: Any) -> str:
    return table_text(value) if isinstance(value, pd.DataFrame) else repr(value)


def _compared(comparison: Comparison) -> Iterator[tuple[str, str]]:
    for name in COMPARED:
        yield f"comparison/{name}", table_text(getattr(comparison, name)())
    yield "comparison/findings", repr(comparison.findings())
    yield "comparison/static", json.dumps(comparison._repr_mimebundle_())


def _printed(profile: Profile, path: Path) -> Iterator[tuple[str, str]]:
    """What `gpuprof COMMAND FILE` prints, by the command; the file is not read once more."""
    before = Profile.load
    Profile.load = classmethod(lambda cls, path: profile)  # type: ignore[assignment, method-assign]
    try:
        for name in (*(analysis.name for analysis in plain_analyses()), "findings"):
            done = CliRunner().invoke(GPUPROF, [name, str(path)], env={"COLUMNS": "160"})
            yield f"command/{name}", f"{done.exit_code}\n{done.output}"
    finally:
        Profile.load = before  # type: ignore[method-assign]


def _page(profile: Profile) -> Iterator[tuple[str, str]]:
    """The payload of the page: each part of its header, each panel, each column."""
    payload = encode(profile)
    raw = gzip.decompress(base64.b64decode(payload.text))
    length = int.from_bytes(raw[:4], "little")
    header = json.loads(raw[4 : 4 + length])
    for panel in header.pop("panels"):
        yield f"page/panel_{panel['name'].replace(' ', '_')}", json.dumps(panel)
    offset = 4 + length
    for column in header["columns"]:
        size = column["width"] * header["rows"]
        yield f"page/column_{column['name']}", raw[offset : offset + size].hex()
        offset += size
    yield "page/arrays", raw[offset:].hex()
    for key, value in header.items():
        yield f"page/{key}", json.dumps(value)


@cache
def digest(files: tuple[Path, ...]) -> dict[str, str]:
    """The short hash of every topic of a file; of one that cannot be read that of the error.

    A topic is an item, with all its options: "analysis/kernels". Several files are ranks of a job.
    """
    topics: defaultdict[str, str] = defaultdict(str)
    for name, text in _observed(files):
        topics[name.partition(" ")[0]] += f"{name}\n{text}\n"
    return {topic: _hash(text) for topic, text in topics.items()}


def _observed(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    if len(files) > 1:
        yield from observed_ranks(files)
        return
    (path,) = files
    try:
        profile = load(path)
    except GpuprofError as error:
        yield "error", str(error).replace(str(path), path.name)
    else:
        yield from observed(profile, Path(path.name))


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What differs between two digests of one file, an item each."""
    return [
        f"{name}: {'gone' if name not in after else 'new' if name not in before else 'changed'}"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


NO_PROFILES = (".md", ".key_averages.json")
"""How files end that lie beside profiles: texts, and torch's own table of a trace."""


def subjects(paths: Iterable[Path]) -> dict[str, tuple[Path, ...]]:
    """The files named, those in the folders named, and the ranks of a job, by what to call them."""
    named: dict[str, tuple[Path, ...]] = {}
    jobs: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        inside = sorted(
            each
            for each in path.rglob("*")
            if each.is_file() and not each.name.endswith(NO_PROFILES)
        )
        for file in inside or [path]:
            named[str(file.relative_to(path.parent))] = (file,)
            if re.search(r"rank\d+\.", file.name):
                jobs[file.parent].append(file)
    return named | {f"{folder.name} (ranks)": tuple(files) for folder, files in jobs.items()}


def main() -> None:
    """Write the digest, compare it with one written before, or show the text of an item."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="write the digest there")
    parser.add_argument("--against", type=Path, help="say what differs from this one")
    parser.add_argument("--show", help="print the texts of this topic")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    chosen = parser.parse_args()
    files = subjects(chosen.files)
    if chosen.show:
        for subject, paths in files.items():
            for name, text in _observed(paths):
                if name.partition(" ")[0] == chosen.show:
                    print(f"{subject}: {name}\n{text}")
        return
    with ProcessPoolExecutor(chosen.jobs) as pool:
        digests = dict(zip(files, pool.map(digest, files.values()), strict=True))
    if chosen.out:
        chosen.out.write_text(json.dumps(digests, indent=0, sort_keys=True) + "\n")
    if chosen.against:
        before = json.loads(chosen.against.read_text())
        wrong = {name: differences(before.get(name, {}), digests[name]) for name in digests}
        for name, items in wrong.items():
            print(*(f"{name}: {item}" for item in items), sep="\n", end="\n" if items else "")
        sys.exit(any(wrong.values()))


if __name__ == "__main__":
    main()
