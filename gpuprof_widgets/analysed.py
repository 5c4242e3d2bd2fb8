"""`Analysed`: a record with every analysis as a method.

A method is the function of the same name in `ANALYSES`, whose first argument is the record; its
docstring explains its options, columns and units. ``scripts/make_docs.py`` writes ``analysed.pyi``,
which declares the methods for editors and mypy.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.reasons import explained
from gpuprof_widgets.trace.model import Record


class Analysed(Record):
    """A record with the analyses as methods; times are ns since the trace's start."""

    findings = explained(findings)

    def __getattr__(self, name: str) -> Any:
        """Return an analysis that another package adds; that package may import this class."""
        if name.startswith("_") or name not in ANALYSES:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
        return MethodType(ANALYSES[name].function, self)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *ANALYSES]


for _name, _analysis in ANALYSES.ours.items():
    setattr(Analysed, _name, _analysis.function)
