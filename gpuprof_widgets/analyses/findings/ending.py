"""The run did not end as it should: everything else is about its part before."""

from __future__ import annotations

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import run_ns
from gpuprof_widgets.analyses.quantity import format_ns
from gpuprof_widgets.trace.model import Record


def ending(record: Record) -> list[Finding]:
    """Fires where the recorder noted an interruption or an error."""
    error = record.metadata.get("error")
    if record.metadata.get("interrupted"):
        what = "was interrupted"
    elif error:
        what = f"raised {str(error).splitlines()[0].rstrip('.')}"
    else:
        return []
    cost = int(record.metadata.get("wall_ns") or run_ns(record))
    text = f"The cell {what} after {format_ns(cost)}: this profile ends there."
    return [Finding(text, cost, 1.0)]
