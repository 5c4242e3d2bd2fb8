"""`gpuprof findings TRACE`: why it is slow, in sentences."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

import click

from gpuprof_widgets.commands.traces import load, progress, trace_argument, window_options
from gpuprof_widgets.exceptions import OptionError

if TYPE_CHECKING:
    from gpuprof_widgets.analyses.findings import Finding

SHOWN = 5
"""Findings that are printed without ``--all``, as many as the page shows unfolded."""

WIDTH = 79


@click.command(
    "findings",
    epilog="\b\nExample:\n  gpuprof findings trace.json.gz --limit dataloader_share=0.1 --all",
)
@trace_argument()
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="another threshold than the customary one; may be repeated",
)
@click.option("--all", "every", is_flag=True, help=f"all of them, not the first {SHOWN}")
@window_options
def findings(
    trace: str,
    limits: tuple[str, ...],
    every: bool,
    window: tuple[int, int] | None,
    step: int | None,
) -> None:
    """Say why TRACE is slow, the costliest first, each with what to do about it."""
    from gpuprof_widgets.commands.printing import print_text

    thresholds = dict(map(_threshold, limits))
    profile = load(trace, window, step)
    with progress("looking for what is slow"):
        found = profile.findings(**thresholds)
    shown = found if every else found[:SHOWN]
    lines = [line for number, one in enumerate(shown, 1) for line in _lines(number, one)]
    if len(shown) < len(found):
        lines.append(f"{len(found) - len(shown)} more: --all")
    print_text("\n".join(lines or ["nothing stands out"]))


def _threshold(text: str) -> tuple[str, float]:
    """``NAME=VALUE``; the name is checked where the rules are asked."""
    from gpuprof_widgets.analyses.findings import FINDINGS
    from gpuprof_widgets.analyses.findings.thresholds import thresholds_of

    name, equals, value = text.partition("=")
    known = thresholds_of(*FINDINGS.values())
    whole = name in known and isinstance(known[name].default, int)
    try:
        return name, int(value) if whole else float(value if equals else "none")
    except ValueError:
        raise OptionError(f"--limit takes NAME=VALUE with a number, not {text!r}") from None


def _lines(number: int, finding: Finding) -> list[str]:
    start = f"{number}. "
    indent = " " * len(start)
    lines = wrap(finding.text, WIDTH, initial_indent=start, subsequent_indent=indent)
    return lines + wrap(finding.remedy, WIDTH, initial_indent=indent, subsequent_indent=indent)
