"""Write gpuprof_widgets/analysed.pyi anew: the methods that `Analysed` gets from `ANALYSES`.

    python scripts/make_stub.py

Editors complete by it, and mypy checks calls by it. A test compares the two.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from gpuprof_widgets.analyses import ANALYSES
from gpuprof_widgets.analyses.findings import findings

STUB = Path(__file__).parents[1] / "gpuprof_widgets" / "analysed.pyi"

HEAD = """\
# Written by scripts/make_stub.py from ANALYSES: do not edit.
{imports}
from gpuprof_widgets.trace.model import Record

class Analysed(Record):
{methods}
"""


def stub() -> str:
    """Return the text of the stub: each method is the function that it calls."""
    functions = [findings, *(inspect.unwrap(row.function) for row in ANALYSES.values())]
    ours = [one for one in functions if one.__module__.startswith("gpuprof_widgets.")]
    imports = sorted(
        f"from {one.__module__} import {one.__name__} as _{one.__name__}" for one in ours
    )
    methods = [f"    {one.__name__} = _{one.__name__}" for one in ours]
    return HEAD.format(imports="\n".join(imports), methods="\n".join(methods))


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
