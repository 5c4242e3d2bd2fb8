"""Every kernel, copy and memset by name, with how it was laid out on the GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses.gpu_curves import UTILISATION, gpu_curves
from gpuprof_widgets.analyses.gpu_summary import gpu_summary
from gpuprof_widgets.analyses.kernels import counted_gpu_rows, kernels
from gpuprof_widgets.analyses.quantity import format_share
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.panels.kernel_names import kernel_name
from gpuprof_widgets.views.panels.panel import Curve, Panel
from gpuprof_widgets.views.table import Column

COLUMNS = (
    Column("label", "Name", "text"),
    Column("calls", "Calls", "count", "count"),
    Column("time_ns", "GPU time", "ns", "time"),
    Column("share", "Share of busy", "share"),
    Column("op_name", "Launched by", "text"),
    Column("average_ns", "Mean", "ns", "mean"),
    Column("p50_ns", "Median", "ns"),
    Column("p99_ns", "99 %", "ns"),
    Column("max_ns", "Longest", "ns", "max"),
    Column("tensor", "Tensor cores", "text"),
    Column("occupancy", "Occupancy", "share"),
    Column("blocks_per_sm", "Blocks per SM", "number"),
    Column("grid", "Grid", "text"),
    Column("block", "Block", "text"),
    Column("registers", "Registers", "number"),
    Column("shared_memory", "Shared memory", "bytes"),
)
UNKNOWN = ("registers", "shared_memory")


def kernels_panel(record: Record) -> Panel | None:
    """A row per name; its events are the GPU slices."""
    table = kernels(record)
    if not len(table):
        return None
    rows = table.rename(columns={"total_ns": "time_ns"}).assign(
        label=[kernel_name(name) for name in table["name"]], tensor=_tensor_cores(table)
    )
    for key in UNKNOWN:
        rows[key] = rows[key].where(rows[key] >= 0, np.nan)
    rows["op_name"] = [_launchers(*pair) for pair in zip(rows["op_name"], rows["ops"], strict=True)]
    keys = [column.key for column in COLUMNS]
    return Panel(
        "Kernels",
        COLUMNS,
        rows[keys],
        _events(record, table),
        notes=(_note(record),),
        curves=tuple(_curves(record)),
    )


def _tensor_cores(table: pd.DataFrame) -> list[str]:
    """Whether each kernel uses them, and if not, whether its ops' work would suit them."""
    eligible = (table["eligible_share"] >= 0.5) & (table["kind"] == "compute")
    words = np.select([table["tensor_cores"], eligible], ["used", "op eligible"], "")
    return [str(word) for word in words]


def _launchers(op: str, ops: int) -> str:
    return f"{op} and {ops - 1} more" if ops > 1 else op


def _events(record: Record, table: pd.DataFrame) -> pd.DataFrame:
    slices = record.trace.slices
    rows = counted_gpu_rows(record.trace)
    name, category = slices["name"].cat, slices["category"].cat
    kinds = len(category.categories)
    listed = name.categories.get_indexer(pd.Index(table["name"])) * kinds
    listed += category.categories.get_indexer(pd.Index(table["category"]))
    key = name.codes.to_numpy()[rows].astype(np.intp) * kinds + category.codes.to_numpy()[rows]
    order = np.argsort(listed)
    start = slices["ts"].to_numpy()[rows]
    columns = {
        "group": order[np.searchsorted(listed[order], key)],
        "start_ns": start,
        "end_ns": start + slices["dur"].to_numpy()[rows],
        "row": rows,
    }
    return pd.DataFrame(columns)


def _curves(record: Record) -> list[Curve]:
    """Utilisation and SM efficiency of each GPU."""
    return [
        Curve(
            f"{'Kernels ran' if name == UTILISATION else 'SMs at work'}, GPU {device}",
            "share",
            each[["ts_ns", "value"]],
        )
        for (device, name), each in gpu_curves(record).groupby(["device", "name"], sort=False)
        if each["value"].any()
    ]


def _note(record: Record) -> str:
    """How well each GPU was used, in the TensorBoard plugin's figures."""
    said = []
    for gpu in gpu_summary(record).to_dict("records"):
        figures = {
            "a kernel ran": gpu["utilisation"],
            "SMs at work": gpu["sm_efficiency"],
            "occupancy": gpu["occupancy"],
            "of kernel time on tensor cores": gpu["tensor_core_share"],
        }
        known = [f"{format_share(v)} {what}" for what, v in figures.items() if not np.isnan(v)]
        said.append(f"GPU {gpu['device']}: {', '.join(known)}.")
    return " ".join(said)
