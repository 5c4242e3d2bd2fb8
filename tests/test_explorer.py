"""`profile.explore()` as Python sees it; the page's side is in browser/."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from traitlets import TraitError

from gpuprof_widgets import Profile, explore, load, ranks
from gpuprof_widgets.analyses.findings import Finding
from gpuprof_widgets.exceptions import GpuprofError, OptionError
from gpuprof_widgets.explorer import CALL_UP, Explorer
from tests.traces import annotation, op, trace_of

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent / "data" / "recorded"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load(RECORDED / "activation_checkpointing_simulated_gpu.gpuprof")


@pytest.fixture
def explorer(profile: Profile) -> Explorer:
    return profile.explore()


def test_the_range_is_the_whole_trace_at_first(profile: Profile, explorer: Explorer) -> None:
    assert explorer.range == explorer.visible == (profile.trace.start_ns, profile.trace.end_ns)
    assert explorer.window is profile
    assert explorer.selection.empty


def test_analyses_answer_for_the_range(profile: Profile, explorer: Explorer) -> None:
    start, end = profile.trace.start_ns, profile.trace.end_ns
    middle = ((3 * start + end) // 4, (start + 3 * end) // 4)
    explorer.range = middle
    cut = profile.window(*middle)
    pd.testing.assert_frame_equal(explorer.operators(), cut.operators())
    pd.testing.assert_frame_equal(explorer.kernels(by="name"), cut.kernels(by="name"))
    assert [each.text for each in explorer.findings()] == [each.text for each in cut.findings()]
    assert explorer.window is explorer.window
    assert not explorer.operators().equals(profile.operators())


@pytest.mark.parametrize(
    ("given", "kept"),
    [((-5, 10), (0, 10)), ((30, 20), (20, 30)), ((7, 7), (7, 8)), ((0, 1 << 60), None)],
)
def test_a_range_stays_in_the_trace(
    explorer: Explorer, given: tuple[int, int], kept: tuple[int, int] | None
) -> None:
    explorer.range = given
    assert explorer.range == (kept or (0, explorer.profile.trace.end_ns))


def test_a_selection_is_set_by_rows_by_a_table_and_by_a_query(explorer: Explorer) -> None:
    explorer.selection = [5, 3]
    assert list(explorer.selection.index) == [3, 5]
    explorer.selection = "category == 'kernel'"
    table = explorer.selection
    slices = explorer.profile.trace.slices
    assert list(table.index) == list(slices.index[slices["category"] == "kernel"])
    explorer.selection = table[table["start_ns"] > table["start_ns"].median()]
    assert 0 < len(explorer.selection) < len(table)
    explorer.selection = None
    assert explorer.selection.empty


def test_a_selection_has_names_owners_and_times(explorer: Explorer) -> None:
    explorer.selection = "category == 'kernel'"
    table, profile = explorer.selection, explorer.profile
    slices = profile.trace.slices
    assert (table["kernel"] == table["name"]).all()
    assert (table["start_ns"] == slices["ts"][table.index]).all()
    assert (table["duration_ns"] == slices["dur"][table.index]).all()
    for row, name in table["op"].items():
        chain = profile.owners(row)
        assert name == chain[chain["role"].isin(["op", "forward"])]["name"].iloc[-1]
        lines = list(chain[chain["role"] == "line"]["name"])
        if (chain["role"] == "forward").any():
            assert table["line"][row] in lines  # one of them called `backward`
        else:
            assert table["line"][row] == lines[-1]


@pytest.mark.parametrize("rows", [[-1], [10**9]])
def test_rows_that_no_slice_has_are_an_error(explorer: Explorer, rows: list[int]) -> None:
    explorer.selection = [1]
    with pytest.raises(OptionError, match=rf"no slice {rows[0]}: its slices are 0 to "):
        explorer.selection = rows
    assert list(explorer.selection.index) == [1]


@pytest.mark.parametrize("query", ["nonsense ==", "colour == 3"])
def test_a_wrong_query_names_the_columns(explorer: Explorer, query: str) -> None:
    with pytest.raises(OptionError, match=r"cannot be answered.*The columns are name, "):
        explorer.selection = query


def test_show_brushes_and_selects_what_a_finding_is_about(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(explorer, "send", sent.append)
    explorer.show(Finding("`aten::mm` is slow", start_ns=1_000, end_ns=5_000, rows=(4, 2)))
    assert explorer.range == (1_000, 5_000)
    assert explorer.visible == (0, 6_000)
    assert list(explorer.selection.index) == [2, 4]
    assert sent == [CALL_UP]


def test_a_finding_on_a_moment_is_shown_with_its_slices_and_brushes_nothing(
    explorer: Explorer,
) -> None:
    explorer.range = (10, 20)
    slices = explorer.profile.trace.slices
    start, dur = (int(slices[column].iloc[2]) for column in ("ts", "dur"))
    explorer.show(Finding("the peak", start_ns=start + 1, end_ns=start + 2, rows=(2,)))
    assert explorer.range == explorer._whole
    first, last = explorer.visible
    assert first <= start < start + dur <= last
    assert last - first <= 2 * dur


def test_on_change_is_called_after_each_change_until_it_is_removed(explorer: Explorer) -> None:
    seen: list[tuple[tuple[int, int], int]] = []

    def note(changed: Explorer) -> None:
        seen.append((changed.range, len(changed.selection)))

    explorer.on_change(note)
    explorer.range = (10, 20)
    explorer.selection = [1, 2]
    explorer.range = (10, 20)
    assert seen == [((10, 20), 0), ((10, 20), 2)]
    explorer.on_change(note, remove=True)
    explorer.range = (30, 40)
    assert len(seen) == 2


def test_the_page_is_told_rows_as_the_engine_reads_them(explorer: Explorer) -> None:
    explorer.selection = [7, 300]
    assert np.frombuffer(explorer.get_state()["_rows"], "<i4").tolist() == [7, 300]


def test_rows_from_the_page_are_selected(explorer: Explorer) -> None:
    explorer.set_state({"_rows": memoryview(np.array([7, 300], "<i4").tobytes())})
    assert list(explorer.selection.index) == [7, 300]


def test_a_report_is_sent_once_asked_as_bytes(
    explorer: Explorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[object, list[bytes]]] = []
    monkeypatch.setattr(explorer, "send", lambda *message: sent.append(message))
    explorer._handle_custom_msg({"asks": "report"}, [])
    [(content, [script])] = sent
    assert content == {"report": explorer._uid}
    assert f'"uid": "{explorer._uid}"'.encode() in script
    assert len(json.dumps(explorer.get_state(), default=str)) < 20_000  # no data in the state


def of_steps(label: str, *numbers: int) -> Profile:
    """A profile of steps of 100 ns, 10 ns apart, each with one op."""
    starts = [(number, 110 * place) for place, number in enumerate(numbers)]
    steps = [annotation(f"ProfilerStep#{number}", ts=ts, dur=100) for number, ts in starts]
    ops = [op("aten::mm", ts=ts + 10, dur=50) for _, ts in starts]
    record = trace_of(*(row for rows in zip(steps, ops, strict=True) for row in rows))
    return Profile(record.trace, None, {"label": label})


def test_a_step_is_the_range_that_it_brushes() -> None:
    explorer = of_steps("run", 3, 4, 5).explore()
    assert explorer.step is None
    explorer.step = 4
    assert explorer.range == (110, 210)
    assert explorer.visible == (85, 235)
    assert explorer.operators().calls.tolist() == [1, 1]  # the step and its op
    explorer.range = (220, 320)  # it is step 5, but nobody asked for a step
    assert explorer.step is None
    assert explorer.range == (220, 320)
    explorer.step = 3
    explorer.step = None
    assert explorer.range == explorer.visible == (0, 320)
    with pytest.raises(OptionError, match=r"no step 7: its steps are 3, 4, 5"):
        explorer.step = 7


def test_a_trace_without_steps_says_so(explorer: Explorer) -> None:
    with pytest.raises(OptionError, match="no step 0: its steps are none"):
        explorer.step = 0


def test_of_several_profiles_one_is_shown() -> None:
    before, after = of_steps("run", 1, 2), of_steps("run", 5)
    explorer = explore(before, after, before)
    assert explorer.get_state()["_names"] == ["run", "run (2)", "run (3)"]
    assert explorer.profile is before
    explorer.step = 2
    explorer.selection = [1]
    uid = explorer._uid
    explorer.profile_name = "run (2)"
    assert explorer.profile is explorer.window is after
    assert explorer.range == explorer.visible == (0, 100)
    assert explorer.step is None
    assert explorer.selection.empty
    assert explorer.get_state()["_steps"] == [5]
    explorer.selection = "category == 'cpu_op'"
    assert len(explorer.selection) == 1
    assert explorer._uid.split("-")[0] == uid.split("-")[0]
    assert explorer._uid != uid
    with pytest.raises(OptionError, match=r"no profile 'x' here: there are run, run \(2\), run"):
        explorer.profile_name = "x"
    assert explorer.profile is after


def test_files_can_be_explored(tmp_path: Path) -> None:
    file = of_steps("run", 1, 2).save(tmp_path / "run.gpuprof")
    assert explore(file).profile_name == "run"
    with pytest.raises(OptionError, match="explore takes one profile or file, or several"):
        explore()


def test_the_ranks_of_a_run_can_be_explored(tmp_path: Path) -> None:
    files = [RECORDED / f"training.rank{rank}.gpuprof" for rank in (0, 1)]
    run = ranks(files)
    explorer = run.explore()
    assert explorer.get_state()["_noun"] == "Rank"
    assert explorer.profile_name == "rank 0"
    explorer.profile_name = "rank 1"
    pd.testing.assert_frame_equal(explorer.operators(), run[1].operators())


def test_a_profile_that_cannot_be_read_leaves_the_present_one(tmp_path: Path) -> None:
    for rank in (0, 1):
        name = f"training.rank{rank}.gpuprof"
        (tmp_path / name).write_bytes((RECORDED / name).read_bytes())
    explorer = ranks(tmp_path).explore()
    (tmp_path / "training.rank1.gpuprof").unlink()
    with pytest.raises((OSError, GpuprofError)):
        explorer.profile_name = "rank 1"
    assert explorer.profile_name == "rank 0"
    assert len(explorer.operators())


@pytest.mark.parametrize(
    ("key", "ours"),
    [("self_cpu_time_total", "cpu_self"), ("calls", "calls"), ("name", "name")],
)
def test_the_order_of_the_op_table_is_set_by_our_keys_and_torch_s(
    explorer: Explorer, key: str, ours: str
) -> None:
    explorer.sort = key
    assert explorer.sort == ours


def test_choices_that_no_page_has_are_errors(explorer: Explorer) -> None:
    with pytest.raises(OptionError, match="unknown sort key 'cpu_slef'"):
        explorer.sort = "cpu_slef"
    for name in ("group_by", "metric"):
        with pytest.raises(TraitError, match=name):
            setattr(explorer, name, "nonsense")


def test_what_it_is_called(explorer: Explorer) -> None:
    explorer.range = (1_000, 2_000_000)
    assert repr(explorer).endswith("range 1,000 to 2,000,000 ns>")
    assert "operators" in dir(explorer)
    with pytest.raises(AttributeError, match="'Explorer' object has no attribute 'nonsense'"):
        explorer.nonsense  # noqa: B018
