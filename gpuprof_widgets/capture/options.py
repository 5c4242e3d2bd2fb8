"""The options of a recording: one definition for the magic, `profile()` and the command line."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any

from gpuprof_widgets.exceptions import OptionError


def _option(default: Any, help: str, *, flag: str, short: str = "", metavar: str = "") -> Any:
    """A dataclass field that also knows how to spell itself on a command line."""
    spelling = {"help": help, "flag": flag, "short": short, "metavar": metavar}
    return field(default=default, metadata=spelling)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to record and how to show it; field names are the keywords of `profile()`."""

    steps: int | None = _option(
        None,
        "bound the loop: record this many iterations, then end it",
        flag="--steps",
        metavar="N",
    )
    warmup: int = _option(
        3, "iterations before them that run unrecorded", flag="--warmup", metavar="N"
    )
    wait: int = _option(0, "iterations before the warm-up that run too", flag="--wait", metavar="N")
    repeat: int = _option(1, "times to wait, warm up and record", flag="--repeat", metavar="N")
    cprofile_steps: int | None = _option(
        None, "iterations that cProfile records, if more", flag="--cprofile-steps", metavar="N"
    )
    expect: str | None = _option(
        None, "regions that should run: say which did not", flag="--expect", metavar="NAMES"
    )
    lines: bool = _option(True, "do not mark the lines of the cell", flag="--no-lines")
    modules: str = _option(
        "auto",
        "mark nn.Modules: all, none, or the variables that hold them",
        flag="--modules",
        metavar="NAMES",
    )
    workers: bool = _option(False, "record the DataLoader's worker processes", flag="--workers")
    shapes: bool = _option(False, "record the input shapes of every op", flag="--shapes")
    stack: bool = _option(False, "record Python frames and source lines", flag="--stack")
    memory: bool = _option(False, "record allocations and releases", flag="--memory")
    sync: bool = _option(False, "record CUDA's synchronisation events", flag="--sync")
    flops: bool = _option(False, "estimate FLOPs of matmuls and convolutions", flag="--flops")
    nvtx: bool = _option(False, "emit NVTX ranges for Nsight Systems", flag="--nvtx")
    cprofile: bool = _option(True, "do not run cProfile", flag="--no-cprofile")
    record: str | None = _option(
        None, "record these topics and nothing else", flag="--record", metavar="TOPICS"
    )
    sort: str = _option(
        "device_self", "column that sorts the op table", flag="--sort", metavar="KEY"
    )
    top: int = _option(15, "rows of the op table in the static output", flag="--top", metavar="N")
    name: str | None = _option(None, "label of this profile", flag="--name", metavar="LABEL")
    output: str | None = _option(
        None, "variable that receives the profile", flag="--output", short="-o", metavar="VAR"
    )
    quiet: bool = _option(False, "show nothing", flag="--quiet", short="-q")
    save: str | None = _option(
        None, "also save the profile to this file", flag="--save", metavar="PATH"
    )

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


_LEAST = {"top": 1, "steps": 1, "warmup": 0, "wait": 0, "repeat": 1, "cprofile_steps": 1}


def _kind(one: Field[Any]) -> type:
    """What values of this option are, None aside: flags are bool, counts int, all others text."""
    return {"bool": bool, "int": int}.get(str(one.type).removesuffix(" | None"), str)


def _check_type(one: Field[Any], value: object) -> None:
    expected = _kind(one)
    if value is None and one.default is None:
        return
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        words = {bool: "True or False", int: "a whole number", str: "text"}[expected]
        raise OptionError(f"{one.name} takes {words}, not {value!r}")


def _is_variable(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def option_fields() -> tuple[Field[Any], ...]:
    """The dataclass fields of `Options`, in the order in which help lists them."""
    return fields(Options)


@dataclass(frozen=True)
class Argument:
    """One option as argparse takes it: ``parser.add_argument(*flags, **keywords)``."""

    field: str
    flags: tuple[str, ...]
    keywords: dict[str, Any]


def arguments() -> Iterator[Argument]:
    """Every option of `Options` as an argument of a command line."""
    for one in option_fields():
        spelling = one.metadata
        flags = tuple(flag for flag in (spelling["short"], spelling["flag"]) if flag)
        keywords = {"dest": one.name, "default": one.default, "help": spelling["help"]}
        if isinstance(one.default, bool):
            keywords["action"] = "store_false" if one.default else "store_true"
        else:
            keywords["metavar"] = spelling["metavar"]
            keywords["type"] = _kind(one)
            if one.default is not None:
                keywords["help"] += f" (default: {one.default})"
        yield Argument(one.name, flags, keywords)
