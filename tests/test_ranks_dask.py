"""Ranks read and reduced by the workers of a Dask cluster: the same as here, and clear errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pandas as pd
import pytest

import gpuprof_widgets
from gpuprof_widgets.exceptions import OptionError, TraceError
from gpuprof_widgets.many_ranks import RankProfiles
from tests.job import STARTS, in_lockstep, saved


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved(tmp_path, in_lockstep(STARTS))
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_two_workers_give_what_one_process_gives(folder: Path) -> None:
    distributed = pytest.importorskip("distributed")
    here = gpuprof_widgets.ranks(folder)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        there = gpuprof_widgets.ranks(folder, cluster=cluster)
        assert_same(here, there)
        assert_same(here, gpuprof_widgets.ranks(folder, cluster=cluster.scheduler_address))
        with distributed.Client(cluster, set_as_default=False) as client:
            assert_same(here, gpuprof_widgets.ranks(folder, cluster=client))
            assert client.status == "running"  # the user's stays open
            (folder / "rank9.json").write_text("{}")
            with pytest.raises(TraceError, match=r"rank9\.json.*worker of the cluster"):
                gpuprof_widgets.ranks([*folder.iterdir()], cluster=client)


def test_an_address_where_nobody_is_says_what_to_give(folder: Path) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(OptionError, match="address of a scheduler"):
        gpuprof_widgets.ranks(folder, cluster="nonsense://nowhere")


def test_without_dask_it_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(OptionError, match=re.escape("gpuprof-widgets[dask]")):
        gpuprof_widgets.ranks(folder, cluster="tcp://127.0.0.1:8786")


def assert_same(left: RankProfiles, right: RankProfiles) -> None:
    """Every table, note and finding is equal."""
    for name in ("breakdown", "steps", "stragglers", "collectives", "waits", "alignment"):
        pd.testing.assert_frame_equal(getattr(left, name)(), getattr(right, name)())
    assert left.notes == right.notes
    assert left.findings() == right.findings()
