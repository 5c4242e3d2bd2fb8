"""A record without what tells of its author and their machine, for handing on.

Gone: the host's name, paths (of a file its name stays, of one in an installed package its place in
that), users' names where a path gives them away, the platform, the text of cells and lines, error
messages, and whatever of the metadata is not in `KEPT`. Two files never get one name. What stays:
all times and sizes, and the names of ops, kernels, functions, modules, variables, annotations and
threads, apart from what of the above is in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.events import from_codes
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.python_frames import BUILT_IN, place

KEPT = frozenset(
    (
        *("created", "execution_count", "interrupted", "label", "lines", "memory", "modules"),
        *("allocator_settings", "framework", "memory_segments"),
        *("guards", "notes", "options", "overhead", "steps", "stop_ns", "wall_ns", "workers"),
        *("cuda", "deterministic", "devices", "python", "rank", "torch", "world_size"),
        *("baseTimeNanoseconds", "cuda_driver_version", "cuda_runtime_version", "cupti_version"),
        *("deviceProperties", "displayTimeUnit", "distributedInfo", "profile_memory"),
        *("profiler_spans", "record_shapes", "schema_version", "with_flops", "with_modules"),
        *("duration_s", "export", "memory_segments", "recorded_by", "recorder", "with_stack"),
        *("sampled", "window_ns"),
    )
)
"""Metadata that analyses and views use, or that tells nothing of anybody."""

HOST_KEYS = ("host", "hostname", "host_name")
TELLING_KEYS = frozenset((*HOST_KEYS, "cell_source", "cmdline", "cwd", "env", "environ", "user"))
"""Keys of args and, at any depth, of metadata that are left out with all that they hold."""

AnyRecord = TypeVar("AnyRecord", bound=Record)

ELLIPSIS = "…"

_PACKAGES = re.compile(r".*/(?:site|dist)-packages/|.*/lib/python3[^/]*/", re.IGNORECASE)
_HOME = re.compile(
    r"(?<![\w/\\.])(?:[a-z]:)?[/\\](?:home|users)[/\\]([^/\\\s:;,'\"]+)", re.IGNORECASE
)
_END = r"[^\s/\\:;,'\"`<>|()\[\]{}*?]"
_PATH = re.compile(
    rf"(?:file://|(?<![\w/\\.~)-]))(?:~[\w.-]*|\.\.(?:/\.\.)*)?/(?:{_END}+/)+{_END}*"
    rf"|(?<![\w/\\])~[\w.-]*/{_END}+"
    rf"|(?<!\w)[A-Za-z]:[\\/](?:{_END}+[\\/])*{_END}*"
    rf"|(?<![\w\\])\\\\{_END}+(?:\\{_END}+)+"
)
_QUOTED_CODE = re.compile(r"`[^`]*`")
_SHORTEST_NAME = 3
_NO_ONE = frozenset(("localhost", "root"))


def redacted(record: AnyRecord) -> AnyRecord:
    """The record as it can be handed on (see above); times, counts and links are unchanged."""
    names = _Names(record)
    return replace(
        record,
        trace=_trace(record.trace, names),
        calls=None if record.calls is None else _calls(record.calls, names),
        metadata=_metadata(record.metadata, names),
        calls_of_workers={
            names.text(worker): _calls(calls, names)
            for worker, calls in record.calls_of_workers.items()
        },
    )


class _Names:
    """Texts without paths, hosts and users; the same text always becomes the same."""

    def __init__(self, record: Record) -> None:
        self._short: dict[str, str] = {}
        self._taken: set[str] = set()
        self._texts: dict[str, str] = {}
        files = _files(record)
        texts = [*files, *_all_texts(record.metadata)]
        users = {found[1] for text in texts for found in _HOME.finditer(text)}
        hosts = _hosts(record.metadata)
        self._places = _places(files | set(filter(_is_path, _all_texts(record.metadata))), files)
        told = {one for one in (*hosts, *users) if len(one) >= _SHORTEST_NAME}
        self._identities = _words(told - _NO_ONE)
        self._identity = {word.lower(): "host" for word in hosts}

    def file(self, path: str) -> str:
        """The name of a file, or its place in its package; another one than any other file's."""
        if path not in self._short:
            self._short[path] = self._free(_last_part(path))
            self._taken.add(self._short[path])
        return self._short[path]

    def _free(self, name: str) -> str:
        number, found = 1, self._without_identities(name)
        while found in self._taken:
            number += 1
            found = f"{name}~{number}"
        return found

    def text(self, text: str) -> str:
        """A text in which paths may stand."""
        if text not in self._texts:
            plain = self._places.sub(
                lambda found: self._path(found[0].removeprefix("file://")), text
            )
            plain = _PATH.sub(lambda found: self._path(found[0].removeprefix("file://")), plain)
            self._texts[text] = self._without_identities(plain)
        return self._texts[text]

    def frame(self, name: str) -> str:
        """A Python frame as torch writes it: ``/home/me/train.py(12): step``."""
        file, line, function = place(name)
        if file == BUILT_IN:
            return self.text(name)
        return f"{self.file(file)}({line}): {self.text(function)}"

    def value(self, value: Any) -> Any:
        """All texts in what JSON can hold."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(str(key)): self.value(given)
                for key, given in value.items()
                if str(key).lower() not in TELLING_KEYS
            }
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return value

    def _path(self, path: str) -> str:
        """Of a file its name stays; a folder may be named after anything."""
        is_file = path in self._short or "." in _last_part(path).strip(".")
        return self.file(path) if is_file else ELLIPSIS

    def _without_identities(self, text: str) -> str:
        return self._identities.sub(
            lambda found: self._identity.get(found[0].lower(), "user"), text
        )


def _last_part(path: str) -> str:
    """``torch/nn/modules/linear.py`` of an installed file, ``train.py`` of any other."""
    posix = path.replace("\\", "/")
    inside = _PACKAGES.match(posix)
    if inside:
        return posix[inside.end() :]
    told = posix.rstrip("/").rpartition("/")[2]
    return "~" if _HOME.fullmatch(posix.rstrip("/")) or not told else told


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~/")) and "\n" not in text


def _places(paths: Iterable[str], files: Iterable[str]) -> re.Pattern[str]:
    """These files, and whatever is in one of their folders: the only paths found with spaces."""
    folders = {str(one) for path in paths for one in PurePosixPath(path).parents}
    deep = sorted((one for one in folders if one.count("/") > 1), key=len, reverse=True)
    known = [*map(re.escape, sorted(files, key=len, reverse=True))]
    inside = [rf"{re.escape(folder)}(?:/{_END}*)*" for folder in deep]
    return re.compile(f"(?:file://)?(?:{'|'.join([*known, *inside]) or '(?!)'})")


def _words(known: Iterable[str]) -> re.Pattern[str]:
    words = sorted(map(re.escape, known), key=len, reverse=True)
    any_of = "|".join(words) or "(?!)"
    return re.compile(rf"(?<![A-Za-z0-9:-])(?:{any_of})(?![A-Za-z0-9-])", re.IGNORECASE)


def _hosts(metadata: Mapping[str, Any]) -> set[str]:
    """The names of the host, whole and without its domain."""
    given = {str(metadata[key]) for key in HOST_KEYS if metadata.get(key)}
    return given | {name.partition(".")[0] for name in given}


def _files(record: Record) -> set[str]:
    """Every file with its folder that Python functions and frames name."""
    calls = [record.calls, *record.calls_of_workers.values()]
    files = {str(file) for one in calls if one is not None for file in one.functions["file"]}
    slices = record.trace.slices
    frames = slices.loc[(slices["category"] == "python_function").to_numpy(), "name"].unique()
    files |= {place(str(name))[0] for name in frames}
    return set(filter(_has_folder, files))


def _all_texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        return [text for one in inner for text in _all_texts(one)]
    return []


def _metadata(metadata: Mapping[str, Any], names: _Names) -> dict[str, Any]:
    kept = {key: value for key, value in metadata.items() if key in KEPT}
    found: dict[str, Any] = names.value(kept)
    if metadata.get("error"):
        found["error"] = str(metadata["error"]).partition(":")[0]  # the message may say anything
    if isinstance(found.get("options"), dict):
        found["options"] = {**found["options"], "save": None}
    if isinstance(found.get("lines"), dict):
        cells = [{**cell, "source": ""} for cell in found["lines"].get("cells", ())]
        found["lines"] = {**found["lines"], "cells": cells}
    if "notes" in found:
        found["notes"] = [_QUOTED_CODE.sub(f"`{ELLIPSIS}`", str(one)) for one in found["notes"]]
    return found


def _calls(calls: Calls, names: _Names) -> Calls:
    functions = calls.functions
    return replace(
        calls,
        functions=functions.assign(
            file=_changed(
                functions["file"], lambda file: names.file(file) if _has_folder(file) else file
            ),
            name=_changed(functions["name"], names.text),
        ),
    )


def _changed(texts: pd.Series, change: Callable[[str], str]) -> pd.Series:
    """Another text for each, in a column of the same type."""
    changed = [change(str(text)) for text in texts]
    return pd.Series(changed, index=texts.index, dtype=texts.dtype)


def _has_folder(file: str) -> bool:
    return "/" in file or "\\" in file


def _trace(trace: Trace, names: _Names) -> Trace:
    tracks = trace.tracks
    texts = {key: _changed(tracks[key], names.text) for key in ("label", "process", "thread")}
    counted = trace.counters["name"].cat
    return replace(
        trace,
        slices=trace.slices.assign(name=_slice_names(trace, names)),
        tracks=tracks.assign(**texts),
        counters=trace.counters.assign(
            name=from_codes(
                counted.codes.to_numpy().astype(np.int32),
                [names.text(str(name)) for name in counted.categories],
            )
        ),
        args={
            key: _arg(values, names)
            for key, values in trace.args.items()
            if key.lower() not in TELLING_KEYS
        },
    )


def _slice_names(trace: Trace, names: _Names) -> pd.Categorical:
    """By name and category: of a cell's line its number stays, of a frame its function."""
    name, category = trace.slices["name"].cat, trace.slices["category"].cat
    width = max(len(category.categories), 1)
    pairs = name.codes.to_numpy().astype(np.int64) * width + category.codes.to_numpy()
    distinct, code = np.unique(pairs, return_inverse=True)
    texts = [
        _slice_name(
            str(name.categories[pair // width]), str(category.categories[pair % width]), names
        )
        for pair in distinct.tolist()
    ]
    return from_codes(code.reshape(-1).astype(np.int32), texts)


def _slice_name(name: str, category: str, names: _Names) -> str:
    if category == "cell_line":
        return name.partition(":")[0]
    return names.frame(name) if category == "python_function" else names.text(name)


def _arg(values: pd.Series, names: _Names) -> pd.Series:
    if values.dtype != object:
        return values
    # Equal lists are one object (see `Args`): each is looked through once.
    known: dict[int, Any] = {}
    given = values.tolist()
    changed = np.empty(len(given), dtype=object)
    for row, value in enumerate(given):
        if id(value) not in known:
            known[id(value)] = names.value(value)
        changed[row] = known[id(value)]
    return pd.Series(changed, index=values.index, dtype=object)
