"""`gpuprof_widgets.profile(...)`, for a block or a function, and `gpuprof_widgets.steps(...)`.

The functions from `check` on are shared with the magic and the commands: they read the recorder,
save the profile and keep it as `gpuprof_widgets.last`.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from itertools import chain, count
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from gpuprof_widgets import runtime_carrier
from gpuprof_widgets.capture.cell import cell_numbers
from gpuprof_widgets.exceptions import OptionError, RecordingError, in_words
from gpuprof_widgets.options import Options, ProfileOptions, with_keywords

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
            self._options,
            label=self._label,
            namespace=self._namespace,
            keep=keeper(self._options),
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
        self._options = _of_call(self._options)
        super().__exit__(*raised)
        if is_recorded(result) and self._options.save is not None:
            _saved_calls.add(_target(self._options.save).absolute())


_saved_calls: set[Path] = set()
"""Files of this process's decorated calls, which later calls do not overwrite."""


def _of_call(options: Options) -> Options:
    """Return the options of a further call, whose ``save`` is ``step_2.gpuprof``."""
    if options.save is None:
        return options
    path = _target(options.save)
    further = (path.with_name(f"{path.stem}_{number}{path.suffix}") for number in count(2))
    free = (file for file in chain([path], further) if file.absolute() not in _saved_calls)
    return options.changed(save=str(next(free)))


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
    caller = _user_above(sys._getframe(1))
    place, namespace = _place_of(caller), caller.f_globals
    return Steps(
        iterable,
        Schedule.of(options),
        place=place,
        alone=lambda: ProfileRun(options, place, namespace),
    )


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

    report_keys(options.sort)
    if options.save is not None:
        from gpuprof_widgets.capture.distributed import process_rank, rank_file

        _check_writable(rank_file(_target(options.save), process_rank()))


def _target(save: str | os.PathLike[str]) -> Path:
    try:
        return Path(save).expanduser()
    except RuntimeError as error:
        raise OptionError(
            f"save cannot write {save}: the home folder is not known here; give the whole path"
        ) from error


def _check_writable(path: Path) -> None:
    if path.is_dir():
        raise OptionError(f"save is the path of a file; {path} is a folder")
    if not path.parent.is_dir():
        raise OptionError(f"save cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OptionError(f"save cannot write {path}: permission denied")


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
    from gpuprof_widgets.profiles import Profile

    save = of_cycle(options, record.metadata).save
    metadata = {**record.metadata, **_rank_files(record.metadata, save)}
    return Profile(record.trace, record.calls, metadata, record.calls_of_workers)


def of_cycle(options: Options, metadata: Mapping[str, Any]) -> Options:
    """Return the options of one recording of a loop: ``save`` becomes ``run_step5003.gpuprof``."""
    if options.every is None or options.save is None:
        return options
    steps = metadata.get("steps", {}).get("iterations", ())
    first = next((step["step"] for step in steps if step["kind"] == "recorded"), 0)
    path = Path(options.save)
    return options.changed(save=str(path.with_name(f"{path.stem}_step{first}{path.suffix}")))


def _rank_files(
    metadata: Mapping[str, Any], save: str | os.PathLike[str] | None
) -> dict[str, list[str]]:
    """Return the metadata's paths of all ranks' profiles; none for a program that ran alone."""
    from gpuprof_widgets.capture.distributed import files_of_ranks, rank_in

    if save is None:
        return {}
    files = files_of_ranks(_target(save).absolute(), rank_in(metadata))
    return {"rank_files": [str(file) for file in files]} if files else {}


def _user_above(frame: FrameType) -> FrameType:
    """Return the user's frame: this one, or the one that called our callback for a trainer."""
    ours = "gpuprof_widgets.integrations"
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(ours):
        frame = frame.f_back
    return frame


def _place_of(frame: FrameType) -> str:
    """Return the file or cell and the line of a frame: the label of a profile without a name."""
    file = frame.f_code.co_filename
    shell = frame.f_globals.get("get_ipython", lambda: None)()
    number = cell_numbers(shell).get(file) if hasattr(shell, "compile") else None
    if number is not None:
        return f"Cell [{number}], line {frame.f_lineno}"
    return f"{Path(file).name}:{frame.f_lineno}"
