"""Redact a record: remove what identifies its author and their machine, so that it can be shared.

Removed are the host's name, paths (a file keeps its name, a file of an installed package its path
in the package), users' names, passwords and tokens (`identities`), the platform, the text of cells
and lines, error messages, and all metadata but `KEPT`. Two files never get the same name. Times and
sizes stay, and so do the names of ops, kernels, functions, modules, variables, annotations and
threads, except for parts of the above in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from gpuprof_widgets.trace.events import from_codes
from gpuprof_widgets.trace.identities import (
    HIDDEN,
    Identities,
    is_home,
    names_secret,
    without_secrets,
    without_values_of_options,
)
from gpuprof_widgets.trace.libraries import PACKAGES
from gpuprof_widgets.trace.model import Calls, Record, Trace
from gpuprof_widgets.trace.pstats import BUILT_IN, function_place
from gpuprof_widgets.trace.schema import RUNTIME_ENDINGS
from gpuprof_widgets.trace.tracks import kind_of

KEPT = frozenset(
    (
        *("created", "execution_count", "interrupted", "label", "lines", "memory", "modules"),
        *("allocator_settings", "framework", "memory_segments"),
        *("guards", "notes", "options", "overhead", "steps", "stop_ns", "wall_ns", "workers"),
        "own_torch_profiler",
        *("cuda", "deterministic", "devices", "python", "rank", "torch", "world_size"),
        *("baseTimeNanoseconds", "cuda_driver_version", "cuda_runtime_version", "cupti_version"),
        *("deviceProperties", "displayTimeUnit", "distributedInfo", "profile_memory"),
        *("profiler_spans", "record_shapes", "schema_version", "with_flops", "with_modules"),
        *("compilations", "gc"),
        *("export", "recorded_by", "recorder", "with_stack"),
        *("sampled", "python_samples", "window_ns"),
        *("anomaly_mode", "cpu_bf16", "cpu_use", "cpus", "torch_threads"),
    )
)
"""Metadata that analyses and views use, or that identifies nobody."""

HOST_KEYS = ("host", "hostname", "host_name")
USER_KEYS = ("user", "username", "user_name", "logname")
TELLING_KEYS = frozenset(
    (
        *(*HOST_KEYS, *USER_KEYS),
        *("cell_source", "cmdline", "cwd", "env", "environ", "environment", "home"),
    )
)
"""Keys of args, and of metadata at any depth, that are removed with their values."""

AnyRecord = TypeVar("AnyRecord", bound=Record)

_END = r"[^\s/\\:;,'\"`<>|()\[\]{}*?]"
_PATH = re.compile(
    rf"(?:file://|(?<![\w/\\.~)-])|(?<=(?<!\w)-[ILD]))(?:~[\w.-]*|\.\.(?:/\.\.)*)?/(?:{_END}+/)+{_END}*"
    rf"|(?<![\w/\\])~[\w.-]*/{_END}+"
    rf"|(?<!\w)[A-Za-z]:[\\/](?:{_END}+[\\/])*{_END}*"
    rf"|(?<![\w\\])\\\\{_END}+(?:\\{_END}+)+"
)
_OF_LIBRARIES = re.compile(
    r"aten::|cuda|nccl|rccl|triton_(?:poi|red|per)_|(?:void )?(?:"
    r"(?:at|c10d?|cub|thrust|cutlass|cute|cudnn|cublas\w*|ck|rocprim)::"
    r"|(?:cudnn|cublas|cutlass|ampere|volta|turing|hopper|maxwell|sm\d+|Cijk)_)"
)
"""Starts of the names of ops and kernels that no user gave."""
_QUOTED_VALUE = re.compile(r"((?:==|!=|\bin|\bis(?: not)?) *)['\"].*")
_QUOTED_CODE = re.compile(r"`[^`]*`")


def redacted(record: AnyRecord) -> AnyRecord:
    """Return the record as it can be shared (see above); times, counts and links do not change."""
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
    """Removes paths, hosts and users from texts; equal texts become equal."""

    def __init__(self, record: Record) -> None:
        self._short: dict[str, str] = {}
        self._taken: set[str] = set()
        self._texts: dict[str, str] = {}
        files = _files(record)
        metadata = list(_texts(record.metadata))
        texts = [*metadata, *_texts_of_trace(record.trace)]
        words = [(key, text) for key, text in texts if re.fullmatch(r"\S+", text)]
        paths = {t for _, t in metadata if t.startswith(("/", "~/")) and "\n" not in t}
        self._places = _places(files | paths, files)
        self._identities = Identities(
            [*files, *dict.fromkeys(text for _, text in texts)],
            users=[text for key, text in words if key in USER_KEYS],
            hosts=[text for key, text in words if key in HOST_KEYS],
            of_field=[_PATH.sub("", self._places.sub("", name)) for name in _fixed(record.trace)],
        )

    def file(self, path: str) -> str:
        """Return the name of a file, or its path in its package; each file has its own."""
        if path not in self._short:
            self._short[path] = self._free(_last_part(path))
            self._taken.add(self._short[path])
        return self._short[path]

    def _free(self, name: str) -> str:
        plain = self._identities.without(name)
        number, free = 1, plain
        while free in self._taken:
            number += 1
            free = f"{plain}~{number}"
        return free

    def text(self, text: str) -> str:
        """Redact a text, in which paths may stand."""
        if text not in self._texts:
            self._texts[text] = self._identities.without(self.fixed(without_secrets(text)))
        return self._texts[text]

    def fixed(self, name: str) -> str:
        """Remove only the paths from a name, because no user gave it."""
        for paths in (self._places, _PATH):
            name = paths.sub(lambda match: self._path(match[0].removeprefix("file://")), name)
        return name

    def frame(self, name: str) -> str:
        """Redact a Python frame that torch names like ``/home/me/train.py(12): step``."""
        file, line, function = function_place(name)
        if file == BUILT_IN:
            return self.text(name)
        return f"{self.file(file)}({line}): {self.text(function)}"

    def value(self, value: Any) -> Any:
        """Redact all texts in a value of JSON; nothing is kept of a value nested too deeply."""
        try:
            return self._value(value)
        except RecursionError:
            return HIDDEN

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {
                self.text(str(key)): self._value(inner)
                for key, inner in value.items()
                if not _is_telling(str(key), of_number=isinstance(inner, int | float))
            }
        if isinstance(value, list | tuple):
            return [self._value(item) for item in without_values_of_options(value)]
        return value

    def _path(self, path: str) -> str:
        """Redact a path: a file keeps its name; a folder, which may have any name, does not."""
        is_file = path in self._short or "." in _last_part(path).strip(".")
        return self.file(path) if is_file else HIDDEN


def _last_part(path: str) -> str:
    """Return ``torch/nn/modules/linear.py`` for an installed file, ``train.py`` for any other."""
    posix = path.replace("\\", "/")
    inside = PACKAGES.match(posix)
    if inside:
        return posix[inside.end() :]
    name = posix.rstrip("/").rpartition("/")[2]
    return "~" if is_home(posix.rstrip("/")) or not name else name


def _places(paths: Iterable[str], files: Iterable[str]) -> re.Pattern[str]:
    """Match these files, and all paths in their folders; only these may have spaces."""
    folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
    deep = sorted((f for f in folders if f.count("/") > 1), key=len, reverse=True)
    known = [*map(re.escape, sorted(files, key=len, reverse=True))]
    inside = [rf"{re.escape(folder)}(?:/{_END}*)*" for folder in deep]
    return re.compile(f"(?:file://)?(?:{'|'.join([*known, *inside]) or '(?!)'})")


def _files(record: Record) -> set[str]:
    """Return all files of Python functions and frames that are named with a folder."""
    tables = [record.calls, *record.calls_of_workers.values()]
    files = {str(file) for calls in tables if calls is not None for file in calls.functions["file"]}
    slices = record.trace.slices
    frames = slices.loc[(slices["category"] == "python_function").to_numpy(), "name"].unique()
    files |= {function_place(str(name))[0] for name in frames}
    return {file for file in files if "/" in file or "\\" in file}


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in a value of JSON, each with its key in lower case."""
    values = [(key.lower(), value)]
    while values:
        key, value = values.pop()
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, Mapping):
            yield from (("", str(inner)) for inner in value)
            values += [(str(inner).lower(), item) for inner, item in value.items()]
        elif isinstance(value, list | tuple):
            values += [(key, item) for item in value]


def _texts_of_trace(trace: Trace) -> Iterator[tuple[str, str]]:
    """Yield all texts of a trace, in its names and args, each with its key in lower case."""
    names = (trace.slices["name"], trace.slices["category"], trace.counters["name"])
    for column in names:
        yield from (("", str(text)) for text in column.cat.categories)
    for key in ("label", "process", "thread"):
        yield from (("", str(text)) for text in trace.tracks[key].unique())
    for key, values in trace.args.items():
        yield "", key
        if values.dtype == object:  # equal lists are one object (see `Args`)
            for value in {id(value): value for value in values.tolist()}.values():
                yield from _texts(value, key)


def _is_fixed(name: str, category: str) -> bool:
    """Whether no user gave this name: copies, calls of the runtime, kernels of libraries."""
    if category == "kernel":
        return _OF_LIBRARIES.match(name) is not None
    return category in ("gpu_memcpy", "gpu_memset") or category.endswith(RUNTIME_ENDINGS)


def _fixed(trace: Trace) -> set[str]:
    """Return the names that no user gave, those of libraries' ops included."""
    pairs = trace.slices[["name", "category"]].drop_duplicates()
    return {
        str(name)
        for name, category in zip(pairs["name"], pairs["category"], strict=True)
        if _is_fixed(str(name), category) or _OF_LIBRARIES.match(str(name))
    }


def _is_telling(key: str, *, of_number: bool) -> bool:
    """Whether a key of args or metadata is removed with its value."""
    return key.lower() in TELLING_KEYS or names_secret(key, of_number=of_number)


def _metadata(metadata: Mapping[str, Any], names: _Names) -> dict[str, Any]:
    kept = {key: value for key, value in metadata.items() if key in KEPT}
    plain: dict[str, Any] = names.value(kept)
    if metadata.get("error"):
        plain["error"] = str(metadata["error"]).partition(":")[0]  # the message may say anything
    if isinstance(plain.get("options"), dict):
        plain["options"] = {**plain["options"], "save": None}
    if isinstance(plain.get("lines"), dict):
        cells = [{**cell, "source": ""} for cell in plain["lines"].get("cells", ())]
        plain["lines"] = {**plain["lines"], "cells": cells}
    if isinstance(plain.get("python_samples"), dict):
        plain["python_samples"] = {**plain["python_samples"], "code": {}}
    if isinstance(plain.get("compilations"), list):
        # The texts with which a guard compares are values of the program.
        plain["compilations"] = [
            entry | {"reason": _QUOTED_VALUE.sub(rf"\1'{HIDDEN}'", str(entry.get("reason", "")))}
            if isinstance(entry, dict)
            else entry
            for entry in plain["compilations"]
        ]
    if "notes" in plain:
        plain["notes"] = [_QUOTED_CODE.sub(f"`{HIDDEN}`", str(note)) for note in plain["notes"]]
    return plain


def _calls(calls: Calls, names: _Names) -> Calls:
    functions = calls.functions
    return replace(
        calls,
        functions=functions.assign(
            file=_changed(
                functions["file"],
                lambda file: names.file(file) if "/" in file or "\\" in file else file,
            ),
            name=_changed(functions["name"], names.text),
        ),
    )


def _changed(texts: pd.Series, change: Callable[[str], str]) -> pd.Series:
    """Change each text, in a column of the same type."""
    changed = [change(str(text)) for text in texts]
    return pd.Series(changed, index=texts.index, dtype=texts.dtype)


def _trace(trace: Trace, names: _Names) -> Trace:
    slices, tracks, counters = trace.slices, trace.tracks, trace.counters
    texts = {key: _changed(tracks[key], names.text) for key in ("label", "process", "thread")}

    def category(written: str) -> str:  # without a meaning to us, a program may write anything
        return names.text(written) if kind_of(written) == "other" else written

    return replace(
        trace,
        slices=slices.assign(
            name=_slice_names(trace, names), category=_recoded(slices["category"], category)
        ),
        tracks=tracks.assign(**texts),
        counters=counters.assign(name=_recoded(counters["name"], names.text)),
        args=_args(trace, names),
    )


def _recoded(column: pd.Series, change: Callable[[str], str]) -> pd.Categorical:
    """Change the dictionary of a column of texts."""
    texts = [change(str(text)) for text in column.cat.categories]
    return from_codes(column.cat.codes.to_numpy().astype(np.int32), texts)


def _args(trace: Trace, names: _Names) -> dict[str, pd.Series]:
    """Redact the args, in the order of their new keys, as files are read.

    Where two keys become equal, the second gets a number.
    """
    args: dict[str, pd.Series] = {}
    for key, values in trace.args.items():
        if _is_telling(key, of_number=values.dtype != object):
            continue
        plain, number = names.text(key), 1
        while plain in args:
            number += 1
            plain = f"{names.text(key)}~{number}"
        args[plain] = _arg(values, names)
    return dict(sorted(args.items()))


def _slice_names(trace: Trace, names: _Names) -> pd.Categorical:
    """Redact names by category: a cell's line keeps its number, a frame its function."""
    name, category = trace.slices["name"].cat, trace.slices["category"].cat
    width = max(len(category.categories), 1)
    pairs = name.codes.to_numpy().astype(np.int64) * width + category.codes.to_numpy()
    distinct, code = np.unique(pairs, return_inverse=True)
    texts = [
        _slice_name(str(name.categories[code]), str(category.categories[of]), names)
        for code, of in (divmod(pair, width) for pair in distinct.tolist())
    ]
    return from_codes(code.reshape(-1).astype(np.int32), texts)


def _slice_name(name: str, category: str, names: _Names) -> str:
    if category == "cell_line":
        return name.partition(":")[0]
    if _is_fixed(name, category):
        return names.fixed(name)
    return names.frame(name) if category == "python_function" else names.text(name)


def _arg(values: pd.Series, names: _Names) -> pd.Series:
    if values.dtype != object:
        return values
    # Equal lists are one object (see `Args`), so that each is redacted only once.
    known: dict[int, Any] = {}
    objects = values.tolist()
    changed = np.empty(len(objects), dtype=object)
    for row, value in enumerate(objects):
        if id(value) not in known:
            known[id(value)] = names.value(value)
        changed[row] = known[id(value)]
    return pd.Series(changed, index=values.index, dtype=object)
