"""IPython shells of their own, for what needs no kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from gpuprof_widgets import load_ipython_extension, unload_ipython_extension


def a_shell(**configured: Any) -> InteractiveShell:
    """A shell, as if ``c.GpuProfile.<name> = <value>`` stood in ipython_config.py."""
    config = Config({"GpuProfile": configured, "HistoryManager": {"enabled": False}})
    return InteractiveShell(config=config)


@contextmanager
def loaded(**configured: Any) -> Iterator[InteractiveShell]:
    """Such a shell with the extension in it."""
    shell = a_shell(**configured)
    load_ipython_extension(shell)
    try:
        yield shell
    finally:
        unload_ipython_extension(shell)


a_shell()  # the first one puts names into builtins for good, which no test is to be blamed for
