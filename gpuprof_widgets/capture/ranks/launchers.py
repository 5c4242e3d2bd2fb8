"""Which rank of a job this process is: its process group knows, else the program that launched it.

The variables are those that the launchers document:
`torchrun <https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables>`_,
`Open MPI <https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html>`_,
`Slurm <https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES>`_ and
`PMIx <https://docs.openpmix.org>`_. Hydra, which is the ``mpiexec`` of MPICH, of Intel MPI and of
MVAPICH from version 3 on, sets those of the
`PMI <https://flux-framework.readthedocs.io/projects/flux-rfc/en/latest/spec_13.html>`_.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class ProcessRank(NamedTuple):
    """A process among those of its job; ``world_size`` is None where the launcher does not say."""

    rank: int
    world_size: int | None

    @property
    def is_alone(self) -> bool:
        """Whether it is the only process of its job."""
        return self.world_size == 1


@dataclass(frozen=True)
class Launcher:
    """A program that starts the ranks of a job, and the variables that tell each which it is."""

    name: str
    rank: str
    world_size: str | None

    def rank_in(self, environment: Mapping[str, str]) -> ProcessRank | None:
        """The rank that this launcher has given; None where it has not, or it makes no sense."""
        rank = _number(environment.get(self.rank))
        if self.world_size is None:
            return None if rank is None else ProcessRank(rank, None)
        size = _number(environment.get(self.world_size))
        return None if rank is None or size is None or rank >= size else ProcessRank(rank, size)


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE"),
    Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    Launcher("MPICH and Intel MPI", "PMI_RANK", "PMI_SIZE"),
    # Not SLURM_NTASKS: a batch script has it, too, and SLURM_PROCID 0, but is no rank of anything.
    Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    Launcher("PMIx", "PMIX_RANK", None),
)
"""Asked in this order, since one starts another: torchrun in a Slurm job, never the other way."""


def process_rank() -> ProcessRank | None:
    """This process's rank; None where nothing says that it has one.

    One that started this process alone leaves the word to those around it: of several programs
    in one Slurm step each may be the only rank of a torchrun of its own.
    """
    found = [*_in_process_group(), *_launched(os.environ)]
    several = (one for one in found if one.world_size is not None and not one.is_alone)
    return next(several, found[0] if found else None)


def _in_process_group() -> Iterator[ProcessRank]:
    # A program that has not imported it has no process group, and needs none from us.
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        yield ProcessRank(distributed.get_rank(), distributed.get_world_size())


def _launched(environment: Mapping[str, str]) -> Iterator[ProcessRank]:
    yield from filter(None, (launcher.rank_in(environment) for launcher in LAUNCHERS))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
