"""`gpuprof_widgets.profile(...)` of a block or a function, `steps(...)` and `profile_ranks(...)`.

The functions from `check` on are shared with the magic and the commands: they read the recorder,
save the profile and keep it as `gpuprof_widgets.last`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from gpuprof_widgets import runtime_carrier
from gpuprof_widgets.capture.cell import cell_numbers
from gpuprof_widgets.exceptions import OptionError, RecordingError, in_words
from gpuprof_widgets.options import OPTIONS, Options, ProfileOptions, with_keywords

if TYPE_CHECKING:
    from gpuprof_widgets.capture.loop.steps import Steps
    from gpuprof_widgets.capture.recorder import Recorder
    from gpuprof_widgets.profiles import Profile
    from gpuprof_widgets.trace.model import Record

Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])
Keywords = ParamSpec("Keywords")


class ProfileRun:
    """What `profile()` returns: a context manager, and a decorator that records every call.

    Each entry returns a new profile, which is `Unrecorded` until the end. ``namespace``: the global
    variables of the recorded code, which name its modules.
    """

    def __init__(self, options: Options, label: str, namespace: Mapping[str, Any]) -> None:
        self._options = options
        self._label = label
        self._namespace = namespace
        self._entered: list[tuple[Recorder, Profile]] = []

    def __enter__(self) -> Profile:
        from gpuprof_widgets.capture.recorder import Recorder
        from gpuprof_widgets.profiles import Unrecorded

        result = Unrecorded()
        recorder = Recorder(
            self._options, label=self._label, namespace=self._namespace, keep=keeper(self._options)
        )
        recorder.__enter__()
        self._entered.append((recorder, result))  # it may be entered again inside itself
        return result

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        recorder, result = self._entered.pop()
        try:
            recorder.__exit__(kind, error, traceback)
        finally:  # a Ctrl-C meanwhile is raised after the stop
            # While Python ends, after a loop over `steps` that never ended, nobody sees a profile.
            if not sys.is_finalizing():
                with recorder.waiting():
                    problems = finish(recorder, self._options, result)
                    recorder.forget()
                    self._show(result, problems)

    def __call__(self, function: Function) -> Function:
        _check_function(function)
        label = self._options.name or str(getattr(function, "__qualname__", function))
        namespace = getattr(inspect.unwrap(function), "__globals__", self._namespace)

        @functools.wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with _Call(self._options, label, namespace):
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def recorded_awaiting(*args: Any, **kwargs: Any) -> Any:
            with _Call(self._options, label, namespace):
                return await function(*args, **kwargs)

        chosen: Any = recorded_awaiting if inspect.iscoroutinefunction(function) else recorded
        return chosen  # type: ignore[no-any-return]

    def _show(self, result: Profile, problems: list[str]) -> None:
        quiet = self._options.quiet
        if is_recorded(result) and not quiet:
            try:
                result.show(sort=self._options.sort, top=self._options.top)
            except Exception as error:
                problems = [*problems, f"the profile could not be shown: {in_words(error)}"]
        if quiet and self._options.save is None:
            return
        for problem in problems:
            print(f"gpuprof: {problem}", file=sys.stderr)


class _Call(ProfileRun):
    """One call of a decorated function, which is saved to a file of its own."""

    def __exit__(self, *raised: Any) -> None:
        _, result = self._entered[-1]
        if self._options.save is None:
            super().__exit__(*raised)
            return
        path = _target(self._options.save)
        further = (path.with_name(f"{path.stem}_{number}{path.suffix}") for number in count(2))
        file = next(file for file in chain([path], further) if file.absolute() not in _saved_calls)
        self._options = self._options.changed(save=str(file))
        super().__exit__(*raised)
        if is_recorded(result):
            _saved_calls.add(file.absolute())


_saved_calls: set[Path] = set()
"""Files of this process's decorated calls, which later calls do not overwrite."""


class _Profile(Protocol[Keywords]):
    """The type of `profile`, a decorator that may have keywords."""

    @overload
    def __call__(self, *none: Keywords.args, **keywords: Keywords.kwargs) -> ProfileRun: ...
    @overload
    def __call__(self, function: Function, /) -> Function: ...


def _takes(table: Callable[Keywords, ProfileOptions]) -> Callable[[Any], _Profile[Keywords]]:
    """Return a decorator that gives `profile` a table's options as keywords, also when typed."""
    return with_keywords(table)


@_takes(ProfileOptions)
def profile(function: Callable[..., Any] | None = None, /, **keywords: Any) -> Any:
    """Record a block (as a context manager) or every call of a function (as a decorator).

    At the end the profile is shown, unless ``quiet``: in a notebook as views, elsewhere as printed
    text. ``with profile() as run`` assigns the `Profile` to ``run``. A decorated function leaves
    the profile of each call in ``gpuprof_widgets.last``. With ``save``, it saves each call to a
    separate file: ``save="step.gpuprof"`` writes ``step.gpuprof``, then ``step_2.gpuprof``.

    An exception passes through unchanged, and what ran before it is still recorded. Using ``run``
    raises a `RecordingError` until the block has ended, and afterwards if nothing could be
    recorded. docs/options.md describes each option.
    """
    try:
        inspect.signature(profile).bind(function, **keywords)
    except TypeError as error:  # an option of loops only, or an unknown one
        raise TypeError(f"profile() {error}") from None
    options = Options(**keywords)
    check(options)
    caller = sys._getframe(1)
    run = ProfileRun(options, options.name or _place_of(caller), caller.f_globals)
    return run if function is None else run(function)


def steps(
    iterable: Iterable[Item] | AsyncIterable[Item],
    *,
    warmup: int = 3,
    active: int = 8,
    wait: int = 0,
    repeat: int = 1,
    cprofile: int | None = None,
    keep_going: bool = False,
    every: int | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Steps[Item]:
    """Record some iterations of a loop after a warm-up, then end the loop.

    Put it around the loop's items, as in ``for batch in gpuprof_widgets.steps(loader):``.
    ``async for`` works as well.

    First ``wait`` and then ``warmup`` iterations run unrecorded. Then ``active`` iterations are
    recorded, each as a step. All of that is done ``repeat`` times, and then the loop ends as if
    there were no more items. ``cprofile`` lets cProfile record more iterations than ``active``.

    With ``keep_going`` the loop runs to its own end, unrecorded. With ``every`` as well, it is
    recorded again every so many iterations, each time into another file: ``save="run.gpuprof"``
    writes ``run_step3.gpuprof``, ``run_step5003.gpuprof``, ...

    In a profiled cell or block, only these iterations are recorded. Elsewhere the loop makes a
    profile of its own, shows it and leaves it in ``gpuprof_widgets.last``.
    """
    from gpuprof_widgets.capture.loop.iterations import Schedule
    from gpuprof_widgets.capture.loop.steps import Steps

    options = Options(
        steps=active,
        warmup=warmup,
        wait=wait,
        repeat=repeat,
        cprofile_steps=cprofile,
        keep_going=keep_going,
        every=every,
        save=save,
    )
    check(options)
    caller = sys._getframe(1)
    ours = "gpuprof_widgets.integrations"  # a trainer's callback: its caller is the user
    while caller.f_back is not None and str(caller.f_globals.get("__name__")).startswith(ours):
        caller = caller.f_back
    place, namespace = _place_of(caller), caller.f_globals
    return Steps(
        iterable,
        Schedule.of(options),
        place=place,
        alone=lambda: ProfileRun(options, place, namespace),
    )


@dataclass(frozen=True)
class _RankBody:
    """The user's function under a profile, as a rank runs it; picklable."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    save: str
    options: dict[str, Any]

    def __call__(self, rank: int) -> None:
        with profile(quiet=True, save=self.save, **self.options):
            self.function(rank, *self.args)


@with_keywords(ProfileOptions)
def profile_ranks(
    fn: Callable[..., Any],
    nprocs: int = 4,
    *,
    args: Sequence[Any] = (),
    backend: str = "gloo",
    save: str | os.PathLike[str] = "run",
    quiet: bool = True,
    **options: Any,
) -> Profile:
    """Run ``fn(rank, *args)`` in ``nprocs`` processes of one group, and record each of them.

    Returns the profile of rank 0. Its ``metadata["rank_files"]`` has the paths of all profiles:
    ``run.rank0.gpuprof``, ... for ``save="run"``. With ``quiet=False`` the profile of rank 0 is
    shown. The other keywords are those of `profile`. If a rank raises an exception, the other ranks
    are ended, and the exception is raised here.

    With gloo on Linux the ranks are forked, unless this process has used CUDA: functions of a
    notebook work, and each rank has one CPU thread. Otherwise the ranks are spawned, and ``fn`` has
    to be importable.
    """
    from gpuprof_widgets.capture.distributed import (
        Group,
        ProcessRank,
        free_port,
        name_for_ranks,
        rank_file,
        run_ranks,
        start_method,
    )
    from gpuprof_widgets.capture.part import Active
    from gpuprof_widgets.profiles import load

    if Active.recorder is not None:
        raise OptionError(
            "profile_ranks records its own processes: call it outside of a profiled block or cell"
        )
    if not callable(fn):
        raise OptionError(f"profile_ranks runs a function fn(rank, *args), not {fn!r}")
    if not isinstance(nprocs, int) or nprocs < 1:
        raise OptionError(f"nprocs is a number of processes, at least 1, not {nprocs!r}")
    OPTIONS["quiet"].check(quiet)
    options = {"name": getattr(fn, "__qualname__", "profile_ranks"), **options}
    try:
        inspect.signature(profile).bind(**options)
    except TypeError as error:
        raise OptionError(f"profile_ranks: {error}") from None
    path = Path(save).expanduser().absolute()
    if path.suffix not in (".gpuprof", ".zip"):
        path = path.with_name(f"{path.name}.gpuprof")  # "run" may be a folder as well
    body = _RankBody(fn, tuple(args), str(name_for_ranks(path)), options)
    checked = Options(quiet=True, save=body.save, **options)
    check(checked)
    paths = [rank_file(body.save, ProcessRank(rank, nprocs)) for rank in range(nprocs)]
    method = start_method(fn, body.args, backend)
    try:
        run_ranks(body, Group(nprocs, backend, free_port()), method)
    finally:
        for path in paths:  # what a rank was writing when it was ended
            for unfinished in path.parent.glob(f".{path.name}.*.unfinished"):
                unfinished.unlink(missing_ok=True)
    first = load(paths[0])
    keep_as_last(first)
    if not quiet:
        first.show(sort=checked.sort, top=checked.top)
    return first


def _check_function(function: Any) -> None:
    """Raise an `OptionError` for a function whose calls cannot be recorded."""
    if not callable(function) or isinstance(function, type):
        raise OptionError(
            f"profile decorates a function, not {function!r}; give options by name, "
            "as in profile(top=20) or profile(save='step.gpuprof')"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise OptionError(
            f"profile cannot decorate the generator {function.__qualname__}: its body runs in "
            "pieces, between those of its caller; profile the block that consumes it"
        )


def check(options: Options) -> None:
    """Raise an `OptionError`, before anything runs, for a wrong sort key or an unwritable file."""
    from gpuprof_widgets.analyses.columns import report_keys
    from gpuprof_widgets.capture.distributed import process_rank, rank_file

    report_keys(options.sort)
    if options.save is None:
        return
    path = rank_file(_target(options.save), process_rank())
    if path.is_dir():
        raise OptionError(f"save is the path of a file; {path} is a folder")
    if not path.parent.is_dir():
        raise OptionError(f"save cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OptionError(f"save cannot write {path}: permission denied")


def _target(save: str | os.PathLike[str]) -> Path:
    try:
        return Path(save).expanduser()
    except RuntimeError as error:
        raise OptionError(
            f"save cannot write {save}: the home folder is not known here; give the whole path"
        ) from error


def keep_as_last(profile: Profile) -> None:
    """Make the profile `gpuprof_widgets.last`, and a run of `gpuprof_widgets.history`.

    Both hold its memory: users may set the first to None, and clear the second.
    """
    from gpuprof_widgets.run_history import history

    vars(sys.modules["gpuprof_widgets"])["last"] = profile
    carrier = runtime_carrier.followed
    if carrier is None:
        history.add(profile)
    else:
        history.add(profile, cell_id=carrier.cell_id, execution=carrier.executions)


def finish(recorder: Recorder, options: Options, result: Profile) -> list[str]:
    """Fill the profile and save it where the options say; return one line for each problem."""
    problems = read(recorder, options, result)
    return problems + (keep(result, options) if is_recorded(result) else [])


def read(recorder: Recorder, options: Options, result: Profile) -> list[str]:
    """Fill an unrecorded profile, and make it `gpuprof_widgets.last`.

    Where that fails, the profile gets the reason, which is returned unless it was reported before.
    """
    from gpuprof_widgets.profiles import Unrecorded, become

    become(result, Unrecorded("no profile: the recording was not read to its end"))
    try:
        record = recorder.record()
    except RecordingError as error:
        become(result, Unrecorded(str(error)))
        return [] if recorder.is_silent else [str(error)]
    become(result, _profile_of(record, options))
    keep_as_last(result)
    return []


def is_recorded(profile: Profile) -> bool:
    """Whether the profile has content."""
    from gpuprof_widgets.profiles import Unrecorded

    return not isinstance(profile, Unrecorded)


def keeper(options: Options) -> Callable[[Record], None] | None:
    """Return the function that saves each record of a loop that is recorded repeatedly.

    The function may raise an exception.
    """
    if options.every is None:
        return None

    def save(record: Record) -> None:
        for problem in keep(_profile_of(record, options), options):
            raise RecordingError(problem)

    return save


def keep(profile: Profile, options: Options) -> list[str]:
    """Save the profile where the options say; return one line if that fails."""
    options = of_cycle(options, profile.metadata)
    if options.save is None:
        return []
    from gpuprof_widgets.capture.distributed import rank_file, rank_in

    target = rank_file(_target(options.save), rank_in(profile.metadata))
    try:
        profile.save(target)
    except Exception as error:
        return [f"the profile could not be saved to {target}: {error}"]
    return []


def _profile_of(record: Record, options: Options) -> Profile:
    """Return the profile, whose metadata has the paths of all ranks' profiles, if there are any."""
    from gpuprof_widgets.capture.distributed import files_of_ranks, rank_in
    from gpuprof_widgets.profiles import Profile

    save, metadata = of_cycle(options, record.metadata).save, dict(record.metadata)
    if save is not None:
        files = files_of_ranks(_target(save).absolute(), rank_in(metadata))
        metadata |= {"rank_files": [str(file) for file in files]} if files else {}
    return Profile(record.trace, record.calls, metadata, record.calls_of_workers)


def of_cycle(options: Options, metadata: Mapping[str, Any]) -> Options:
    """Return the options of one recording of a loop: ``save`` becomes ``run_step5003.gpuprof``."""
    if options.every is None or options.save is None:
        return options
    steps = metadata.get("steps", {}).get("iterations", ())
    first = next((step["step"] for step in steps if step["kind"] == "recorded"), 0)
    path = Path(options.save)
    return options.changed(save=str(path.with_name(f"{path.stem}_step{first}{path.suffix}")))


def _place_of(frame: FrameType) -> str:
    """Return the file or cell and the line of a frame: the label of a profile without a name."""
    file = frame.f_code.co_filename
    shell = frame.f_globals.get("get_ipython", lambda: None)()
    number = cell_numbers(shell).get(file) if hasattr(shell, "compile") else None
    if number is not None:
        return f"Cell [{number}], line {frame.f_lineno}"
    return f"{Path(file).name}:{frame.f_lineno}"
