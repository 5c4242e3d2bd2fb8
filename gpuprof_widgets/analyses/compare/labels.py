"""Names for two runs that tell them apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from gpuprof_widgets.trace.model import Record


def run_names(a: Record, b: Record) -> tuple[str, str]:
    """Return the runs' labels or file names; where these are equal, with what differs first of:

    folder and file, rank, GPU, version of torch, host, and the time of the recording. Both are ""
    where nothing is known of either run.
    """
    names = _label(a), _label(b)
    if names[0] != names[1]:
        return names
    for detail in _DETAILS:
        both = detail(a), detail(b)
        if all(both) and both[0] != both[1]:
            first, second = _tails(*both) if detail is _file else both
            return _joined(names[0], first), _joined(names[1], second)
    return names


def _label(run: Record) -> str:
    return str(run.metadata.get("label") or _file(run).rsplit("/", 1)[-1])


def _joined(name: str, detail: str) -> str:
    """Return ``train, rank 1``; a path that ends with the name stands alone."""
    return detail if not name or detail.endswith(name) else f"{name}, {detail}"


def _file(run: Record) -> str:
    return str(run.metadata.get("source") or "").replace("\\", "/")


def _tails(a: str, b: str) -> tuple[str, str]:
    """Return the ends of both paths, from the last folder in which they differ."""
    parts = PurePosixPath(a).parts, PurePosixPath(b).parts
    same = next(
        (at for at, (x, y) in enumerate(zip(*map(reversed, parts), strict=False)) if x != y),
        min(map(len, parts)),
    )
    return "/".join(parts[0][-same - 1 :]), "/".join(parts[1][-same - 1 :])


def _rank(run: Record) -> str:
    rank = run.metadata.get("rank")
    return "" if rank is None else f"rank {rank}"


def device_names(run: Record) -> str:
    """Return the GPUs that a run saw, as ``2 × NVIDIA A100``; "" where it tells none."""
    given: Any = run.metadata.get("devices") or []
    try:
        listed = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return ""
    names = [str(device.get("name")) for device in listed if isinstance(device, dict)]
    kinds = dict.fromkeys(names)
    return " and ".join(f"{names.count(kind)} × {kind}" for kind in kinds)


def _torch(run: Record) -> str:
    version = str(run.metadata.get("torch") or "")
    return f"torch {version}" if version else ""


def _host(run: Record) -> str:
    return str(run.metadata.get("host") or "")


def _day(run: Record) -> str:
    return str(run.metadata.get("created") or "")[: len("2026-01-31")]


def _time(run: Record) -> str:
    """Return when the run was recorded, to the second, as ``14:02:11``."""
    _, _, time = str(run.metadata.get("created") or "").partition("T")
    return time[: len("14:02:11")]


_DETAILS: tuple[Callable[[Record], str], ...] = (
    *(_file, _rank, device_names, _torch, _host, _day, _time),
)
