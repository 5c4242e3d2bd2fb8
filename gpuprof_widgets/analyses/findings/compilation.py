"""Finding on torch.compile: how long it took, what it recompiled and why.

The time is that of dynamo's regions in the trace. Torch told the recorder what was compiled and
which guard failed (``compilations`` in the metadata); the wording of guards is that of
torch/_dynamo/guards.py and torch/csrc/dynamo/guards.cpp, of torch 2.6 to 2.13.
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
"""Share of all compilation time from which on the first compilations get a remedy."""

IN_WARM_UP = (
    "The first compilation of a function is paid once. Warm up before measuring (--steps with "
    "--warmup), or keep the compiled code from run to run (TORCHINDUCTOR_CACHE_DIR on a permanent "
    "disk)."
)
LONGER = "Warm up longer (--warmup): the recorded steps include one-off costs."
ASK_TORCH = "TORCH_LOGS=recompiles tells why it compiled again."
DYNAMIC = (
    "Compile once for all sizes: `torch._dynamo.mark_dynamic(tensor, dimension)` before the first "
    "call, or `torch.compile(..., dynamic=True)`. Or pad to a few sizes."
)

RECORDING = re.compile(r"_(?:forward|backward)\w*_hooks|_global_hook|gpuprof_widgets")
"""Guards on module hooks: recording installs some for a while, hidden from dynamo."""

COMPILATION_SHARE = 0.05


@dataclass(frozen=True)
class Cause:
    """A kind of guard that failed: how torch words it, how the finding does, and the remedy.

    The pattern's groups are ``what`` it guards, ``dim``, and the ``old`` and ``new`` values.
    """

    pattern: re.Pattern[str]
    words: str
    remedy: str


def _tensor(what: str, words: str, remedy: str) -> Cause:
    values = r"(?: at index (?P<dim>\d+))?\. expected (?P<old>.+?)(?:, actual (?P<new>.+))?$"
    return Cause(re.compile(rf"tensor '(?P<what>.+?)' {what} mismatch{values}"), words, remedy)


CAUSES = (
    _tensor("size", "the size of {what} in dimension {dim} changed{values}", DYNAMIC),
    _tensor(
        "rank",
        "the number of dimensions of {what} changed{values}",
        "Give it tensors of one number of dimensions, or compile a function for each.",
    ),
    _tensor("stride", "the strides of {what} changed", "Hand it in as `.contiguous()`."),
    _tensor(
        "dtype",
        "the dtype of {what} changed{values}",
        "Convert it before the call, so that there is one dtype.",
    ),
    _tensor(
        "requires_grad",
        "{what} required gradients in some calls only",
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
        "One compilation per mode is usual; torch keeps both unless something else changes too.",
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
        "two of its arguments were the same tensor in some calls only",
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
"""The kinds of guards; the first that matches counts, the last one is for no known guard."""


@dataclass(frozen=True)
class _Reason:
    """The recompilations of one function for one cause, with the matches of the cause's pattern."""

    compilations: list[Listed]
    cause: Cause
    matches: list[re.Match[str]]


def compilation(record: Record, *, compilation_share: float = COMPILATION_SHARE) -> list[Finding]:
    """Fires if torch.compile took 5 % of the run, or gave up on a function.

    A function given up (``recompile_limit``) runs uncompiled from then on.

    Cost: the time of the compilations.
    """
    trace, listed = record.trace, _listed(record)
    rows, times = compiled_functions(trace), compiling_time(trace)
    spent = intervals.length(times) or _total(listed)
    share = min(share_of(spent, run_ns(record)), 1.0)
    given_up = [entry for entry in listed if entry["gave_up"]]
    if not spent or (share < compilation_share and not given_up):
        return []
    repeated = [entry for entry in listed if entry["again"] and not entry["gave_up"]]
    by_recording = [entry for entry in repeated if RECORDING.search(entry["reason"])]
    of_the_code = [entry for entry in repeated or given_up if not RECORDING.search(entry["reason"])]
    reasons = _reasons(of_the_code)
    compiled = max(len(rows), len(listed)) - len(given_up)
    what = f"compiled {format_count(compiled, 'time')}" if compiled else "compiled nothing"
    text = (
        f"`torch.compile` {what}, "
        f"which took {format_ns(spent)} of {format_ns(run_ns(record))} ({format_share(share)})."
        f"{_explanation(reasons, repeated, by_recording, listed)}"
    )
    title = "compiled during the run"
    if given_up:
        names = list(dict.fromkeys(map(_function_alone, given_up)))
        title = f"gave up on {names[0]}, which runs uncompiled"
        text += (
            f" At its limit (`recompile_limit`) it gave up on {' and '.join(names[:MOST_VALUES])}, "
            f"which {'has' if len(names) == 1 else 'have'} run uncompiled since then."
        )
    elif reasons:
        title = f"compiled {_function_alone(reasons[0].compilations[0])} again"
    remedy, title = _remedy(record, reasons, listed), f"`torch.compile` {title}"
    start, end = (int(times[0][0]), int(times[1][-1])) if len(times[0]) else (None, None)
    return [Finding(text, spent, share, start, end, tuple(rows), remedy, title=title)]


def _listed(record: Record) -> list[Listed]:
    """Return the recorded compilations that began in this range of the run."""
    start, end = record.trace.start_ns, record.trace.end_ns
    listed = record.metadata.get("compilations") or []
    return [entry for entry in listed if start <= entry["start_ns"] <= end]


def _total(listed: Iterable[Listed]) -> int:
    return sum(int(entry["dur_ns"]) for entry in listed)


def _reasons(repeated: list[Listed]) -> list[_Reason]:
    """Group recompilations by function and cause, the costliest first."""
    reasons: dict[Any, _Reason] = {}
    for entry in repeated:
        cause, match = next(
            (cause, match) for cause in CAUSES if (match := cause.pattern.search(entry["reason"]))
        )
        groups = match.groupdict()
        about = groups.get("what"), groups.get("dim")
        key = entry["function"], entry["file"], entry["line"], cause.words, about
        reason = reasons.setdefault(key, _Reason([], cause, []))
        reason.compilations.append(entry)
        reason.matches.append(match)
    return sorted(reasons.values(), key=lambda reason: -_total(reason.compilations))


def _explanation(
    reasons: list[_Reason], repeated: list[Listed], by_recording: list[Listed], listed: list[Listed]
) -> str:
    """Return what was recompiled most, and why; else which function took longest."""
    text = ""
    if reasons:
        most = reasons[0]
        times = "" if len(most.compilations) == 1 else f" {len(most.compilations):,} times"
        verb = "recompiled" if repeated else "would have recompiled"
        text = f" It {verb} {_function(most.compilations[0])}{times}{_because(most)}"
        if others := sum(len(reason.compilations) for reason in reasons[1:]):
            text += f" ({others:,} more for other reasons)"
        text += "."
    elif listed and not by_recording:
        longest = _function(max(listed, key=lambda entry: int(entry["dur_ns"])))
        text = f" It compiled {longest} for the first time."
        if len(listed) > 1:
            text = f" It compiled each function for the first time; {longest} took longest."
    if by_recording:
        times = format_count(len(by_recording), "time")
        text += (
            f" It recompiled {times} because hooks of modules changed, perhaps those of the "
            "recording."
        )
    return text


def _remedy(record: Record, reasons: list[_Reason], listed: list[Listed]) -> str:
    """Return what to do about the costliest reason, and about costly first compilations."""
    whole, first = _total(listed), _total(entry for entry in listed if not entry["again"])
    remedies = []
    if reasons:
        remedies.append(reasons[0].cause.remedy)
    elif not listed:
        remedies.append(ASK_TORCH)
    if not listed or first >= WORTH_SHARE * whole:
        noted = (record.metadata.get("steps") or {}).get("one_off") or {}
        late = (noted.get("after_warmup") or {}).get("graphs")
        remedies.append(LONGER if late and not reasons else IN_WARM_UP)
    return " ".join(remedies)


def _function(entry: Listed) -> str:
    """Return a function's name and place; dynamo's wrapper of a module is just "a module"."""
    file = entry["file"].replace("\\", "/")
    if not entry["function"]:
        return "a function"
    if file.endswith("torch/_dynamo/external_utils.py"):
        return "a module"
    return f"{code(entry['function'])} ({file.rsplit('/', 1)[-1]}, line {entry['line']})"


def _function_alone(entry: Listed) -> str:
    return _function(entry).partition(" (")[0]


def _because(reason: _Reason) -> str:
    """Return the cause in words, with the values that were seen, in order: ``(3, 4, 5, 6, …)``."""
    if not reason.cause.words:
        return ""
    groups = [match.groupdict() for match in reason.matches]
    # As in the source: `step` for `G['step']`.
    what = re.sub(r"\b[GL]\['(\w+)'\]", r"\1", groups[0].get("what") or "").strip()
    met = [values.get(key) for values in groups for key in ("old", "new")]
    texts = list(dict.fromkeys(value.strip() for value in met if value))
    more = ", …" if len(texts) > MOST_VALUES else ""
    values = f" ({', '.join(texts[:MOST_VALUES])}{more})" if texts else ""
    cause = reason.cause.words.format(what=code(what), dim=groups[0].get("dim"), values=values)
    return f", because {cause}"
