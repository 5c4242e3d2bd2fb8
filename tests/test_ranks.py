"""Distributed runs: a file per rank, one profile of rank 0, and nothing that hangs or stays."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

import gpuprof_widgets
from gpuprof_widgets import Profile
from gpuprof_widgets.capture import torch_profiler
from gpuprof_widgets.exceptions import OptionError, RecordingError
from tests.loaders import mean_rank

pytestmark = pytest.mark.slow

HANGING_S = 600  # a rank that is not ended would sleep this long; no test waits for it


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []
    assert not distributed.is_initialized()
    assert not {"MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"} & set(os.environ)


@pytest.mark.parametrize("nprocs", [2, 4])
def test_every_rank_writes_a_file_and_rank_0_returns(nprocs: int, tmp_path: Path) -> None:
    profile = gpuprof_widgets.profile_ranks(
        mean_rank, nprocs, args=(2.0,), save=tmp_path / "run", shapes=True
    )
    files = [str(tmp_path / f"run.rank{rank}.gpuprof") for rank in range(nprocs)]
    assert sorted(str(path) for path in tmp_path.iterdir()) == sorted(files)
    assert profile.metadata["rank_files"] == files
    assert gpuprof_widgets.last is profile
    for rank, file in enumerate(files):
        one = gpuprof_widgets.load(file)
        assert (one.metadata["rank"], one.metadata["world_size"]) == (rank, nprocs)
        assert one.trace.tracks["rank"].unique().tolist() == [rank]
        assert one.metadata["label"] == "mean_rank"
        assert one.metadata["options"]["shapes"]
        assert one.metadata["error"] is None
        assert "gloo:all_reduce" in set(one.trace.slices["name"].cat.categories)
        assert one.calls is not None
        # Not mean_rank itself: cProfile of Python 3.12 and 3.13 loses the caller of all_reduce.
        assert "all_reduce" in set(one.calls.functions["name"])
    assert profile.metadata["rank"] == 0


@pytest.mark.parametrize("quiet", [True, False])
def test_the_profile_of_rank_0_is_shown_unless_quiet(
    quiet: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    gpuprof_widgets.profile_ranks(
        mean_rank, 1, args=(1.0,), save=tmp_path / "run", top=2, quiet=quiet
    )
    assert ("Ops by CPU self: 2 of" in capfd.readouterr().out) is not quiet


def test_a_folder_of_the_same_name_is_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    profile = gpuprof_widgets.profile_ranks(mean_rank, 1, args=(1.0,), save=tmp_path / "run")
    assert profile.metadata["rank_files"] == [str(tmp_path / "run.rank0.gpuprof")]


def test_the_ranks_of_a_notebook_share_its_host_and_process_in_their_names(tmp_path: Path) -> None:
    save = tmp_path / "run%r.%p.gpuprof"
    profile = gpuprof_widgets.profile_ranks(mean_rank, 2, args=(1.0,), save=save)
    files = [str(tmp_path / f"run{rank}.{os.getpid()}.gpuprof") for rank in (0, 1)]
    assert profile.metadata["rank_files"] == files
    assert sorted(str(path) for path in tmp_path.iterdir()) == files


def test_a_function_of_a_notebook_runs_in_the_ranks(tmp_path: Path) -> None:
    """It has no file to be imported from: here it is local, which is as bad."""
    told = tmp_path / "told"
    told.mkdir()

    def main(rank: int) -> None:
        (told / str(rank)).write_text(os.environ["LOCAL_RANK"])

    gpuprof_widgets.profile_ranks(main, 2, save=tmp_path / "run")
    assert {path.name: path.read_text() for path in told.iterdir()} == {"0": "0", "1": "1"}


def test_ranks_work_after_the_threads_of_the_main_process_did(tmp_path: Path) -> None:
    """OpenMP's threads are not there in a forked process: to wait for them is to wait for ever."""
    weights = torch.randn(256, 256, requires_grad=True)
    torch.autograd.backward((weights @ weights).sum())

    def main(rank: int) -> None:
        inner = torch.randn(256, 256, requires_grad=True)
        torch.autograd.backward((inner @ inner).sum())

    profile = gpuprof_widgets.profile_ranks(main, 2, save=tmp_path / "run")
    assert "aten::mm" in set(profile.trace.slices["name"].cat.categories)


def failing(rank: int) -> None:
    if rank == 1:
        raise LookupError("no data for this rank")
    distributed.barrier()
    time.sleep(HANGING_S)


def test_the_exception_of_a_rank_is_raised_with_rank_and_traceback(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(LookupError, match="no data for this rank") as caught:
        gpuprof_widgets.profile_ranks(failing, 3, save=tmp_path / "run")
    assert time.monotonic() - began < HANGING_S
    told = str(caught.value.__cause__)
    assert told.startswith("rank 1 failed; the other ranks were ended\n\nTraceback")
    assert 'raise LookupError("no data for this rank")' in told
    assert "rank_processes.py" not in told
    assert list(tmp_path.glob(".*")) == []


def dying(rank: int) -> None:
    if rank == 1:
        os._exit(7)
    distributed.barrier()
    time.sleep(HANGING_S)


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"rank 1 \(pid \d+\) ended with exit code 7"):
        gpuprof_widgets.profile_ranks(dying, 2, save=tmp_path / "run")


def test_a_rank_that_is_ended_while_it_writes_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(torch_profiler, "_written", lambda path: time.sleep(HANGING_S))

    def main(rank: int) -> None:
        end = time.monotonic() + HANGING_S / 10
        while rank == 1 and time.monotonic() < end:
            if list(tmp_path.rglob("trace.json")):
                os._exit(7)
            time.sleep(0.01)

    with pytest.raises(RecordingError, match=r"rank 1 \(pid \d+\) ended with exit code 7"):
        gpuprof_widgets.profile_ranks(main, 2, save=tmp_path / "run")
    assert list(tmp_path.glob("gpuprof-*")) == []


def test_an_interrupt_ends_all_ranks(tmp_path: Path) -> None:
    here = os.getpid()

    def main(rank: int) -> None:
        distributed.barrier()
        if rank == 0:
            os.kill(here, signal.SIGINT)
        time.sleep(HANGING_S)

    with pytest.raises(KeyboardInterrupt):
        gpuprof_widgets.profile_ranks(main, 2, save=tmp_path / "run")


class UnsendableError(Exception):
    """An exception that cannot be made again from what is pickled of it."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def raising_unsendable(rank: int) -> None:
    raise UnsendableError("cannot", "travel")


def test_an_exception_that_cannot_be_sent_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        RecordingError, match=r"rank 0 failed.*\n[\s\S]*UnsendableError: cannot travel"
    ):
        gpuprof_widgets.profile_ranks(raising_unsendable, 1, save=tmp_path / "run")


def test_what_cannot_work_is_said_before_any_process_starts(tmp_path: Path) -> None:
    run = gpuprof_widgets.profile_ranks
    with pytest.raises(OptionError, match="nprocs is a number of processes"):
        run(failing, 0)
    with pytest.raises(OptionError, match="runs a function"):
        run("failing")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="colour"):
        run(failing, 2, save=tmp_path / "run", colour="red")
    with pytest.raises(OptionError, match="unexpected keyword argument 'steps'"):
        run(failing, 2, save=tmp_path / "run", steps=3)
    with pytest.raises(OptionError, match="there is no folder"):
        run(failing, 2, save=tmp_path / "none" / "run")
    with pytest.raises(OptionError, match="cannot be sent"):
        run(lambda rank: None, 2, backend="nccl", save=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_inside_another_recording_it_says_so(tmp_path: Path) -> None:
    with (
        gpuprof_widgets.profile(quiet=True),
        pytest.raises(OptionError, match="outside of a profiled"),
    ):
        gpuprof_widgets.profile_ranks(failing, 2, save=tmp_path / "run")


SCRIPT = """
import gpuprof_widgets
from torch import distributed
from tests.loaders import mean_rank

distributed.init_process_group("gloo")
with gpuprof_widgets.profile(quiet=True, save="step.gpuprof") as run:
    mean_rank(distributed.get_rank(), 1.0)
files = run.metadata["rank_files"]
distributed.barrier()
distributed.destroy_process_group()
if run.metadata["rank"] == 0:
    print([gpuprof_widgets.load(file).metadata["rank"] for file in files])
"""


def test_under_torchrun_every_process_writes_its_own_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*command, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[0, 1]"
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == ["script.py", "step.rank0.gpuprof", "step.rank1.gpuprof"]


def spawned(rank: int, port: int, save: str) -> None:
    """What `torch.multiprocessing.spawn` starts: the rank is known from the process group alone."""
    place = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    with gpuprof_widgets.profile(quiet=True, save=save):
        mean_rank(rank, 1.0)
    distributed.destroy_process_group()


def test_under_torch_spawn_every_process_writes_its_own_file(tmp_path: Path) -> None:
    from gpuprof_widgets.capture.distributed import free_port

    spawn(spawned, (free_port(), str(tmp_path / "run")), nprocs=2)  # type: ignore[no-untyped-call]
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["run.rank0.gpuprof", "run.rank1.gpuprof"]
    assert [Profile.load(path).metadata["rank"] for path in files] == [0, 1]
