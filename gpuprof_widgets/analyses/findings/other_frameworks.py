"""Findings on runs of other frameworks: what names PyTorch's own means does not help there."""

from __future__ import annotations

import re
from dataclasses import replace

from gpuprof_widgets.analyses.findings.finding import Finding
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.schema import FRAMEWORK, MEGENGINE, TENSORFLOW, WRITTEN_CATEGORY

MEANS = (
    r"torch|pin_memory|non_blocking|num_workers|persistent_workers|prefetch_factor|DataLoader"
    r"|foreach|autocast|GradScaler|DDP|FSDP|async_op|with_stack|--warmup|\.to\(|\.item\(|optimizer\."
)
WORDS = {"PyTorch op": "op", "the DataLoader": "its input"}
EXAMPLES = re.compile(rf" \([^()]*(?:{MEANS})[^()]*\)")
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z`])")


def for_its_framework(record: Record, said: list[Finding]) -> list[Finding]:
    """The findings, their remedies without sentences and examples that only PyTorch knows."""
    known_others = record.metadata.get(FRAMEWORK) in (TENSORFLOW, MEGENGINE)
    if not known_others and WRITTEN_CATEGORY not in record.trace.args:
        return said
    return [
        replace(one, text=_general(one.text), remedy=_without_means(one.remedy)) for one in said
    ]


def _general(text: str) -> str:
    for of_pytorch, general in WORDS.items():
        text = text.replace(of_pytorch, general)
    return text


def _without_means(remedy: str) -> str:
    sentences = SENTENCE_END.split(EXAMPLES.sub("", remedy))
    return " ".join(one for one in sentences if not re.search(MEANS, one))
