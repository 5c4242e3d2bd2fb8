"""Numbers as people read them: three significant digits and an engineering unit."""

from __future__ import annotations

from collections.abc import Sequence

_TIMES = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))
_SIZES = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))
_RATES = ((1, "B/s"), (10**3, "kB/s"), (10**6, "MB/s"), (10**9, "GB/s"), (10**12, "TB/s"))
_FLOPS = ((1, "FLOP"), (10**3, "kFLOP"), (10**6, "MFLOP"), (10**9, "GFLOP"), (10**12, "TFLOP"))


def format_ns(ns: float) -> str:
    """A time in ns, as ``12.3 ms``; whole nanoseconds below one microsecond."""
    return _format(ns, _TIMES)


def format_bytes(size: float) -> str:
    """A size in bytes, as ``1.50 GiB``."""
    return _format(size, _SIZES)


def format_bandwidth(bytes_per_s: float) -> str:
    """Bytes per second, as ``450 GB/s``: decimal, as in data sheets and nccl-tests."""
    return _format(bytes_per_s, _RATES)


def format_flops(flops: float) -> str:
    """A number of floating point operations, as ``2.71 MFLOP``."""
    return _format(flops, _FLOPS)


def format_share(share: float) -> str:
    """A share of one as a percentage, as ``38 %``; one decimal below ten percent."""
    percent = 100 * share
    if 0 < percent < 0.05:
        return "less than 0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def format_ratio(ratio: float) -> str:
    """One time as a share of another, as ``38 %``; from ten times as long on as ``434x``."""
    return format_share(ratio) if ratio < 10 else f"{ratio:,.0f}x"


def signed_ns(ns: float) -> str:
    """A difference of times, with its sign: ``−61.0 ms``."""
    return f"{'−' if ns < 0 else '+' if ns > 0 else ''}{format_ns(abs(ns))}"


def format_count(count: int, noun: str) -> str:
    """``1 call``, ``320 calls``, ``12,345 calls``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _format(value: float, units: Sequence[tuple[int, str]]) -> str:
    """The value in the largest unit in which it is at least one, after rounding."""
    large = [each for each in units if abs(value) / each[0] >= 0.9995]
    size, unit = large[-1] if large else units[0]
    scaled = value / size
    if size == 1 and scaled == round(scaled):
        return f"{scaled:.0f} {unit}"
    return f"{scaled:.{_decimals(scaled)}f} {unit}"


def _decimals(value: float) -> int:
    """Decimals that give a value of up to four digits three significant ones."""
    magnitude = abs(value)
    return 2 if magnitude < 9.995 else 1 if magnitude < 99.95 else 0
