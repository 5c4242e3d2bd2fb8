"""`%%gpuprofile` over a cell and `%gpuprofile` on a line, and how a shell gets them."""

from __future__ import annotations

from gpuprof_widgets.magics.installed import load, unload

__all__ = ["load", "unload"]
