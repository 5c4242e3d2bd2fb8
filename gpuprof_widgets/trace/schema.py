"""Names and types of the trace's tables: one place for every column.

The words are Kineto's (categories) and Perfetto's (slices, tracks, counters, flows).
Times are int64 nanoseconds since the trace's start, sizes are bytes.
"""

from __future__ import annotations

import numpy as np

NONE = -1
"""Value of an integer column where a slice has no such value."""

SLICE_COLUMNS = {
    "ts": np.int64,  # start, ns since the trace's start
    "dur": np.int64,  # duration, ns
    "name": "category",
    "category": "category",
    "track": np.int32,  # row in tracks
    "depth": np.int32,  # nesting depth on the track, 0 at the top
    "parent": np.int32,  # row of the latest slice still open on the track when this one began
    "count": np.int32,  # events that this row stands for; 0 = outside the window, kept as an owner
    "correlation": np.int64,  # joins a launch (cuda_runtime, cuda_driver) with its GPU slice
    "external_id": np.int64,  # joins a GPU slice with its CPU op where Kineto wrote it
    "sequence": np.int64,  # autograd sequence number, joins forward and backward ops
    "forward_thread": np.int64,  # autograd thread id of the forward op, on backward ops
    "launch": np.int32,  # GPU slices: row of the runtime call (or op) that launched it
    "op": np.int32,  # GPU and runtime slices: row of the innermost op or annotation that owns it
    "forward": np.int32,  # backward ops: row of the forward op
}

TRACK_COLUMNS = {
    "kind": "category",  # one of TRACK_KINDS
    "label": object,  # shown beside the track
    "process": object,  # pid as the file has it, as text
    "thread": object,  # tid (CPU) or stream (GPU) as the file has it, as text
    "lane": np.int32,  # equal for the tracks of one thread or stream (ops and Python frames)
    "device": np.int32,  # GPU index, NONE for the CPU
    "stream": np.int64,  # GPU stream id, NONE for the CPU
    "rank": np.int32,  # NONE where unknown
}

COUNTER_COLUMNS = {
    "ts": np.int64,
    "name": "category",  # "CPU allocated", "GPU 0 reserved", ...: the unit is bytes unless named
    "value": np.float64,
}

FLOW_COLUMNS = {
    "source": np.int32,  # slice row
    "target": np.int32,  # slice row
    "kind": "category",  # "launch", "fwdbwd", ...
}

TRACK_KINDS = ("cpu", "python", "worker", "annotation", "gpu", "copy", "other")
"""Track kinds, in the order of the timeline.

``cpu``: ops, runtime calls, annotations, cell lines and modules of one thread; ``python``: the
Python frames of that thread; ``worker``: the work of a DataLoader's worker process; ``annotation``:
a stream's gpu_user_annotation slices; ``gpu``: its kernels; ``copy``: its copies and memsets.
"""
GPU_TRACKS = ("gpu", "copy")

OP_CATEGORIES = ("cpu_op", "user_annotation")
MODULE_CATEGORIES = ("module", "module_backward")
REGION_CATEGORIES = ("cell_line", *MODULE_CATEGORIES)
"""Regions that this package marks: a statement of a cell, a module's forward, its backward."""
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver")
RUNTIME_ENDINGS = ("_runtime", "_driver")
"""Ends of the categories of runtime and driver calls, of any recording program."""
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
MEMORY_EVENT = "[memory]"
OUT_OF_MEMORY_EVENT = "[OutOfMemory]"

HELD_AS, HELD_BY, TORCH_CATEGORY = "Held as", "Held by", "Memory category"
"""Args of ``[memory]`` instants: the tensor's role in its model or optimizer ("parameters",
"gradients", ...), its name there ("encoder.0.weight"), and torch's own category for it."""
PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"
INPUTS = "inputs"
"""Roles of tensors: values of `HELD_AS`, and categories of memory."""
CPU_DEVICE_TYPE, GPU_DEVICE_TYPE = 0, 1
"""Values of their arg "Device Type", torch's numbers: all but the CPU are accelerators."""

FRAMEWORK, TENSORFLOW, MEGENGINE = "framework", "TensorFlow", "MegEngine"
"""Key in the metadata of records of other frameworks than PyTorch, and its values."""

SAMPLED = "sampled"
"""Key in the metadata; true if stacks were sampled, and no calls counted."""

SAMPLING = "python_samples"
"""Key in the metadata of records with samples of ours: interval, lines of code, ..."""

SAMPLED_LINES = "Sampled lines"
"""Arg of sampled frames of the user's code: pairs of ns since the start of the uncut frame and the
line in which it was from then on."""

WINDOW = "window_ns"
"""Key in the metadata of a range of a run: its start and end, in ns since the trace's start."""

FLOPS, MEMORY_TRAFFIC = "flops", "memory traffic"
"""Args of ops whose work the program itself counted (MegEngine): floating point operations, and
bytes read and written."""

CPU_KERNEL = "cpu_kernel"
"""Category of CPU work that an op dispatched to a computing node of MegEngine. It is on a track of
its own, and no op, because the op that dispatched it counts."""

SCOPE_ECHO = "scope_echo"
"""Category of a scope of MegEngine as the interpreter's worker passes through it again. It is on a
track of its own, because the scope's time counts where the user's code opened it."""

NVTX_RANGE = "nvtx_range"
"""Category of NVTX ranges that may cross all others, because they start and end by number. Each is
on a row of its own, which is no thread, and owns nothing."""

EXECUTOR_LANE = "Executor lane"
"""Arg of ops on lanes that are no threads: the trace of TensorFlow's executor shows only how many
ops ran at a time, and each op is on the first free lane."""

INPUT_SHAPES, INPUT_TYPES, OUTPUT_SHAPES = "Input Dims", "Input type", "Output Dims"
"""Args of ops: torch's inputs, and the outputs, which MegEngine writes."""

RESUMED = "resumed"
"""Arg of regions that continue an earlier one, and are no call of their own."""

NODE = "name"
"""Arg of ops of TensorFlow and MegEngine: their node of the graph; the slice's name is the type."""

WRITTEN_CATEGORY = "Written category"
"""Arg of slices of unknown programs, which are read as named regions: their original category."""

PROCESS_NAMES = "process_names"
"""Key in the metadata of records of such programs: the file's process names, by id."""

UNCUT_ARGS = ("uncut ts", "uncut dur")
"""Args (ns) of slices that a window has cut: their start and duration before that."""

CATEGORIES = (
    *OP_CATEGORIES,
    *REGION_CATEGORIES,
    *LAUNCH_CATEGORIES,
    *GPU_CATEGORIES,
    "gpu_user_annotation",
    NVTX_RANGE,
    "python_function",
    "worker",
    "worker_idle",
    "cpu_instant_event",
    "cuda_sync",
    "overhead",
    "other",
)
"""Categories that have a colour and a place in the views; a file may hold others."""

CATEGORY_ALIASES = {
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
}
"""Categories of torch 1.8's traces, with today's names."""
