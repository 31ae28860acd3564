"""A GPU workload that knows what it did: phases of one kind each, timed by itself.

Reads one JSON order a line from standard input, `{"phases": [["matmul", 0.025], …]}`, repeats the
phases until the next line comes, and answers with what it did: [[begin, kind], …] in seconds since
the epoch, ending in the time of the last phase's end.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from io import FileIO

import torch


def operations(device: torch.device) -> dict[str, Callable[[], object]]:
    """One short operation of each kind, none of which waits for the GPU."""
    left = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    right, product = torch.randn_like(left), torch.empty_like(left)
    vector = torch.randn(64 << 20, device=device)
    host = torch.empty(16 << 20, dtype=torch.uint8, pin_memory=True)
    copied = torch.empty_like(host, device=device)
    return {
        "matmul": lambda: torch.mm(left, right, out=product),
        "elementwise": lambda: vector.add_(1.0),
        "copy": lambda: copied.copy_(host, non_blocking=True),
    }


def duration(operation: Callable[[], object]) -> float:
    """Seconds that one operation takes in a row of many."""
    for _ in range(20):
        operation()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(200):
        operation()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / 200


def run(operation: Callable[[], object], seconds: float, each: float) -> float:
    """Keep the GPU at one kind of operation for about that long; returns a better ``each``."""
    count = max(1, round(seconds / each))
    begin = time.perf_counter()
    for _ in range(count):
        operation()
    torch.cuda.synchronize()
    return 0.9 * each + 0.1 * (time.perf_counter() - begin) / count


def main(gpu: int) -> None:
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    known = operations(device)
    each = {kind: duration(operation) for kind, operation in known.items()}
    # Unbuffered: select() does not see a line that a buffer already holds.
    orders = FileIO(sys.stdin.fileno(), closefd=False)
    print("ready", flush=True)
    order = orders.readline()
    while order.strip():
        phases = json.loads(order)["phases"]
        done: list[tuple[float, str]] = []
        while not select.select([orders], [], [], 0)[0]:
            for kind, seconds in phases:
                done.append((time.time(), kind))
                if kind == "sleep":
                    time.sleep(seconds)
                else:
                    each[kind] = run(known[kind], seconds, each[kind])
        done.append((time.time(), "end"))
        print(json.dumps(done), flush=True)
        order = orders.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]))
