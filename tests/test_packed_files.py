"""Packed traces: every packing and archive, what is cut off or damaged, and bombs."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.trace import packing
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.readers import load, parse
from tests.fuzz_readers import check
from tests.records import assert_same_trace
from tests.trace_files import kineto, tar_of, zip_of
from tests.traces import op, trace_of

pytestmark = pytest.mark.slow

PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstandard": zstandard.ZstdCompressor(write_checksum=True).compress,
    "xz": lzma.compress,
}
PLAIN = kineto("aten::mm", "aten::add")
BOMB = 64 << 20
BLOWN = b"[" + b" " * (40 << 20)


def in_tar(data: bytes) -> bytes:
    return tar_of({"log/trace.json": data})


def in_zip(data: bytes) -> bytes:
    return zip_of({"log/trace.json": data})


WRAPPED = {
    **{name: pack(PLAIN) for name, pack in PACK.items()},
    **{f"tar.{name}": pack(in_tar(PLAIN)) for name, pack in PACK.items()},
    **{f"{name} in zip": in_zip(pack(PLAIN)) for name, pack in PACK.items()},
    "tar": in_tar(PLAIN),
    "zip": in_zip(PLAIN),
    "gzip in tar.gz": gzip.compress(in_tar(gzip.compress(PLAIN))),
}


def names(data: bytes) -> list[str]:
    return parse(data, Path("a trace")).trace.slices["name"].tolist()


@pytest.mark.parametrize("how", WRAPPED)
def test_a_packed_trace_reads_as_the_plain_one(how: str, tmp_path: Path) -> None:
    path = tmp_path / "the name says nothing.png"
    path.write_bytes(WRAPPED[how])
    record = load(path)
    assert_same_trace(record.trace, parse(PLAIN, path).trace)
    assert record.metadata["notes"] == []


@pytest.mark.parametrize("how", [*PACK, "zip", "tar.gzip"])
def test_what_is_cut_off_anywhere_is_an_error_or_told(how: str) -> None:
    whole = WRAPPED[how]
    for length in {1, 5, 20, len(whole) // 2, len(whole) - 1}:
        try:
            notes = parse(whole[:length], Path("a trace")).metadata["notes"]
        except TraceError as error:
            notes = [str(error)]
        assert any("ends at byte" in note or "starts" in note for note in notes)


@pytest.mark.parametrize("how", PACK)
def test_of_a_trace_that_is_cut_off_the_first_events_are_read(how: str) -> None:
    many = kineto(*(f"op {random.Random(number).random()}" for number in range(9_000)))
    packed = PACK[how](many)
    record = parse(packed[: len(packed) * 9 // 10], Path("a trace"))
    assert 0 < len(record.trace) < 9_000
    ended = f"the {how} data ends at byte {len(packed) * 9 // 10:,}, before its end mark"
    assert record.metadata["notes"][-1] == f"{ended}: what comes later is missing"


@pytest.mark.parametrize("how", PACK)
def test_damage_is_an_error_or_harmless(how: str) -> None:
    whole = WRAPPED[how]
    damaged = []
    for at in range(4, len(whole), 7):
        spoiled = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
        try:
            record = parse(spoiled, Path("a trace"))
        except TraceError as error:
            damaged.append(str(error))
            continue
        found = record.trace.slices["name"].tolist()  # a time or a name in the header was changed
        assert found == ["aten::mm", "aten::add"] or record.metadata["notes"]
    assert any("does not unpack" in error for error in damaged)


def test_a_wide_window_of_zstandard_is_for_other_programs() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=28)
    frame = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    packed = frame.compress(PLAIN) + frame.flush()
    with pytest.raises(TraceError, match=r"too much memory.* unpack it with another program"):
        names(packed)


@pytest.mark.parametrize("first", [0x50, 0x5F])
def test_frames_without_data_are_skipped(first: int) -> None:
    """As pzstd begins its files."""
    skipped = bytes([first]) + b"\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    packed = PACK["zstandard"](PLAIN)
    for whole in (skipped + packed, packed + skipped, skipped * 2 + packed):
        assert names(whole) == ["aten::mm", "aten::add"]


@pytest.mark.parametrize("how", PACK)
def test_nothing_that_was_packed_is_called_empty(how: str) -> None:
    with pytest.raises(TraceError, match=r"what is packed in it is empty \(0 bytes\)"):
        names(PACK[how](b""))


@pytest.mark.parametrize("how", PACK)
def test_what_stands_behind_packed_data_is_noted_but_for_zeros(how: str) -> None:
    whole = PACK[how](PLAIN)
    for behind in (b"some words", b"\x1f", b"\0\0words"):
        record = parse(whole + behind, Path("run.json.packed"))
        assert record.trace.slices["name"].tolist() == ["aten::mm", "aten::add"]
        (note,) = record.metadata["notes"]
        assert note.startswith(f"{len(behind.lstrip(bytes(1)))} bytes behind the {how} data")
    for kept in (whole + bytes(96), PACK[how](PLAIN[:9]) + bytes(8) + PACK[how](PLAIN[9:])):
        assert names(kept) == ["aten::mm", "aten::add"]


# Bombs


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a file might unpack to 1 MB: a small bomb shows the same, and takes no time."""
    monkeypatch.setattr(packing, "ALWAYS_BYTES", 1 << 20)


@pytest.fixture
def unpacked_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were unpacked, step by step, of all packings and archives."""
    steps: list[int] = []
    count = packing.Growth.count

    def counted(growth: packing.Growth, size: int) -> None:
        steps.append(size)
        count(growth, size)

    monkeypatch.setattr(packing.Growth, "count", counted)
    return steps


OF_ONE_STEP = 46 << 20
"""Bytes that are unpacked at a time, at most."""


@pytest.mark.slow
@pytest.mark.parametrize("how", PACK)
@pytest.mark.usefixtures("small_limits")
def test_a_bomb_is_refused_before_it_is_unpacked(how: str, unpacked_bytes: list[int]) -> None:
    bomb = PACK[how](bytes(3 * BOMB))
    for whole in (bomb, PACK[how](b"[") + bomb):
        unpacked_bytes.clear()
        with pytest.raises(TraceError, match=r"unpack to more than .* do not trust this file"):
            names(whole)
        allowed = packing.ALWAYS_BYTES + packing.GROWTH * len(whole) + OF_ONE_STEP
        assert sum(unpacked_bytes) <= allowed < 3 * BOMB


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_zipfile_does_not_bound_are_refused(compression: int) -> None:
    """A zip of 400 bytes would take 300 MB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("a.json", PLAIN)
    with pytest.raises(TraceError, match=rf"type {compression}, is not deflate.*another program"):
        names(file.getvalue())


BOMBS: dict[str, Callable[[], bytes]] = {
    "one file": lambda: in_zip(BLOWN),
    "many files": lambda: zip_of({f"{number}.json": BLOWN[: 1 << 20] for number in range(40)}),
    "tar.gz": lambda: gzip.compress(in_tar(BLOWN)),
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.usefixtures("small_limits")
def test_an_archive_is_a_bomb_by_all_that_is_in_it(kind: str) -> None:
    with pytest.raises(TraceError, match="do not trust this file"):
        names(BOMBS[kind]())


@pytest.mark.usefixtures("small_limits")
def test_a_saved_profile_can_be_a_bomb_too(tmp_path: Path) -> None:
    saved = save(trace_of(op("a", ts=0, dur=9)), tmp_path / "run.gpuprof")
    with zipfile.ZipFile(saved) as good:
        held = {name: good.read(name) for name in good.namelist()}
    for name in held:
        blown = gzip.compress(b" " * (40 << 20)) if name.endswith(".gz") else b" " * (40 << 20)
        with pytest.raises(TraceError, match="do not trust this file"):
            names(zip_of({**held, name: blown}))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (gzip.compress(lzma.compress(PLAIN)), "packed twice"),
        (in_zip(gzip.compress(gzip.compress(PLAIN))), "packed twice"),
        (in_zip(in_tar(PLAIN)), "an archive in an archive"),
        (in_tar(gzip.compress(in_zip(PLAIN))), "an archive in an archive"),
        (b"BZh91AY&SY", "packed by bzip2"),
    ],
)
def test_layers_are_to_be_unpacked_first(data: bytes, problem: str) -> None:
    with pytest.raises(TraceError, match=rf"{problem}.*[uU]npack it"):
        names(data)


def header(kind: bytes, size: int) -> bytes:
    """A tar's header with this size in base 256, which GNU tar has for large numbers."""
    whole = bytearray(tarfile.TarInfo("a").tobuf(tarfile.USTAR_FORMAT))
    sign = b"\x80" if size >= 0 else b"\xff"
    whole[124:136] = sign + size.to_bytes(11, "big", signed=True)
    whole[156:157] = kind
    whole[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(whole))[0]
    return bytes(whole)


@pytest.mark.parametrize("size", [-1, -512, -(2**80), 2**40, 2**80])
@pytest.mark.parametrize("kind", [b"0", b"x", b"L", b"S"])
def test_a_size_that_no_file_has_is_a_broken_header(kind: bytes, size: int) -> None:
    """One would go back in the file for ever, another would be searched in quadratic time."""
    with pytest.raises(TraceError, match=r"starts as a tar but|is a trace"):
        names(header(kind, size) + tar_of({"a.json": PLAIN}))


def test_a_pax_header_that_is_long_to_search_is_refused() -> None:
    long = header(tarfile.XHDTYPE, 1 << 20) + b"1" * (1 << 20)
    with pytest.raises(TraceError, match="headers has a size of 1,048,576"):
        names(long + tar_of({"a.json": PLAIN}))


def test_a_tar_of_headers_alone_is_refused() -> None:
    with pytest.raises(TraceError):
        names(header(tarfile.XGLTYPE, 0) * 10_000)
    with pytest.raises(TraceError, match="unexpected end of data"):
        names(in_tar(PLAIN)[:700])


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar_is_read(kind: int) -> None:
    name = "a folder/" * 12 + "n1_7.1.pt.trace.json"
    record = parse(tar_of({name: PLAIN, "b" * 90 + ".txt": b"hello"}, kind), Path("run.tar"))
    assert record.metadata["source"] == f"run.tar/{name}"
    assert len(record.trace) == 2


def test_an_encrypted_archive_is_to_be_unpacked_with_another_program() -> None:
    with pytest.raises(TraceError, match=r"is encrypted.*unpack it with another program"):
        names(encrypted(WRAPPED["zip"]))


@pytest.mark.parametrize("how", PACK)
def test_what_is_cut_off_and_cannot_be_read_is_called_so(how: str) -> None:
    for packed in (PACK[how](b"hello " * 99), PACK[how](in_tar(PLAIN))):
        with pytest.raises(TraceError, match=rf"the {how} data ends at byte .* cut off while"):
            names(packed[:-4])


def test_a_file_that_claims_to_be_huge_is_not_believed() -> None:
    whole = bytearray(WRAPPED["zip"])
    entry = whole.index(b"PK\x01\x02")
    whole[entry + 24 : entry + 28] = b"\xff\xff\xff\x7f"  # the size unpacked
    assert names(bytes(whole)) == ["aten::mm", "aten::add"]


def test_a_tar_with_a_sparse_file_is_to_be_packed_without() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        info = tarfile.TarInfo("huge.json")
        info.type = tarfile.GNUTYPE_SPARSE
        archive.addfile(info)
    with pytest.raises(TraceError, match=r"huge\.json is sparse: pack it without -S"):
        names(file.getvalue())


# What is in an archive


@pytest.mark.parametrize("name", ["../../evil.json", "/etc/evil.json", "C:\\evil.json", "a\0b"])
def test_no_file_of_an_archive_reaches_the_disk(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number, data in enumerate((zip_of({name: PLAIN}), tar_of({name: PLAIN}))):
        path = tmp_path / "in" / f"{number}.data"
        path.write_bytes(data)
        assert load(path).trace.slices["name"].tolist() == ["aten::mm", "aten::add"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0.data", "1.data", "in"]
    assert not Path("/etc/evil.json").exists()


def test_links_and_devices_of_a_tar_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_bytes(PLAIN)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo("trace.json")
            info.type, info.linkname = kind, str(secret)
            archive.addfile(info)
    with pytest.raises(TraceError, match="none of the 0 files in it is a trace"):
        names(file.getvalue())


def test_what_lies_beside_the_trace_is_told() -> None:
    beside = {"readme.txt": b"hello", ".hidden.json": PLAIN, "__MACOSX/._a.json": PLAIN}
    assert names(zip_of({**beside, "a.json": PLAIN})) == ["aten::mm", "aten::add"]
    record = parse(zip_of({"a.json": PLAIN, "config.json": b'{"lr": 1}'}), Path("x.zip"))
    assert record.metadata["notes"] == [
        'config.json beside it was left out: JSON, but not a trace: there is no "traceEvents" key '
        "(found: lr)"
    ]


def test_an_archive_without_a_trace_lists_what_it_holds() -> None:
    with pytest.raises(TraceError, match=r"none of the 2 files in it .*there is: a\.txt, b\.png"):
        names(zip_of({"a.txt": b"hello", "b.png": b"\x89PNG"}))
    with pytest.raises(TraceError, match=r"there is: nothing"):
        names(zip_of({}))


@pytest.mark.parametrize("pack", [zip_of, tar_of])
def test_a_name_with_line_ends_starts_no_line(pack: Callable[[dict[str, bytes]], bytes]) -> None:
    for held in ({"a\nroot: OK.json": b'{"lr": 1}'}, {"a\nroot: OK.png": b"\x89PNG"}):
        with pytest.raises(TraceError) as caught:
            parse(pack(held), Path("run\n.tar"))
        assert "a\\nroot: OK." in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def encrypted(data: bytes) -> bytes:
    """A zip of one file that says that this is encrypted."""
    whole = bytearray(data)
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        whole[whole.index(magic) + offset] |= 1
    return bytes(whole)


def test_an_archive_of_very_many_files_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_FILES", 3)
    many = {f"{number}.txt": b"hello" for number in range(3)} | {"log/run.pt.trace.json": PLAIN}
    for packed, how in ((zip_of(many), "unzip FILE NAME"), (tar_of(many), "tar -xf FILE NAME")):
        with pytest.raises(TraceError, match=r"more than 3 files") as caught:
            names(packed)
        assert "copy the file again" not in str(caught.value)
        advice = f"Find the file with the trace: unpack it alone ({how}), and open that."
        assert str(caught.value).endswith(advice)


def test_a_folder_of_very_many_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.txt").write_bytes(b"hello")
    with pytest.raises(TraceError, match=r"more than 3 files.* with the trace: name that\.$"):
        load(tmp_path)


@given(st.binary(max_size=600), st.integers(0, 3000))
def test_a_damaged_tar_is_an_error_or_read(noise: bytes, at: int) -> None:
    whole = tar_of({"a.json": PLAIN, "b.txt": b"hello"})
    check(whole[:at] + noise + whole[at + len(noise) :])
