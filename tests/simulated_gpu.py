"""A simulated GPU: what a CPU recording of a training loop might look like beside an imaginary one.

Nothing here is measured on a GPU. `simulate` takes the real recording of a loop on the CPU and puts
a device beside it that works as GPUs do: ops launch kernels and go on, a stream runs them one after
another, and some calls wait for it. How long a kernel takes follows from its FLOPs and bytes and
the figures of `ImaginaryGpu`. So it is known why that device is idle, and whether the analyses find
that out can be seen where there is no GPU.

What stays real: Python, the DataLoader, and the time between ops. What is made up: ops that compute
take `dispatch_ns` on the CPU and their kernel the rest; the others take what they took.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import gpuprof_widgets
from gpuprof_widgets import Profile

LABEL = "SIMULATED"
STREAM = 7

MATRIX_PRODUCTS = {"aten::addmm", "aten::mm", "aten::bmm"}
ELEMENTWISE = {
    *("aten::relu", "aten::clamp_min", "aten::threshold_backward", "aten::sum", "aten::mean"),
    *("aten::_log_softmax", "aten::_log_softmax_backward_data"),
    *("aten::nll_loss_forward", "aten::nll_loss_backward"),
    *("aten::fill_", "aten::zero_", "aten::copy_", "aten::mul_", "aten::add_", "aten::add"),
    *("aten::_foreach_add_", "aten::_foreach_mul_", "aten::_foreach_zero_"),
}
TO_DEVICE, READ = "aten::to", "aten::item"


@dataclass(frozen=True)
class ImaginaryGpu:
    """Round figures of no real device."""

    name: str = "imaginary GPU"
    flops_per_s: float = 300e9
    bytes_per_s: float = 30e9
    copy_bytes_per_s: float = 5e9
    dispatch_ns: int = 10_000
    """CPU time of an op before it launches its kernel."""
    launch_ns: int = 5_000
    """CPU time of a launch call."""
    latency_ns: int = 4_000
    """From the end of a launch call to the kernel's start on an idle stream."""
    shortest_ns: int = 2_000
    """Of a kernel."""


def simulate(
    recorded: Profile, gpu: ImaginaryGpu | None = None, *, pinned: bool = False
) -> Profile:
    """The recording with an imaginary GPU beside it; ``pinned``: batches come from pinned memory.

    Record it with ``shapes=True``. `.to()` outside of any op copies a batch to the device: from
    pageable memory the host waits for the copy, and so for all work before it, as in PyTorch.
    `.item()` of a floating point number copies it back and waits; of an integer it does not: that
    is the DataLoader, which reads its seed from the CPU.
    """
    gpu = gpu or ImaginaryGpu()
    events = _Simulation(gpu, pinned).run(list(_cpu_spans(recorded)))
    name = recorded.metadata.get("label", "run")
    label = f"{LABEL}: {name}, on an {gpu.name}"
    for event in events:
        if (event["name"], event["cat"]) == (name, "user_annotation"):
            event["name"] = label
    text = json.dumps({"traceEvents": events, "deviceProperties": [{"id": 0, "name": gpu.name}]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "simulated.json")
        path.write_text(text, encoding="utf-8")
        made = gpuprof_widgets.load(path)
    note = f"The GPU is {LABEL}: its times are computed for an {gpu.name}, nothing is measured"
    return replace(made, metadata={**made.metadata, "label": label, "notes": [note]})


@dataclass
class _Span:
    """A slice of the recording, and the one around it."""

    name: str
    category: str
    start: int
    end: int
    place: dict[str, Any]
    args: dict[str, Any]
    above: _Span | None = None

    def is_within(self, prefix: str) -> bool:
        return any(span.name.startswith(prefix) for span in self.ancestors())

    def ancestors(self) -> Iterator[_Span]:
        span = self.above
        while span is not None:
            yield span
            span = span.above


def _cpu_spans(recorded: Profile) -> Iterator[_Span]:
    """The slices of the thread that has most of them, callers first."""
    trace = recorded.trace
    cpu = trace.slices[(trace.tracks["kind"] == "cpu").to_numpy()[trace.slices["track"]]]
    cpu = cpu[cpu["track"] == cpu["track"].mode()[0]]
    track = trace.tracks.loc[cpu["track"].iloc[0]]
    place = {"pid": track["process"], "tid": track["thread"]}
    made: dict[int, _Span] = {}
    for row, span in cpu.iterrows():
        args = {key: values[row] for key, values in trace.args.items() if row in values.index}
        for key, column in (("Sequence number", "sequence"), ("Fwd thread id", "forward_thread")):
            if span[column] >= 0:
                args[key] = int(span[column])
        start, end = int(span["ts"]), int(span["ts"] + span["dur"])
        above = made.get(int(span["parent"]))
        made[int(row)] = _Span(span["name"], span["category"], start, end, place, args, above)
        yield made[int(row)]


@dataclass
class _Simulation:
    """Two clocks: the host's times move by ``shift``, the stream has work until ``free``."""

    gpu: ImaginaryGpu
    pinned: bool
    shift: int = 0
    free: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    knots: list[tuple[int, int]] = field(default_factory=list)

    def run(self, spans: list[_Span]) -> list[dict[str, Any]]:
        """Events of a trace: the host's spans at their new times, and what the device did."""
        self.knots = [(spans[0].start, spans[0].start)]
        acted: set[int] = set()
        until = -1
        for span in spans:
            if span.start >= until and (act := self._act_of(span)):
                act(span)
                acted.add(id(span))
                until = span.end
        last = max(span.end for span in spans)
        self.knots.append((last, last + self.shift))
        old, new = (np.array(times) for times in zip(*self.knots, strict=True))
        for span in spans:
            if not any(id(above) in acted for above in span.ancestors()):
                start, end = np.interp([span.start, span.end], old, new).round().astype(int)
                self._event(span.name, span.category, int(start), int(end), span)
        return self.events

    def _act_of(self, span: _Span) -> Any:
        if span.category != "cpu_op" or span.is_within("enumerate(DataLoader)"):
            return None
        if span.name in MATRIX_PRODUCTS | ELEMENTWISE:
            return self._launch
        if span.name == READ and "float" in span.args.get("Input type", ()):
            return self._read
        at_top = all(above.category != "cpu_op" for above in span.ancestors())
        return self._send if span.name == TO_DEVICE and at_top else None

    def _launch(self, span: _Span) -> None:
        """The op launches its kernel and goes on."""
        called = span.start + self.shift + self.gpu.dispatch_ns
        returned = self._call("cudaLaunchKernel", called, called + self.gpu.launch_ns, span)
        self._on_stream(f"{LABEL} {span.name}", "kernel", returned, self._kernel_ns(span))
        self._takes(span, returned)

    def _send(self, span: _Span) -> None:
        """A batch goes to the device."""
        called = span.start + self.shift + self.gpu.dispatch_ns
        kind = "Pinned" if self.pinned else "Pageable"
        dur = max(int(1e9 * _bytes(span) / self.gpu.copy_bytes_per_s), 1_000)
        returned = self._call("cudaMemcpyAsync", called, called + self.gpu.launch_ns, span)
        name = f"Memcpy HtoD ({kind} -> Device)"
        self._on_stream(name, "gpu_memcpy", returned, dur, bytes=_bytes(span))
        self._takes(span, returned if self.pinned else self._synchronise(returned, span))

    def _read(self, span: _Span) -> None:
        """A number comes back, and the host waits for it and for all before it."""
        called = span.start + self.shift + self.gpu.dispatch_ns
        returned = self._call("cudaMemcpyAsync", called, called + self.gpu.launch_ns, span)
        name = "Memcpy DtoH (Device -> Pageable)"
        self._on_stream(name, "gpu_memcpy", returned, 1_000, bytes=4)
        self._takes(span, self._synchronise(returned, span))

    def _synchronise(self, called: int, span: _Span) -> int:
        return self._call("cudaStreamSynchronize", called, max(self.free, called) + 1_000, span)

    def _takes(self, span: _Span, until: int) -> None:
        """The span ends then; all that follows moves with it."""
        self.knots += [(span.start, span.start + self.shift), (span.end, until)]
        self.shift = until - span.end

    def _call(self, name: str, start: int, end: int, span: _Span) -> int:
        correlation = {"correlation": len(self.events) + 1}
        event = _Span(name, "cuda_runtime", start, end, span.place, correlation)
        self._event(name, "cuda_runtime", start, end, event)
        return end

    def _on_stream(self, name: str, category: str, launched: int, dur: int, **args: int) -> None:
        """What the last call launched runs when the stream is free."""
        correlation = self.events[-1]["args"]["correlation"]
        start = max(launched + self.gpu.latency_ns, self.free + 1_000)
        self.free = start + dur
        known = {"device": 0, "stream": STREAM, "correlation": correlation, **args}
        place = {"pid": 0, "tid": STREAM}
        self._event(name, category, start, self.free, _Span("", "", 0, 0, place, known))

    def _event(self, name: str, category: str, start: int, end: int, of: _Span) -> None:
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        self.events.append(
            {"ph": "X", "name": name, "cat": category, **times, **of.place, "args": _plain(of.args)}
        )

    def _kernel_ns(self, span: _Span) -> int:
        """Limited by arithmetic or by memory, whichever takes longer."""
        seconds = max(_flops(span) / self.gpu.flops_per_s, 2 * _bytes(span) / self.gpu.bytes_per_s)
        return max(int(1e9 * seconds), self.gpu.shortest_ns)


def _flops(span: _Span) -> int:
    """Of a matrix product 2 m k n: its last two inputs, of which the sizes are recorded."""
    if span.name not in MATRIX_PRODUCTS:
        return 0
    matrices = [size for size in span.args["Input Dims"] if len(size) >= 2]
    left, right = matrices[-2:]
    return 2 * int(np.prod(left)) * int(right[-1])


def _bytes(span: _Span) -> int:
    """Of all inputs, each number taken for four bytes."""
    return 4 * sum(map(_elements, span.args.get("Input Dims", ())))


def _elements(size: list[Any]) -> int:
    """Of a tensor, or of a list of tensors."""
    if size and isinstance(size[0], list):
        return sum(map(_elements, size))
    return int(np.prod(size)) if size else 0


def _plain(args: dict[str, Any]) -> dict[str, Any]:
    """Numbers of numpy as plain ones: JSON knows no others."""
    return {key: value.item() if hasattr(value, "item") else value for key, value in args.items()}
