"""The options as arguments of a command line: their flags, and the opposites of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from typing import Any

from gpuprof_widgets.capture.options import Options, kind_of


@dataclass(frozen=True)
class Argument:
    """One option as argparse takes it: ``parser.add_argument(*flags, **keywords)``.

    ``listed`` is False for the opposite of a flag, which is only for those who changed a default.
    """

    field: str
    group: str
    flags: tuple[str, ...]
    keywords: dict[str, Any]
    listed: bool = True

    @property
    def needs_value(self) -> bool:
        return not {"action", "nargs"} & self.keywords.keys()


def arguments() -> Iterator[Argument]:
    """Every option of `Options` as an argument of a command line, each before its opposite."""
    for one in fields(Options):
        flags = tuple(filter(None, (one.metadata["short"], flag_of(one))))
        keywords = {"dest": one.name, "help": one.metadata["help"], **_value(one)}
        yield Argument(one.name, one.metadata["group"], flags, keywords)
        if isinstance(one.default, bool) or one.default is None or one.metadata["none"]:
            back = one.default if isinstance(one.default, bool) else one.metadata["none"]
            keywords = {"dest": one.name, "action": "store_const", "const": back}
            opposite = _spelled(one, no=one.default is not True)
            yield Argument(one.name, one.metadata["group"], (opposite,), keywords, listed=False)


def flag_of(one: Field[Any]) -> str:
    """How a command line spells this option; what is on by default is switched off."""
    return _spelled(one, no=one.default is True)


def _spelled(one: Field[Any], *, no: bool) -> str:
    return f"--{'no-' * no}{one.name.replace('_', '-')}"


def _value(one: Field[Any]) -> dict[str, Any]:
    """How argparse gets the value of this option."""
    if isinstance(one.default, bool):
        return {"action": "store_const", "const": not one.default}
    keywords = {"metavar": one.metadata["metavar"], "type": kind_of(one)}
    if one.default is not None:
        keywords["help"] = f"{one.metadata['help']} (default: {one.default})"
    if one.metadata["bare"]:
        keywords |= {"nargs": "?", "const": one.metadata["bare"]}
    return keywords
