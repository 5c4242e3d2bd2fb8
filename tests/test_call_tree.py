"""The merged call tree: paths, exact sums, and cProfile's estimate."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.profiler_util import EventList, FunctionEvent

from gpuprof_widgets.analyses.call_tree import UNLAUNCHED, call_tree
from gpuprof_widgets.analyses.owners import owners
from gpuprof_widgets.analyses.python_calls import function_labels
from gpuprof_widgets.analyses.reasons import why_empty
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.profiles import load
from gpuprof_widgets.trace.model import Calls, Record
from gpuprof_widgets.trace.schema import GPU_CATEGORIES
from gpuprof_widgets.trace.window import window
from tests.counted import MODULE_CALL, TREES, WRAPPER, Tree, record_of
from tests.records import records
from tests.traces import Shared, annotation, copy, kernel, memory, op, python, runtime, trace_of


def paths(tree: pd.DataFrame, *columns: str) -> dict[str, list[int]]:
    """The columns of every node by its path of names, the root's left out."""
    path: dict[int, str] = {}
    found = {}
    for node in tree.to_dict("records"):
        above = path.get(node["parent"], "")
        path[node["node"]] = f"{above}/{node['name']}" if node["parent"] >= 0 else ""
        if path[node["node"]]:
            assert path[node["node"]] not in found
            found[path[node["node"]]] = [node[column] for column in columns]
    return found


def test_equal_paths_are_one_node() -> None:
    record = trace_of(
        op("aten::linear", ts=0, dur=20),
        op("aten::mm", ts=1, dur=9),
        runtime("cudaLaunchKernel", ts=4, dur=3),
        memory(8, ts=5),
        op("aten::linear", ts=30, dur=20),
        op("aten::mm", ts=31, dur=4),
        op("aten::add", ts=40, dur=4),
        op("aten::mm", ts=60, dur=5),
        kernel("gemm", ts=100, dur=50, launched_by=2),
        kernel("bias", ts=150, dur=7, launched_by=6),
    )
    tree = call_tree(record)
    assert paths(tree, "calls", "total_ns", "self_ns", "device_ns") == {
        "/aten::linear": [2, 40, 23, 57],
        "/aten::linear/aten::mm": [2, 13, 10, 50],
        "/aten::linear/aten::mm/cudaLaunchKernel": [1, 3, 3, 50],
        "/aten::linear/aten::add": [1, 4, 4, 7],
        "/aten::mm": [1, 5, 5, 0],
    }
    root = tree.iloc[0]
    assert (root["name"], root["total_ns"], root["device_ns"]) == ("all threads", 45, 57)


def test_the_steps_of_a_profiler_are_one_node() -> None:
    record = trace_of(
        annotation("ProfilerStep#7", ts=0, dur=20),
        op("aten::mm", ts=1, dur=9),
        annotation("ProfilerStep#8", ts=30, dur=10),
        op("aten::mm", ts=31, dur=4),
    )
    assert paths(call_tree(record), "calls", "total_ns", "self_ns") == {
        "/ProfilerStep*": [2, 30, 17],
        "/ProfilerStep*/aten::mm": [2, 13, 13],
    }


def test_several_threads_have_a_node_each() -> None:
    record = trace_of(
        op("aten::mm", ts=0, dur=20),
        op("aten::mm", ts=5, dur=7, thread=2),
        annotation("x", ts=30, dur=5),
    )
    assert paths(call_tree(record), "depth", "total_ns", "category") == {
        "/thread 100": [1, 25, "thread"],
        "/thread 100/aten::mm": [2, 20, "cpu_op"],
        "/thread 100/x": [2, 5, "user_annotation"],
        "/thread 2": [1, 7, "thread"],
        "/thread 2/aten::mm": [2, 7, "cpu_op"],
    }


def test_frames_and_ops_of_a_thread_nest_together() -> None:
    record = trace_of(
        python("train.py(1): <module>", ts=0, dur=100),
        python("train.py(5): step", ts=10, dur=50),
        op("aten::mm", ts=20, dur=10),
        op("aten::mm", ts=70, dur=10),
    )
    assert paths(call_tree(record, source="merged"), "total_ns", "self_ns") == {
        "/train.py(1): <module>": [100, 40],
        "/train.py(1): <module>/train.py(5): step": [50, 40],
        "/train.py(1): <module>/train.py(5): step/aten::mm": [10, 10],
        "/train.py(1): <module>/aten::mm": [10, 10],
    }


def test_a_region_is_no_part_of_the_frame_that_opened_it() -> None:
    """`record_function` begins in ``__enter__`` and ends in ``__exit__``: both frames cross it."""
    record = trace_of(
        python("main", ts=0, dur=100),
        python("__enter__", ts=10, dur=10),
        annotation("forward", ts=15, dur=60),
        op("aten::mm", ts=30, dur=20),
        python("__exit__", ts=70, dur=20),
    )
    tree = paths(call_tree(record, source="merged"), "total_ns", "self_ns")
    assert tree == {
        "/main": [100, 20],
        "/main/__enter__": [5, 5],
        "/main/forward": [55, 35],
        "/main/forward/aten::mm": [20, 20],
        "/main/__exit__": [20, 20],
    }


@given(records())
def test_totals_are_self_times_and_the_totals_of_children(record: Record) -> None:
    for source in ("ops", "merged"):
        tree = call_tree(record, source=source)
        below = tree[tree["parent"] >= 0].groupby("parent")["total_ns"].sum()
        below = below.reindex(tree["node"], fill_value=0)
        assert (tree["self_ns"] >= 0).all()
        assert (tree["total_ns"].to_numpy() == tree["self_ns"].to_numpy() + below.to_numpy()).all()


@given(records())
def test_the_root_is_all_time_in_which_a_thread_ran_something(record: Record) -> None:
    slices, tracks = record.trace.slices, record.trace.tracks
    for source, kinds in (("ops", ["cpu"]), ("merged", ["cpu", "python"])):
        expected = 0
        for lane in set(tracks["lane"][tracks["kind"].isin(kinds)]):
            here = tracks.index[(tracks["lane"] == lane) & tracks["kind"].isin(kinds)]
            part = slices[slices["track"].isin(here)]
            ranges = zip(part["ts"], part["ts"] + part["dur"], strict=True)
            expected += len({t for start, end in ranges for t in range(start, end)})
        assert call_tree(record, source=source)["total_ns"].iloc[0] == expected


def names(tree: pd.DataFrame) -> pd.DataFrame:
    """CProfile's labels ``cell.py:3(name)`` by name alone."""
    return tree.assign(name=tree["name"].str.replace(r".*\((.*)\)", r"\1", regex=True))


def made_of(functions: list[tuple[str, int, int, int]], edges: list[tuple[int, ...]]) -> Calls:
    """Functions are name, calls, self, total; edges caller, callee, calls, self, total."""
    table = pd.DataFrame(functions, columns=["name", "calls", "self_ns", "total_ns"])
    table = table.assign(file="cell.py", line=range(1, len(table) + 1))
    columns = ["caller", "callee", "calls", "self_ns", "total_ns"]
    return Calls(
        table.assign(primitive_calls=table["calls"]),
        pd.DataFrame(edges, columns=columns).assign(primitive_calls=1),
    )


def test_cprofile_times_divide_among_callers_as_measured() -> None:
    functions = [("main", 1, 100, 680), ("load", 2, 300, 320), ("train", 1, 200, 260)]
    functions += [("log", 4, 80, 80)]
    edges = [(0, 1, 2, 300, 320), (0, 2, 1, 200, 260), (2, 3, 3, 60, 60), (1, 3, 1, 20, 20)]
    tree = names(call_tree(trace_of(calls=made_of(functions, edges)), source="cprofile"))
    assert paths(tree, "calls", "total_ns", "self_ns") == {
        "/main": [1, 680, 100],
        "/main/load": [2, 320, 300],
        "/main/load/log": [1, 20, 20],
        "/main/train": [1, 260, 200],
        "/main/train/log": [3, 60, 60],
    }
    assert set(tree["category"].iloc[1:]) == {"cprofile"}


def test_below_a_shared_function_times_are_divided_by_its_callers_shares() -> None:
    functions = [("main", 1, 0, 400), ("a", 1, 0, 100), ("b", 1, 0, 300)]
    functions += [("read", 4, 200, 400), ("parse", 4, 200, 200)]
    edges = [(0, 1, 1, 0, 100), (0, 2, 1, 0, 300), (1, 3, 1, 50, 100), (2, 3, 3, 150, 300)]
    edges += [(3, 4, 4, 200, 200)]
    tree = names(call_tree(trace_of(calls=made_of(functions, edges)), source="cprofile"))
    found = paths(tree, "calls", "total_ns")
    assert found["/main/a/read/parse"] == [1, 50]
    assert found["/main/b/read/parse"] == [3, 150]


def cyclic() -> Calls:
    """Walk calls itself and visit, visit calls walk: cProfile's totals of a cycle."""
    functions = [("main", 1, 10, 710), ("walk", 9, 500, 700), ("visit", 4, 200, 650)]
    edges = [(0, 1, 1, 100, 700), (1, 1, 6, 300, 400), (1, 2, 4, 200, 650), (2, 1, 2, 100, 600)]
    calls = made_of(functions, edges)
    return Calls(calls.functions.assign(primitive_calls=[1, 1, 2]), calls.edges)


def test_recursion_ends_and_loses_no_time() -> None:
    tree = names(call_tree(trace_of(calls=cyclic()), source="cprofile"))
    assert paths(tree, "total_ns", "self_ns") == {
        "/main": [710, 10],
        "/main/walk": [700, 50],
        "/main/walk/visit": [650, 650],
    }


def test_a_function_that_its_callees_call_again_is_entered_from_outside_once() -> None:
    """``exec`` runs a script whose imports call ``exec``: its edges explain all but one call."""
    functions = [("exec", 9, 10, 1000), ("module", 1, 20, 990), ("import", 1, 100, 120)]
    functions += [("work", 1, 870, 870)]
    edges = [(0, 1, 1, 20, 990), (1, 2, 1, 100, 120), (2, 0, 8, 10, 90), (1, 3, 1, 870, 870)]
    calls = made_of(functions, edges)
    calls.functions.loc[0, "primitive_calls"] = 1
    tree = names(call_tree(trace_of(calls=calls), source="cprofile"))
    assert paths(tree, "calls", "total_ns") == {
        "/exec": [1, 1000],
        "/exec/module": [1, 990],
        "/exec/module/import": [1, 120],
        "/exec/module/work": [1, 870],
    }


def test_a_cycle_without_an_entry_begins_at_its_longest_function() -> None:
    calls = cyclic()
    functions = calls.functions.iloc[1:].reset_index(drop=True)
    edges = calls.edges[calls.edges["caller"] > 0].assign(
        caller=lambda e: e["caller"] - 1, callee=lambda e: e["callee"] - 1
    )
    tree = names(call_tree(trace_of(calls=Calls(functions, edges)), source="cprofile"))
    assert list(paths(tree, "total_ns")) == ["/walk", "/walk/visit"]


def test_owners_lead_from_the_frame_to_the_kernel() -> None:
    record = trace_of(
        python("train.py(5): step", ts=0, dur=100),
        python("nn.Module: Linear_0", ts=5, dur=80),
        python("linear.py(1): forward", ts=6, dur=70),
        annotation("forward", ts=8, dur=60),
        op("aten::linear", ts=10, dur=20),
        op("aten::mm", ts=11, dur=9),
        runtime("cudaLaunchKernel", ts=14, dur=3),
        kernel("gemm", ts=30, dur=15, launched_by=6),
    )
    slices = record.trace.slices
    chain = owners(record, int(slices.index[slices["name"] == "gemm"][0]))
    assert chain[["role", "name"]].to_numpy().tolist() == [
        ["module", "nn.Module: Linear_0"],
        ["python", "linear.py(1): forward"],
        ["annotation", "forward"],
        ["op", "aten::linear"],
        ["op", "aten::mm"],
        ["launch", "cudaLaunchKernel"],
        ["gpu", "gemm"],
    ]
    assert chain["name"].tolist() == slices["name"].iloc[chain["row"]].tolist()


def test_a_backward_kernel_is_owned_by_the_forward_frame() -> None:
    record = trace_of(
        python("nn.Module: Linear_0", ts=0, dur=20),
        op("aten::mm", ts=2, dur=9, sequence=4, forward_thread=0),
        python("train.py(9): backward", ts=30, dur=60),
        op("MmBackward0", ts=40, dur=30, sequence=4, forward_thread=1),
        op("aten::mm", ts=41, dur=20),
        kernel("gemm", ts=90, dur=15, launched_by=4),
    )
    slices = record.trace.slices
    chain = owners(record, int(slices.index[slices["name"] == "gemm"][0]))
    assert chain[["role", "name"]].to_numpy().tolist() == [
        ["module", "nn.Module: Linear_0"],
        ["forward", "aten::mm"],
        ["op", "MmBackward0"],
        ["op", "aten::mm"],
        ["gpu", "gemm"],
    ]


@given(records())
def test_the_tree_is_in_order_on_any_trace(record: Record) -> None:
    for source in ("ops", "merged"):
        tree = call_tree(record, source=source)
        assert tree["node"].tolist() == list(range(len(tree)))
        last: list[tuple[int, int]] = []  # per level the node that is open, and its total
        for node, parent, depth, total in zip(
            *(tree[name] for name in ("node", "parent", "depth", "total_ns")), strict=True
        ):
            assert parent == (last[depth - 1][0] if depth else -1)
            if len(last) > depth:
                assert total <= last[depth][1]
            last = [*last[:depth], (node, total)]


def test_the_source_is_the_flame_graphs_unless_it_is_named() -> None:
    framed = trace_of(python("train.py(3): step", ts=0, dur=9), op("aten::mm", ts=1, dur=5))
    assert paths(call_tree(framed), "total_ns") == {
        "/train.py(3): step": [9],
        "/train.py(3): step/aten::mm": [5],
    }
    assert paths(call_tree(framed, source="ops"), "total_ns") == {"/aten::mm": [5]}
    counted = trace_of(calls=made_of([("main", 1, 7, 7)], []))
    assert call_tree(counted)["name"].tolist() == ["all calls", "cell.py:1(main)"]


TWO_STREAMS = trace_of(
    annotation("train_step", ts=0, dur=100),
    op("aten::linear", ts=5, dur=40),
    op("aten::addmm", ts=6, dur=30),
    runtime("cudaLaunchKernel", ts=8, dur=3),
    kernel("gemm", ts=30, dur=50, launched_by=3),
    kernel("bias", ts=40, dur=20, launched_by=3, stream=20),
    copy(ts=60, dur=7, launched_by=1),
    kernel("of_before", ts=10, dur=12),
    op("autograd::engine::evaluate_function: AddmmBackward0", ts=60, dur=30, thread=7),
    op("AddmmBackward0", ts=61, dur=20, thread=7, sequence=3, forward_thread=1),
    kernel("gemm_backward", ts=90, dur=80, launched_by=9),
    op("aten::empty", ts=50, dur=9),
)
"""Kernels of one op on two streams at once, one that nothing launched, and a backward op's."""

LAUNCHED = "/thread 100/train_step/aten::linear"
BACKWARD = "/thread 7/autograd::engine::evaluate_function: AddmmBackward0"


def test_by_gpu_time_a_path_has_what_it_caused() -> None:
    tree = call_tree(TWO_STREAMS, time="device")
    assert paths(tree, "device_ns", "device_self_ns", "total_ns", "calls") == {
        "/thread 7": [80, 0, 30, 0],
        BACKWARD: [80, 0, 30, 1],
        f"{BACKWARD}/AddmmBackward0": [80, 80, 20, 1],
        "/thread 100": [77, 0, 100, 0],
        "/thread 100/train_step": [77, 0, 100, 1],
        LAUNCHED: [77, 7, 40, 1],
        f"{LAUNCHED}/aten::addmm": [70, 0, 30, 1],
        f"{LAUNCHED}/aten::addmm/cudaLaunchKernel": [70, 70, 3, 1],
        f"/{UNLAUNCHED}": [12, 12, 0, 1],
    }
    assert tree.iloc[0][["device_ns", "device_self_ns", "total_ns"]].tolist() == [169, 0, 130]
    assert tree["node"].tolist() == list(range(len(tree)))
    assert tree["parent"].tolist() == [-1, 0, 1, 2, 0, 4, 5, 6, 7, 0]


def test_the_tree_of_a_range_has_the_gpu_time_of_the_range() -> None:
    """Of what was launched before it too."""
    tree = call_tree(window(TWO_STREAMS, 50, 95), time="device")
    found = paths(tree, "device_ns", "device_self_ns")
    assert found[f"{LAUNCHED}/aten::addmm/cudaLaunchKernel"] == [40, 40]
    assert found[LAUNCHED] == [47, 7]
    assert found[f"{BACKWARD}/AddmmBackward0"] == [5, 5]
    assert f"/{UNLAUNCHED}" not in found
    assert tree["device_ns"].iloc[0] == 52


def test_what_nothing_launched_is_no_cpu_time_and_stands_last() -> None:
    tree = call_tree(TWO_STREAMS)
    last = tree.iloc[-1]
    assert (last["name"], last["category"], last["depth"]) == (UNLAUNCHED, "unlaunched", 1)
    assert last[["calls", "total_ns", "device_ns"]].tolist() == [1, 0, 12]
    assert paths(tree, "device_ns")["/thread 100/train_step/aten::empty"] == [0]
    assert tree["device_ns"].iloc[0] == 169
    launched = trace_of(op("aten::mm", ts=0, dur=5), kernel("gemm", ts=10, dur=30, launched_by=0))
    assert UNLAUNCHED not in call_tree(launched)["name"].tolist()


def test_gpu_work_alone_is_a_tree_by_gpu_time() -> None:
    alone = trace_of(kernel("gemm", ts=0, dur=5), calls=made_of([("main", 1, 7, 7)], []))
    assert paths(call_tree(alone, time="device"), "device_self_ns") == {f"/{UNLAUNCHED}": [5]}
    assert call_tree(alone)["name"].tolist() == ["all calls", "cell.py:1(main)"]


def assert_gpu_times_add_up(record: Record) -> None:
    """Of every source: the self times to the GPU's slices, the totals to self times and below."""
    slices = record.trace.slices
    expected = int(slices["dur"][slices["category"].isin(GPU_CATEGORIES)].sum())
    for source, time in itertools.product(("ops", "merged"), ("cpu", "device")):
        tree = call_tree(record, source=source, time=time)
        own, total = tree["device_self_ns"].to_numpy(), tree["device_ns"].to_numpy()
        below = tree[1:].groupby("parent")["device_ns"].sum().reindex(tree["node"], fill_value=0)
        assert (own >= 0).all()
        assert (total == own + below.to_numpy()).all()
        assert own.sum() == total[0] == expected
        if time == "device":
            assert (total[1:] > 0).all()
            siblings = tree[1:].groupby("parent")["device_ns"]
            assert all(one.is_monotonic_decreasing for _, one in siblings)


@given(records(), st.lists(st.integers(-2, 60), min_size=2, max_size=2).map(sorted))
def test_gpu_times_add_up_in_every_range(record: Record, ends: list[int]) -> None:
    assert_gpu_times_add_up(record)
    assert_gpu_times_add_up(window(record, *ends))


def test_gpu_times_of_real_traces_add_up(shared_record: Record) -> None:
    end = shared_record.trace.end_ns
    for part in (shared_record, window(shared_record, end // 3, end // 2)):
        assert_gpu_times_add_up(part)


@pytest.mark.parametrize(
    "name",
    ["sam/segment_anything_a100", "hta/nccl_a100_rank0_of_2", "tracelens/qwen_h100_stacks_memory"],
)
def test_gpu_times_by_name_are_torchs(name: str, shared: Shared) -> None:
    """Every op's `device_time_total`, by torch's own nesting of the ops with their kernels."""
    record = load(shared(f"{name}.json.gz"))
    tree = call_tree(record, source="ops", time="device")
    ops = tree[~tree["category"].isin(["thread", "unlaunched"])]
    ours = ops.groupby("name")["device_ns"].sum()
    assert ours.to_dict() == torchs_device_times(record)


def torchs_device_times(record: Record) -> dict[str, int]:
    """By name, of the ops that caused any, in ns (which torch takes for µs)."""
    slices, tracks = record.trace.slices, record.trace.tracks
    events = {}
    for row in slices[tracks["kind"].to_numpy()[slices["track"]] == "cpu"].itertuples():
        events[row.Index] = FunctionEvent(
            id=row.Index,
            name=re.sub(r"^ProfilerStep#.*", "ProfilerStep*", row.name),
            thread=row.track,
            start_us=row.ts,
            end_us=row.ts + row.dur,
            use_device="cuda",
        )
    for row in slices[slices["category"].isin(GPU_CATEGORIES)].itertuples():
        owner = row.launch if row.launch >= 0 else row.op
        if owner in events:
            events[owner].append_kernel(row.name, 0, row.dur)
    nested = EventList(list(events.values()), use_device="cuda")
    nested._populate_cpu_children()
    found: Counter[str] = Counter()  # as `key_averages` adds them up
    for event in nested:
        found[event.name] += int(event.device_time_total)
    return dict(+found)


def test_the_trees_of_both_times_are_one(shared_record: Record) -> None:
    by_cpu = call_tree(shared_record, source="ops")
    columns = ["calls", "total_ns", "self_ns", "device_ns", "device_self_ns"]
    caused = by_cpu[(by_cpu["device_ns"] > 0) | (by_cpu["node"] == 0)]
    by_gpu = call_tree(shared_record, source="ops", time="device")
    assert sorted(map(tuple, caused[columns].to_numpy().tolist())) == sorted(
        map(tuple, by_gpu[columns].to_numpy().tolist())
    )


def test_what_has_no_gpu_time_says_so() -> None:
    ran = trace_of(op("aten::mm", ts=0, dur=5), calls=made_of([("main", 1, 7, 7)], []))
    for record in (trace_of(), ran, trace_of(kernel("empty", ts=0, dur=0))):
        tree = call_tree(record, time="device")
        assert tree["device_ns"].tolist() == [0]
        assert why_empty(tree) == "the trace has no GPU work that took time"
    with pytest.raises(OptionError, match=r"cProfile knows of no GPU time: .* ops or merged"):
        call_tree(ran, source="cprofile", time="device")
    with pytest.raises(OptionError, match=r"unknown time 'gpu' of a call tree: .* cpu, device"):
        call_tree(ran, time="gpu")
    with pytest.raises(OptionError, match="ops, merged, cprofile"):
        call_tree(ran, source="perf")


def test_a_tree_without_calls_says_so() -> None:
    for source in ("ops", "merged", "cprofile"):
        tree = call_tree(trace_of(), source=source)
        assert tree["total_ns"].tolist() == [0]
        assert why_empty(tree) == f"the trace has no calls to make a tree of (source {source!r})"


def called(forward: str, ns: int, *inner: Tree) -> Tree:
    """A call of a module through torch's two functions."""
    return (WRAPPER, 0, [(MODULE_CALL, 1, [(forward, ns, [*inner])])])


def test_modules_that_call_modules_do_not_end_the_tree_of_cprofile() -> None:
    """All of them run in two functions of torch, which the path enters again and again."""
    linear = called("linear", 100)
    block = called("block", 10, ("mask", 400, []), linear)
    net = called("net", 10, block, block)
    record, _ = record_of([net], [("step", 500, [])])
    tree = paths(names(call_tree(record, source="cprofile")), "total_ns")
    call = f"{WRAPPER}/{MODULE_CALL}"
    inner = f"/<module>/{call}/net/{call}/block"
    assert tree[f"/<module>/{call}/net"] == [2 * 512 + 10]
    assert tree[inner] == [2 * 511]
    assert tree[f"{inner}/mask"] == [800]
    # The 2 ns of the calls of blocks themselves count for the other callee, `linear`, above.
    assert tree[f"{inner}/{call}/linear"] == [200 - 2]


@given(st.lists(st.lists(TREES, min_size=1, max_size=3), min_size=1, max_size=3))
def test_no_call_has_more_time_in_the_tree_than_cprofile_counted(lines: Any) -> None:
    record, _ = record_of(*lines)
    assert record.calls is not None
    tree = call_tree(record, source="cprofile")
    labels = function_labels(record.calls.functions)
    edges = {
        (labels[edge.caller], labels[edge.callee]): edge.total_ns
        for edge in record.calls.edges.itertuples()
    }
    inner = tree[tree["depth"] > 1]
    above = tree["name"].to_numpy(object)[inner["parent"]]
    for (caller, callee), ns in inner.groupby([above, "name"])["total_ns"].sum().items():
        if MODULE_CALL in caller and MODULE_CALL not in callee:
            assert ns <= edges[caller, callee] + len(tree)  # rounded per node
    children = tree.iloc[1:].groupby("parent")["total_ns"].sum()
    assert (children <= tree["total_ns"].iloc[children.index].to_numpy()).all()
