"""The options of a recording: one definition for the magic, `profile()` and the command line."""

from __future__ import annotations

import difflib
import keyword
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from typing import Any, Self

from gpuprof_widgets.exceptions import OptionError

GROUPS = {
    "topics": "topics: what is recorded",
    "loop": "loop: a bounded, warmed-up window of the loop that trains",
    "output": "output: what is shown and kept",
}
"""The groups in which help lists the options, with the heading of each."""


def _option(
    default: Any,
    help: str,
    *,
    group: str,
    short: str = "",
    metavar: str = "",
    bare: str | None = None,
    none: str | None = None,
) -> Any:
    """A dataclass field that also knows what it is on a command line (see `arguments`).

    ``bare`` is what the flag means without a value, ``none`` what its opposite means.
    """
    about = {
        "help": help,
        "group": group,
        "short": short,
        "metavar": metavar,
        "bare": bare,
        "none": none,
    }
    return field(default=default, metadata=about)


_topic, _loop, _output = (partial(_option, group=group) for group in GROUPS)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to record and how to show it; field names are the keywords of `profile()`.

    The topics of ``record`` are resolved here: whoever records reads ``lines``, ``shapes``, ...
    """

    steps: int | None = _loop(
        None, "bound the loop: record this many iterations, then end it", metavar="N"
    )
    warmup: int = _loop(3, "unrecorded iterations right before the recorded ones", metavar="N")
    wait: int = _loop(0, "unrecorded iterations before the warm-up", metavar="N")
    repeat: int = _loop(1, "times to wait, warm up and record", metavar="N")
    cprofile_steps: int | None = _loop(
        None, "iterations that cProfile records, if more", metavar="N"
    )
    keep_going: bool = _loop(False, "then let the loop run to its end, unrecorded")
    every: int | None = _loop(
        None,
        "with --keep-going: record again every so many iterations, each to a file of its own",
        metavar="N",
    )
    expect: str | None = _output(
        None, "regions that should run: say which did not", metavar="NAMES"
    )
    lines: bool = _topic(True, "do not mark the lines of the cell")
    modules: str = _topic(
        "auto",
        "mark the nn.Modules of all variables, or of these; auto: where there are any; "
        "--no-modules: none",
        metavar="NAMES",
        bare="all",
        none="none",
    )
    workers: bool = _topic(False, "record the DataLoader's worker processes")
    shapes: bool = _topic(False, "record the input shapes of every op")
    stack: bool = _topic(False, "record Python frames and source lines")
    memory: bool = _topic(False, "record allocations and releases")
    sync: bool = _topic(False, "record CUDA's synchronisation events")
    flops: bool = _topic(False, "estimate FLOPs of matmuls and convolutions")
    nvtx: bool = _topic(False, "emit NVTX ranges for Nsight Systems instead")
    cprofile: bool = _topic(True, "do not run cProfile")
    record: str | None = _topic(
        None,
        "record these topics, and what other switches ask for, and nothing else (cProfile apart: "
        "--no-cprofile)",
        metavar="TOPICS",
    )
    sort: str = _output(
        "device_self",
        "column that sorts the op table, or pstats' key for Python functions",
        metavar="KEY",
    )
    top: int = _output(15, "rows of the op table in the static output", metavar="N")
    name: str | None = _output(None, "label of this profile", metavar="LABEL")
    output: str | None = _output(
        None, "variable that receives the profile", short="-o", metavar="VAR"
    )
    quiet: bool = _output(False, "show nothing", short="-q")
    save: str | None = _output(None, "also save the profile to this file", metavar="PATH")

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_type(one, getattr(self, one.name))
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if number is not None and number < least:
                raise OptionError(f"{name} is at least {least}, not {number}")
        if self.output is not None and not _is_variable(self.output):
            raise OptionError(f"output names a variable, which {self.output!r} cannot be")
        if self.save == "":
            raise OptionError("save is the path of a file, not an empty text")
        if not self.modules:
            raise OptionError("modules is all, none or the names of variables, not an empty text")
        if self.every is not None:
            self._check_every(self.every)
        if self.record is not None:
            self._resolve_topics(topics_in(self.record))

    def _check_every(self, every: int) -> None:
        if not self.keep_going:
            raise OptionError("every is for a loop that goes on: give --keep-going as well")
        if self.save is None:
            raise OptionError(
                "every saves each recording to a file of its own: give --save as well"
            )
        cycle = self.wait + self.warmup + max(self.steps or 1, self.cprofile_steps or 0)
        if every < self.repeat * cycle:
            raise OptionError(
                f"every is at least the {self.repeat * cycle} iterations that are waited, warmed "
                f"up and recorded each time, not {every}"
            )

    def _resolve_topics(self, wanted: set[str]) -> None:
        """Make the single switches say what ``record`` says; those that ask for more add to it."""
        for topic, name in _SWITCHES.items():
            value, default = getattr(self, name), _default(name)
            if topic in wanted and value in _OFF and default not in _OFF:
                raise OptionError(f"record asks for {topic}, which {name}={value!r} leaves out")
            if value not in _OFF and value != default:
                wanted.add(topic)
        for name, value in self._switches_for(wanted).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "record", _joined(wanted))

    def _switches_for(self, wanted: set[str]) -> dict[str, Any]:
        """The switches that have to change for these topics, and to what."""
        return {
            name: _switched(name, on=topic in wanted)
            for topic, name in _SWITCHES.items()
            if (getattr(self, name) in _OFF) == (topic in wanted)
        }

    def changed(self, **given: Any) -> Self:
        """These options with others in place of some, given later and therefore stronger.

        A ``record`` that is given replaces every topic at once; a single switch that is given
        beside an older ``record`` adds its topic or takes it away.
        """
        record = given.get("record", self.record)
        if record is None:
            plain = {name: _default(name) for name in _SWITCHES.values()}
            return replace(self, **((plain if self.record else {}) | given))
        asked = {
            topic: given[name] not in _OFF for topic, name in _SWITCHES.items() if name in given
        }
        wanted = topics_in(record) | {topic for topic, on in asked.items() if on}
        refused = {topic for topic, on in asked.items() if not on} & wanted
        if refused and "record" in given:
            raise OptionError(
                f"record asks for {_joined(refused)}, which another switch leaves out"
            )
        wanted -= refused
        return replace(self, **(self._switches_for(wanted) | given | {"record": _joined(wanted)}))


_LEAST = {"warmup": 0, "wait": 0} | dict.fromkeys(
    ("top", "steps", "repeat", "cprofile_steps", "every"), 1
)
_OFF = (False, "none")

LOOP = ("steps", "warmup", "wait", "repeat", "cprofile_steps", "keep_going", "every")
"""The options that bound a loop: a cell's, by the magic over it."""

_SWITCHES = {
    "shapes": "shapes",
    "stacks": "stack",
    "modules": "modules",
    "lines": "lines",
    "memory": "memory",
    "sync": "sync",
    "flops": "flops",
    "workers": "workers",
}
TOPICS = ("ops", *_SWITCHES)
"""What ``record`` can name. Ops are always recorded: the others hang on them."""

_WORDS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in TOPICS},
    "ALL": TOPICS,
    "COMMAND": ("ops",),
    "OPERATOR": ("ops",),
    "TENSOR_LIFETIME": ("memory",),
    "TENSOR_PROP": ("shapes",),
    "SHAPE_INFER": ("shapes",),  # PyTorch infers no shapes ahead of an op: it has those of its run
    "SYNC": ("sync",),
    "SCOPE": ("modules",),
}
"""What ``record`` takes: the topics, and MegEngine's words for them."""


def topics_in(record: str) -> set[str]:
    """The topics that a text like ``"ops,shapes"`` names, with ``ops`` always among them."""
    words = {name.strip() for name in record.split(",")}
    for name in sorted(words.difference(_WORDS)):
        close = difflib.get_close_matches(name, TOPICS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise OptionError(f"record knows no topic {name!r}.{hint} Topics are {', '.join(TOPICS)}")
    return {"ops", *(topic for word in words for topic in _WORDS[word])}


def _joined(topics: set[str]) -> str:
    return ",".join(topic for topic in TOPICS if topic in topics)


def _default(name: str) -> Any:
    return Options.__dataclass_fields__[name].default


def _switched(name: str, *, on: bool) -> Any:
    """The value of a topic's switch where nothing more is said than on or off."""
    default = _default(name)
    if on:
        return default or True
    return "none" if isinstance(default, str) else False


def kind_of(one: Field[Any]) -> type:
    """What values of this option are, None aside: flags are bool, counts int, all others text."""
    return {"bool": bool, "int": int}.get(str(one.type).removesuffix(" | None"), str)


def _check_type(one: Field[Any], value: object) -> None:
    expected = kind_of(one)
    if value is None and one.default is None:
        return
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        words = {bool: "True or False", int: "a whole number", str: "text"}[expected]
        raise OptionError(f"{one.name} takes {words}, not {value!r}")


def _is_variable(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
