"""torch.compile took a good part of the run: what it compiled, and why again.

The time is that of dynamo's own regions in the trace. What it compiled and which guard did not
hold the recorder has from torch (``compilations`` in the metadata); the words of guards are those
of torch/_dynamo/guards.py and torch/csrc/dynamo/guards.cpp, of torch 2.6 to 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuprof_widgets.analyses.cold_start import compiled_functions, compiling_time
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.finding import Finding, code, run_ns, share_of
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Record

Listed = Mapping[str, Any]

MOST_VALUES = 4
WORTH_SHARE = 0.2
"""Of the time of all compilations: from here on those again, or the first ones, get a remedy."""

IN_WARM_UP = (
    "The first compilation of a function is paid once: warm up before what is timed (--steps with "
    "--warmup), or keep the compiled code from run to run (TORCHINDUCTOR_CACHE_DIR on a disk that "
    "stays)."
)
LONGER = "Warm up longer (--warmup): the recorded steps hold what is paid once."
ASK_TORCH = "TORCH_LOGS=recompiles tells why it compiled again."
DYNAMIC = (
    "Compile once for all sizes: `torch._dynamo.mark_dynamic(tensor, dimension)` before the first "
    "call, or `torch.compile(..., dynamic=True)`; or pad to a few sizes."
)

RECORDING = re.compile(r"_(?:forward|backward)\w*_hooks|_global_hook|gpuprof_widgets")
"""Guards on hooks of modules: recording has some for a while, which are hidden from dynamo."""

COMPILATION_SHARE = 0.05


@dataclass(frozen=True)
class Cause:
    """How torch writes a guard of this kind that did not hold; what to say of it, and to do.

    The pattern's groups are ``what`` it guards, ``dim``, and the ``old`` and ``new`` values.
    """

    pattern: re.Pattern[str]
    words: str
    remedy: str


def _tensor(what: str, words: str, remedy: str) -> Cause:
    values = r"(?: at index (?P<dim>\d+))?\. expected (?P<old>.+?)(?:, actual (?P<new>.+))?$"
    return Cause(re.compile(rf"tensor '(?P<what>.+?)' {what} mismatch{values}"), words, remedy)


CAUSES = (
    _tensor(
        "size",
        "the size of {what} in dimension {dim} changed{values}",
        DYNAMIC,
    ),
    _tensor(
        "rank",
        "the number of dimensions of {what} changed{values}",
        "Give it tensors of one number of dimensions, or compile a function for each.",
    ),
    _tensor(
        "stride",
        "the strides of {what} changed",
        "Hand it in as `.contiguous()`.",
    ),
    _tensor(
        "dtype",
        "the dtype of {what} changed{values}",
        "Convert it before the call, so that there is one dtype.",
    ),
    _tensor(
        "requires_grad",
        "{what} required gradients once and once not",
        "Compile one function to train with and one to evaluate with.",
    ),
    _tensor(
        "(?:dispatch key set|device index|device)",
        "the device of {what}, or its inference mode, changed",
        "Call it with tensors of one device and under one mode (no_grad, inference_mode).",
    ),
    Cause(
        re.compile(r"GLOBAL_STATE changed: (?P<what>.*\S)"),
        "settings of torch changed ({what})",
        "Call it under the same settings each time (grad mode, autocast, threads, determinism).",
    ),
    Cause(
        re.compile(r"(?P<what>\S+)\.training == (?:True|False|[01])"),
        "its modules went from `train()` to `eval()` or back",
        "Once for each mode is usual; it keeps both unless there is more that changes.",
    ),
    Cause(
        re.compile(r"len\((?P<what>.+?)\) == (?P<old>\d+)"),
        "the length of {what} changed",
        "Hand in lists and dicts of one length, or one tensor (torch.stack) in their place.",
    ),
    Cause(
        re.compile(r"(?P<what>[\w.\[\]']+)\.size\(\)\[(?P<dim>\d+)\]"),
        "the size of {what} in dimension {dim} left the range that it was compiled for",
        DYNAMIC,
    ),
    Cause(
        re.compile(r"___check_(?:obj_id|type_id|current_backend)\((?P<what>[^,()]+)"),
        "{what} was another object or of another type",
        "Make functions, modules and objects once, outside of the loop, and hand in the same ones.",
    ),
    Cause(
        re.compile(r"BACKEND_MATCH"),
        "it was compiled with another backend object",
        "Call `torch.compile` once, outside of the loop, and with one backend.",
    ),
    Cause(
        re.compile(r"Duplicate tensors? found"),
        "two of its arguments were the same tensor, or no more",
        "Hand in different tensors each time, or the same ones each time.",
    ),
    Cause(
        re.compile(r"(?P<what>.+?) (?:==|!=|is not|is) (?P<old>.+)"),
        "the value of {what} changed{values}",
        "It is compiled in: keep it the same, or hand it in as a tensor.",
    ),
    Cause(re.compile(r"(?P<what>.+)"), "a guard did not hold ({what})", ASK_TORCH),
    Cause(re.compile(""), "", ASK_TORCH),
)
"""The kinds of guards, the first that fits; the last one where torch told none."""


@dataclass(frozen=True)
class _Reason:
    """Compilations of one function again, for one cause, and what they took."""

    listed: list[Listed]
    cause: Cause
    found: list[re.Match[str]]

    @property
    def dur_ns(self) -> int:
        return _total(self.listed)

    @property
    def words(self) -> str:
        groups = self.found[0].groupdict()
        if not self.cause.words:
            return ""
        told = self.cause.words.format(
            what=code(_plain(groups.get("what") or "")),
            dim=groups.get("dim"),
            values=_values(self.found),
        )
        return f", as {told}"


def compilation(record: Record, *, compilation_share: float = COMPILATION_SHARE) -> list[Finding]:
    """Fires where torch.compile took 5 % of the run, or gave a function up.

    Of a function given up (``recompile_limit``) it says that it runs uncompiled.

    ``compilation_share``: Compiling (torch.compile).
    """
    trace, listed = record.trace, _listed(record)
    rows, times = compiled_functions(trace), compiling_time(trace)
    spent = intervals.length(times) or _total(listed)
    share = min(share_of(spent, run_ns(record)), 1.0)
    given_up = [one for one in listed if one["gave_up"]]
    if not spent or (share < compilation_share and not given_up):
        return []
    again = [one for one in listed if one["again"] and not one["gave_up"]]
    ours = [one for one in again if RECORDING.search(one["reason"])]
    of_the_code = [one for one in again or given_up if not RECORDING.search(one["reason"])]
    reasons = _reasons(of_the_code)
    times_text = format_count(max(len(rows), len(listed)) - len(given_up), "time")
    text = (
        f"`torch.compile` compiled {times_text}, "
        f"{format_ns(spent)} of {format_ns(run_ns(record))} ({format_share(share)})"
        f"{_told(reasons, again, ours, listed)}{_gave_up(given_up)}."
    )
    remedy = _remedy(record, reasons, listed)
    start, end = (int(times[0][0]), int(times[1][-1])) if len(times[0]) else (None, None)
    shown = tuple(int(row) for row in rows)
    return [Finding(text, spent, share, start, end, shown, remedy)]


def _listed(record: Record) -> list[Listed]:
    """The compilations that the recorder lists and that began in this range of the run."""
    start, end = record.trace.start_ns, record.trace.end_ns
    listed = record.metadata.get("compilations") or []
    return [one for one in listed if start <= one["start_ns"] <= end]


def _total(listed: Iterable[Listed]) -> int:
    return sum(int(one["dur_ns"]) for one in listed)


def _reasons(again: list[Listed]) -> list[_Reason]:
    """By function and cause, the costliest first."""
    groups: dict[Any, _Reason] = {}
    for one in again:
        cause, found = next(
            (cause, found) for cause in CAUSES if (found := cause.pattern.search(one["reason"]))
        )
        groups_of = found.groupdict()
        about = groups_of.get("what"), groups_of.get("dim")
        key = one["function"], one["file"], one["line"], cause.words, about
        reason = groups.setdefault(key, _Reason([], cause, []))
        reason.listed.append(one)
        reason.found.append(found)
    return sorted(groups.values(), key=lambda reason: -reason.dur_ns)


def _told(
    reasons: list[_Reason], again: list[Listed], ours: list[Listed], listed: list[Listed]
) -> str:
    """What was compiled again most, and why; else which function took longest."""
    text = ""
    if reasons:
        most = reasons[0]
        times = "" if len(most.listed) == 1 else f"{len(most.listed):,} times "
        text = f": {_function(most.listed[0])} {times}again{most.words}"
        if others := len(again) - len(ours) - len(most.listed):
            text += f" ({others:,} more again for other reasons)"
    elif listed and not ours:
        longest = max(listed, key=lambda one: int(one["dur_ns"]))
        of = "" if len(listed) == 1 else "the longest "
        text = f": {of}{_function(longest)}, for the first time"
        if len(listed) > 1:
            text = f", each function for the first time, the longest {_function(longest)}"
    if ours:
        text += (
            f"; {format_count(len(ours), 'time')} as hooks of modules changed, which may be the "
            "recording's own"
        )
    return text


def _gave_up(given_up: list[Listed]) -> str:
    if not given_up:
        return ""
    names = list(dict.fromkeys(_function(one).partition(" (")[0] for one in given_up))
    text = f"; at its limit (`recompile_limit`) it gave {' and '.join(names[:MOST_VALUES])} up"
    return f"{text}, which {'runs' if len(names) == 1 else 'run'} uncompiled since"


def _remedy(record: Record, reasons: list[_Reason], listed: list[Listed]) -> str:
    """What to do about the costliest reason, and about first compilations that cost a part."""
    whole, first = _total(listed), _total(one for one in listed if not one["again"])
    said = []
    if reasons:
        said.append(reasons[0].cause.remedy)
    elif not listed:
        said.append(ASK_TORCH)
    if not listed or first >= WORTH_SHARE * whole:
        noted = (record.metadata.get("steps") or {}).get("one_off") or {}
        late = (noted.get("after_warmup") or {}).get("graphs")
        said.append(LONGER if late and not reasons else IN_WARM_UP)
    return " ".join(said)


def _function(one: Listed) -> str:
    """Its name and place; what dynamo puts around a module has none that says anything."""
    file = one["file"].replace("\\", "/")
    if not one["function"]:
        return "a function"
    if file.endswith("torch/_dynamo/external_utils.py"):
        return "a module"
    return f"{code(one['function'])} ({file.rsplit('/', 1)[-1]}, line {one['line']})"


def _plain(guarded: str) -> str:
    """A global as the code has it: ``step`` for ``G['step']``."""
    return re.sub(r"\b[GL]\['(\w+)'\]", r"\1", guarded).strip()


def _values(found: list[re.Match[str]]) -> str:
    """The values that were met, in their order: ``(3, 4, 5, 6, …)``."""
    groups = [one.groupdict() for one in found]
    met = [each.get(key) for each in groups for key in ("old", "new")]
    values = list(dict.fromkeys(value.strip() for value in met if value))
    if not values:
        return ""
    more = ", …" if len(values) > MOST_VALUES else ""
    return f" ({', '.join(values[:MOST_VALUES])}{more})"
