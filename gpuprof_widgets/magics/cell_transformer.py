"""Cells under `%%gpuprofile` that a magic cannot run as they are, rewritten before they run."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from gpuprof_widgets.magics.gpuprofile import NAME, GpuprofMagics


class CellTransformer:
    """Rewrites the two kinds of `%%gpuprofile` cells that a magic cannot run as a plain cell.

    One with a top-level await becomes `await <the magic's coroutine>`, which IPython runs on its
    own loop. One that does not compile becomes its body, so that IPython reports the one error.
    IPython calls this several times per cell, and an exception here would break every cell of the
    notebook: so it has no side effect and hands back whatever it does not understand.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    def __call__(self, lines: list[str]) -> list[str]:
        try:
            return self._rewritten(lines)
        except Exception:  # whatever it is, the cell of the user has to run
            return lines

    def _rewritten(self, lines: list[str]) -> list[str]:
        first = lines[0].split(maxsplit=1) if lines else []
        if not first or first[0] != f"%%{NAME}":
            return lines
        from gpuprof_widgets.capture.cell import kind_of

        body = "".join(lines[1:])
        kind = kind_of(self._shell, body)
        if kind == "invalid":
            return [f"# {lines[0]}", *lines[1:]]
        if kind == "plain":
            return lines
        line = first[1].rstrip("\n") if len(first) > 1 else ""
        magics = f"get_ipython().magics_manager.registry[{GpuprofMagics.__name__!r}]"
        return [f"await {magics}.gpuprofile_awaiting({line!r}, {body!r})\n"]
