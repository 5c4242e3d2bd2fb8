"""`Profile`: the record that a user holds, with the analyses and views as methods.

The module is not called ``profile``: importing a submodule binds its name in the package, and
``gpuprof_widgets.profile`` is the function.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self

from gpuprof_widgets.analysed import Analysed
from gpuprof_widgets.exceptions import OptionError, RecordingError
from gpuprof_widgets.trace.model import Record

if TYPE_CHECKING:
    from gpuprof_widgets.analyses.findings import Finding
    from gpuprof_widgets.analyses.selected import Selection
    from gpuprof_widgets.comparisons import Comparison
    from gpuprof_widgets.explorer import Explorer
    from gpuprof_widgets.snakeviz_server import SnakevizServer
    from gpuprof_widgets.trace.readers import Paths


@dataclass(frozen=True, eq=False, repr=False)
class Profile(Analysed):
    """One profiled run: ``trace``, ``calls`` (None without cProfile) and ``metadata``.

    ``calls_of_workers`` has the calls in the DataLoader's worker processes, if they were recorded.
    If several cProfile files were opened, it has the calls of each file.

    A profile never changes: methods such as `window` return a new one. Times are ns since the
    trace's start.
    """

    @classmethod
    def load(cls, path: Paths) -> Self:
        """Open a saved profile, or a file that another profiler wrote (docs/formats.md).

        The content decides the format, not the name. ``path`` may be a URL
        (``s3://bucket/run/trace.json.gz``).

        Several paths, or a folder, are opened as one run. The spans of one worker are joined, one
        after another. cProfile files of several ranks or workers are added up, and
        ``calls_of_workers`` has the calls of each file. Traces of several ranks cannot be joined:
        `gpuprof_widgets.ranks` compares them.

        Raises a `TraceError` if nothing can be read, or if the files do not belong together.
        """
        from gpuprof_widgets.trace.readers import load as load_record

        record = load_record(path)
        return cls(record.trace, record.calls, record.metadata, record.calls_of_workers)

    def save(self, path: str | os.PathLike[str], *, redact: bool = False) -> Path:
        """Save the profile as one zip of open formats, and return its path.

        The file is written whole or not at all. ``redact`` leaves out what identifies its author
        and machine (see `redacted`).
        """
        from gpuprof_widgets.trace.archive import save

        return save(self.redacted() if redact else self, path)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        what: str | None = None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
        redact: bool = False,
    ) -> Path:
        """Export the profile in the format that the file's ending selects, and return the path.

        The endings are ``.gpuprof`` (everything, as `save`), ``.json`` and ``.json.gz`` (for
        Perfetto), ``.speedscope.json``, ``.collapsed`` (for flamegraph.pl), ``.prof``, ``.csv``,
        ``.parquet``, ``.html``, ``.png`` and ``.svg``.

        ``what`` chooses a part:

        - of a table, the analysis, such as "kernels"; by default "operators";
        - of a picture, the view: "timeline", "flame_graph" or "ops"; by default all;
        - of ``.collapsed``, the source of the stacks: "ops", "merged" or "cprofile"; by default
          that of the flame graph;
        - of ``.collapsed`` and ``.speedscope.json``, "device": stacks by the GPU time (ns) that
          they caused.

        ``ranges``: names of ranges with their times (ns); they get a separate track. ``redact``:
        see `redacted`.

        Raises an `OptionError` for an unknown ending or ``what``, and a `RecordingError` if the
        profile has nothing that the format can hold. Warns if a table has no rows, and says why.
        """
        from gpuprof_widgets.exports import export

        return export(self.redacted() if redact else self, path, what=what, ranges=ranges)

    def redacted(self) -> Self:
        """Return a copy to share, without what identifies you or your machine.

        It leaves out names of hosts and users, folders in paths, source code, error messages,
        passwords and tokens, and most metadata. Names of ops, functions, modules and annotations
        stay, and so do all times.
        """
        from gpuprof_widgets.trace.redact import redacted

        return redacted(self)

    def save_pstats(self, path: str | os.PathLike[str]) -> Path:
        """Write the Python calls to a ``.prof`` file for pstats and snakeviz, and return its path.

        Raises a `RecordingError` if no calls were recorded, as when stacks were only sampled.
        """
        from gpuprof_widgets.analyses.python_calls import recorded_calls
        from gpuprof_widgets.trace.pstats import save_pstats

        return save_pstats(recorded_calls(self), path)

    def snakeviz(self) -> SnakevizServer | None:
        """Show the Python calls in snakeviz, in a tab of the local browser.

        Returns the server, with ``url`` and ``close()``. The server ends with the interpreter at
        the latest. If no local browser can be reached, the path of a ``.prof`` file is printed
        instead. Raises a `RecordingError` if no calls were recorded, as when stacks were only
        sampled.
        """
        from gpuprof_widgets.analyses.python_calls import recorded_calls
        from gpuprof_widgets.snakeviz_server import show_in_snakeviz

        name = str(self.metadata.get("label") or "")
        return show_in_snakeviz(recorded_calls(self), name=name)

    def window(self, t0: int, t1: int) -> Self:
        """Return the profile of the range [t0, t1) ns; slices are cut at its edges.

        An op outside the range stays, with no calls and no CPU time, if GPU work that it launched
        is inside the range. The Python calls stay whole, because cProfile has no timestamps.
        """
        from gpuprof_widgets.trace.window import window

        return window(self, t0, t1)

    def note(self, text: str, at: int | tuple[int, int]) -> Self:
        """Return the profile with a note at a time, or over a range of time (``at``, in ns).

        Its reports list the note above the findings, and the picture flags it on the timeline. A
        saved profile keeps the note; a redacted copy does not. Raises an `OptionError` for an empty
        text and for times outside of the trace.
        """
        from gpuprof_widgets.trace.remarks import with_remark

        return with_remark(self, text, at)

    def focus(
        self, range: tuple[int, int] | None = None, selection: Selection | Finding = None
    ) -> Self:
        """Return the profile with a place at which its reports open: a range and selected slices.

        A report then opens with the range (ns) brushed and in view and the slices highlighted, as
        if the reader had selected them. ``selection`` is one of these:

        - a finding, whose range is used unless ``range`` is given;
        - row numbers of slices, or a table with them as its index;
        - a query such as ``"op == 'aten::copy_'"`` (columns: `Explorer.selection`).

        `window` numbers the slices anew and so drops the place. Raises an `OptionError` for a range
        or slices that the trace does not have, and for a query that no slice matches.
        """
        from gpuprof_widgets.analyses.findings import Finding
        from gpuprof_widgets.analyses.selected import about_selection, selected_rows
        from gpuprof_widgets.trace.remarks import with_focus

        if isinstance(selection, Finding):
            start, end = selection.start_ns, selection.end_ns
            of_finding = None if start is None or end is None else (start, end)
            return with_focus(self, range or of_finding, selection.rows, selection.text)
        rows = selected_rows(self, selection).tolist()
        if isinstance(selection, str) and not rows:
            raise OptionError(f"no slice of the trace matches the query {selection!r}")
        return with_focus(self, range, rows, about_selection(selection))

    def compare(
        self, other: Record | str | os.PathLike[str], *, per: str | None = None
    ) -> Comparison:
        """Compare this run (a) with another one (b): what differs, and which differences are noise.

        ``other`` is a profile or a file; ``per`` is "step" or "run" (see `Comparison`).
        """
        return compare(self, other, per=per)

    def report(self, *, sort: str = "device_self", top: int = 15) -> str:
        """Return the linked views as one HTML page that needs no network.

        ``sort`` and ``top``: as the options of `profile` (docs/options.md).
        """
        from gpuprof_widgets.views.report import standalone_html

        return standalone_html(self, sort=sort, top=top)

    def show(self, *, sort: str = "device_self", top: int = 15) -> None:
        """Show the linked views below the cell; outside a notebook, print findings and ops."""
        from gpuprof_widgets import runtime_carrier
        from gpuprof_widgets.views import report

        runtime_carrier.show(
            lambda embed: report.outputs(self, sort=sort, top=top, embed_runtime=embed),
            lambda: report.static_text(self, sort=sort, top=top),
        )

    def explore(self, *, sort: str = "device_self", top: int = 15) -> Explorer:
        """Return the linked views as a widget whose range and selection Python can read and set."""
        return explore(self, sort=sort, top=top)

    def _ipython_display_(self) -> None:
        """Show a profile that is a cell's last value, like one just recorded."""
        self.show()

    def __repr__(self) -> str:
        parts = [f"{len(self.trace):,} slices", f"{self.trace.span_ns / 1e6:,.3f} ms"]
        tracks = self.trace.tracks
        devices = tracks["device"][tracks["device"] >= 0].nunique()
        parts.append(f"{devices} GPU{'s' * (devices != 1)}")
        if self.calls is not None:
            parts.append(f"{len(self.calls.functions):,} Python functions")
        return f"<Profile {_name(self)!r}: {', '.join(parts)}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Findings and op table, as text and as HTML without script (`show` has the live views)."""
        from gpuprof_widgets.views.report import static_bundle

        return static_bundle(self)


def load(path: Paths) -> Profile:
    """Open a saved profile, or a file that another profiler wrote (docs/formats.md).

    The content decides the format, not the name. Several paths, or a folder, are opened as one run:
    see `Profile.load`. URLs such as ``s3://bucket/run/trace.json.gz`` need
    ``pip install "gpuprof-widgets[remote]"``. Raises a `TraceError` if nothing can be read.
    """
    return Profile.load(path)


def compare(
    a: Record | str | os.PathLike[str],
    b: Record | str | os.PathLike[str],
    *,
    per: str | None = None,
) -> Comparison:
    """Compare run a (before) with run b (after): what differs, and which differences are noise.

    ``a`` and ``b`` are profiles or files. ``per`` is "step" or "run"; by default it is "step" if
    both runs have steps.
    """
    from gpuprof_widgets.comparisons import Comparison

    return Comparison(_opened(a), _opened(b), per)


def explore(
    *runs: Profile | str | os.PathLike[str], sort: str = "device_self", top: int = 15
) -> Explorer:
    """Return a widget that shows one of these profiles or files at a time.

    Python can read and set what is brushed and selected in the page (see `Explorer`).
    """
    from gpuprof_widgets.explorer import Explorer

    if not runs:
        raise OptionError("explore takes one profile or file, or several")
    profiles: dict[str, Profile] = {}
    for run in runs:
        profile = run if isinstance(run, Profile) else load(run)
        name = _name(profile)
        same = sum(other == name or other.startswith(f"{name} (") for other in profiles)
        profiles[f"{name} ({same + 1})" if same else name] = profile
    opened = {name: partial(profiles.__getitem__, name) for name in profiles}
    return Explorer(opened, sort=sort, top=top)


def _name(profile: Profile) -> str:
    return str(profile.metadata.get("label") or profile.metadata.get("source") or "unnamed")


def _opened(run: Record | Paths) -> Record:
    if isinstance(run, Record):
        return run
    if not isinstance(run, Iterable | os.PathLike):
        raise OptionError(
            f"compare takes profiles and files, not a {type(run).__name__}: the profile of a "
            "block is `run` of `with profile() as run`"
        )
    return load(run)


NOT_ENDED = "the block of this profile has not ended yet: read the profile after the block"


class Unrecorded(Profile):
    """A profile of a block that has not ended yet, or of which nothing could be recorded.

    It has no content, so any use of it raises a `RecordingError` with the reason, ``why``. `become`
    fills it; from then on it is a `Profile` like any other.
    """

    why: str

    def __init__(self, why: str = NOT_ENDED) -> None:
        object.__setattr__(self, "why", why)

    @property
    def trace(self) -> NoReturn:
        raise RecordingError(self.why)

    calls = metadata = calls_of_workers = trace

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self)}

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise RecordingError(self.why)  # a copy would never get the content

    def __repr__(self) -> str:
        return f"<Profile: {self.why}>"


def become(profile: Profile, result: Profile) -> None:
    """Give an unrecorded profile the content of the result, or the reason why it has none."""
    vars(profile).clear()
    vars(profile).update(vars(result))
    object.__setattr__(profile, "__class__", type(result))
