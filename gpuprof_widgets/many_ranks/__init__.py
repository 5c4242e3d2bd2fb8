"""`gpuprof_widgets.ranks(...)`: the ranks of one distributed run, compared."""

from __future__ import annotations

from gpuprof_widgets.many_ranks.profiles import RankProfiles, ranks

__all__ = ["RankProfiles", "ranks"]
