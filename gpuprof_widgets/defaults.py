"""`%config GpuProfile`: defaults of the magic's options, for a session or from a config file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traitlets import Bool, Enum, Int, TraitError, TraitType, Unicode, validate
from traitlets.config import Configurable

from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.options import OPTIONS, Option, Options
from gpuprof_widgets.profiling import check

_LASTING = {name: option for name, option in OPTIONS.items() if option.lasting}
_TRAITS: dict[type, Callable[..., TraitType[Any, Any]]] = {bool: Bool, int: Int, str: Unicode}


def _trait(option: Option) -> TraitType[Any, Any]:
    """Return the trait of an option, with its type, its default and its help."""
    text = f"{option.flag} on the line: {option.help}"
    trait = _TRAITS[option.kind](option.default, allow_none=option.default is None, help=text)
    return trait.tag(config=True)


class Defaults(Configurable):
    """The options of a cell, unless the line of its `%%gpuprofile` sets them."""

    embed = Enum(
        ("auto", "always"),
        "auto",
        help="which outputs hold the views' JavaScript library (0.5 MB): auto: one per notebook, "
        "and another when that one is gone; always: every output",
    ).tag(config=True)

    def embeds_always(self) -> bool:
        """Return whether every output, of `.show()` too, holds the library of the views."""
        return bool(self.embed == "always")

    def options(self) -> Options:
        """Return the options with these defaults."""
        return Options(**self._values())

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _LASTING}

    @validate(*_LASTING)
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
    {"__doc__": Defaults.__doc__, **{name: _trait(option) for name, option in _LASTING.items()}},
)


def defaults_of(shell: Any) -> Defaults:
    """Return the defaults in the shell's configuration; raises an `OptionError` for a wrong one."""
    try:
        made: Defaults = GpuProfile(parent=shell)
    except TraitError as error:
        raise OptionError(str(error)) from None
    return made
