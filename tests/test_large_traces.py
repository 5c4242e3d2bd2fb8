"""The benchmark of large traces: what it makes, what it counts, and what its table says."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import gpuprof_widgets
from benchmarks.child_process import ROOT, ChildError, reason, run
from benchmarks.large_traces import (
    Figures,
    add_round,
    cpu_model,
    failures,
    growth,
    header,
    record,
    table,
    write,
)
from benchmarks.made_traces import SOURCE, MadeTrace, make_trace, plain_source, times_for
from benchmarks.routes import ENVIRONMENTS, LOAD, OURS, PYTHON, ROUTES, Environment, Route

PEER = Environment("Peer", ("peer",), Path("nowhere"))
PARSE = Route(PEER, "`parse`", "parse(FILE)", "from peer import parse")
COMMAND = Route(OURS, "`gpuprof view`", "view(FILE)")
MACHINE: dict[str, Any] = {
    "date": "2026-01-02",
    "cpu": "a CPU",
    "cores": 2,
    "load_average": 0.5,
    "python": "3.11.7",
    "compiled_scanner": True,
    "versions": {"gpuprof_widgets": {"numpy": "2.4.6"}, "Peer": {}},
}


def made(events: int) -> MadeTrace:
    return MadeTrace(Path("somewhere/a.json.gz"), "a.json.gz", 9, events, 315_000_000, 16_000)


def figures(*cpu: float, peak: int = 100_000_000) -> Figures:
    return Figures(list(cpu), [peak] * len(cpu), [0.5] * len(cpu), [1] * len(cpu))


def test_the_table_shows_medians_spans_and_ratios_to_load() -> None:
    by_route = {
        LOAD: figures(2.0, 1.0, 4.0),
        COMMAND: figures(5.0, 5.0, 5.0, peak=150_000_000),
        PARSE: figures(20.0, 10.0, 31.0, peak=1_250_000_000),
    }
    assert table([(made(981_771), by_route)]).splitlines() == [
        "| route | CPU seconds, 0.98 M events | ratio | peak MB, 0.98 M events | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| gpuprof_widgets: `load` | 2.00 (1.00–4.00) | 1.00 | 100 (100–100) | 1.00 |",
        "| gpuprof_widgets: `gpuprof view` (whole process) | 5.00 (5.00–5.00) | 2.50 "
        "| 150 (150–150) | 1.50 |",
        "| Peer: `parse` | 20.00 (10.00–31.00) | 10.00 | 1,250 (1,250–1,250) | 12.50 |",
    ]


def test_traces_stand_side_by_side_and_a_route_that_failed_says_why() -> None:
    small = {LOAD: figures(1.0), PARSE: figures(3.0)}
    large = {LOAD: figures(5.0), PARSE: Figures(failure="failed: ended by SIGKILL | or so")}
    titles, _, ours, peer = table([(made(981_771), small), (made(5_017_768), large)]).splitlines()
    assert "CPU seconds, 0.98 M events" in titles
    assert "CPU seconds, 5.02 M events" in titles
    assert ours.count("1.00 |") == 4
    assert peer == (
        r"| Peer: `parse` | 3.00 (3.00–3.00) | 3.00 | 100 (100–100) | 1.00 "
        r"| failed: ended by SIGKILL \| or so |  |  |  |"
    )


def test_without_ours_there_are_no_ratios() -> None:
    by_route = {LOAD: Figures(failure="failed"), PARSE: figures(3.0)}
    assert "| 3.00 (3.00–3.00) |  | 100 (100–100) |  |" in table([(made(100), by_route)])


def test_the_power_of_growth_is_that_of_the_events() -> None:
    seconds = {
        10_000: (0.5, 2.0, 0.0),
        100_000: (5.0, 200.0, 1.0),
        1_000_000: (50.0, 20_000.0, 2.0),
    }
    results = [
        (made(events), {LOAD: figures(linear), COMMAND: figures(square), PARSE: figures(least)})
        for events, (linear, square, least) in seconds.items()
    ]
    _, _, *rows = growth(results).splitlines()
    assert rows == [
        "| gpuprof_widgets: `load` | 1.00 |",
        "| gpuprof_widgets: `gpuprof view` (whole process) | 2.00 |",
    ]


def test_traces_of_one_size_do_not_grow() -> None:
    assert growth([(made(100), {LOAD: figures(1.0)})]) == ""


def test_what_failed_on_a_trace_has_no_growth() -> None:
    small = {LOAD: figures(1.0), PARSE: figures(3.0)}
    large = {LOAD: figures(10.0), PARSE: Figures(failure="failed")}
    assert "Peer" not in growth([(made(100), small), (made(1_000), large)])


def test_the_files_say_how_it_was_measured_and_hold_no_path(tmp_path: Path) -> None:
    results = [(made(981_771), {LOAD: figures(2.0, 1.0), PARSE: Figures(failure="failed")})]
    text = header(MACHINE, results, 2)
    assert "a CPU, 2 CPU cores (load average 0.5), Python 3.11.7; gpuprof_widgets with" in text
    assert "with its compiled scanner. gpuprof_widgets: numpy" in text
    assert "981,771 events, 315 MB of text" in text
    assert "Peer" not in text
    write(tmp_path / "x.json", text, record(MACHINE, results))
    assert text in (tmp_path / "x.md").read_text()
    kept = json.loads((tmp_path / "x.json").read_text())
    assert kept["versions"] == MACHINE["versions"]
    assert kept["traces"][0]["routes"]["gpuprof_widgets: `load`"]["cpu"] == [2.0, 1.0]
    assert "somewhere" not in (tmp_path / "x.json").read_text()


@pytest.mark.parametrize(
    ("events", "millions", "times"), [(109_123, 1, 9), (109_123, 5, 46), (7_569, 0, 1)]
)
def test_a_trace_is_repeated_until_it_has_about_so_many_events(
    events: int, millions: float, times: int
) -> None:
    assert times_for(events, millions) == times


@pytest.mark.parametrize("name", ["a.b.json", "a.b.json.gz", "a.b.gpuprof"])
def test_a_source_may_be_packed_or_saved_by_us(tmp_path: Path, name: str) -> None:
    source = tmp_path / "in" / name
    source.parent.mkdir()
    text = b'{"traceEvents": [], "gpuprof_widgets": {"rows": 1}}'
    if name.endswith(".gpuprof"):
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("trace.json.gz", gzip.compress(text))
    else:
        source.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    plain = plain_source(source, tmp_path)
    assert plain.name == "a.b.json.gz"
    assert json.loads(gzip.decompress(plain.read_bytes())) == {"traceEvents": []}


def test_the_default_source_grows_into_a_trace_that_we_read(tmp_path: Path) -> None:
    once, twice = (make_trace(SOURCE, millions, tmp_path) for millions in (0, 0.015))
    assert (once.times, twice.times) == (1, 2)
    with gzip.open(twice.file) as file:
        text = file.read()
    assert len(text) == twice.text_bytes
    assert len(json.loads(text)["traceEvents"]) == twice.events
    small, large = (gpuprof_widgets.load(trace.file).trace for trace in (once, twice))
    assert len(large) == 2 * len(small)


def test_a_process_counts_with_all_that_it_takes() -> None:
    interpreter = PYTHON.interpreter
    idle = run(interpreter, "pass")
    busy = run(
        interpreter,
        "import time\nx = b'1' * 200_000_000\nwhile time.process_time() < 0.5: pass",
    )
    assert 0.3 < busy.cpu - idle.cpu < 5
    assert busy.peak > 200_000_000


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ValueError('no such thing')", "ValueError: no such thing"),
        ("import sys; sys.exit(3)", "ended with exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "ended by SIGKILL"),
        ("import time; time.sleep(60)", "took more than 2 s"),
    ],
)
def test_a_process_that_fails_says_why_in_a_line(code: str, said: str) -> None:
    with pytest.raises(ChildError, match=said):
        run(PYTHON.interpreter, code, seconds=2)


def test_only_the_last_line_is_the_reason() -> None:
    assert reason(1, "Traceback\n  at\nKeyError: 'ts'\n\n") == "KeyError: 'ts'"


def test_imports_are_taken_off_and_a_failure_ends_the_rounds(tmp_path: Path) -> None:
    spin = "import time\nwhile time.process_time() < {}: pass"
    row = Figures()
    route = Route(PYTHON, "half a second", spin.format(1.0), spin.format(0.5))
    add_round(row, route, tmp_path / "x.json.gz", 60)
    assert row.imports_cpu[0] >= 0.5
    assert 0.3 < row.cpu[0] < 0.9
    broken = Route(PYTHON, "broken", "open(FILE)", "import json")
    add_round(row, broken, tmp_path / "x.json.gz", 60)
    assert (
        row.failure == "failed: FileNotFoundError: [Errno 2] No such file or directory: 'x.json.gz'"
    )
    assert len(row.cpu) == 1


def test_what_is_not_installed_is_told_from_what_fails(tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(PYTHON.interpreter)
    (folder / "pip.log").write_text("WARNING: old\nERROR: No matching distribution for peer==1\n")
    tried = Route(Environment("Tried", (), folder), "x", "", "import no_such_peer")
    fails = Route(PYTHON, "y", "1 / 0", "import json")
    works = Route(PYTHON, "z", "pass", "import json")
    absent = Route(PYTHON, "w", "pass", "import no_such_module")
    assert failures([tried, PARSE, fails, works, absent], tmp_path / "x.json.gz", 60) == {
        tried: "not installed: ERROR: No matching distribution for peer==1",
        PARSE: "not installed: `make bench` installs it",
        fails: "failed: ZeroDivisionError: division by zero",
        absent: "not installed: ModuleNotFoundError: No module named 'no_such_module'",
    }


def test_the_processor_has_a_name() -> None:
    assert (
        cpu_model("processor : 0\nmodel name\t: A CPU @ 2 GHz\nmodel name\t: B") == "A CPU @ 2 GHz"
    )
    assert cpu_model("")


def test_every_environment_says_its_versions_or_has_none() -> None:
    assert OURS.versions()["numpy"]
    assert PEER.versions() == {}


def test_routes_have_names_of_their_own_and_code_that_compiles() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    for route in ROUTES:
        compile(f"{route.imports}\n{route.job}", route.name, "exec")


def test_each_peer_is_pinned_and_fits_what_else_is_pinned() -> None:
    constraints = dict(pins(ROOT / "constraints.txt"))
    for environment in ENVIRONMENTS:
        if environment.folder is None:
            continue
        required = dict(pins(ROOT / "benchmarks" / "peers" / f"{environment.folder.name}.txt"))
        assert environment.packages[0] in required
        assert all(constraints.get(name, pin) == pin for name, pin in required.items())


def pins(file: Path) -> list[list[str]]:
    lines = file.read_text().splitlines()
    return [line.split("==") for line in lines if line and not line.startswith("#")]
