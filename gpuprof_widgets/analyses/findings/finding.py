"""What a rule says: one sentence with numbers, what it costs, and where to look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec

from gpuprof_widgets.printable import printable
from gpuprof_widgets.trace.model import Record

Thresholds = ParamSpec("Thresholds")


@dataclass(frozen=True)
class Finding:
    """One reason why the run is slow, or one thing to know about its profile.

    ``rule``: the key in `FINDINGS`, filled in by what asks the rules; ``text``: one sentence, names
    in backticks; ``cost_ns``: the time it stands for, by which findings are ordered; ``share``: of
    the run's time; ``start_ns``, ``end_ns``: the range to look at (None: all); ``rows``: slices to
    highlight; ``remedy``: what to try, empty where there is nothing to do.
    """

    rule: str = field(default="", kw_only=True)
    text: str
    cost_ns: int = 0
    share: float = 0.0
    start_ns: int | None = None
    end_ns: int | None = None
    rows: tuple[int, ...] = ()
    remedy: str = ""

    def __post_init__(self) -> None:
        """Numbers of numpy, as the tables hold them, become plain ones: JSON knows no others."""
        plain = {
            "cost_ns": int(self.cost_ns),
            "share": float(self.share),
            "start_ns": None if self.start_ns is None else int(self.start_ns),
            "end_ns": None if self.end_ns is None else int(self.end_ns),
            "rows": tuple(int(row) for row in self.rows),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)


class Findings(list[Finding]):
    """A list of findings that prints as sentences, each with its remedy below it.

    ``lacks``: why there are none.
    """

    def __init__(self, found: Iterable[Finding] = (), lacks: str = "nothing stands out") -> None:
        super().__init__(found)
        self.lacks = lacks

    def __repr__(self) -> str:
        lines = []
        for number, finding in enumerate(self, 1):
            lines.append(f"{number}. {printable(finding.text)}")
            if finding.remedy:
                lines.append(f"   {printable(finding.remedy)}")
        return "\n".join(lines) or f"No findings: {self.lacks}."


def of_gpu_work(
    rule: Callable[Concatenate[Record, Thresholds], list[Finding]],
) -> Callable[Concatenate[Record, Thresholds], list[Finding]]:
    """Return the rule for runs with work of a GPU: of others it has nothing to say."""

    @wraps(rule)
    def asked(
        record: Record, /, *args: Thresholds.args, **thresholds: Thresholds.kwargs
    ) -> list[Finding]:
        return rule(record, *args, **thresholds) if len(record.trace.index.gpu) else []

    return asked
