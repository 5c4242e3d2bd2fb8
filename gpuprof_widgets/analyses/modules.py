"""Modules and optimizers: the tree of modules with its costs, and slow ways to optimize.

`modules` gives each module its forward and its backward pass. `zeroing_ops` and `single_tensor_ops`
look into the regions that torch opens around an optimizer's ``step`` and ``zero_grad``.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.attribution import Owned, in_backward, owned
from gpuprof_widgets.analyses.owners import MODULE_FRAME, module_frames
from gpuprof_widgets.analyses.reasons import IN_NO_MODULE, MODULES, NOBODY, empty_table
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.roofline import slice_work_flops
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.arrays import Codes, Mask, Rows
from gpuprof_widgets.trace.index import take
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import MODULE_CATEGORIES, NONE

COLUMNS = (
    *("name", "class", "parent", "depth", "calls"),
    *("cpu_self_ns", "backward_cpu_self_ns", "cpu_total_ns", "backward_cpu_total_ns"),
    *("device_self_ns", "backward_device_self_ns"),
    *("device_total_ns", "backward_device_total_ns", "wait_ns", "flops", "backward_flops"),
    *("allocated_bytes", "allocated_total_bytes", "row"),
)
PASSES = {
    "cpu_": ("cpu_self_ns", "backward_cpu_ns"),
    "device_": ("device_ns", "backward_device_ns"),
}
"""Columns of `attribution` for the forward and the backward pass, by our prefix."""


@remembered
def modules(record: Record) -> pd.DataFrame:
    """One row per module, as a tree: parents before their children, in the order they first ran.

    The modules are those that were recorded (``model.encoder.0``), else the ``nn.Module`` frames of
    a trace with stacks, whose modules have numbers for names (``Conv2d_3``). The selfs are those of
    ``attribution("module")``. They add up, with the last row, which has no name, to all there is.

    Columns:

    - ``name``, ``class``: the module.
    - ``parent``: row of this table; -1 at the top. If several modules call it, the one that called
      it first.
    - ``depth``: its depth in the tree.
    - ``calls``: of its forward.
    - ``cpu_self_ns``, ``device_self_ns``: forward pass, outside of the modules within it.
    - ``backward_cpu_self_ns``, ``backward_device_self_ns``: the same in the backward pass.
    - ``cpu_total_ns``, ``device_total_ns``, ``backward_cpu_total_ns``,
      ``backward_device_total_ns``: with the modules within it.
    - ``wait_ns``: waited for the GPU, both passes.
    - ``flops``, ``backward_flops``: of the module and those within it, counted as in `roofline`.
    - ``allocated_bytes``, ``allocated_total_bytes``: both passes, without and with the modules
      within it.
    - ``row``: the slice of its first call; -1: none.

    Source: defined here.
    """
    trace = record.trace
    if not (trace.index.in_category(*MODULE_CATEGORIES) | module_frames(trace)).any():
        return empty_table(COLUMNS, MODULES)
    table = _ordered(_table(trace, owned(trace, "module")))
    table.attrs[NOBODY] = IN_NO_MODULE
    return table


def module_slices(record: Record) -> pd.DataFrame:
    """Every call of a module, forward and backward.

    Columns: ``module`` (row of `modules`), ``row``, ``start_ns``, ``end_ns``.
    """
    table, index = modules(record), record.trace.index
    owners = owned(record.trace, "module")
    labels = pd.MultiIndex.from_frame(_labels(owners))
    position = pd.Series(table.index, pd.MultiIndex.from_frame(table[["name", "class"]]))
    calls = pd.DataFrame(
        {
            "module": position.reindex(labels).to_numpy()[owners.key],
            "row": owners.row.astype(np.int32),
            "start_ns": index.ts[owners.row],
            "end_ns": index.end[owners.row],
        }
    )
    return calls[index.column("count")[owners.row] > 0].reset_index(drop=True)


def _table(trace: Trace, owners: Owned) -> pd.DataFrame:
    shares = owners.shares
    flops = slice_work_flops(trace)
    counted = np.flatnonzero(flops * (trace.index.column("count") > 0))
    late = in_backward(trace)[counted]
    forward_flops = owners.shared(counted, np.where(late, 0, flops[counted]))
    backward_flops = owners.shared(counted, np.where(late, flops[counted], 0))
    first, parent = _tree(trace, owners)
    table = _labels(owners).assign(parent=parent, depth=0)
    table["calls"] = owners.calls_by_name()
    for prefix, (ahead, behind) in PASSES.items():
        for sums, kind in ((owners.by_name, "self"), (owners.total, "total")):
            table[f"{prefix}{kind}_ns"] = sums(shares[ahead])
            table[f"backward_{prefix}{kind}_ns"] = sums(shares[behind])
    return table.assign(
        wait_ns=owners.by_name(shares["wait_ns"]),
        flops=owners.total(forward_flops),
        backward_flops=owners.total(backward_flops),
        allocated_bytes=owners.by_name(shares["allocated_bytes"]),
        allocated_total_bytes=owners.total(shares["allocated_bytes"]),
        row=first,
    )


def _labels(owners: Owned) -> pd.DataFrame:
    """Return name and class of every module, as `modules` writes them."""
    written = owners.names["name"]
    names = written.str.removeprefix(MODULE_FRAME)
    of_name = names.str.rsplit("_", n=1).str[0]
    kinds = np.where(written.str.startswith(MODULE_FRAME), of_name, owners.names["detail"])
    return pd.DataFrame({"name": names, "class": kinds.astype(object)})


def _tree(trace: Trace, owners: Owned) -> tuple[Codes, Codes]:
    """Return per name the slice of its first call and the name around that call; -1 for none.

    This is a tree, in a window as well, because a name around another one first ran before it.
    """
    parent = np.full(len(owners.names), NONE, np.int32)
    first = parent.copy()
    began, _ = trace.index.uncut
    by_start = np.lexsort((links.depths(owners.parent), began[owners.row]))
    keys, at = np.unique(owners.key[by_start], return_index=True)
    earliest = by_start[at]
    first[keys] = owners.row[earliest]
    parent[keys] = take(owners.key, owners.parent[earliest])
    return first, parent


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Sort parents before children, these by their first calls; the row of no module is last."""
    parent, first = table["parent"].to_numpy(), table["row"].to_numpy(copy=True)
    first[-1] = np.iinfo(first.dtype).max  # the row of no module
    place, _ = links.preorder(parent, first)
    depth = links.depths(parent).astype(np.int64)
    table = table.assign(parent=take(place, parent).astype(np.int32), depth=depth)
    return table.iloc[np.argsort(place)].reset_index(drop=True)[list(COLUMNS)]


STEP = re.compile(r"Optimizer\.step#(?P<kind>.+)\.step")
ZERO_GRAD = re.compile(r"Optimizer\.zero_grad#(?P<kind>.+)\.zero_grad")
ZEROING = frozenset({"aten::zero_", "aten::_foreach_zero_"})
ON_MANY = re.compile(r".*(_foreach_|_fused_).*", re.DOTALL)
PLAIN = re.compile(r"aten::.*", re.DOTALL)
FRESH = frozenset({"aten::zeros", "aten::zeros_like", "aten::new_zeros"})
"""Ops that zero a tensor which they have just made."""


def zeroing_ops(trace: Trace) -> tuple[Rows, Codes]:
    """Return the ops that fill a gradient with zeros, and the ``zero_grad`` region around each.

    After torch's GradNotSetToNonePattern: ``aten::zero_`` that ``aten::zeros`` does not call.
    """
    index = trace.index
    zeroing = index.named(ZEROING) & index.is_op
    zeroing &= ~take(index.named(FRESH), index.parent, missing=False)
    inside = take(zeroing, index.parent, missing=False)
    return _within(trace, ZERO_GRAD, zeroing & ~inside)


def single_tensor_ops(trace: Trace) -> tuple[Rows, Codes]:
    """Return the ops of an optimizer's step that launched kernels for one tensor, and the steps.

    Ops with ``_foreach_`` or ``_fused_`` in the name work on many tensors at once. Ops on the CPU
    do not count: a loop over the parameters costs no launches there. (torch's
    OptimizerSingleTensorPattern looks for the frame ``_single_tensor_adam`` and needs stacks.)
    """
    index = trace.index
    launching = np.zeros(len(trace) + 1, bool)
    launching[index.column("op")[index.gpu]] = True
    on_many = index.matching(ON_MANY)
    wanted = launching[:-1] & index.matching(PLAIN) & ~on_many & index.is_op
    inside_many = links.nearest_ancestor(index.parent, on_many) >= 0
    return _within(trace, STEP, wanted & ~inside_many)


def _within(trace: Trace, region: re.Pattern[str], wanted: Mask) -> tuple[Rows, Codes]:
    """Return the wanted slices within such a region, and the innermost region around each."""
    regions = trace.index.matching(region) & trace.index.on_tracks("cpu")
    around = links.nearest_ancestor(trace.index.parent, regions)
    rows = np.flatnonzero(wanted & (around != NONE) & (trace.index.column("count") > 0))
    return rows, around[rows]


def kinds(trace: Trace, region: re.Pattern[str], rows: Codes) -> list[str]:
    """Return the names of the optimizers of these regions, sorted."""
    names = trace.index.names_of(np.unique(rows))
    return sorted({match["kind"] for name in names if (match := region.fullmatch(name))})
