"""The thresholds of findings: keywords of the rules, which users can override by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any

from gpuprof_widgets.exceptions import OptionError

AnyRule = Callable[..., list[Any]]


def thresholds_of(*rules: AnyRule) -> dict[str, float]:
    """Return the defaults of the thresholds of these rules, by name, in the order of the rules."""
    return {
        parameter.name: parameter.default
        for rule in rules
        for parameter in signature(rule).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def check_limits(limits: Mapping[str, Any], *rules: AnyRule) -> None:
    """Raise `OptionError` for a threshold that no rule has, or that is not a finite number."""
    known = thresholds_of(*rules) if limits else {}
    for name, limit in limits.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
            raise OptionError(f"no finding has the limit {name!r}{hint}")
        if not -math.inf < limit < math.inf:
            raise OptionError(f"{name} takes a finite number, not {limit}")


def limits_for(rule: AnyRule, limits: Mapping[str, float]) -> dict[str, float]:
    """Return those of the limits that the rule has."""
    return {name: limit for name, limit in limits.items() if name in thresholds_of(rule)}
