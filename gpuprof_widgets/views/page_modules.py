"""What the page needs to know of modules beside their slices."""

from __future__ import annotations

import numpy as np

from gpuprof_widgets.trace.model import Trace


def module_classes(trace: Trace) -> dict[str, str]:
    """The class of each module by its name; where several modules share a name, their classes."""
    known = trace.args.get("class")
    if known is None:
        return {}
    of_module = trace.index.in_category("module", "module_backward")
    known = known[of_module[known.index.to_numpy()]]
    names = trace.slices["name"].to_numpy(object)[known.index.to_numpy()]
    pairs = np.unique(np.stack([names.astype(str), known.to_numpy(object).astype(str)]), axis=1)
    classes: dict[str, str] = {}
    for name, kind in pairs.T.tolist():
        classes[name] = f"{classes[name]}, {kind}" if name in classes else kind
    return classes
