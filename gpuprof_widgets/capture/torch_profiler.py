"""torch.profiler around a run: start it, stop it, read its trace back."""

from __future__ import annotations

import errno
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from threading import Event, get_ident, local
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from gpuprof_widgets.capture.interrupts import Held, temporary_folder
from gpuprof_widgets.capture.memory import with_torch_categories
from gpuprof_widgets.capture.nvtx import Entrances, emits_nvtx, profiler_is_running
from gpuprof_widgets.capture.part import Context
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.assemble import empty_trace
from gpuprof_widgets.trace.chrome_trace import parse_chrome_trace
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES

SYNCHRONISE_REGION = "gpuprof: wait for the device"
"""Region around our own synchronisation after the run, so that nobody takes it for the user's."""


class TorchRecording:
    """One use of torch.profiler, with a region named after the run around the run alone.

    The user's own torch.profiler comes first. Where one is already running this one does not start;
    where one starts later this one ends just before. ``lost`` says so, in one sentence.
    """

    def __init__(self, options: Options, label: str) -> None:
        self.lost: str | None = None
        self._options = options
        self._label = label
        self._region: Any = None
        self._profile: Any = None
        self._running = False
        self._thread = 0
        self._ended_elsewhere = Event()
        self._entrances = Entrances(self._give_way)

    def start(self) -> None:
        """Start recording, or set ``lost`` where another profiler has the ops."""
        if emits_nvtx(self._options):
            return  # its part says so
        _end_what_ended_elsewhere()
        if profiler_is_running():
            self.lost = (
                "your own torch.profiler is already running and keeps the ops; "
                "this profile has none of them"
            )
            return
        silence_kineto()
        self._profile = profile(**_arguments(self._options))
        self._profile.start()
        self._running, self._thread = True, get_ident()
        _of_thread.ended_elsewhere = self._ended_elsewhere
        self._entrances.watch()

    def enter_region(self) -> None:
        """Open the region: the last thing before the run, so that none of our work is in it."""
        if self._running:
            # record_function's own __enter__ is Python, which a cProfile at work would count.
            self._region = torch._C._autograd._record_function_with_args_enter(self._label)

    def leave_region(self) -> None:
        """Close the region: the first thing after the run."""
        if self._region is not None:
            torch._C._autograd._record_function_with_args_exit(self._region)
            self._region = None

    def stop(self) -> int:
        """Wait for the device (how long: ns), stop and put everything back as it was.

        A `RecordingError` in another thread than the one that started: torch has nothing there.
        """
        self._entrances.unwatch()
        if not self._running:
            return 0
        self.leave_region()
        if not profiler_is_running():
            # Saving a session that another profiler has ended crashes the process.
            self._running = False
            self._profile = None
            self.lost = "another torch profiler ended this recording; its ops are lost"
            return 0
        began = perf_counter_ns()
        try:
            wait_for_device()
        except RuntimeError as error:
            self._lose_device(error)
        finally:
            waited = perf_counter_ns() - began
            self._profile.stop()
            self._running = False
        if self._thread != get_ident():
            self._ended_elsewhere.set()
            self._profile = None  # saving what torch has not crashes the process
            raise RecordingError(_OTHER_THREAD)
        return waited

    def _lose_device(self, error: RuntimeError) -> None:
        """Say whose error it is, and let torch stop without waiting for the device once more."""
        words = str(error).partition("\n")[0]
        self.lost = (
            f"the GPU stopped with an error of the code that ran ({words}): what it did from then "
            "on is missing, and torch raises the error again until the process is restarted"
        )
        self._profile.profiler.use_device = None

    def trace(self) -> Trace | None:
        """What was recorded; None where nothing was."""
        if self._profile is None:
            return None
        try:
            trace = _read(self._profile)
        except RecordingError as error:
            self.lost = f"no ops: {error}"
            return None
        options = self._options
        if not (options.memory and options.shapes and options.stack):
            return trace
        try:
            return with_torch_categories(trace, self._profile)
        except Exception as error:
            self.lost = self.lost or f"torch could not classify the memory, our rules do: {error}"
            return trace

    def forget(self) -> None:
        """Free torch's copy of the events."""
        self._profile = None

    def _give_way(self) -> None:
        self.lost = (
            "your own torch.profiler started in this run and has the ops from then on; "
            "this profile has those before"
        )
        try:
            self.stop()
        except RecordingError:
            self.lost = (
                "your own torch.profiler started in another thread in this run and has the ops "
                "from then on; this profile has none of them"
            )


_OTHER_THREAD = (
    "it began in another thread, and torch's profiler ends only in the thread in which it began"
)


_of_thread = local()
"""``ended_elsewhere``: whether another thread has ended the recording that this one began last."""


def _end_what_ended_elsewhere() -> None:
    """End torch's profiler in this thread, where it goes on as another thread has ended ours."""
    ended: Event | None = getattr(_of_thread, "ended_elsewhere", None)
    if ended is not None and ended.is_set():
        ended.clear()
        if torch._C._autograd._profiler_enabled():
            torch._C._autograd._disable_profiler()


def silence_kineto() -> None:
    """Keep torch's `USDT:` lines off stderr; Kineto reads this when the first profile starts."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def wait_for_device() -> None:
    """Let queued GPU work end, so that the tail of the run is in the trace."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with record_function(SYNCHRONISE_REGION):
            torch.cuda.synchronize()


def warm_up() -> Record:
    """Pay for torch.profiler's first start (about a second) before any cell is measured.

    Without the GPU: a CUDA context made here would be too early for CUDA_VISIBLE_DEVICES.
    """
    if profiler_is_running():
        return Record(empty_trace())
    silence_kineto()
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        torch.zeros(1)
    return Record(_read(recording))


def _read(recording: Any) -> Trace:
    """The trace of a torch.profiler that has stopped."""
    held = Held()
    with held:  # a Ctrl-C would leave the file there
        path, data = _exported(recording)
    held.pass_on()
    return parse_chrome_trace(data, path).trace


def _exported(recording: Any) -> tuple[Path, bytes]:
    """What torch wrote, and where: a temporary file that is gone by now."""
    path = temporary_folder() / "trace.json"
    try:
        recording.export_chrome_trace(str(path))
        _check_written(path)
        return path, path.read_bytes()
    except OSError as error:
        raise RecordingError(
            f"torch's temporary file cannot be written or read ({error.strerror}: {path}); "
            + (_CLOSE_FILES if error.errno in _TOO_MANY_FILES else _SET_FOLDER)
        ) from error
    finally:
        _remove(path)


_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_CLOSE_FILES = "close files that the code leaves open, or allow more (ulimit -n)"
_SET_FOLDER = "set TMPDIR to a folder that can be written and restart"


def _remove(path: Path) -> None:
    """The file and its folder, without opening either: no further file may be allowed."""
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def _check_written(path: Path) -> None:
    """A `RecordingError` where torch, which does not say so, could not write its whole trace."""
    if path.exists() and _WHOLE.search(_end_of(path)):
        return
    with path.open("ab"):  # an OSError says more than torch does
        pass
    folder = path.parent.parent
    room = shutil.disk_usage(folder).free / 2**20
    raise RecordingError(
        f"torch could not write its trace to {folder}, where {room:,.0f} MiB are free; "
        "set TMPDIR to a folder that can be written and has more room, and restart"
    )


_WHOLE = re.compile(rb"\][^{}]*\}\s*\Z")
"""The end of the events, and of the object that they are in."""


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 5_000))  # longer than the path that stands there
        return file.read()


def _arguments(options: Options) -> dict[str, Any]:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return {
        "activities": activities,
        # The file holds no FLOPs, with or without torch's own flag: they follow from the shapes.
        "record_shapes": options.shapes or options.flops,
        "profile_memory": options.memory,
        "with_stack": options.stack,
        "experimental_config": _experimental(options),
    }


def _experimental(options: Options) -> Any:
    """The settings beside: CUDA's synchronisation events.

    Not torch's mode for all threads (``profile_all_threads``): a thread that outlives a recording
    there spoils memory now and then, and the process crashes in a later one (torch 2.13).
    """
    make: Any = torch._C._profiler._ExperimentalConfig
    return make(enable_cuda_sync_events=True) if options.sync else make()


def require_torch_profiler() -> None:
    """Say in clear words when this torch cannot profile at all."""
    if not torch.profiler.kineto_available():
        raise RecordingError("this build of torch has no profiler (Kineto); install one that has")


_LAUNCHES = ("cuda_runtime", "cuda_driver")
_ALLOCATIONS = "allocation.all.allocated"


def gpu_events(context: Context) -> GpuEvents | None:
    """The part, where torch sees a GPU and records it."""
    if emits_nvtx(context.options) or not torch.cuda.is_available():
        return None
    return GpuEvents()


class GpuEvents:
    """Compares what the allocator of the GPUs counted with what the trace holds of them.

    Kineto would warn of CUPTI on stderr, but among lines that nobody wants in a cell.
    """

    loses = "whether GPU work is missing is not known"

    def __init__(self) -> None:
        self._before = 0
        self._allocated = 0
        self._running = False
        self._recorded = False

    def start(self) -> None:
        self._before, self._running = _allocations(), True

    def stop(self) -> None:
        if self._running:
            self._running = False
            self._allocated += _allocations() - self._before

    def refine(self, trace: Trace) -> Trace:
        kinds = set(trace.slices["category"].unique())
        self._recorded |= bool(kinds & {*GPU_CATEGORIES, *_LAUNCHES})
        return trace

    def notes(self) -> list[str]:
        """That the GPU was used but is not in the record, and what may be the reason."""
        if self._recorded or not self._allocated:
            return []
        return [
            f"no GPU work is in this record, although the run put {self._allocated:,} tensors on "
            f"the GPU: {_why()}"
        ]

    def metadata(self) -> dict[str, int]:
        return {}


def _allocations() -> int:
    """How often memory of a GPU was taken so far; 0 while CUDA is not in use."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    stats = (torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count()))
    return sum(int(one.get(_ALLOCATIONS, 0)) for one in stats)


def _why() -> str:
    supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
    if ProfilerActivity.CUDA not in supported:
        return "this build of torch has no CUPTI; install one with CUDA from pytorch.org"
    return (
        "CUPTI could not be used. End other tools that hold it (Nsight Systems, Nsight Compute, "
        "DCGM, another profiler), restart the process and record again; KINETO_LOG_LEVEL=1, set "
        "before the first profile, shows torch's own words"
    )
