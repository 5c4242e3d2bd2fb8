"""Thresholds, the figures from which on a rule speaks: each rule declares those that it needs.

A threshold is a keyword-only parameter of a rule, its default the customary figure. What it means
stands in the docstring of the rule whose it is, as the items of a list: ``name``: meaning. Others
that need it as well declare it with the same default. All can be overridden by name:
``profile.findings(dataloader_share=0.1)``, `gpuprof findings --limit dataloader_share=0.1`.

Shares are between 0 and 1, of the run unless said otherwise. Where a figure is a custom of the
field its source is named: TB is PyTorch's TensorBoard plugin (torch_tb_profiler/profiler/data.py),
HTA Holistic Trace Analysis, torch is torch.profiler's _pattern_matcher, nsys is `nsys analyze`,
XProf is TensorFlow's profiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import getdoc, signature
from typing import Any

from gpuprof_widgets.exceptions import OptionError

AnyRule = Callable[..., list[Any]]

_MEANING = re.compile(r"^``(\w+)``: (.+(?:\n +.+)*)", re.MULTILINE)
"""An item of a rule's docstring; what does not fit on its line goes on indented."""


@dataclass(frozen=True)
class Threshold:
    """The customary figure, and what it means."""

    default: float
    meaning: str = ""


def thresholds_of(*rules: AnyRule) -> dict[str, Threshold]:
    """Return the thresholds that these rules declare, by name, in the order of the rules."""
    thresholds: dict[str, Threshold] = {}
    for rule in rules:
        meanings = dict(_MEANING.findall(getdoc(rule) or ""))
        for name, default in _declared(rule).items():
            if name in meanings or name not in thresholds:
                meaning = " ".join(meanings.get(name, "").split())
                thresholds[name] = Threshold(default, meaning)
    return thresholds


def check_limits(limits: Mapping[str, Any], *rules: AnyRule) -> None:
    """Raise an `OptionError` for a name that no rule declares, and for what is no finite number."""
    known = thresholds_of(*rules) if limits else {}
    for name, limit in limits.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
            raise OptionError(f"no finding has the limit {name!r}{hint}")
        if not -math.inf < limit < math.inf:
            raise OptionError(f"{name} takes a finite number, not {limit}")


def limits_for(rule: AnyRule, limits: Mapping[str, float]) -> dict[str, float]:
    """Return those of the limits that the rule declares."""
    return {name: limit for name, limit in limits.items() if name in _declared(rule)}


def _declared(rule: AnyRule) -> dict[str, float]:
    parameters = signature(rule).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
