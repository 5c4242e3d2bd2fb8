"""`redacted()`: nothing of the author or the machine is left, and every figure is as before."""

from __future__ import annotations

import gzip
import json
import marshal
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuprof_widgets.analyses.lines import lines, sampled_lines
from gpuprof_widgets.profiles import Profile, load
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.redact import redacted
from tests.records import assert_same_record, records
from tests.traces import calls_of, cell_line, kernel, memory, op, python, runtime, trace_of

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent / "data" / "recorded"

HOME = "/home/alicia/secret project"
HOST = "gpu17.lab.example.com"
SECRETS = ("alicia", "secret", "gpu17", "lab.example", "hunter2", "6.8.0-31", "load_passwords")
"""What stands nowhere in the redacted record: parts of names, paths, code and variables."""

TORCH = "/home/alicia/.venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"
METADATA: dict[str, Any] = {
    "label": "train.py",
    "cell_source": "load_passwords()",
    "source": f"{HOME}/run.json",
    "host": HOST,
    "hostname": "gpu17",
    "platform": "Linux-6.8.0-31",
    "environ": {"TOKEN": "hunter2"},
    "user_key": "hunter2",
    "rank_files": [f"{HOME}/run.rank0.gpuprof"],
    "error": "ValueError: hunter2",
    "options": {"save": f"{HOME}/x.gpuprof", "shapes": True, "name": None},
    "lines": {
        "limit": 9,
        "cells": [{"label": "Cell [3]", "source": "load_passwords()", "statements": [1, 2]}],
    },
    "notes": [
        f"read {HOME}/data/set.bin on {HOST}",
        "the loop `for p in load_passwords():` ran whole",
        r"C:\Users\Alicia\secret\x.py and \\gpu17\share\y.py and ~alicia/secret/z.py",
    ],
    "python_samples": {
        "by_signal": True,
        "samples": 9,
        "interval_ns": 5,
        "median_ns": 6,
        "code": {f"{HOME}/train.py": {"12": "load_passwords()", "13": "hunter2 = 1"}},
    },
    "devices": [{"index": 0, "name": "NVIDIA H200"}],
    "torch": "2.13.0",
    "steps": {"place": f"{HOME}/train.py:7"},
}


STEP: dict[str, Any] = {
    "Call stack": f"{HOME}/a.py(1): f",
    "Sampled lines": [[0, 12], [40, 13]],
}


@pytest.fixture
def telling() -> Record:
    """A record with a secret in everything that can hold one."""
    files = {"main": f"{HOME}/train.py", "step": "/srv/secret/train.py", "forward": TORCH}
    calls = calls_of((None, "main", 1, 5), ("main", "step", 2, 9), ("step", "forward", 2, 9))
    calls = replace(
        calls, functions=calls.functions.assign(file=pd.Series([*files.values()], dtype=object))
    )
    record = trace_of(
        cell_line(1, "load_passwords()", ts=0, dur=100),
        python(f"{HOME}/train.py(12): step", ts=0, dur=90, **STEP),
        python("/srv/secret/train.py(12): step", ts=10, dur=20),
        python(f"{TORCH}(114): forward", ts=40, dur=20),
        op("aten::mm", ts=45, dur=5, cwd=HOME, note=[{"at": f"{HOME}/b.py", "env": "hunter2"}]),
        runtime("cudaLaunchKernel", ts=46, dur=2),
        kernel("gemm<float>", ts=60, dur=10, launched_by=5),
        memory(512, ts=50, allocated=512),
        calls=calls,
        **METADATA,
    )
    tracks = record.trace.tracks.assign(
        label=[f"{HOST} {label}" for label in record.trace.tracks["label"]]
    )
    trace = replace(record.trace, tracks=tracks)
    return replace(record, trace=trace, calls_of_workers={"worker0.pid7": calls})


def all_text(path: Path) -> str:
    """Everything in a saved profile, unpacked."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    texts = [
        gzip.decompress(data).decode()
        if name.endswith(".gz")
        else str(marshal.loads(data))
        if name.endswith(".prof")
        else data.decode()
        for name, data in members.items()
    ]
    return " ".join([*members, *texts])


def test_nothing_that_tells_is_in_the_file(telling: Record, tmp_path: Path) -> None:
    profile = Profile(telling.trace, telling.calls, telling.metadata, telling.calls_of_workers)
    plain, clean = tmp_path / "plain.gpuprof", tmp_path / "clean.gpuprof"
    profile.save(plain)
    profile.save(clean, redact=True)
    before, after = all_text(plain).lower(), all_text(clean).lower()
    assert [secret for secret in SECRETS if secret not in before] == []
    assert [secret for secret in SECRETS if secret in after] == []
    assert "torch/nn/modules/linear.py" in after


@pytest.mark.parametrize(
    "name", ["run.json", "run.speedscope.json", "run.collapsed", "run.html", "run.svg", "t.csv"]
)
def test_nothing_that_tells_is_in_any_other_format(
    name: str, telling: Record, tmp_path: Path
) -> None:
    profile = Profile(telling.trace, telling.calls, telling.metadata, telling.calls_of_workers)
    text = profile.export(tmp_path / name, redact=True).read_text().lower()
    assert [secret for secret in SECRETS if secret in text] == []


def test_files_keep_their_names_and_stay_apart(telling: Record) -> None:
    clean = redacted(telling)
    assert clean.calls is not None
    files = clean.calls.functions["file"].tolist()
    assert sorted(files) == ["torch/nn/modules/linear.py", "train.py", "train.py~2"]
    frames = clean.trace.slices["name"][clean.trace.slices["category"] == "python_function"]
    assert {name.rpartition("(")[0] for name in frames} == set(files)


def test_a_line_keeps_its_number(telling: Record) -> None:
    table = lines(redacted(telling))
    assert table["line"].tolist() == [1, 2]
    assert table["code"].tolist() == ["", ""]
    assert table["wall_ns"].tolist() == lines(telling)["wall_ns"].tolist()


def test_a_sampled_line_keeps_its_number_and_its_times(telling: Record) -> None:
    before, after = sampled_lines(telling), sampled_lines(redacted(telling))
    assert before["code"].tolist() == ["hunter2 = 1", "load_passwords()"]
    assert (after["file"].tolist(), after["line"].tolist()) == (["train.py"] * 2, [13, 12])
    assert after["code"].tolist() == ["", ""]
    figures = before.select_dtypes("number")
    assert (figures["self_error_ns"] > 0).all()
    pd.testing.assert_frame_equal(after.select_dtypes("number"), figures)


def test_what_analyses_need_of_the_metadata_stays(telling: Record) -> None:
    metadata = redacted(telling).metadata
    assert metadata["devices"] == METADATA["devices"]
    assert (metadata["torch"], metadata["label"]) == ("2.13.0", "train.py")
    assert metadata["options"] == {"save": None, "shapes": True, "name": None}
    assert (metadata["error"], metadata["steps"]) == ("ValueError", {"place": "train.py:7"})
    assert metadata["notes"] == [
        "read set.bin on host",
        "the loop `…` ran whole",
        "x.py and y.py and z.py",
    ]
    assert metadata["python_samples"] == {**METADATA["python_samples"], "code": {}}
    kept = {"label", "options", "lines", "notes", "devices", "torch", "steps", "error"}
    assert set(metadata) == kept | {"python_samples"}


NUMBERS = ("ts", "dur", "track", "depth", "parent", "count", "launch", "op", "forward", "category")


@given(records())
@settings(max_examples=30)
def test_no_figure_changes(record: Record) -> None:
    clean = redacted(record)
    for name in NUMBERS:
        pd.testing.assert_series_equal(clean.trace.slices[name], record.trace.slices[name])
    pd.testing.assert_frame_equal(clean.trace.flows, record.trace.flows)
    # Their names may change: one that is a path tells of its author.
    args, clean_args = record.trace.args.values(), clean.trace.args.values()
    assert [values.index.tolist() for values in clean_args] == [
        values.index.tolist() for values in args
    ]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records())
def test_a_redacted_record_reads_back_equal(tmp_path: Path, record: Record) -> None:
    clean = redacted(record)
    assert_same_record(load(save(clean, tmp_path / "run.gpuprof")), clean)


def test_an_arg_that_is_named_like_a_path_reads_back_in_its_place(tmp_path: Path) -> None:
    record = trace_of(op("aten::mm", ts=0, dur=5, **{"/0/": 1, "aten::mm": 2}))
    clean = redacted(record)
    assert list(clean.trace.args) == sorted(clean.trace.args) != list(record.trace.args)
    assert_same_record(load(save(clean, tmp_path / "run.gpuprof")), clean)


ORDINARY = [
    *("aten::mm", "void at::native::(anonymous namespace)::f<4, float>(int)", "a/b", "1/2"),
    *("gradients/dense/MatMul_grad", "autograd::engine::evaluate_function: MmBackward0", "//"),
    *("Memcpy HtoD (Pageable -> Device)", "and/or", "https://pytorch.org/docs", "nn.Module: A_0"),
    *("nccl:all_reduce", "[param|cuda]", "3.5 ms / step", "ns:op", "x: y"),
]


@pytest.mark.parametrize("name", ORDINARY)
def test_a_name_without_a_path_stays(name: str) -> None:
    record = trace_of(op(name, ts=0, dur=1), label=name, host="host1")
    clean = redacted(record)
    assert clean.trace.slices["name"].tolist() == [name]
    assert clean.metadata["label"] == name


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/bob/x.py", "x.py"),
        ("open('/home/bob/my/x.py')", "open('x.py')"),
        ("file:///home/bob/x.py", "x.py"),
        ("in /home/bob", "in …"),
        ("in /data/bob/runs/", "in …"),
        ("../../bob/x.py", "x.py"),
        ("~/x.py", "x.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("a b.py:/home/bob/x.py", "a b.py:x.py"),
        ("bob's batch", "user's batch"),
        ("bob_1234.pt.trace", "user_1234.pt.trace"),
        ("bobcat", "bobcat"),
        ("aten::bob", "aten::bob"),
    ],
)
def test_paths_in_texts(text: str, left: str) -> None:
    record = trace_of(op(text, ts=0, dur=1), notes=["/home/bob/here.txt"])
    assert redacted(record).trace.slices["name"].tolist() == [left]


@given(st.lists(st.sampled_from(["a", "b.py", "home", "x y", "lib"]), min_size=2, max_size=4))
def test_no_folder_of_a_file_is_left(parts: list[str]) -> None:
    file = "/" + "/".join([*parts, "train.py"])
    calls = calls_of((None, "main", 1, 5))
    calls = replace(calls, functions=calls.functions.assign(file=[file]))
    record = trace_of(python(f"{file}(3): main", ts=0, dur=5), calls=calls, notes=[f"in {file}."])
    clean = redacted(record)
    assert clean.calls is not None
    assert clean.calls.functions["file"].tolist() == ["train.py"]
    assert clean.trace.slices["name"].tolist() == ["train.py(3): main"]
    assert clean.metadata["notes"] == ["in train.py."]


def test_a_recording_of_this_machine_tells_nothing_of_it(tmp_path: Path) -> None:
    import getpass
    import socket

    import gpuprof_widgets

    with gpuprof_widgets.profile(quiet=True, stack=True) as run:
        sorted([3, 1, 2], key=lambda value: -value)
    path = run.save(tmp_path / "run.gpuprof", redact=True)
    text = all_text(path)
    home = str(Path(__file__).parents[1])
    assert [word for word in (socket.gethostname(), home, str(tmp_path)) if word in text] == []
    if getpass.getuser() != "root":
        assert f"/{getpass.getuser()}/" not in text
    assert json.dumps(load(path).metadata["options"]["save"]) == "null"


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.gpuprof")), ids=lambda file: file.stem)
def test_findings_of_a_redacted_profile_name_lines_without_their_source(file: Path) -> None:
    findings = load(file).redacted().findings()
    sentences = [f"{finding.text} {finding.remedy}" for finding in findings]
    assert [sentence for sentence in sentences if "``" in sentence or " ." in sentence] == []
