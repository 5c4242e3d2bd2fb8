"""The tree of modules: what each took in the forward and in the backward pass."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.attribution import Owned, in_backward, owned
from gpuprof_widgets.analyses.owners import MODULE_FRAME, module_frames
from gpuprof_widgets.analyses.reasons import IN_NO_MODULE, MODULES, NOBODY, lacking, not_recorded
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.roofline import slice_work_flops
from gpuprof_widgets.trace import links
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]

COLUMNS = (
    "name",
    "class",
    "parent",
    "depth",
    "calls",
    "cpu_self_ns",
    "backward_cpu_self_ns",
    "cpu_total_ns",
    "backward_cpu_total_ns",
    "device_self_ns",
    "backward_device_self_ns",
    "device_total_ns",
    "backward_device_total_ns",
    "wait_ns",
    "flops",
    "backward_flops",
    "allocated_bytes",
    "allocated_total_bytes",
    "row",
)
REGIONS = ("module", "module_backward")
PASSES = {
    "cpu_": ("cpu_self_ns", "backward_cpu_ns"),
    "device_": ("device_ns", "backward_device_ns"),
}
"""Columns of `attribution`: the forward pass, and the backward pass."""


@remembered
def modules(record: Record) -> pd.DataFrame:
    """One row per module, as a tree: parents before their children, in the order they first ran.

    From the modules that were recorded (``model.encoder.0``), else from the ``nn.Module`` frames of
    a trace with stacks, whose modules have numbers for names (``Conv2d_3``). Columns (times in ns):

    - ``name``, ``class``; ``parent``: row of this table, -1 at the top (where a module is called by
      several others, the one that called it first); ``depth``; ``calls`` of its forward;
    - ``cpu_self_ns``, ``device_self_ns``: of the forward pass, outside of the modules within it;
      ``backward_cpu_self_ns``, ``backward_device_self_ns``: the same in the backward pass;
      ``cpu_total_ns``, ``device_total_ns``, ``backward_cpu_total_ns``,
      ``backward_device_total_ns``: with those within it. The four selfs are those of
      ``attribution("module")`` and add up with the last row, without a name, to all there is;
    - ``wait_ns``: waited for the GPU, both passes;
    - ``flops``, ``backward_flops``: of the module and those within it (`flop_formulas`);
    - ``allocated_bytes``, ``allocated_total_bytes``: both passes, without and with those within;
    - ``row``: the slice of its first call (-1: none).
    """
    trace = record.trace
    if not (trace.index.in_category(*REGIONS) | module_frames(trace)).any():
        return lacking(COLUMNS, not_recorded(record, MODULES))
    table = _ordered(_table(trace, owned(trace, "module")))
    table.attrs[NOBODY] = IN_NO_MODULE
    return table


def module_slices(record: Record) -> pd.DataFrame:
    """Every call of a module, forward and backward.

    Columns: ``module`` (row of `modules`), ``row``, ``start_ns``, ``end_ns``.
    """
    table, slices = modules(record), record.trace.slices
    found = owned(record.trace, "module")
    labels = pd.MultiIndex.from_frame(_labels(found))
    place = pd.Series(table.index, pd.MultiIndex.from_frame(table[["name", "class"]]))
    start = slices["ts"].to_numpy()[found.row]
    counted = slices["count"].to_numpy()[found.row] > 0
    calls = pd.DataFrame(
        {
            "module": place.reindex(labels).to_numpy()[found.key],
            "row": found.row.astype(np.int32),
            "start_ns": start,
            "end_ns": start + slices["dur"].to_numpy()[found.row],
        }
    )
    return calls[counted].reset_index(drop=True)


def _table(trace: Trace, found: Owned) -> pd.DataFrame:
    shares = found.shares
    flops, backward = slice_work_flops(trace), in_backward(trace)
    counted = np.flatnonzero(flops * (trace.slices["count"].to_numpy() > 0))
    late = backward[counted]
    forward_flops = found.shared(counted, np.where(late, 0, flops[counted]))
    backward_flops = found.shared(counted, np.where(late, flops[counted], 0))
    first, parent = _tree(trace, found)
    table = _labels(found).assign(parent=parent, depth=0)
    table["calls"] = found.calls_by_name()
    for prefix, (ahead, behind) in PASSES.items():
        for sums, kind in ((found.by_name, "self"), (found.total, "total")):
            table[f"{prefix}{kind}_ns"] = sums(shares[ahead])
            table[f"backward_{prefix}{kind}_ns"] = sums(shares[behind])
    return table.assign(
        wait_ns=found.by_name(shares["wait_ns"]),
        flops=found.total(forward_flops),
        backward_flops=found.total(backward_flops),
        allocated_bytes=found.by_name(shares["allocated_bytes"]),
        allocated_total_bytes=found.total(shares["allocated_bytes"]),
        row=first,
    )


def _labels(found: Owned) -> pd.DataFrame:
    """Name and class of every module, as `modules` writes them."""
    written = found.names["name"]
    names = written.str.removeprefix(MODULE_FRAME)
    of_name = names.str.rsplit("_", n=1).str[0]
    kinds = np.where(written.str.startswith(MODULE_FRAME), of_name, found.names["detail"])
    return pd.DataFrame({"name": names, "class": kinds.astype(object)})


def _tree(trace: Trace, found: Owned) -> tuple[Rows, Rows]:
    """Per name the slice of its first call (-1: nobody's), and the name around that (-1: none).

    A name around another one first ran before it: that makes it a tree, in a window as well.
    """
    parent = np.full(len(found.names), NONE, np.int32)
    first = parent.copy()
    began, _ = trace.index.uncut
    by_start = np.lexsort((links.depths(found.parent), began[found.row]))
    keys, at = np.unique(found.key[by_start], return_index=True)
    earliest = by_start[at]
    first[keys] = found.row[earliest]
    above = found.parent[earliest]
    parent[keys] = np.where(above >= 0, found.key[above], NONE)
    return first, parent


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Parents before their children, those in the order of their first calls; nobody's row last."""
    parent, first = table["parent"].to_numpy(), table["row"].to_numpy()
    children: dict[int, list[int]] = {}
    for node in sorted(range(len(table) - 1), key=lambda node: (first[node], node)):
        children.setdefault(int(parent[node]), []).append(node)
    order, depth, waiting = [], {}, [(node, 0) for node in reversed(children.get(NONE, []))]
    while waiting:
        node, level = waiting.pop()
        depth[node] = level
        order.append(node)
        waiting += [(child, level + 1) for child in reversed(children.get(node, []))]
    order.append(len(table) - 1)
    place = np.full(len(table) + 1, NONE, np.int32)
    place[order] = np.arange(len(order))
    table = table.iloc[order].reset_index(drop=True)
    depths = [depth.get(node, 0) for node in order]
    moved = np.where(table["parent"] >= 0, place[table["parent"].to_numpy()], NONE)
    return table.assign(parent=moved.astype(np.int32), depth=depths)[list(COLUMNS)]


STEP = re.compile(r"Optimizer\.step#(?P<kind>.+)\.step")
ZERO_GRAD = re.compile(r"Optimizer\.zero_grad#(?P<kind>.+)\.zero_grad")
ZEROING = frozenset({"aten::zero_", "aten::_foreach_zero_"})
ON_MANY = re.compile(r".*(_foreach_|_fused_).*", re.DOTALL)
PLAIN = re.compile(r"aten::.*", re.DOTALL)
FRESH = frozenset({"aten::zeros", "aten::zeros_like", "aten::new_zeros"})
"""Ops that zero what they have just made."""


def zeroing_ops(trace: Trace) -> tuple[npt.NDArray[np.intp], Rows]:
    """The ops that fill a gradient with zeros, and the ``zero_grad`` region around each.

    torch's GradNotSetToNonePattern: ``aten::zero_`` that is not ``aten::zeros``' own.
    """
    parent = trace.slices["parent"].to_numpy()
    fresh = np.append(trace.index.named(FRESH), False)
    zeroing = trace.index.named(ZEROING) & trace.index.is_op & ~fresh[parent]
    inside = np.append(zeroing, False)
    return _within(trace, ZERO_GRAD, zeroing & ~inside[parent])


def single_tensor_ops(trace: Trace) -> tuple[npt.NDArray[np.intp], Rows]:
    """The ops of an optimizer's step that launched kernels for one tensor, and the step around.

    Names with ``_foreach_`` or ``_fused_`` work on many tensors at once; what runs on the CPU is
    left out: there a loop over the parameters costs no launches. (torch's
    OptimizerSingleTensorPattern goes by the frame ``_single_tensor_adam``, which needs stacks.)
    """
    launching = np.zeros(len(trace) + 1, bool)
    launching[trace.slices["op"].to_numpy()[trace.index.gpu]] = True
    on_many = trace.index.matching(ON_MANY)
    wanted = launching[:-1] & trace.index.matching(PLAIN) & ~on_many & trace.index.is_op
    inside_many = links.nearest_ancestor(trace.index.parent, on_many) >= 0
    return _within(trace, STEP, wanted & ~inside_many)


def _within(
    trace: Trace, region: re.Pattern[str], wanted: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.intp], Rows]:
    """Those of the slices that lie in such a region, and the innermost one around each."""
    regions = trace.index.matching(region) & trace.index.on_tracks("cpu")
    around = links.nearest_ancestor(trace.slices["parent"].to_numpy(), regions)
    rows = np.flatnonzero(wanted & (around != NONE) & (trace.slices["count"].to_numpy() > 0))
    return rows, around[rows]


def kinds(trace: Trace, region: re.Pattern[str], rows: Rows) -> list[str]:
    """The optimizers of these regions, in the order of their names."""
    names = trace.slices["name"].to_numpy(object)[np.unique(rows)]
    return sorted({match["kind"] for name in names if (match := region.fullmatch(str(name)))})
