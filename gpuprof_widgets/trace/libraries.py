"""Which files are libraries' and not the user's: Python's own modules, installed packages, ours.

This is what a path tells, of this machine or another one; `capture.code` knows this process too.
"""

from __future__ import annotations

import re

PACKAGES = re.compile(
    r"^(?:.*[/\\])?(?:(?:site|dist)-packages|lib(?:64)?[/\\]python\d[\d.]*t?"
    r"|(?:Python[\d.]+|(?:[Mm]ini|[Aa]na)conda\d*(?:\\envs\\[^\\]+)?)(?:[/\\]Lib|\\lib))[/\\]"
)
"""The folders where Python keeps its own modules (CPython's ``sysconfig``) and pip packages."""

_OTHERS = re.compile(
    r"^<frozen |^<string>$"
    r"|(?:^|[/\\])gpuprof_widgets[/\\](?:(?:capture|commands|integrations)[/\\]|\w+\.py$)"
)


def is_library(file: str) -> bool:
    """Whether the path of a code's file tells that it is Python's, a package's or ours."""
    return bool(PACKAGES.match(file) or _OTHERS.search(file))
