"""The loop waits for its next batch."""

from __future__ import annotations

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.analyses.findings.wording import run_ns, share_of
from gpuprof_widgets.analyses.quantity import format_count, format_ns, format_share
from gpuprof_widgets.analyses.waits import waits
from gpuprof_widgets.trace.model import Record

WORTH_A_LOOK = 0.05  # of the run; the customary threshold

IN_PROCESS = (
    "It loads in the main process: give it workers (num_workers=2 or more), or prepare the data "
    "beforehand."
)
WITH_WORKERS = (
    "Its workers do not keep up: give it more of them, persistent_workers=True, a larger "
    "prefetch_factor, or lighter transforms."
)


def dataloader(record: Record) -> list[Finding]:
    """Fires where the DataLoader took 5 % of the run or more."""
    table = waits(record)
    table = table[table["kind"] == "dataloader"]
    waited, run = int(table["dur_ns"].sum()), run_ns(record)
    share = share_of(waited, run)
    if share < WORTH_A_LOOK or not waited:
        return []
    longest = table.iloc[0]
    text = (
        f"{format_share(share)} of the time ({format_ns(waited)} of {format_ns(run)}) went into "
        f"waiting for the DataLoader, {format_count(len(table), 'time')}, "
        f"the longest {format_ns(longest['dur_ns'])}."
    )
    alone = "SingleProcess" in longest["name"]
    start = int(longest["start_ns"])
    return [
        Finding(
            "dataloader",
            text,
            waited,
            share,
            start,
            start + int(longest["dur_ns"]),
            tuple(table["row"].astype(int)),
            IN_PROCESS if alone else WITH_WORKERS,
        )
    ]
