"""The options of a recording: the one table from which every front door is made."""

from __future__ import annotations

import inspect
import keyword
import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from typing import Any, Self, TypeVar

from gpuprof_widgets.exceptions import OptionError, did_you_mean

Function = TypeVar("Function", bound=Callable[..., Any])

GROUPS = {
    "topics": "What is recorded",
    "loop": "A bounded, warmed-up window of the training loop",
    "output": "What is shown and kept",
}
"""The groups in which help lists the options, with the heading of each."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """A row of the table: one field of `Options`, with all that its flag, its help and docs need.

    ``bare`` is the value of its flag without one, ``none`` the value of its opposite. ``topic`` is
    its word in ``record``, ``least`` the smallest number that it takes, ``choices`` the texts that
    it takes (empty: any text). An option that is not ``lasting`` is for one profile, and `%config`
    sets no default for it.
    """

    name: str
    kind: type
    default: Any
    help: str
    group: str
    short: str = ""
    metavar: str = ""
    bare: str | None = None
    none: str | None = None
    topic: str = ""
    least: int = 1
    choices: tuple[str, ...] = ()
    lasting: bool = True

    @classmethod
    def of(cls, row: Field[Any]) -> Self:
        """Return the row of a field; flags are bool, counts int, and all others text."""
        kind = {"bool": bool, "int": int}.get(str(row.type).removesuffix(" | None"), str)
        return cls(name=row.name, kind=kind, default=row.default, **row.metadata)

    @property
    def is_flag(self) -> bool:
        """Whether it is given without a value."""
        return self.kind is bool

    @property
    def flag(self) -> str:
        """Its spelling on a command line; the flag of what is on by default switches it off."""
        return self._spelled(no=self.default is True)

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flag, after the short one if it has one."""
        return (self.short, self.flag) if self.short else (self.flag,)

    @property
    def opposite(self) -> str | None:
        """The flag that undoes a default which the user has set, if there is one."""
        undoable = self.is_flag or self.default is None or self.none
        return self._spelled(no=self.default is not True) if undoable else None

    @property
    def undone(self) -> Any:
        """The value that the opposite stands for."""
        return self.none or self.default

    def _spelled(self, *, no: bool) -> str:
        return f"--{'no-' * no}{self.name.replace('_', '-')}"

    def check(self, value: object) -> None:
        """Raise an `OptionError` for another type, too small a number or an unknown word."""
        if value is None and self.default is None:
            return
        if not isinstance(value, self.kind) or (self.kind is int and isinstance(value, bool)):
            words = {bool: "True or False", int: "a whole number", str: "text"}[self.kind]
            raise OptionError(f"{self.name} takes {words}, not {value!r}")
        if self.kind is int and isinstance(value, int) and value < self.least:
            raise OptionError(f"{self.name} is at least {self.least}, not {value}")
        if self.choices and value not in self.choices:
            *others, last = self.choices
            raise OptionError(
                f"{self.name} takes {', '.join(others)} or {last}, not {value!r}."
                f"{did_you_mean(str(value), self.choices)}"
            )


def _row(default: Any, help: str, **about: Any) -> Any:
    return field(default=default, metadata={"help": help, **about})


_topic, _loop, _output = (partial(_row, group=group) for group in GROUPS)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """The options of any recording: the keywords of `profile()`, with their types and defaults."""

    shapes: bool = _topic(False, "record the input shapes of every op", topic="shapes")
    stack: bool = _topic(False, "record Python frames and source lines", topic="stacks")
    modules: str = _topic(
        "auto",
        "mark the calls of nn.Modules: of all that run (auto, all), or of these variables; "
        "--no-modules: none",
        topic="modules",
        metavar="NAMES",
        bare="all",
        none="none",
    )
    lines: bool = _topic(True, "do not mark the lines of the code", topic="lines")
    memory: bool = _topic(False, "record allocations and releases", topic="memory")
    sync: bool = _topic(False, "record CUDA's synchronisation events", topic="sync")
    flops: bool = _topic(False, "estimate FLOPs of matmuls and convolutions", topic="flops")
    workers: bool = _topic(False, "record the DataLoader's worker processes", topic="workers")
    nvtx: bool = _topic(
        False, "emit NVTX ranges for Nsight Systems, instead of using torch.profiler"
    )
    python: str = _topic(
        "cprofile",
        "how Python functions are recorded: cprofile counts their calls, sampled reads the stacks "
        "about every 2 ms, off does neither",
        metavar="HOW",
        none="off",
        choices=("cprofile", "sampled", "off"),
    )
    record: str | None = _topic(
        None,
        "record only these topics and those that other switches add (for Python functions, see "
        "--python)",
        metavar="TOPICS",
    )
    expect: str | None = _output(
        None, "regions that should run; a finding names those that did not", metavar="NAMES"
    )
    sort: str = _output(
        "device_self",
        "column that sorts the op table, or a key of pstats that sorts the Python functions",
        metavar="KEY",
    )
    top: int = _output(
        15, "rows of the op table in the static output; the live table has all rows", metavar="N"
    )
    name: str | None = _output(
        None,
        "label of this profile; without one, the cell's number or the place in the code",
        metavar="LABEL",
        lasting=False,
    )
    quiet: bool = _output(False, "show nothing", short="-q")
    save: str | os.PathLike[str] | None = _output(  # noqa: RUF009, since it is a field
        None, "also save the profile to this file", metavar="PATH", lasting=False
    )

    @property
    def counts_calls(self) -> bool:
        """Whether cProfile counts the calls of Python functions."""
        return self.python == "cprofile"

    @property
    def samples_python(self) -> bool:
        """Whether the stacks of Python functions are sampled."""
        return self.python == "sampled"


@dataclass(frozen=True, kw_only=True)
class Options(ProfileOptions):
    """All options: those of `profile()`, and those for code that the magic or a command runs.

    The topics of ``record`` are resolved here, into ``lines``, ``shapes``, ...
    """

    output: str | None = _output(
        None, "variable that receives the profile", short="-o", metavar="VAR", lasting=False
    )
    explore: str | None = _output(
        None,
        "show the live explorer below the cell, and assign it to this variable",
        metavar="VAR",
        bare="explorer",
        lasting=False,
    )
    compare: bool = _output(
        False,
        "show what changed since the previous run of this cell, instead of the report",
        lasting=False,
    )
    steps: int | None = _loop(
        None,
        "record this many iterations of the loop, not the whole code, and then end the loop",
        metavar="N",
    )
    warmup: int = _loop(
        3, "unrecorded iterations right before the recorded ones", metavar="N", least=0
    )
    wait: int = _loop(0, "unrecorded iterations before the warm-up", metavar="N", least=0)
    repeat: int = _loop(1, "times to wait, warm up and record", metavar="N")
    cprofile_steps: int | None = _loop(
        None, "iterations that cProfile records, if these are more than --steps", metavar="N"
    )
    keep_going: bool = _loop(False, "do not end the loop: let it run on, unrecorded")
    every: int | None = _loop(
        None,
        "with --keep-going: record again every N iterations, each time to a separate file",
        metavar="N",
        lasting=False,
    )

    def __post_init__(self) -> None:
        if isinstance(self.save, os.PathLike):
            object.__setattr__(self, "save", os.fspath(self.save))
        for name, option in options_of(type(self)).items():
            option.check(getattr(self, name))
        for name in ("output", "explore"):
            value = getattr(self, name)
            if value is not None and (not value.isidentifier() or keyword.iskeyword(value)):
                raise OptionError(f"{name} takes the name of a variable, not {value!r}")
        if self.compare and self.explore is not None:
            raise OptionError("compare and explore both replace the report: give only one")
        if self.save == "":
            raise OptionError("save is the path of a file, not an empty text")
        if not self.modules:
            raise OptionError("modules is all, none or the names of variables, not an empty text")
        if self.every is not None:
            if not self.keep_going:
                raise OptionError("every needs a loop that goes on: give --keep-going as well")
            if self.save is None:
                raise OptionError(
                    "every saves each recording to a separate file: give --save as well"
                )
            cycle = self.wait + self.warmup + max(self.steps or 1, self.cprofile_steps or 0)
            if self.every < self.repeat * cycle:
                raise OptionError(
                    f"every is at least {self.repeat * cycle} iterations, not {self.every}: "
                    "waiting, warm-up and recording take that many each time"
                )
        if self.record is not None:
            self._resolve_topics(topics_in(self.record))

    def _resolve_topics(self, wanted: set[str]) -> None:
        """Set the switches as ``record`` says; a switch that asks for more adds its topic."""
        for topic, name in _SWITCHES.items():
            value, default = getattr(self, name), OPTIONS[name].default
            if topic in wanted and value in _OFF and default not in _OFF:
                raise OptionError(f"record asks for {topic}, which {name}={value!r} leaves out")
            if value not in _OFF and value != default:
                wanted.add(topic)
        for name, value in self._switches_for(wanted).items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "record", _joined(wanted))

    def _switches_for(self, wanted: set[str]) -> dict[str, Any]:
        """Return the switches that have to change for these topics, with their values."""
        changed: dict[str, Any] = {}
        for topic, name in _SWITCHES.items():
            default, is_wanted = OPTIONS[name].default, topic in wanted
            if (getattr(self, name) in _OFF) == is_wanted:
                off = "none" if isinstance(default, str) else False
                changed[name] = default or True if is_wanted else off
        return changed

    def changed(self, **given: Any) -> Self:
        """Return these options with others in place of some, which take precedence.

        A ``record`` among them replaces all topics; a single switch adds its topic to an older
        ``record``, or takes it away.
        """
        record = given.get("record", self.record)
        if record is None:
            plain = {name: OPTIONS[name].default for name in _SWITCHES.values()}
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


def options_of(table: type[ProfileOptions]) -> dict[str, Option]:
    """Return the rows of a table by name."""
    return {row.name: Option.of(row) for row in fields(table)}


OPTIONS: Mapping[str, Option] = options_of(Options)
"""Every option by name; magics, `gpuprof run`, `%config`, completion and docs come from it."""


def with_keywords(table: Callable[..., ProfileOptions]) -> Callable[[Function], Function]:
    """Return a decorator that shows the options of a table in place of ``**keywords``.

    They appear in `help`, in the ``?`` of a notebook and in completion.
    """
    rows = inspect.signature(table).parameters

    def shown(function: Function) -> Function:
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        named = [row for row in parameters if row.kind is not row.VAR_KEYWORD]
        added = [row for name, row in rows.items() if name not in signature.parameters]
        vars(function)["__signature__"] = signature.replace(parameters=[*named, *added])
        return function

    return shown


_OFF = (False, "none")
_SWITCHES = {option.topic: option.name for option in OPTIONS.values() if option.topic}
TOPICS = ("ops", *_SWITCHES)
"""What ``record`` can name. Ops are always recorded: the others depend on them."""

_WORDS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in TOPICS},
    "ALL": TOPICS,
    "COMMAND": ("ops",),
    "OPERATOR": ("ops",),
    "TENSOR_LIFETIME": ("memory",),
    "TENSOR_PROP": ("shapes",),
    "SHAPE_INFER": ("shapes",),  # PyTorch infers no shapes ahead: they are known when an op runs
    "SYNC": ("sync",),
    "SCOPE": ("modules",),
}
"""The words of ``record``: the topics, and MegEngine's words for them."""


def topics_in(record: str) -> set[str]:
    """Return the topics that a text like ``"ops,shapes"`` names, with ``ops`` always among them."""
    words = {name.strip() for name in record.split(",")}
    for name in sorted(words.difference(_WORDS)):
        hint = did_you_mean(name, TOPICS)
        known = f"Topics are {', '.join(TOPICS)}; ALL is all of them"
        raise OptionError(f"record knows no topic {name!r}.{hint} {known}")
    return {"ops", *(topic for word in words for topic in _WORDS[word])}


def _joined(topics: set[str]) -> str:
    return ",".join(topic for topic in TOPICS if topic in topics)
