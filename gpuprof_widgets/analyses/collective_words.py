"""What the words in a trace say of a collective: its operation, its data type, its group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import nan, prod
from typing import Any

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, BARRIER = "all_to_all", "barrier"

SYNCHRONISING = frozenset({ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER})
"""Operations that no rank can end before every rank has begun: each needs data of all others."""

_OPERATIONS = (
    (re.compile(r"reduce_?scatter"), REDUCE_SCATTER),
    (re.compile(r"all_?reduce|cross_device_reduce"), ALL_REDUCE),
    (re.compile(r"all_?gather"), ALL_GATHER),
    (re.compile(r"all_?to_?all|all2all"), ALL_TO_ALL),
    (re.compile(r"(::(notify_)?|a2a_?|\bep)dispatch"), "dispatch"),
    (re.compile(r"(::|a2a_?|\bep)combine"), "combine"),
    (re.compile(r"broadcast"), "broadcast"),
    (re.compile(r"barrier"), BARRIER),
    (re.compile(r"gather"), "gather"),
    (re.compile(r"scatter"), "scatter"),
    (re.compile(r"send_?recv"), "send_recv"),
    (re.compile(r"\bsend"), "send"),
    (re.compile(r"\brecv"), "recv"),
    (re.compile(r"reduce"), "reduce"),
)
"""Of several that match the first: all_gather is no gather. What experts exchange is not called an
all_to_all: where its receiving half is a call of its own, a rank sends and goes on."""

_PARAMETERS = re.compile(r"[<(]")

_ANNOTATION = re.compile(r"(?P<backend>nccl|rccl|gloo|mpi|ucc|xccl|hccl):(?P<operation>.+)")

_BUS_SHARE = {
    ALL_REDUCE: lambda n: 2 * (n - 1) / n,
    ALL_GATHER: lambda n: (n - 1) / n,
    REDUCE_SCATTER: lambda n: (n - 1) / n,
    ALL_TO_ALL: lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
}

_TYPES = (
    (re.compile(r"bfloat16|\bbf16"), "bfloat16", 2),
    (re.compile(r"float8_\w+"), "float8", 1),
    (re.compile(r"half|float16|f16"), "float16", 2),
    (re.compile(r"double|float64|f64"), "float64", 8),
    (re.compile(r"float|f32"), "float32", 4),
    (re.compile(r"unsigned char|byte|uint8|u8"), "uint8", 1),
    (re.compile(r"signed char|char|int8"), "int8", 1),
    (re.compile(r"short|int16"), "int16", 2),
    (re.compile(r"long|int64|i64"), "int64", 8),
    (re.compile(r"int|int32|i32"), "int32", 4),
    (re.compile(r"bool"), "bool", 1),
)


def operation_of(*texts: str) -> str:
    """The operation that the first of these texts names, as ``torch.distributed`` calls it.

    The texts are, best first, what the trace calls the collective, its annotation, its kernel.
    "" where none of them tells.
    """
    for text in texts:
        lower = without_parameters(text).lower()
        for pattern, operation in _OPERATIONS:
            if pattern.search(lower):
                return operation
    return ""


def without_parameters(name: str) -> str:
    """A function's name with its namespaces, without the types that it is made for and takes."""
    return _PARAMETERS.split(name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]


def annotation(name: str) -> tuple[str, str]:
    """Backend and operation of ``nccl:all_reduce``; "" and "" of any other name."""
    found = _ANNOTATION.fullmatch(name)
    return (found["backend"], found["operation"]) if found else ("", "")


def bus_share(operation: str, ranks: int) -> float:
    """What the busiest link carries of the message: bus bandwidth over algorithm bandwidth.

    Of nccl-tests (doc/PERFORMANCE.md): all_reduce 2(n-1)/n; all_gather, reduce_scatter and
    all_to_all (n-1)/n; broadcast, reduce and point to point 1. NaN where the group is unknown.
    """
    if ranks < 1:
        return nan
    share = _BUS_SHARE.get(operation)
    return share(ranks) if share else 1.0


def dtype_of(text: str) -> tuple[str, int]:
    """Name and bytes of a type as Kineto writes it (``c10::Half``, ``Float``); "" and 0 if none."""
    lower = text.lower()
    for pattern, name, size in _TYPES:
        if pattern.search(lower):
            return name, size
    return "", 0


def elements(dims: Any) -> int:
    """Elements of all the tensors in an op's input dims."""
    if not isinstance(dims, list | tuple) or not dims:
        return 0
    if all(isinstance(size, int) for size in dims):
        return prod(dims)
    return sum(elements(one) for one in dims)


def message_bytes(operation: str, sent: int, ranks: int) -> tuple[int, int]:
    """Bytes in and out of a rank that passes ``sent`` bytes to the operation."""
    if operation == ALL_GATHER:
        return sent, sent * max(ranks, 1)
    if operation == REDUCE_SCATTER:
        return sent, sent // max(ranks, 1)
    return (0, 0) if operation == BARRIER else (sent, sent)


def groups_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Per name of a process group its ranks, as the trace lists its groups."""
    information = metadata.get("distributedInfo")
    listed = information.get("pg_config") if isinstance(information, dict) else None
    if not isinstance(listed, list):
        return {}
    known = [one for one in listed if isinstance(one, dict) and isinstance(one.get("ranks"), list)]
    return {str(one.get("pg_name")): ranks_text(one["ranks"]) for one in known}


def world_size_of(metadata: Mapping[str, Any]) -> int:
    """Ranks in the whole job; -1 where the trace does not say."""
    information = metadata.get("distributedInfo")
    told = information.get("world_size") if isinstance(information, dict) else None
    world = metadata.get("world_size", told)
    return world if isinstance(world, int) else -1


def ranks_text(ranks: list[int]) -> str:
    """``0-7`` of consecutive ranks, else ``0,2,4``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
