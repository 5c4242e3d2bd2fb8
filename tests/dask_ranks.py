"""Compare the ranks in a folder, read here and by two workers of a Dask cluster; a test runs it."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

import distributed
import pytest

import gpuprof_widgets
from gpuprof_widgets.exceptions import TraceError
from tests.job import assert_same

WITHIN_S = 240
"""A bound against hanging, shorter than that of the test."""


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(WITHIN_S, exit=True)  # says what waits, and for what
    here = gpuprof_widgets.ranks(folder)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        assert_same(here, gpuprof_widgets.ranks(folder, cluster=cluster))
        assert_same(here, gpuprof_widgets.ranks(folder, cluster=cluster.scheduler_address))
        assert_same(here, gpuprof_widgets.ranks(f"file://{folder}", cluster=cluster))
        with distributed.Client(cluster, set_as_default=False) as client:
            assert_same(here, gpuprof_widgets.ranks(folder, cluster=client))
            assert client.status == "running"  # the user's stays open
            (folder / "rank9.json").write_text("{}")
            with pytest.raises(TraceError, match=r"rank9\.json.*worker of the cluster"):
                gpuprof_widgets.ranks([*folder.iterdir()], cluster=client)
    faulthandler.cancel_dump_traceback_later()
    print("equal")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
