"""`Analysed`: a record with every analysis as a method.

A method is the function of the same name in `ANALYSES`, whose first argument is the record: what it
takes, and its columns with their units, are said there. ``analysed.pyi``, which
``scripts/make_docs.py`` writes, tells editors and mypy of them.
"""

from __future__ import annotations

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.findings import findings
from gpuprof_widgets.analyses.lacking import explained
from gpuprof_widgets.trace.model import Record


class Analysed(Record):
    """What can be asked of one run; times are ns since the trace's start."""

    findings = explained(findings)


for _name, _analysis in ANALYSES.items():
    if not hasattr(Record, _name):  # another package's must not take the place of the record's own
        setattr(Analysed, _name, _analysis.function)
