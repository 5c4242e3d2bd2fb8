"""Names of kernels short enough for a table, and different enough to tell them apart."""

from __future__ import annotations

import re

from gpuprof_widgets.analyses.findings.wording import code

LONGEST = 120
LEFT_OUT = ("(anonymous namespace)::", "at::native::", "void ", "static ")


WRAPPED = re.compile(r"cutlass\w*::Kernel\d*<(\w+)")
"""CUTLASS's kernels are all called Kernel; what tells them apart is what they are made of."""


def kernel_name(name: str) -> str:
    """A kernel's name without its parameters and the namespaces that nearly all have."""
    for words in LEFT_OUT:
        name = name.replace(words, "")
    if name.endswith(")") and "<" in name:
        name = _without_parameters(name)
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def function_name(name: str) -> str:
    """The name of a kernel's function alone, where there is no room for its types."""
    wrapped = WRAPPED.search(name)
    return wrapped[1] if wrapped else code(name).strip("`")


def _without_parameters(name: str) -> str:
    """The text before the parenthesis that the last one closes."""
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if not depth:
            return name[:place] or name
    return name
