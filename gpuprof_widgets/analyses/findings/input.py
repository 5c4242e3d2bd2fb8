"""Findings on input: waiting for the DataLoader and why, reading and writing files."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from gpuprof_widgets.analyses import blocking as kinds
from gpuprof_widgets.analyses.columns import format_count, format_ns, format_share
from gpuprof_widgets.analyses.findings.dispatch import in_a_loader
from gpuprof_widgets.analyses.findings.finding import Finding, code, place_in, run_ns, share_of
from gpuprof_widgets.analyses.findings.waits import blocked_calls, longest_waits, wait_finding
from gpuprof_widgets.analyses.python_calls import function_labels, is_user_code
from gpuprof_widgets.analyses.regions import calls_per_traced_step
from gpuprof_widgets.analyses.sequences import indexing_loops
from gpuprof_widgets.analyses.waits import DATALOADER, python_lanes, waits
from gpuprof_widgets.analyses.workers import (
    input_queues,
    item_name,
    per_batch_ns,
    per_item_ns,
    slow_function,
    while_waiting,
    workers,
)
from gpuprof_widgets.trace import intervals
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.pstats import calls_from_slices
from gpuprof_widgets.trace.schema import WINDOW

FETCH = re.compile(r"(?:^|[/\\])torch[/\\]utils[/\\]data[/\\]_utils[/\\]fetch\.py$")
"""Where the DataLoader gets a batch from its dataset."""
COMPREHENSION = re.compile(r"<(?:list|set|dict)comp>|<genexpr>")
IN_PROCESS = (
    "The DataLoader loads in the main process. Give it workers (num_workers=2 or more), or prepare "
    "the data beforehand."
)
IN_A_FUNCTION = (
    "Make {function} cheaper, or prepare what it returns beforehand. It runs in the main process. "
    "Workers (num_workers=2 or more) would run it beside the loop."
)
ITEM_BY_ITEM = (
    "Taking {items} items out of tensors one by one is {share} of that. Take whole batches at "
    "once: `x[indices]`, with indices from `torch.randperm(len(x)).split(batch_size)`."
)
WITH_WORKERS = (
    "The workers of the DataLoader do not keep up. Try more workers, persistent_workers=True, a "
    "larger prefetch_factor, or lighter transforms. Record the workers too (--workers) to see what "
    "takes long in them."
)
OF_TENSORFLOW = (
    "The input pipeline does not keep up. Read and transform in parallel (num_parallel_calls, "
    "more queue runners), prefetch, or prepare the data beforehand."
)
MOST = 0.5
"""Share of the waiting that a function has at least that is named."""
INDEXING = 1 / 3
"""Share of the waiting from which on taking items out of tensors is its cause."""
STARTED_ANEW = (
    "The workers start again for every pass over the data: persistent_workers=True keeps them."
)
STARTED_ONCE = (
    "The workers started once, which matters less in a longer run. persistent_workers=True keeps "
    "them for the next pass over the data. A worker that imports and receives less starts faster."
)
UNTIL_THEN = "Record the workers too (--workers) to see what they import or load first."
REMEDIES = {
    "items": (
        "The workers do not keep up. Use more workers (num_workers), or make an item cheaper: "
        "prepare it once beforehand, or transform whole batches on the GPU."
    ),
    "collate": (
        "Make collating cheaper: use tensors of equal shape as items, no Python loop in "
        "collate_fn, or larger pieces per item."
    ),
    "put": (
        "Send less from the workers. Send tensors, which travel in shared memory, instead of lists "
        "and other objects. Send small types (uint8), and convert them on the GPU."
    ),
    "idle": (
        "Let the workers prefetch more (prefetch_factor), and look at what the main process does "
        "with a batch before the loop has it (unpickling, pin_memory)."
    ),
    "ending": (
        "The workers end after every pass over the data: persistent_workers=True keeps them."
    ),
}
"""What to try, by what the workers did while the loop waited."""


def dataloader(record: Record, *, dataloader_share: float = 0.05) -> list[Finding]:
    """Fires if waiting for the DataLoader cost 5 % of the run or more.

    It names the user's function that took most of the waiting, in its workers or in the main
    process, if Python calls were recorded.

    Cost: the time of the waits; if the run has GPU work, only the part in which no GPU had anything
    to do.
    """
    table = waits(record)
    table = table[table["kind"] == "dataloader"]
    waited, run = int(table["dur_ns"].sum()), run_ns(record)
    index, on_gpu = record.trace.index, len(record.trace.index.gpu) > 0
    loading = intervals.union(table["start_ns"], table["start_ns"] + table["dur_ns"])
    busy = intervals.union(index.ts[index.gpu], index.end[index.gpu])
    cost = intervals.length(intervals.difference(loading, busy)) if on_gpu else waited
    share = share_of(cost, run)
    if share < dataloader_share or not cost:
        return []
    longest = table.iloc[0]
    because, remedy = _cause(record, table)
    in_process = table["name"].str.contains("SingleProcess")
    function = ""
    if int(table["dur_ns"][in_process].sum()) >= MOST * waited:
        item_by_item = _item_by_item(record, waited)
        if not because:
            function, because = _in_process(record, waited)
        function = "" if item_by_item else function
        in_function = IN_A_FUNCTION.format(function=function) if function else IN_PROCESS
        remedy = item_by_item or in_function
    loader = "the DataLoader"
    if not DATALOADER.fullmatch(longest["name"]):
        loader, remedy = f"its input ({code(longest['name'])})", OF_TENSORFLOW
    text = (
        f"The run waited for {loader} {format_share(share_of(waited, run))} of the time "
        f"({format_ns(waited)} of {format_ns(run)}), {_counted(table)}{because}."
    )
    queues = input_queues(record)
    for queue in queues[queues["average"].notna()].head(1).to_dict("records"):
        text += f" {code(queue['name'])} held {queue['average']:.3g} items on average."
    if on_gpu:
        name = "The GPU" if len(np.unique(index.device[index.gpu])) == 1 else "The GPUs"
        idle_share = format_share(share_of(cost, intervals.length(loading)))
        text += f" {name} had nothing to do for {idle_share} of that time ({format_ns(cost)})."
    title = f"The loop waits for {loader}{f', mostly in {function}' if function else ''}"
    place = place_in(table, longest)
    return [Finding(text, cost, share, remedy=remedy, title=title, **place)]


def _in_process(record: Record, waited_ns: int) -> tuple[str, str]:
    """Name the deepest function of the user's that took half of the waiting, and say how long.

    Both are "" if none did.

    cProfile does not tell when a function ran: of one that others call too, what counts is the time
    for which these leave no room. Of a range of time it knows nothing.
    """
    framed = len(python_lanes(record)) > 0
    if framed:
        calls = calls_from_slices(record.trace, str(record.metadata.get("label")))
    elif record.calls is None or WINDOW in record.metadata:
        return "", ""
    else:
        calls = record.calls
    per_step = 1.0 if framed else calls_per_traced_step(record)
    slow = _slow_below_fetch(calls, waited_ns * per_step)
    if slow is None:
        return "", ""
    function, ns, is_measured = slow
    label = code(function_labels(calls.functions.iloc[[function]])[0])
    estimated = "" if is_measured and per_step == 1 else "an estimated "
    return label, f", mostly in {label} ({estimated}{format_ns(ns / per_step)})"


def _slow_below_fetch(calls: Calls, loading_ns: float) -> tuple[int, float, bool] | None:
    """Follow the calls from `FETCH` on while one holds half of the loading.

    Return the last function of the user's on the way (its row), its time (ns), and whether that was
    measured, as nothing else called what leads to it.
    """
    functions, edges = calls.functions, calls.edges
    caller, callee = edges["caller"].to_numpy(), edges["callee"].to_numpy()
    edge_ns, total_ns = (table["total_ns"].to_numpy(float) for table in (edges, functions))
    named = is_user_code(functions) & ~functions["name"].str.fullmatch(COMPREHENSION).to_numpy(bool)
    fetches = functions["file"].astype(str).str.contains(FETCH) & (functions["name"] == "fetch")
    least_ns = np.where(fetches.to_numpy(bool)[callee], edge_ns, 0.0)
    seen, slow = np.zeros(len(functions), bool), None
    while loading_ns and least_ns.max(initial=0.0) >= MOST * loading_ns:
        edge = int(least_ns.argmax())
        function, ns = int(callee[edge]), float(least_ns[edge])
        seen[function] = True
        if named[function]:
            slow = (function, ns, ns == edge_ns[edge])
        elsewhere = max(total_ns[function] - ns, 0.0)
        below = (caller == function) & ~seen[callee]
        least_ns = np.where(below, np.minimum(edge_ns - elsewhere, ns), 0.0)
    return slow


def _item_by_item(record: Record, waited_ns: int) -> str:
    """Return the remedy where a third of the waiting is indexing tensors (a `TensorDataset`)."""
    loops = indexing_loops(record)
    loops = loops[in_a_loader(record, loops)]
    share = share_of(int(loops["dur_ns"].sum()), waited_ns)
    if share < INDEXING:
        return ""
    items = f"{int(loops['rounds'].sum()):,}"
    return ITEM_BY_ITEM.format(items=items, share=format_share(share))


def _counted(waited: pd.DataFrame) -> str:
    """Return the number of waits, starts of workers counted apart, and the longest.

    The loop waits once more than there are batches, to learn that there are no more.
    """
    starts, longest = _are_starts(waited), waited.iloc[0]
    waits_for_batches = len(waited) - int(starts.sum())
    if not starts.any():
        up_to = f" of up to {format_ns(longest['dur_ns'])}" if waits_for_batches > 1 else ""
        return f"in {format_count(waits_for_batches, 'wait')}{up_to}"
    times = format_count(waits_for_batches, "time")
    a_start = " (a start)" if starts.iloc[0] and len(waited) > 1 else ""
    return (
        f"{times} for a batch and {format_count(int(starts.sum()), 'time')} for its workers to "
        f"start, for up to {format_ns(longest['dur_ns'])}{a_start}"
    )


def _are_starts(waited: pd.DataFrame) -> pd.Series:
    """Whether each wait is a start of workers."""
    return waited["name"].str.endswith(".__init__")


def _first_batches_ns(waited: pd.DataFrame) -> int:
    """Return the time of the waits for the first batch after each start of workers, in ns.

    In it a spawned process imports and gets its dataset: ``start()`` does not wait for that.
    """
    of_workers = waited[~waited["name"].str.contains("SingleProcess")].sort_values("start_ns")
    starting = spent = 0
    for starts, dur in zip(_are_starts(of_workers), of_workers["dur_ns"], strict=True):
        if starts:
            starting += 1
        elif starting:
            starting -= 1
            spent += int(dur)
    return spent


def _cause(record: Record, waited: pd.DataFrame) -> tuple[str, str]:
    """Return what the workers did meanwhile, as the end of the sentence, and the remedy."""
    spent = while_waiting(record)
    starts = _are_starts(waited)
    started = STARTED_ONCE if starts.sum() == 1 else STARTED_ANEW
    if not spent:
        starting, whole = int(waited.loc[starts, "dur_ns"].sum()), int(waited["dur_ns"].sum())
        if 2 * starting > whole:
            return ", mostly for its workers to start", started
        if 2 * (starting + _first_batches_ns(waited)) > whole:
            because = ", mostly for its workers to start and send their first batch"
            return because, f"{started} {UNTIL_THEN}"
        return "", WITH_WORKERS
    cause = max(spent, key=lambda name: spent[name])
    if cause == "items":
        because = _slow_items(record)
    elif cause in BUSY_WITH:
        each = per_batch_ns(record, f"{cause}_ns")
        because = f"because {BUSY_WITH[cause]} takes its workers {format_ns(each)} per batch"
    else:
        because = f"while its workers {IDLE[cause]}"
    return f", {because}", started if cause == "starting" else REMEDIES[cause]


def _slow_items(record: Record) -> str:
    slow, where = slow_function(record), ""
    if slow is None:
        name, each = item_name(record.trace), per_item_ns(record)
    elif slow.outlier is not None:
        name, each, where = slow.name, slow.by_worker[slow.outlier], f" in worker {slow.outlier}"
    else:
        name, each = slow.name, slow.per_item_ns
    count = format_count(workers(record)["worker"].nunique(), "worker")
    whose = "" if where else f" in its {count}"
    return f"because {code(name)}{where} takes {format_ns(each)} per item{whose}"


BUSY_WITH = {"collate": "collating", "put": "sending"}
IDLE = {"idle": "had nothing to do", "starting": "were starting", "ending": "were ending"}
"""How the sentence ends, by what the workers did while the loop waited."""

DOES = {kinds.READ: "reading files", kinds.WRITE: "writing files"}
SHORTLY = {kinds.READ: "reads files", kinds.WRITE: "writes files"}
"""The same in a title."""

IN_WORKERS = (
    "Read each file once and keep it in memory, or read ahead in the workers of a DataLoader "
    "(`num_workers`)."
)
ONE_TABLE = (
    "Keep the table as Parquet (`to_parquet`, `read_parquet`), which reads faster, or read only "
    "the columns that are used (`usecols`)."
)
FILE_IO_REMEDIES = (
    (
        kinds.READ,
        re.compile(r"^torch\.load$|get_storage_from_record"),
        "Load it once and keep it; `torch.load(path, mmap=True)` reads only what is used.",
    ),
    (
        kinds.READ,
        re.compile(r"^numpy\.load$|fromfile"),
        "Load it once and keep it; `np.load(path, mmap_mode='r')` reads only what is used.",
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
"""What to do, by the kind of access and the function that was called."""

REMEDY_BY_KIND = {
    kinds.READ: "Read it once, before the loop, and keep it in memory. If each step has to read "
    "other data, let the workers of a DataLoader read ahead (`num_workers`).",
    kinds.WRITE: "Write less often and more at once, or from another thread.",
}


def file_io(record: Record, *, file_io_share: float = 0.05) -> list[Finding]:
    """Report at most two user functions that read or wrote files for 5 % of the run and 1 ms.

    Opening, decoding and unpickling count as reading.

    Cost: the time of these calls.
    """
    accesses = blocked_calls(record)
    accesses = accesses[accesses["kind"].isin(list(DOES))]
    findings = []
    for row in longest_waits(record, accesses, file_io_share):
        kind, called = int(row["kind"]), str(row["called"])
        remedies = [
            each for of, pattern, each in FILE_IO_REMEDIES if of == kind and pattern.search(called)
        ]
        remedy = [*remedies, REMEDY_BY_KIND[kind]][0]
        if kind == kinds.READ and row["calls"] == 1 and called.startswith("pandas."):
            remedy = ONE_TABLE
        findings.append(wait_finding(record, row, "spent", DOES[kind], SHORTLY[kind], remedy))
    return findings
