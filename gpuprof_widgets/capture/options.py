"""The options of a recording: one definition for the magic, `profile()` and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _option(default: Any, help: str, *, flag: str, short: str = "", metavar: str = "") -> Any:
    """A dataclass field that also knows how to spell itself on a command line."""
    spelling = {"help": help, "flag": flag, "short": short, "metavar": metavar}
    return field(default=default, metadata=spelling)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to record and how to show it; field names are the keywords of `profile()`."""

    shapes: bool = _option(False, "record the input shapes of every op", flag="--shapes")
    stack: bool = _option(False, "record Python frames and source lines", flag="--stack")
    memory: bool = _option(False, "record allocations and releases", flag="--memory")
    flops: bool = _option(False, "estimate FLOPs of matmuls and convolutions", flag="--flops")
    cprofile: bool = _option(True, "do not run cProfile", flag="--no-cprofile")
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


def option_fields() -> tuple[Any, ...]:
    """The dataclass fields of `Options`, in the order in which help lists them."""
    return fields(Options)
