"""`Analysed`: a record with every analysis as a method.

A method is the function of the same name in `ANALYSES`, whose first argument is the record; its
docstring explains its options, columns and units.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MethodType
from typing import TYPE_CHECKING, Any

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.reasons import explained, warned
from gpuprof_widgets.trace.model import Record

if TYPE_CHECKING:
    import pandas as pd


def _method(analysis: Callable[..., pd.DataFrame]) -> Callable[..., pd.DataFrame]:
    @wraps(analysis)
    def method(*args: Any, **options: Any) -> pd.DataFrame:
        return warned(analysis(*args, **options))

    return method


class Analysed(Record):
    """A record with the analyses as methods; times are ns since the trace's start.

    If a table lacks something, a warning says what, as does ``attrs["lacks"]``.
    """

    findings = explained(findings)

    def __getattr__(self, name: str) -> Callable[..., pd.DataFrame]:
        """Return an analysis that another package adds; that package may import this class."""
        if name.startswith("_") or name not in ANALYSES:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
        return MethodType(_method(ANALYSES[name].function), self)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *ANALYSES]


for _name, _analysis in ANALYSES.ours.items():
    setattr(Analysed, _name, _method(_analysis.function))
