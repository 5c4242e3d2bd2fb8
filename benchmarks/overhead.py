"""What `%%gpuprofile` adds to a cell of about 10 ms, in a real kernel.

"Added" is the time of the whole request less the profiled body, which the profile itself knows.
"""

from __future__ import annotations

import statistics
import time

from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

CELL = """\
end = time.perf_counter() + 0.010
while time.perf_counter() < end:
    loss = (weights @ inputs).relu().sum()
"""
SETUP = "import time, torch\nweights, inputs = torch.ones(64, 64), torch.ones(64, 64)"
PARTS = "print(*(gpuprof_widgets.last.metadata[key] for key in ('wall_ns', 'stop_ns')))"
VARIANTS = ("-q", "", "--shapes --memory", "--stack")
REPEATS = 7


def request(client: BlockingKernelClient, code: str) -> tuple[float, str]:
    """Seconds that a cell took from request to reply, and what it printed."""
    printed: list[str] = []
    began = time.perf_counter()
    reply = client.execute_interactive(
        code, output_hook=lambda message: printed.append(message["content"].get("text", ""))
    )
    took = time.perf_counter() - began
    if reply["content"]["status"] != "ok":
        raise SystemExit(f"{code}\nfailed: {reply['content']['evalue']}")
    return took, "".join(printed)


def added(client: BlockingKernelClient, options: str) -> tuple[float, float, float]:
    """Seconds of the whole request, of the body, and of stopping and reading."""
    took, _ = request(client, f"%%gpuprofile {options}\n{CELL}")
    wall_ns, stop_ns = map(int, request(client, PARTS)[1].split())
    return took, wall_ns / 1e9, stop_ns / 1e9


def main() -> None:
    """Print the medians, and the first profiled cell apart."""
    manager, client = start_new_kernel()
    try:
        load, _ = request(client, "%load_ext gpuprof_widgets\nimport gpuprof_widgets")
        request(client, SETUP)
        plain = statistics.median(request(client, CELL)[0] for _ in range(REPEATS))
        print(f"loading the extension      {load:7.3f} s")
        print(f"plain cell                 {plain:7.3f} s")
        print(f"\n{'options':<22}{'request':>10}{'body':>10}{'stop+read':>11}{'added':>10}")
        rows = [("(first cell)", [added(client, "")])]
        rows += [(o or "(none)", [added(client, o) for _ in range(REPEATS)]) for o in VARIANTS]
        for name, runs in rows:
            took, body, stop = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"{name:<22}{took:>9.3f}s{body:>9.3f}s{stop:>10.3f}s{took - body:>9.3f}s")
        print("\ngoal: less than 0.5 s added without options")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main()
