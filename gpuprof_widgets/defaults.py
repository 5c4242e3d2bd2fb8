"""`%config GpuProfile`: defaults of the magic's options, for a session or from a config file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from typing import Any

from traitlets import Bool, Int, TraitError, TraitType, Unicode, validate
from traitlets.config import Configurable

from gpuprof_widgets.capture.arguments import flag_of
from gpuprof_widgets.capture.options import Options, kind_of
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.profiling import check

_OF_ONE_CELL = ("name", "output", "save", "every")
"""Options that name one profile: the next cell's would take its place."""

_FIELDS = tuple(one for one in fields(Options) if one.name not in _OF_ONE_CELL)
_TRAITS: dict[type, Callable[..., TraitType[Any, Any]]] = {bool: Bool, int: Int, str: Unicode}


def _trait(one: Field[Any]) -> TraitType[Any, Any]:
    """The trait of an option, with its type, its default and its help."""
    text = f"{flag_of(one)} on the line: {one.metadata['help']}"
    made = _TRAITS[kind_of(one)](one.default, allow_none=one.default is None, help=text)
    return made.tag(config=True)


class Defaults(Configurable):
    """What a cell is profiled with where the line of its `%%gpuprofile` does not say otherwise."""

    def options(self) -> Options:
        """The options that these defaults make together."""
        return Options(**self._values())

    def _values(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in _FIELDS}

    @validate(*(one.name for one in _FIELDS))
    def _checked(self, proposal: Any) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        try:
            check(Options(**self._values() | {name: value}))
        except OptionError as error:
            raise TraitError(f"GpuProfile.{name}: {error}") from None
        return value


# The class is called what users type: `%config GpuProfile.top = 30`, `c.GpuProfile.top = 30`.
GpuProfile = type(
    "GpuProfile",
    (Defaults,),
    {"__doc__": Defaults.__doc__, **{one.name: _trait(one) for one in _FIELDS}},
)


def defaults_of(shell: Any) -> Defaults:
    """The defaults that the shell's configuration sets; an `OptionError` where one is wrong."""
    try:
        made: Defaults = GpuProfile(parent=shell)
    except TraitError as error:
        raise OptionError(str(error)) from None
    return made
