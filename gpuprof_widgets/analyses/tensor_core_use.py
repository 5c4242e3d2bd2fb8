"""Work that tensor cores could have done and did not, and what they would save."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.analyses.gpu_peaks import busiest_device, peaks_of
from gpuprof_widgets.analyses.op_calls import Call, of_calls
from gpuprof_widgets.analyses.remembered import remembered
from gpuprof_widgets.analyses.tensor_cores import are_eligible, on_tensor_cores
from gpuprof_widgets.analyses.work_pieces import work_pieces
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.peaks import Peaks

NVIDIA = re.compile(r"NVIDIA|Tesla|Quadro|GeForce|TITAN", re.IGNORECASE)
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
HALVES = ("fp16", "bf16")
PLAIN = re.compile(r"(^|simt_|_)sgemm_\d+x\d+")
"""A product in fp32 on plain cores by its kernel's name, as cuBLAS and CUTLASS write it."""
HALF_SAVED = 0.5
"""Of the time, where no data sheet tells: half the bytes take half as long at least."""
MULTIPLE = 8


@remembered
def products(record: Record) -> pd.DataFrame:
    """One row per compute kernel, with what tensor cores have to do with it.

    Columns: those of `work_pieces`; ``tensor_cores`` (used, by the kernel's name), ``eligible``
    (its op is one that can, in a number format that has tensor cores or is not known); ``plain``
    (a matrix product in full fp32: by its op, and by the kernel's name where no op of PyTorch's
    library launched it: in a compiled function, a replayed graph, or a trace without ops);
    ``in_tf32_ns``, ``in_half_ns``: how long it would take in TF32 or in 16 bits, as near to the
    roof as it is now.
    """
    pieces = work_pieces(record)
    names = record.trace.slices["name"].iloc[pieces["row"]]
    roof = peaks_of(record, busiest_device(record))
    possible = pieces["dtype"].isin(["fp32", "tf32", *HALVES, ""])
    return pieces.assign(
        tensor_cores=_each(on_tensor_cores, names) | (pieces["dtype"] == "tf32"),
        eligible=_each(are_eligible, pieces["op"]) & possible,
        plain=(pieces["op"].isin(PRODUCTS) & (pieces["dtype"] == "fp32"))
        | (~pieces["op"].str.startswith("aten::").astype(bool) & _each(_are_plain, names)),
        in_tf32_ns=_at_roof(pieces, roof, "tf32", 1.0),
        in_half_ns=_at_roof(pieces, roof, "fp16", 0.5),
    )


def capability(record: Record) -> int | None:
    """Major compute capability of the NVIDIA GPU that was busiest; None for any other device.

    None as well where no GPU work is in the trace: what ran on the CPU has no tensor cores.
    """
    if not len(record.trace.index.gpu):
        return None
    device = busiest_device(record)
    named: Mapping[str, Any] = _with(record.metadata.get("devices"), "index", device)
    if not NVIDIA.search(str(named.get("name", ""))):
        return None
    if "compute_capability" in named:
        return int(str(named["compute_capability"]).split(".")[0])
    major = _with(record.metadata.get("deviceProperties"), "id", device).get("computeMajor")
    return None if major is None else int(major)


def unaligned(record: Record, pieces: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which pieces are products in 16 bits with a size that is no multiple of 8.

    Only the sizes along which memory runs have to be (NVIDIA, "Matrix multiplication background
    user's guide": the fastest varying dimensions), so not the number of rows of ``a @ b``; torch's
    MatMulDimInFP16Pattern looks at all of them.
    """
    wanted = pieces["op"].isin(PRODUCTS) & pieces["dtype"].isin(HALVES)
    found = np.zeros(len(pieces), bool)
    rows = pieces.loc[wanted, "op_row"].to_numpy(np.intp)
    found[wanted.to_numpy(bool)] = of_calls(record.trace, rows, _is_unaligned)
    return found


def _is_unaligned(call: Call) -> bool:
    first = 1 if call.name in ("aten::addmm", "aten::baddbmm") else 0
    sizes = [_along_memory(call, position) for position in (first, first + 1)]
    if call.is_tensor(first + 1):
        sizes.append(call.dims[first + 1][-1])  # the result has rows of this length
    return any(size % MULTIPLE for size in sizes)


def _along_memory(call: Call, position: int) -> int:
    """Size of the matrix along which its numbers lie side by side."""
    if not call.is_tensor(position) or len(call.dims[position]) < 2:
        return 0
    shape = list(call.dims[position])
    strides = list(call.strides[position]) if position < len(call.strides) else []
    transposed = len(strides) == len(shape) and strides[-1] != 1 and strides[-2] == 1
    return int(shape[-2] if transposed else shape[-1])


def _at_roof(
    pieces: pd.DataFrame, roof: Peaks | None, dtype: str, bytes_factor: float
) -> npt.NDArray[np.int64]:
    """The time in another format, by the ratio of the roofs; half of it where they are unknown."""
    time = pieces["time_ns"].to_numpy(np.int64)
    known = roof.flops_per_s if roof else {}
    peak = pieces["dtype"].map(known).to_numpy(float)
    other = known.get(dtype, np.nan)
    memory = roof.bytes_per_s if roof else np.nan
    flops, moved = pieces["flops"].to_numpy(float), pieces["bytes"].to_numpy(float)
    now = np.maximum(flops / peak, moved / memory)
    then = np.maximum(flops / other, moved * bytes_factor / memory)
    usable = np.isfinite(now) & np.isfinite(then) & (now > 0)
    ratio = np.divide(then, now, out=np.full(len(time), 1 - HALF_SAVED), where=usable)
    return np.asarray(time * np.minimum(ratio, 1), np.int64)


def _are_plain(names: Sequence[str]) -> list[bool]:
    return [PLAIN.search(name) is not None for name in names]


def _each(rule: Any, names: pd.Series) -> npt.NDArray[np.bool_]:
    """The rule asked once per distinct name."""
    code, distinct = pd.factorize(names)
    return np.append(rule(distinct), False)[code].astype(bool)


def _with(described: Any, key: str, value: int) -> Mapping[str, Any]:
    return next((one for one in described or () if one.get(key) == value), {})
