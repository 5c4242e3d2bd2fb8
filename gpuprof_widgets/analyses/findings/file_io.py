"""Reading and writing files takes a notable part of the run."""

from __future__ import annotations

import re

from gpuprof_widgets.analyses import blocking_names as kinds
from gpuprof_widgets.analyses.findings.blocking_calls import (
    finding_of,
    waits_of_the_run,
    worth_telling,
)
from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.trace.model import Record

DOES = {kinds.READ: "reading files", kinds.WRITE: "writing files"}

ONCE = "Read it once, before the loop, and keep it in memory."
IN_WORKERS = (
    "Read each once and keep it in memory, or read ahead in the workers of a DataLoader "
    "(`num_workers`)."
)
ONE_TABLE = (
    "Keep it as Parquet (`to_parquet`, `read_parquet`), which reads faster, or read only the "
    "columns that are used (`usecols`)."
)
REMEDIES = (
    (
        kinds.READ,
        re.compile(r"^torch\.load$|get_storage_from_record"),
        "Load it once and keep it; `torch.load(path, mmap=True)` reads but what is used.",
    ),
    (
        kinds.READ,
        re.compile(r"^numpy\.load$|fromfile"),
        "Load it once and keep it; `np.load(path, mmap_mode='r')` reads but what is used.",
    ),
    (kinds.READ, re.compile(r"^PIL\.|ImagingDecoder|^torchvision"), IN_WORKERS),
    (
        kinds.WRITE,
        re.compile(r"^torch\.save$|write_record"),
        "Save less often, or copy the tensors to the CPU and save them in another thread "
        "(`torch.distributed.checkpoint.async_save`).",
    ),
    (
        kinds.WRITE,
        re.compile(r"fsync|fdatasync|\bsync\b"),
        "Each call waits for the disk: write all of it first, and sync once.",
    ),
)
"""What to do, by what was called."""

OF_A_KIND = {
    kinds.READ: f"{ONCE} What is read anew in each step, the workers of a DataLoader can read "
    "ahead (`num_workers`).",
    kinds.WRITE: "Write less often and more at once, or from another thread.",
}


def file_io(record: Record, *, file_io_share: float = 0.05) -> list[Finding]:
    """At most two: functions of the user's that read or wrote files for 5 % of the run, and 1 ms.

    Opening, decoding and unpickling count with it.

    ``file_io_share``: Reading and writing files.
    """
    found = waits_of_the_run(record)
    found = found[found["kind"].isin(list(DOES))]
    return [
        finding_of(
            record, row, "spent", DOES[row["kind"]],
            _remedy(int(row["kind"]), str(row["called"]), int(row["calls"])),
        )
        for row in worth_telling(record, found, file_io_share)
    ]  # fmt: skip


def _remedy(kind: int, called: str, calls: int) -> str:
    if kind == kinds.READ and calls == 1 and called.startswith("pandas."):
        return ONE_TABLE
    fitting = (said for of, called_by, said in REMEDIES if of == kind and called_by.search(called))
    return next(fitting, OF_A_KIND[kind])
