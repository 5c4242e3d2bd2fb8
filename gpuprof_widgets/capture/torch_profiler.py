"""torch.profiler around a run: start it, stop it, read its trace back.

`TorchRecording` is one use of it. `GpuEvents` is the part that notices when the GPU worked but
CUPTI recorded nothing. `Entrances` and `profiler_is_running` see the user's own torch profilers.
"""

from __future__ import annotations

import errno
import gc
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, get_ident, local
from time import perf_counter_ns
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function
from torch.profiler.profiler import PROFILER_STEP_NAME

from gpuprof_widgets import progress
from gpuprof_widgets.capture.environment import allocator_totals, uses_cuda
from gpuprof_widgets.capture.interrupts import DeferredSignals, temporary_folder
from gpuprof_widgets.capture.memory import with_torch_categories
from gpuprof_widgets.capture.part import Context, Part
from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.options import Options
from gpuprof_widgets.trace.assemble import empty_trace
from gpuprof_widgets.trace.chrome_trace import parse_chrome_trace
from gpuprof_widgets.trace.model import Record, Trace
from gpuprof_widgets.trace.schema import GPU_CATEGORIES, LAUNCH_CATEGORIES

SYNCHRONISE_REGION = "gpuprof: wait for the device"
"""Region around our synchronisation after the run, which tells it from the user's own."""

_OTHER_THREAD = (
    "it began in another thread, and torch's profiler ends only in the thread in which it began"
)
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)
_CLOSE_FILES = "close files that the code leaves open, or allow more (ulimit -n)"
_SET_FOLDER = "set TMPDIR to a folder that can be written and restart"

_WHOLE = re.compile(rb"\][^{}]*\}\s*\Z")
"""The end of a complete trace file: of the list of events, and of the object around it."""

_ALLOCATIONS = "allocation.all.allocated"

_ENTRANCES = ("_prepare_profiler", "_enable_profiler")
"""Functions that every torch profiler calls as it starts."""

_of_thread = local()
"""``ended_elsewhere``: whether another thread ended the last recording that this thread began."""


def emits_nvtx(options: Options) -> bool:
    """Whether a recording with these options is for Nsight Systems, not for torch.profiler."""
    return options.nvtx and torch.cuda.is_available()


class TorchRecording:
    """One use of torch.profiler, with a region named after the run around the user's code.

    The user's own torch.profiler takes precedence: where one is running this one does not start,
    and where one starts later this one gives way just before. ``lost`` says so, in one sentence,
    and ``is_users`` that the ops are the user's own profiler's.
    """

    def __init__(self, options: Options, label: str) -> None:
        self.lost: str | None = None
        self.is_users = False
        self._options = options
        self._label = label
        self._region: Any = None
        self._step: Any = None
        self._profile: Any = None
        self._running = False
        self._thread = 0
        self._ended_elsewhere = Event()

    def start(self) -> None:
        """Start recording, or set ``lost`` where another profiler has the ops."""
        if emits_nvtx(self._options):
            return  # the nvtx part says so
        _disable_after_other_thread()
        if profiler_is_running() or profiler_is_warming_up():
            self.is_users = True
            self.lost = (
                "your own torch.profiler is already running and keeps the ops; "
                "this profile has none of them"
            )
            return
        silence_kineto()
        steps = autograd_profiler.KinetoStepTracker
        has_steps = PROFILER_STEP_NAME in steps._step_dict
        self._profile = profile(**_arguments(self._options))
        if not has_steps:  # only a user's profile counts steps: `profiler_is_warming_up`
            steps.erase_step_count(PROFILER_STEP_NAME)
        self._profile.start()
        self._running, self._thread = True, get_ident()
        _of_thread.ended_elsewhere = self._ended_elsewhere

    def enter_region(self) -> None:
        """Open the region, last of all before the run, so that it has none of our work."""
        if self._running:
            # record_function's __enter__ is Python, which a running cProfile would count.
            self._region = torch._C._autograd._record_function_with_args_enter(self._label)

    def leave_region(self) -> None:
        """Close the region, first of all after the run."""
        self.leave_step()
        region, self._region = self._region, None
        if region is not None:
            torch._C._autograd._record_function_with_args_exit(region)

    def enter_step(self, name: str) -> None:
        """Open the region of a step of a loop, where this profiler has the ops."""
        if self._running:
            self._step = torch._C._autograd._record_function_with_args_enter(name)

    def leave_step(self) -> None:
        """Close the region of a step, if one is open."""
        step, self._step = self._step, None
        if step is not None:
            torch._C._autograd._record_function_with_args_exit(step)

    def stop(self) -> int:
        """Wait for the device, stop and put everything back; return the wait in ns.

        Raises a `RecordingError` in another thread than the first, where torch has no trace.
        """
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
        except RuntimeError as error:  # a CUDA error of the user's code
            words = str(error).partition("\n")[0]
            self.lost = (
                f"the GPU stopped with an error of the code that ran ({words}): what it did from "
                "then on is missing, and torch raises the error again until the process is "
                "restarted"
            )
            self._profile.profiler.use_device = None  # torch then stops without waiting again
        finally:
            waited = perf_counter_ns() - began
            self._profile.stop()
            self._running = False
        if self._thread != get_ident():
            self._ended_elsewhere.set()
            self._profile = None  # saving without a trace crashes the process
            raise RecordingError(_OTHER_THREAD)
        return waited

    def trace(self) -> Trace | None:
        """Return the recorded trace, once; None where nothing was recorded.

        Frees torch's copy of the events, which a later profiler must not find there.
        """
        stopped, self._profile = self._profile, None
        if stopped is None:
            return None
        try:
            trace = _read(stopped)
        except RecordingError as error:
            self.lost = f"no ops: {error}"
            return None
        options = self._options
        if not (options.memory and options.shapes and options.stack):
            return trace
        try:
            return with_torch_categories(trace, stopped)
        except Exception as error:
            self.lost = self.lost or (
                f"torch could not classify the memory ({error}), so gpuprof_widgets did"
            )
            return trace

    def give_way(self) -> None:
        """Stop because the user's own profiler starts, if this one runs."""
        if not self._running:
            return
        self.is_users = True
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


def _disable_after_other_thread() -> None:
    """End torch's profiler in this thread, where another thread has ended our recording."""
    ended: Event | None = getattr(_of_thread, "ended_elsewhere", None)
    if ended is not None and ended.is_set():
        ended.clear()
        if torch._C._autograd._profiler_enabled():
            torch._C._autograd._disable_profiler()


def silence_kineto() -> None:
    """Keep torch's `USDT:` lines off stderr; Kineto reads this when the first profile starts."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def wait_for_device() -> None:
    """Let queued GPU work end, so that the trace has the tail of the run."""
    if uses_cuda():
        with record_function(SYNCHRONISE_REGION):
            torch.cuda.synchronize()


def warm_up() -> Record:
    """Pay for torch.profiler's first start (about a second) before any cell is measured.

    Without the GPU: a CUDA context would fix CUDA_VISIBLE_DEVICES too early.
    """
    if profiler_is_running():
        return Record(empty_trace())
    silence_kineto()
    with profile(activities=[ProfilerActivity.CPU]) as recording:
        torch.zeros(1)
    return Record(_read(recording))


def _read(recording: Any) -> Trace:
    """Return the trace of a stopped torch.profiler."""
    progress.say("PyTorch writes what it recorded")
    with DeferredSignals():  # a Ctrl-C would leave the file behind
        path, data = _exported(recording)
    progress.say("reading what PyTorch wrote")
    return parse_chrome_trace(data, path).trace


def _exported(recording: Any) -> tuple[Path, bytes]:
    """Return what torch wrote, and the path of the temporary file, which is removed."""
    path = temporary_folder() / "trace.json"
    try:
        recording.export_chrome_trace(str(path))
        return path, _written(path)
    except OSError as error:
        raise RecordingError(
            f"torch's temporary file cannot be written or read ({error.strerror}: {path}); "
            + (_CLOSE_FILES if error.errno in _TOO_MANY_FILES else _SET_FOLDER)
        ) from error
    finally:
        with suppress(OSError):  # without opening either: too many files may be open
            path.unlink(missing_ok=True)
            path.parent.rmdir()


def _written(path: Path) -> bytes:
    """Return what torch wrote; raise a `RecordingError` if that is incomplete: torch does not."""
    data = path.read_bytes() if path.exists() else b""
    if _WHOLE.search(data, max(0, len(data) - 5_000)):  # longer than the path at the end
        return data
    with path.open("ab"):  # an OSError here is more precise
        pass
    folder = path.parent.parent
    room = shutil.disk_usage(folder).free / 2**20
    raise RecordingError(
        f"torch could not write its trace to {folder}, where {room:,.0f} MiB are free; "
        "set TMPDIR to a folder that can be written and has more room, and restart"
    )


def _arguments(options: Options) -> dict[str, Any]:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    make: Any = torch._C._profiler._ExperimentalConfig
    return {
        "activities": activities,
        # Not `with_flops`: the trace file has no FLOPs, which follow from the shapes.
        "record_shapes": options.shapes or options.flops,
        "profile_memory": options.memory,
        "with_stack": options.stack,
        # Not ``profile_all_threads``: a thread that outlives a recording sometimes corrupts memory,
        # and the process crashes in a later recording (torch 2.13).
        "experimental_config": make(enable_cuda_sync_events=True) if options.sync else make(),
    }


def gpu_events(context: Context) -> GpuEvents | None:
    """Return the part, where torch sees a GPU and records it."""
    if emits_nvtx(context.options) or not torch.cuda.is_available():
        return None
    return GpuEvents()


class GpuEvents(Part):
    """Notes that the GPUs were used, by their allocator's count, but are not in the trace.

    Kineto's own warning is on stderr, among lines that nobody wants in a cell.
    """

    loses = "whether GPU work is missing is not known"

    def __init__(self) -> None:
        self._before: int | None = None
        self._allocated = 0
        self._recorded = False

    def start(self) -> None:
        (self._before,) = allocator_totals(_ALLOCATIONS)

    def stop(self) -> None:
        if self._before is not None:
            self._allocated += allocator_totals(_ALLOCATIONS)[0] - self._before
            self._before = None

    def refine(self, trace: Trace) -> Trace:
        kinds = set(trace.slices["category"].unique())
        self._recorded |= bool(kinds & {*GPU_CATEGORIES, *LAUNCH_CATEGORIES})
        return trace

    def notes(self) -> list[str]:
        """Return that the GPU was used but is not in the record, and the likely reason."""
        if self._recorded or not self._allocated:
            return []
        supported = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]
        why = (
            "CUPTI could not be used. End other tools that hold it (Nsight Systems, Nsight "
            "Compute, DCGM, another profiler), restart the process and record again; "
            "KINETO_LOG_LEVEL=1, set before the first profile, shows torch's own words"
            if ProfilerActivity.CUDA in supported
            else "this build of torch has no CUPTI; install one with CUDA from pytorch.org"
        )
        return [
            f"no GPU work is in this record, although the run put {self._allocated:,} tensors on "
            f"the GPU: {why}"
        ]


class Entrances:
    """Tells just before another torch profiler starts: one of two stays empty."""

    def __init__(self) -> None:
        self._originals: dict[str, Callable[..., Any]] = {}

    def watch(self, give_way: Callable[[], None]) -> None:
        """Call ``give_way`` whenever one starts, until `unwatch`."""

        def entrance(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            give_way()
            return original(*args, **kwargs)

        for name in _ENTRANCES:
            original = getattr(autograd_profiler, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(autograd_profiler, name, partial(entrance, original))

    def unwatch(self) -> None:
        """Restore the entrances; may be called twice."""
        while self._originals:
            name, original = self._originals.popitem()
            setattr(autograd_profiler, name, original)


def profiler_is_running() -> bool:
    """Whether any torch profiler runs, in this thread or for all threads."""
    everywhere = getattr(autograd_profiler, "_is_profiler_enabled", False)
    return bool(everywhere or torch._C._autograd._profiler_enabled())


def profiler_is_warming_up() -> bool:
    """Whether a torch.profiler with a schedule is in its warm-up.

    Another profile before it starts would end its preparations, and then torch crashes.
    """
    if PROFILER_STEP_NAME not in autograd_profiler.KinetoStepTracker._step_dict:
        return False  # there is none: searching all objects takes tens of milliseconds
    kinds: tuple[type[profile], ...] = (profile, *profile.__subclasses__())
    profiles = [found for found in gc.get_referrers(*kinds) if isinstance(found, kinds)]
    return any(
        found.current_action is ProfilerAction.WARMUP
        and found.profiler is not None
        # Where events of several cycles add up, the results are those of an earlier cycle.
        and (getattr(found, "acc_events", False) or found.profiler.kineto_results is None)
        for found in profiles
    )
