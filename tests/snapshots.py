"""CUDA memory snapshots without a GPU: a small caching allocator that records as torch's does.

The structure is that of ``torch.cuda.memory._snapshot`` (documented there); what an allocator does
is known here step by step, so that a test can say what a reader has to find.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GRANULE = 512
SEGMENT = 2 * 2**20
FIRST_ADDRESS = 0x7F00_0000_0000
START_US = 1_700_000_000_000_000


def frame(file: str, line: int, name: str) -> dict[str, Any]:
    """One frame, as torch writes it."""
    return {"filename": file, "line": line, "name": name}


TRAIN = frame("/home/me/train.py", 12, "step")
LINEAR = frame("/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125, "forward")
CALL = frame("/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 1751, "_call_impl")
CONVERT = frame("/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", 1355, "convert")
ADAM = frame("/venv/lib/python3.11/site-packages/torch/optim/adam.py", 199, "_init_group")
ADDMM = frame("??", 0, "at::_ops::addmm::call(at::Tensor const&, at::Tensor const&)")


@dataclass
class Allocator:
    """One device's caching allocator: segments of 2 MiB, the first block that is large enough.

    ``clock`` is in µs and goes on by one with each entry; ``requested`` has what is alive now.
    """

    device: int = 0
    timed: bool = True
    clock: int = START_US
    segments: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    requested: dict[int, int] = field(default_factory=dict)

    def allocate(self, size: int, *frames: dict[str, Any]) -> int:
        """An address of that many bytes, with a new segment where no block is free."""
        rounded = -(-size // GRANULE) * GRANULE
        segment, index = self._free_block(rounded) or self._grown(rounded)
        block = segment["blocks"][index]
        rest = block["size"] - rounded
        used = {**block, "size": rounded, "requested_size": size, "state": "active_allocated"}
        used["frames"] = list(frames)
        free = {**block, "address": block["address"] + rounded, "size": rest}
        segment["blocks"][index : index + 1] = [used, free] if rest else [used]
        self._note("alloc", block["address"], size, frames)
        self.requested[block["address"]] = size
        return int(block["address"])

    def release(self, address: int, *frames: dict[str, Any], completed: bool = True) -> None:
        """Give it back; without ``completed`` another stream still uses it."""
        block = next(b for s in self.segments for b in s["blocks"] if b["address"] == address)
        self._note("free_requested", address, block["requested_size"], frames)
        block["state"] = "active_pending_free"
        if completed:
            self._note("free_completed", address, block["requested_size"], frames)
            block.update(state="inactive", requested_size=0, frames=[])
            del self.requested[address]

    def empty_cache(self) -> None:
        """Give back segments in which nothing is alive."""
        for segment in list(self.segments):
            if all(block["state"] == "inactive" for block in segment["blocks"]):
                self.segments.remove(segment)
                self._note("segment_free", segment["address"], segment["total_size"], ())

    def fail(self, size: int, *frames: dict[str, Any], free: int = 7) -> None:
        """Ask for more than there is."""
        self._note("oom", 0, size, frames)
        del self.history[-1]["addr"]
        self.history[-1]["device_free"] = free

    def state(self) -> list[dict[str, Any]]:
        """The segments, with the sizes that torch sums up."""
        return [{**segment, **_sizes(segment["blocks"])} for segment in self.segments]

    def _free_block(self, size: int) -> tuple[dict[str, Any], int] | None:
        for segment in self.segments:
            for index, block in enumerate(segment["blocks"]):
                if block["state"] == "inactive" and block["size"] >= size:
                    return segment, index
        return None

    def _grown(self, size: int) -> tuple[dict[str, Any], int]:
        total = -(-size // SEGMENT) * SEGMENT
        address = FIRST_ADDRESS + len(self.history) * 2**30
        block = {"address": address, "size": total, "requested_size": 0, "state": "inactive"}
        segment = {
            "device": self.device,
            "address": address,
            "total_size": total,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [block | {"frames": []}],
        }
        self.segments.append(segment)
        self._note("segment_alloc", address, total, ())
        return segment, 0

    def _note(self, action: str, address: int, size: int, frames: Any) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 0}
        entry |= {"frames": list(frames)} | ({"time_us": self.clock} if self.timed else {})
        self.history.append(entry)
        self.clock += 1


def _sizes(blocks: list[dict[str, Any]]) -> dict[str, int]:
    def of(*states: str) -> list[dict[str, Any]]:
        return [block for block in blocks if block["state"] in states]

    return {
        "allocated_size": sum(block["size"] for block in of("active_allocated")),
        "active_size": sum(b["size"] for b in of("active_allocated", "active_pending_free")),
        "requested_size": sum(block["requested_size"] for block in blocks),
    }


def snapshot(*allocators: Allocator, history: bool = True, **beside: Any) -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot()`` returns of these devices."""
    return {
        "segments": [segment for one in allocators for segment in one.state()],
        "device_traces": [list(one.history) if history else [] for one in allocators],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
        **beside,
    }


def dumped(content: Any, folder: Path, protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
    """A file of it, as ``torch.cuda.memory._dump_snapshot`` writes one."""
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def training(steps: int = 2) -> Allocator:
    """Parameters, then per step two activations of which one outlives it, and optimizer state."""
    gpu = Allocator()
    gpu.allocate(400_000, CONVERT, TRAIN)
    for step in range(steps):
        output = gpu.allocate(100_000, ADDMM, LINEAR, CALL, TRAIN)
        other = gpu.allocate(50_000, LINEAR, CALL, TRAIN)
        if step == 0:
            gpu.allocate(800_000, ADAM, TRAIN)
        gpu.release(output)
        if step < steps - 1:
            gpu.release(other)
    return gpu
