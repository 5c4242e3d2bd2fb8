"""What torch's own memory profiler takes each allocation for, as a note on its instant."""

from __future__ import annotations

from typing import Any

from gpuprof_widgets.capture.memory.places import MemoryPlaces, with_args
from gpuprof_widgets.trace.model import Trace
from gpuprof_widgets.trace.schema import TORCH_CATEGORY

WORDS = {
    "INPUT": "inputs",
    "TEMPORARY": "temporaries",
    "ACTIVATION": "activations",
    "GRADIENT": "gradients",
    "AUTOGRAD_DETAIL": "autograd detail",
    "PARAMETER": "parameters",
    "OPTIMIZER_STATE": "optimizer state",
}
"""Our words for torch's ``Category`` by its members' names."""

MOST_EVENTS = 100_000
"""Torch follows the data in Python, in some 60 µs per event: beyond this few would wait for it."""


def with_torch_categories(trace: Trace, profile: Any) -> Trace:
    """The trace with torch's categories; where it has no word for an allocation, without.

    ``profile`` is a stopped torch.profiler that recorded shapes, stacks and memory.
    """
    if len(trace) > MOST_EVENTS:
        raise ValueError(f"it takes too long for more than {MOST_EVENTS:,} events")
    found = profile._memory_profile()
    places = MemoryPlaces(trace)
    words: dict[int, str] = {}
    for moment, action, (key, _), _ in found.timeline:
        if action.name != "CREATE" or not hasattr(key, "storage"):
            continue
        category = _category(found._categories, key)
        device = "CPU" if key.device.type == "cpu" else f"GPU {key.device.index}"
        row = places.allocated(device, key.storage.ptr, moment)
        if category is not None and row is not None:
            words[row] = category
    return with_args(trace, TORCH_CATEGORY, words)


def _category(categories: Any, key: Any) -> str | None:
    """Of a tensor's versions (each change in place makes one) the first that has a category."""
    element = categories._values[key.id]
    versions = sorted(version for other, version in element.by_version if other == key)
    candidates = (categories.get(key, version) for version in (0, *versions))
    return next((WORDS[category.name] for category in candidates if category is not None), None)
