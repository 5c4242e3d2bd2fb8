"""A region that the user expects did not run."""

from __future__ import annotations

import re
from typing import Any

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import code
from gpuprof_widgets.analyses.iterations import iterations
from gpuprof_widgets.analyses.quantity import format_count
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import NVTX_RANGE, REGION_CATEGORIES

NAMED = ("user_annotation", NVTX_RANGE, "python_function", "cpu_op", *REGION_CATEGORIES)

_FRAME = re.compile(r"\): (?P<name>.*)$")


def expected(record: Record) -> list[Finding]:
    """Fires for every name of ``expect`` that was not seen running.

    A name is that of an annotation, an op, a module (its last part or its class is enough) or,
    where these were recorded, a Python function.
    """
    options: dict[str, Any] = record.metadata.get("options") or {}
    names = [name.strip() for name in (options.get("expect") or "").split(",") if name.strip()]
    seen = _seen(record) if names else set()
    return [_missing(record, name) for name in dict.fromkeys(names) if name not in seen]


def _seen(record: Record) -> set[str]:
    """Every name under which something that ran may be known."""
    slices = record.trace.slices
    ran = slices[slices["category"].isin(NAMED) & (slices["count"] > 0)]
    seen: set[str] = set()
    for category, names in ran.groupby("category", observed=True)["name"]:
        for name in map(str, names.unique()):
            seen |= {name, *_short_names(str(category), name)}
    classes = record.trace.args.get("class")
    if classes is not None:
        seen |= set(classes[classes.index.isin(ran.index)])
    if record.calls is not None:
        seen |= {_of_builtin(str(name)) for name in record.calls.functions["name"]}
    return seen


def _short_names(category: str, name: str) -> set[str]:
    if category in ("module", "module_backward"):
        return {name.rsplit(".", 1)[-1]}
    if category == "cpu_op":
        return {name.rsplit("::", 1)[-1]}
    if category == "python_function":
        found = _FRAME.search(name)
        return {found["name"] if found else _of_builtin(name)}
    return set()


def _of_builtin(name: str) -> str:
    """``save`` of ``<built-in method save ...>`` and of ``<method 'save' of ... objects>``."""
    found = re.match(r"^<(?:built-in )?(?:method|function) '?(?:[\w.]*\.)?(\w+)", name)
    return found[1] if found else name


def _missing(record: Record, name: str) -> Finding:
    steps = int((iterations(record)["kind"] == "recorded").sum())
    where = f"these {format_count(steps, 'step')}" if steps > 1 else "what was recorded"
    text = f"{code(name)} did not run in {where}"
    guard = (record.metadata.get("guards") or {}).get(name)
    remedy = "What it costs is not in this profile: widen the window, or profile it on its own."
    if guard:
        text += f"; it runs every {guard['every']:,} (line {guard['line']})"
    elif not _has_functions(record):
        text += ", as far as can be told: Python functions were not recorded"
        remedy = "Record them (with cProfile or --stack), or name a record_function region."
    return Finding(f"{text}.", remedy=remedy)


def _has_functions(record: Record) -> bool:
    frames = (record.trace.slices["category"] == "python_function").any()
    return record.calls is not None or bool(frames)
