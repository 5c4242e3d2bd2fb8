"""Peak FLOPS and memory bandwidth of known GPUs, by their makers' data sheets.

Each format has the dense figure of the fastest unit that torch uses for matrix products: tensor or
matrix cores where the device has them for that format (fp64 as well), with fp32 accumulation. Where
a data sheet has figures with 2:4 sparsity alone, the table has half of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof_widgets.analyses.columns import group_sums
from gpuprof_widgets.trace.known_metadata import Peaks
from gpuprof_widgets.trace.model import Record

TERA, GIGA = 1e12, 1e9
METADATA_KEY = "peaks"
"""Key of measured peaks in a record's metadata (`Peaks.as_dict`)."""


@dataclass(frozen=True)
class KnownGpu:
    """One row of the table: ``name`` matches the device's whole name; figures are tera and giga.

    ``tera``: FLOPS by format (fp64, fp32, tf32, fp16, bf16, fp8, int8). ``below_gb``: upper limit
    of the device's memory, where devices of several sizes share a name.
    """

    name: str
    giga_bytes: float
    source: str
    tera: Mapping[str, float]
    below_gb: int | None = None


def _gpu(name: str, giga_bytes: float, source: str, **tera: float) -> KnownGpu:
    return KnownGpu(name, giga_bytes, source, tera)


_A100 = {"fp64": 19.5, "fp32": 19.5, "tf32": 156, "fp16": 312, "bf16": 312, "int8": 624}
_H100 = {"fp64": 67, "fp32": 67, "tf32": 494.5, "fp16": 989.5, "bf16": 989.5,
         "fp8": 1979, "int8": 1979}  # fmt: skip
_MI210 = {"fp64": 45.3, "fp32": 45.3, "fp16": 181, "bf16": 181, "int8": 181}
_MI250X = {"fp64": 47.9, "fp32": 47.9, "fp16": 191.5, "bf16": 191.5, "int8": 191.5}
_SPARSE = "tensor cores half of the sparse figures"
_V100_SHEET = "NVIDIA V100 Tensor Core GPU data sheet"
_V100_NVLINK = f"{_V100_SHEET} (NVLink); DGX Station: 500 TFLOPS of four"
_A100_SHEET = "NVIDIA A100 Tensor Core GPU data sheet (2021)"
_H100_SHEET = f"NVIDIA H100 Tensor Core GPU data sheet; {_SPARSE}"
_H200_SHEET = f"NVIDIA H200 Tensor Core GPU data sheet, SXM; {_SPARSE}"
_GA102 = "NVIDIA Ampere GA102 GPU architecture white paper, appendix A"
_ADA = "NVIDIA Ada GPU architecture white paper, appendix A"
_B200_SHEET = f"NVIDIA HGX B200 data sheet, an eighth; {_SPARSE}"
_MI200_SHEET = "AMD Instinct MI250 and MI250X data sheets; torch sees each of the two dies: half"

# fmt: off
KNOWN_GPUS = (
    _gpu(r"Tesla V100-(SXM2|DGXS)-\d+GB", 900, _V100_NVLINK, fp64=7.8, fp32=15.7, fp16=125),
    _gpu(r"Tesla V100-PCIE-\d+GB", 900, f"{_V100_SHEET} (PCIe)", fp64=7, fp32=14, fp16=112),
    _gpu("Tesla V100S-PCIE-32GB", 1134, f"{_V100_SHEET} (V100S)", fp64=8.2, fp32=16.4, fp16=130),
    _gpu("(Tesla|NVIDIA) T4", 320, "NVIDIA T4 Tensor Core GPU data sheet",
         fp32=8.1, fp16=65, int8=130),
    _gpu("NVIDIA A10", 600, "NVIDIA A10 Tensor Core GPU data sheet",
         fp32=31.2, tf32=62.5, fp16=125, bf16=125, int8=250),
    _gpu("NVIDIA A30", 933, "NVIDIA A30 Tensor Core GPU data sheet",
         fp64=10.3, fp32=10.3, tf32=82, fp16=165, bf16=165, int8=330),
    _gpu("(NVIDIA )?A100-PCIE-40GB", 1555, f"{_A100_SHEET}, 40 GB PCIe", **_A100),
    _gpu("(NVIDIA )?A100 80GB PCIe", 1935, f"{_A100_SHEET}, 80 GB PCIe", **_A100),
    _gpu("(NVIDIA )?A100-(SXM4-40GB|SXM-40GB)", 1555, f"{_A100_SHEET}, 40 GB SXM", **_A100),
    _gpu("(NVIDIA )?A100-(SXM4-80GB|SXM-80GB)", 2039, f"{_A100_SHEET}, 80 GB SXM", **_A100),
    KnownGpu(r"NVIDIA A100-PG509-\d+", 1555, f"{_A100_SHEET}, 40 GB SXM", _A100, below_gb=60),
    _gpu("NVIDIA L4", 300, f"NVIDIA L4 Tensor Core GPU data sheet; {_SPARSE}",
         fp32=30.3, tf32=60, fp16=121, bf16=121, fp8=242.5, int8=242.5),
    _gpu("NVIDIA L40S", 864, "NVIDIA L40S data sheet",
         fp32=91.6, tf32=183, fp16=362, bf16=362, fp8=733, int8=733),
    _gpu("(NVIDIA )?GeForce RTX 3090", 936, _GA102,
         fp32=35.6, tf32=35.6, fp16=71, bf16=71, int8=284),
    _gpu("(NVIDIA )?GeForce RTX 4090", 1008, _ADA,
         fp32=82.6, tf32=82.6, fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6),
    _gpu("NVIDIA H100 PCIe", 2000, f"{_H100_SHEET}, PCIe",
         fp64=51, fp32=51, tf32=378, fp16=756.5, bf16=756.5, fp8=1513, int8=1513),
    _gpu("NVIDIA H100( 80GB HBM3)?", 3350, f"{_H100_SHEET}, SXM", **_H100),
    _gpu("NVIDIA H200", 4800, _H200_SHEET, **_H100),
    _gpu("NVIDIA B200", 8000, _B200_SHEET,
         fp64=37, fp32=75, tf32=1125, fp16=2250, bf16=2250, fp8=4500, int8=4500),
    _gpu("AMD Instinct MI100", 1228.8, "AMD Instinct MI100 data sheet",
         fp64=11.5, fp32=46.1, fp16=184.6, bf16=92.3, int8=184.6),
    _gpu("AMD Instinct MI210", 1638.4, "AMD Instinct MI210 data sheet", **_MI210),
    _gpu("AMD Instinct MI250", 1638.4, _MI200_SHEET, **_MI210),
    _gpu("AMD Instinct MI250X( ?/ ?MI250)?", 1638.4, _MI200_SHEET, **_MI250X),
    _gpu("AMD Instinct MI300X", 5300, "AMD Instinct MI300X data sheet",
         fp64=163.4, fp32=163.4, tf32=653.7, fp16=1307.4, bf16=1307.4, fp8=2614.9, int8=2614.9),
)
# fmt: on


def known_peaks(device: str, memory_bytes: int | None = None) -> Peaks | None:
    """Return the data sheet's figures of the GPU with that name; None if it is not in the table.

    The name of a part of a GPU (MIG) matches no row.
    """
    for gpu in KNOWN_GPUS:
        if not re.fullmatch(gpu.name, device):
            continue
        if gpu.below_gb and memory_bytes and memory_bytes >= gpu.below_gb * GIGA:
            continue
        flops = {dtype: value * TERA for dtype, value in gpu.tera.items()}
        return Peaks(device, flops, gpu.giga_bytes * GIGA, gpu.source)
    return None


def peaks_of(record: Record, device: int | None) -> Peaks | None:
    """Return the peaks of a device: as measured in the run, else by its data sheet.

    ``device``: index of a GPU; None for the CPU, which has no data sheet in the table.
    """
    measured = record.metadata.get(METADATA_KEY)
    if measured:
        return Peaks.from_dict(measured)
    properties = _properties(record, device)
    memory = properties.get("total_memory_bytes")
    return known_peaks(str(properties.get("name", "")), int(memory) if memory else None)


def busiest_device(record: Record) -> int:
    """Return the GPU with most time in kernels and copies; all GPUs of a run are of one type."""
    index = record.trace.index
    device, gpu = np.maximum(index.device, 0), index.gpu
    return int(group_sums(device[gpu], index.dur[gpu], int(device.max(initial=0)) + 1).argmax())


def device_name(record: Record, device: int | None) -> str:
    """Return the name of a device in the metadata; "" where it has none."""
    return str(_properties(record, device).get("name", ""))


def _properties(record: Record, device: int | None) -> Mapping[str, Any]:
    devices = record.metadata.get("devices") or ()
    return next((properties for properties in devices if properties.get("index") == device), {})
