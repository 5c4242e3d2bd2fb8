"""Ranks that launchers other than torchrun start: each knows its number and has its own files."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gpuprof_widgets
from gpuprof_widgets.capture.distributed import (
    LAUNCHERS,
    ProcessRank,
    Rank,
    process_rank,
    rank_file,
)
from tests.command_lines import TIMEOUT_S
from tests.forked_calls import ROOT, Calls, calls

pytestmark = pytest.mark.slow

VARIABLES = {
    "torchrun": {"RANK": "{rank}", "WORLD_SIZE": "{size}", "LOCAL_RANK": "{rank}"},
    "Open MPI": {
        "OMPI_COMM_WORLD_RANK": "{rank}",
        "OMPI_COMM_WORLD_SIZE": "{size}",
        "OMPI_COMM_WORLD_LOCAL_RANK": "{rank}",
        "PMIX_RANK": "{rank}",
    },
    "MVAPICH2": {"MV2_COMM_WORLD_RANK": "{rank}", "MV2_COMM_WORLD_SIZE": "{size}"},
    "MPICH and Intel MPI": {
        "PMI_RANK": "{rank}",
        "PMI_SIZE": "{size}",
        "MPI_LOCALRANKID": "{rank}",
    },
    "Slurm": {
        "SLURM_PROCID": "{rank}",
        "SLURM_STEP_NUM_TASKS": "{size}",
        "SLURM_NTASKS": "8",
        "SLURM_LOCALID": "{rank}",
    },
    "PMIx": {"PMIX_RANK": "{rank}"},
}
"""What each launcher sets, by its documentation or as seen; of Slurm also what says nothing."""

BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_LOCALID": "0"}
"""In a script of sbatch, outside of srun."""

SIZES = {launcher.name: None if launcher.world_size is None else 2 for launcher in LAUNCHERS}


def launched(name: str, rank: int, size: int) -> dict[str, str]:
    return {key: text.format(rank=rank, size=size) for key, text in VARIABLES[name].items()}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a job in which these tests themselves run."""
    for variables in (*VARIABLES.values(), BATCH_SCRIPT):
        for name in variables:
            monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def gpuprof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """Calls of `gpuprof`, each in a process of its own."""
    with calls(tmp_path_factory.mktemp("calls")) as made:
        yield made


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "job.py").write_text("import torch\nprint(torch.ones(8).sum().item())\n")
    return "job.py"


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "job.py")


class TestRank:
    def test_every_launcher_of_the_table_is_tested(self) -> None:
        assert list(VARIABLES) == [launcher.name for launcher in LAUNCHERS]

    def test_the_docs_have_the_table(self) -> None:
        page = (ROOT / "docs" / "topics" / "ranks.md").read_text(encoding="utf-8")
        for launcher in LAUNCHERS:
            size = f"`{launcher.world_size}`" if launcher.world_size else "does not say"
            assert f"| `{launcher.rank}` | {size} |" in page
            assert f"\n| {launcher.name}" in page

    @pytest.mark.parametrize("name", list(VARIABLES))
    def test_its_variables_say_the_rank(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for key, value in launched(name, 3, 8).items():
            monkeypatch.setenv(key, value)
        assert process_rank() == (3, None if name == "PMIx" else 8)

    @pytest.mark.parametrize(
        "environment",
        [
            {"RANK": "three", "WORLD_SIZE": "8"},
            {"RANK": "8", "WORLD_SIZE": "8"},
            {"RANK": "-1", "WORLD_SIZE": "8"},
            {"RANK": "3"},
            {"RANK": "", "WORLD_SIZE": ""},
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "0"},
            BATCH_SCRIPT,
        ],
    )
    def test_what_makes_no_sense_is_no_rank(
        self, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        assert process_rank() is None

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            (launched("torchrun", 5, 8) | launched("Slurm", 1, 2), (5, 8)),
            (launched("Open MPI", 2, 4) | BATCH_SCRIPT, (2, 4)),
            (launched("MPICH and Intel MPI", 2, 4) | launched("Slurm", 0, 2), (2, 4)),
            (launched("torchrun", 0, 1) | launched("Slurm", 3, 4), (3, 4)),
            (launched("Open MPI", 0, 1), (0, 1)),
            (launched("Slurm", 0, 1) | launched("PMIx", 0, 1), (0, 1)),
        ],
    )
    def test_of_several_launchers_the_inner_one_that_started_several_decides(
        self,
        environment: dict[str, str],
        expected: tuple[int, int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        assert process_rank() == expected

    @pytest.mark.parametrize(("size", "expected"), [(4, (1, 4)), (1, (2, 8))])
    def test_a_process_group_of_several_goes_first(
        self, size: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1 % size)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)
        for key, value in launched("Open MPI", 2, 8).items():
            monkeypatch.setenv(key, value)
        assert process_rank() == expected

    def test_what_the_process_group_said_stays_when_it_is_gone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In an interactive step of Slurm, which is one task, the launcher says rank 0 of 1."""
        for key, value in launched("Slurm", 0, 1).items():
            monkeypatch.setenv(key, value)
        part = Rank()
        with monkeypatch.context() as during:
            during.setattr(torch.distributed, "is_initialized", lambda: True)
            during.setattr(torch.distributed, "get_rank", lambda: 1)
            during.setattr(torch.distributed, "get_world_size", lambda: 4)
            part.start()
        part.stop()
        assert part.metadata() == {"rank": 1, "world_size": 4}


class TestNames:
    @pytest.mark.parametrize(
        ("name", "alone", "of_several"),
        [
            ("run", "run", "run.rank2.gpuprof"),
            ("run.gpuprof", "run.gpuprof", "run.rank2.gpuprof"),
            ("run.zip", "run.zip", "run.rank2.gpuprof"),
            ("v1.2", "v1.2", "v1.2.rank2.gpuprof"),
            ("run.%r.zip", "run.0.zip", "run.2.zip"),
            ("run_%r", "run_0", "run_2"),
            ("50%%%r.gpuprof", "50%0.gpuprof", "50%2.gpuprof"),
            ("50%%r.gpuprof", "50%r.gpuprof", "50%r.rank2.gpuprof"),
            ("50%.gpuprof", "50%.gpuprof", "50%.rank2.gpuprof"),
            ("%s.gpuprof", "%s.gpuprof", "%s.rank2.gpuprof"),
        ],
    )
    def test_the_rank_is_in_the_name(self, name: str, alone: str, of_several: str) -> None:
        for nobody in (None, ProcessRank(0, 1)):
            assert str(rank_file(name, nobody)) == alone
        for several in (ProcessRank(2, 4), ProcessRank(2, None)):
            assert str(rank_file(name, several)) == of_several

    def test_host_and_process_tell_ranks_apart_together_alone_they_do_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "node", lambda: "no/de 7.cluster")
        found, host, process = ProcessRank(2, 4), "no_de_7.cluster", os.getpid()
        assert str(rank_file("a.%h.%p", found)) == f"a.{host}.{process}"
        assert str(rank_file("a.%h", found)) == f"a.{host}.rank2.gpuprof"
        assert str(rank_file("a.%p", found)) == f"a.{process}.rank2.gpuprof"
        assert str(rank_file("a.%p", None)) == f"a.{process}"

    def test_folders_keep_their_names(self) -> None:
        assert str(rank_file("50%r/%h/run.%r.zip", ProcessRank(2, 4))) == "50%r/%h/run.2.zip"


@pytest.mark.parametrize("name", list(VARIABLES))
def test_no_rank_overwrites_the_file_of_another(
    name: str, gpuprof: Calls, script: str, tmp_path: Path
) -> None:
    for rank in (0, 1):
        done = gpuprof(
            "run", "-o", "run.gpuprof", script, cwd=tmp_path, env=launched(name, rank, 2)
        )
        assert done.returncode == 0, done.stderr
        file = f"run.rank{rank}.gpuprof"
        assert f"saved: {file} (gpuprof view {file})" in done.stderr
    files = ["run.rank0.gpuprof", "run.rank1.gpuprof"]
    assert written(tmp_path) == files
    for rank, file in enumerate(files):
        metadata = gpuprof_widgets.load(tmp_path / file).metadata
        assert metadata["rank"] == rank
        assert metadata.get("world_size") == SIZES[name]
        told = [str(tmp_path / one) for one in files] if SIZES[name] else None
        assert metadata.get("rank_files") == told


@pytest.mark.parametrize(
    ("target", "files"),
    [
        (["-o", "report.HTM"], ["report.rank0.HTM", "report.rank1.HTM"]),
        (["-o", "trace.json.gz"], ["trace.rank0.json.gz", "trace.rank1.json.gz"]),
        (
            ["-o", "r%r.png", "--save", "r%r.zip"],
            ["r0.png", "r0.zip", "r1.png", "r1.zip"],
        ),
    ],
)
def test_whatever_a_run_writes_is_written_per_rank(
    target: list[str], files: list[str], gpuprof: Calls, script: str, tmp_path: Path
) -> None:
    said = ""
    for rank in (0, 1):
        env = launched("Open MPI", rank, 2)
        said += gpuprof("run", *target, script, cwd=tmp_path, env=env).stderr
    assert written(tmp_path) == files
    assert all(f": {file}" in said for file in files)


@pytest.mark.parametrize("environment", [BATCH_SCRIPT, launched("Slurm", 0, 1)])
def test_a_run_that_is_alone_in_its_job_writes_what_was_asked_for(
    environment: dict[str, str], gpuprof: Calls, script: str, tmp_path: Path
) -> None:
    done = gpuprof("run", "-o", "run.gpuprof", script, cwd=tmp_path, env=environment)
    assert "saved: run.gpuprof (gpuprof view run.gpuprof)" in done.stderr
    assert written(tmp_path) == ["run.gpuprof"]


def test_a_rank_does_not_write_over_its_script(gpuprof: Calls, script: str, tmp_path: Path) -> None:
    (tmp_path / "job.rank1.gpuprof").symlink_to(tmp_path / script)
    env = launched("Open MPI", 1, 2)
    done = gpuprof("run", "-o", "job.gpuprof", script, cwd=tmp_path, env=env)
    assert "job.rank1.gpuprof: this is the input, and is not overwritten" in done.stderr
    assert done.returncode == 1


FAKE_JOB = """
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
"""


@pytest.mark.parametrize("environment", [{}, launched("torchrun", 0, 2)])
def test_ranks_that_only_the_script_knows_of_are_said_to_be_missing(
    environment: dict[str, str], gpuprof: Calls, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(FAKE_JOB)
    gpuprof("run", "-o", "run.gpuprof", "job.py", cwd=tmp_path, env=environment)
    notes = gpuprof_widgets.load(tmp_path / "run.rank0.gpuprof").metadata["notes"]
    alone = [note for note in notes if note.startswith("this record has only rank 0 of 2: ")]
    assert len(alone) == (0 if environment else 1)


BUSY_GLOO = """
import threading, time, torch
from torch import distributed

busy = threading.Event()

def reduce(state, bucket):
    answer = torch.futures.Future()
    def in_gloo(future):
        answer.set_result(future.value()[0])
        if threading.current_thread() is not threading.main_thread():
            busy.set()
            time.sleep(0.5)  # then it takes the GIL again
    distributed.all_reduce(bucket.buffer(), async_op=True).get_future().add_done_callback(in_gloo)
    return answer

def train():
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
    model.register_comm_hook(None, reduce)
    while not busy.is_set():  # a reduction that ends early calls back in the main thread
        model(torch.ones(4, 8)).sum().backward()
    distributed.destroy_process_group()

train()
torch.ones(3).cumsum(0)
"""


def test_a_model_may_go_while_gloo_is_busy(gpuprof: Calls, tmp_path: Path) -> None:
    """The model has the last reference to the group, and without us torch hangs here."""
    (tmp_path / "job.py").write_text(BUSY_GLOO)
    done = gpuprof("run", "-o", "run.gpuprof", "job.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    slices = gpuprof_widgets.load(tmp_path / "run.gpuprof").trace.slices
    assert {"gloo:all_reduce", "aten::cumsum"} <= set(slices["name"].cat.categories)


def test_torch_is_as_before_a_recording() -> None:
    kind = torch.distributed.Reducer
    before = vars(kind)["__init__"]
    with gpuprof_widgets.profile(quiet=True):
        assert torch.distributed.Reducer is kind
        assert vars(kind)["__init__"] is not before
    assert vars(kind)["__init__"] is before


def test_what_a_script_put_in_its_place_meanwhile_stays() -> None:
    kind: Any = torch.distributed.Reducer
    before = vars(kind)["__init__"]

    def mine(*_: object) -> None: ...

    try:
        with gpuprof_widgets.profile(quiet=True):
            kind.__init__ = mine
        assert vars(kind)["__init__"] is mine
    finally:
        kind.__init__ = before


def test_a_reducer_of_the_users_own_is_recorded_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    own = type("Reducer", (torch.distributed.Reducer,), {})
    monkeypatch.setattr(torch.distributed, "Reducer", own)
    with gpuprof_widgets.profile(quiet=True) as run:
        torch.ones(2)
    assert len(run.trace)
    assert "__init__" not in vars(own)


def test_the_name_of_a_block_has_rank_and_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in launched("Slurm", 1, 2).items():
        monkeypatch.setenv(key, value)
    with gpuprof_widgets.profile(quiet=True, save=tmp_path / "step.%r.%p.gpuprof") as run:
        torch.ones(2)
    assert written(tmp_path) == [f"step.1.{os.getpid()}.gpuprof"]
    assert "rank_files" not in run.metadata  # of the other only it knows the process


MPIEXECS: dict[str, list[str]] = {
    "mpiexec.openmpi": ["--allow-run-as-root", "--oversubscribe"],
    "mpiexec.hydra": [],
}


@pytest.mark.parametrize("program", list(MPIEXECS))
def test_under_a_real_mpiexec(program: str, script: str, tmp_path: Path) -> None:
    mpiexec = shutil.which(program)
    if mpiexec is None:
        pytest.skip(f"there is no {program}")
    gpuprof_run = [sys.executable, "-m", "gpuprof_widgets", "run", "-q", "-o", "run.gpuprof"]
    settings: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run(
        [mpiexec, *MPIEXECS[program], "-n", "2", *gpuprof_run, script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        **settings,
    )
    assert done.returncode == 0, done.stderr
    assert written(tmp_path) == ["run.rank0.gpuprof", "run.rank1.gpuprof"]
