"""SQLite files that are damaged, odd, or made to do harm: a record or one clear error, at once."""

from __future__ import annotations

import itertools
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load, parse
from tests.profiler_databases import Database, Nsys, Nvprof, written

pytestmark = pytest.mark.slow

FILE = Path("some/run.sqlite")


def a_run(kind: type[Nsys] | type[Nvprof] = Nsys) -> Database:
    """A few hundred rows on several pages."""
    made = kind()
    for number in range(1, 100):
        at = 1_000 * number
        made.range(f"aten::add{number}, seq = {number}, op_id = 1, sizes = [[4]]", at, at + 500)
        made.call(
            "cudaLaunchKernel_v7000" if kind is Nsys else 211, at + 10, at + 20, correlation=number
        )  # type: ignore[arg-type]
        made.kernel(f"kernel {number}", at + 100, at + 700, correlation=number)
    return made


@pytest.fixture(params=[Nsys, Nvprof])
def kind(request: pytest.FixtureRequest) -> type[Nsys] | type[Nvprof]:
    found: type[Nsys] | type[Nvprof] = request.param
    return found


def refused(data: bytes) -> str:
    """What the error says."""
    with pytest.raises(TraceError) as caught:
        parse(data, FILE)
    said = str(caught.value)
    assert said.startswith(f"{FILE}: ")
    return said


def test_a_file_is_read_as_it_is_from_memory(kind: type[Nsys], tmp_path: Path) -> None:
    data = a_run(kind).bytes()
    record = load(written(data, tmp_path / "run.txt"))
    assert len(record.trace) == len(parse(data, FILE).trace) == 297
    assert record.metadata["source"] == str(tmp_path / "run.txt")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off_says_where(share: float) -> None:
    data = a_run().bytes()
    kept = int(len(data) * share)
    said = refused(data[:kept])
    assert f"ends at byte {kept:,}, but its header says {len(data):,} bytes" in said
    assert "Copy it again, or export it again" in said


def test_a_page_that_is_garbage_is_named_by_its_table() -> None:
    data = bytearray(a_run().bytes())
    at = data.rindex(b"kernel 50")
    page = at - at % 4_096
    data[page : page + 4_096] = b"\xff" * 4_096
    said = refused(bytes(data))
    assert re.search(r"damaged: \w+ cannot be read \(database disk image is malformed\)", said)
    assert "export it again" in said


@pytest.mark.parametrize(
    ("tables", "found"),
    [
        ([], "none at all"),
        (["users", "moz_places"], "moz_places, users"),
        ([f"t{number}" for number in range(9)], "t0, t1, t2, t3, t4, t5 and 3 more"),
        (["StringIds"], "StringIds"),
    ],
)
def test_a_database_of_no_profiler_is_told_by_its_tables(tables: list[str], found: str) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE made (x)")
        connection.execute("DROP TABLE made")
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (x)")
        said = refused(connection.serialize())
    assert f"not of a known profiler: its tables are {found}." in said
    assert "nsys export --type sqlite" in said


def kernel_count(record: Record) -> int:
    return int((record.trace.slices["category"] == "kernel").sum())


ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS start FROM r"


def test_a_view_in_the_place_of_a_table_never_runs() -> None:
    """It could be endless; an export has none."""
    made = a_run()
    made.without("CUPTI_ACTIVITY_KIND_KERNEL", "OSRT_API")
    made.run(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {ENDLESS}")
    made.run(f"CREATE VIEW OSRT_API AS {ENDLESS}")
    record = made.record()
    assert kernel_count(record) == 0
    assert len(record.trace) == 198


def test_a_generated_column_never_runs() -> None:
    made = a_run()
    made.without("CUPTI_ACTIVITY_KIND_MEMSET")
    made.run("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end)")
    made.run("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (5, 9)")
    overflow = "abs(-9223372036854775807 - 1)"  # an error once it is evaluated
    made.run(f"ALTER TABLE CUPTI_ACTIVITY_KIND_MEMSET ADD COLUMN deviceId AS ({overflow})")
    trace = made.record().trace
    memset = trace.slices[trace.slices["category"] == "gpu_memset"]
    assert memset["dur"].tolist() == [4]


def test_a_virtual_table_is_not_asked() -> None:
    made = a_run()
    made.without("OSRT_API")
    made.run("CREATE VIRTUAL TABLE OSRT_API USING fts5(start, end, globalTid, nameId)")
    made.run("INSERT INTO OSRT_API VALUES ('1', '2', '3', '4')")
    assert len(made.record().trace) == 297


SMALL, INNER_PAGE = 512, 5


def test_pages_that_point_in_circles_end_at_once() -> None:
    """Inner pages whose children are all the next one: some 60 to the power of 8 rows."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA page_size = {SMALL}")
        connection.execute("CREATE TABLE StringIds (id, value)")
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end)")
        rows = [(at, at + 1) for at in range(1, 20_000)]
        connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?)", rows)
        data = bytearray(connection.serialize())
    inner = [at for at in range(SMALL, len(data), SMALL) if data[at] == INNER_PAGE]
    assert len(inner) > 8
    for page, child in itertools.pairwise(inner):
        number = (child // SMALL + 1).to_bytes(4, "big")
        cells = int.from_bytes(data[page + 3 : page + 5], "big")
        for cell in range(page + 12, page + 12 + 2 * cells, 2):
            at = page + int.from_bytes(data[cell : cell + 2], "big")
            data[at : at + 4] = number
        data[page + 8 : page + 12] = number
    assert "(its pages point in circles)" in refused(bytes(data))


def test_text_that_is_no_utf_8_keeps_what_is() -> None:
    made = a_run()
    made.run("UPDATE StringIds SET value = CAST(X'6BFF6C' AS TEXT) WHERE value = 'kernel 7'")
    names = made.record().trace.slices["name"].cat.categories
    assert "k\ufffdl" in names


def test_a_file_in_write_ahead_mode_is_read(tmp_path: Path) -> None:
    path = written(a_run().bytes(), tmp_path / "run.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    assert path.read_bytes()[18:20] == b"\2\2"
    assert len(load(path).trace) == 297


def test_columns_are_known_whatever_their_case() -> None:
    """As they are to SQLite."""
    made = a_run()
    for column in ("start", "demangledName", "correlationId"):
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        made.run(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "{column.upper()}"')
    slices = made.record().trace.slices
    kernels = slices[slices["category"] == "kernel"]
    assert set(kernels["name"]) == {f"kernel {number}" for number in range(1, 100)}
    assert (kernels["launch"] >= 0).all()


def test_names_that_quote_sql_are_names() -> None:
    made = a_run()
    made.run('CREATE TABLE "x""; DROP TABLE StringIds; --" (start, "e""nd")')
    made.run('INSERT INTO "x""; DROP TABLE StringIds; --" VALUES (1, 2)')
    (note,) = made.record().metadata["notes"]
    assert note == 'x"; DROP TABLE StringIds; -- is not read (1 rows)'


def test_many_tables_with_long_names_fill_no_page() -> None:
    made = a_run()
    for number in range(100):
        made.run(f'CREATE TABLE "{"x" * 1_000}{number:03}" (start)')
        made.run(f'INSERT INTO "{"x" * 1_000}{number:03}" VALUES (5)')
    notes = made.record().metadata["notes"]
    assert len(notes) == 13
    assert max(map(len, notes)) < 120
    assert notes[-1] == "88 more tables are not read"
    made.without("StringIds")
    assert len(refused(made.bytes())) < 900


def read_or_refused(data: bytes) -> None:
    """Any other error is a failure, and so is one that does not name the file."""
    said = f"{FILE}: "
    try:
        parse(data, FILE)
    except TraceError as error:
        said = str(error)
    assert said.startswith(f"{FILE}: ")


ODD = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=12),
    st.just("aten::mm, seq = 99999999999999999999, op_id = 5, sizes = [[99999999999999999999]]"),
)


@pytest.mark.slow
@settings(max_examples=50)
@given(data=st.data())
def test_any_value_in_any_column_is_read_or_refused(data: st.DataObject) -> None:
    made = data.draw(st.sampled_from([Nsys, Nvprof]))()
    made.range("aten::add, op_id = 1", 100, 200)
    for _ in range(data.draw(st.integers(1, 6))):
        table = data.draw(st.sampled_from(sorted(made.tables)))
        columns = [name for name in made.tables[table] if name != "_id_"]
        made.add(table, **{name: data.draw(ODD) for name in columns})
    read_or_refused(made.bytes())
