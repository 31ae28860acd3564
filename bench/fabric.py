"""The bandwidth between two hosts of a GPU each, which are network namespaces of this machine."""

from __future__ import annotations

from bench.report import Report, Result, machine
from gpunode.nccl import run_torch
from gpunode.nccl.fabric import FabricRun, parse, problems
from tests.nccl.hosts import Hosts, hosts

FREE, FAST, SLOW = "100gbit", "8gbit", "2gbit"
NETWORK = 250
RUN_TIMEOUT = 150.0
"""Seconds of a run."""

PORT = "29400"


def _measured(two: Hosts, largest: str) -> FabricRun:
    """Start torchrun on both hosts, as docs/fabric.md says. Raises ``ValueError``."""
    first = next(iter(two.addresses.values()))
    torchrun = ["torchrun", "--nnodes=2", "--nproc-per-node=1", f"--master-addr={first}"]
    ranks = [
        two.start(
            host,
            [
                *(*torchrun, f"--master-port={PORT}", f"--node-rank={rank}"),
                *(run_torch.__file__, "fabric", largest, "", ""),
            ],
            CUDA_VISIBLE_DEVICES=str(rank),
            NCCL_SOCKET_IFNAME="eth0",
            PYTHONPATH="",
        )
        for rank, host in enumerate(two.addresses)
    ]
    try:
        outputs = [rank.communicate(timeout=RUN_TIMEOUT) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    try:
        return parse(outputs[0][0])
    except ValueError as error:
        raise ValueError(f"{error}: {outputs[0][1][-400:]}") from error


def fabric() -> Report:
    """Measure with free links, and with one that sends a quarter of what the other does."""
    with hosts(NETWORK, [FREE, FREE]) as two:
        free = _measured(two, "256M")
        slow_host = list(two.addresses)[1]
        for host, rate in zip(two.addresses, (FAST, SLOW), strict=True):
            two.limit(host, rate)
        limited = _measured(two, "64M")
    sound, found = problems(free), problems(limited)
    speeds = {(a, b): speed / 1e9 for a, b, _, speed in limited.exchanges}
    named = [(one.who, one.does.split()[0]) for one in found]
    return Report(
        "The bandwidth between two hosts",
        machine(),
        "Each GPU is a host of its own: a network namespace with a link to a bridge, and TCP "
        "between them. torchrun starts a rank on each, as docs/fabric.md says. Then the second "
        f"host may send {SLOW[0]} Gbit/s, and the first {FAST[0]}.",
        [
            Result("free links: what is slow", f"{len(sound)} told", "0 told", not sound),
            Result(
                "free links: all-reduce and sendrecv",
                f"{max(free.collectives['all_reduce'].values()) / 1e9:.2f} and "
                f"{min(one[3] for one in free.exchanges) / 1e9:.2f} GB/s",
            ),
            Result(
                "the host that sends slowly named, and no other",
                "; ".join(" ".join(one) for one in named) or "nobody",
                f"{slow_host} sends",
                named == [(slow_host, "sends")],
            ),
            Result(
                "what it sends, and the other one",
                f"{speeds[1, 0]:.3f} and {speeds[0, 1]:.3f} GB/s",
                "0.25 and 1 GB/s, less what TCP takes",
                0.2 < speeds[1, 0] < 0.25 and 0.8 < speeds[0, 1] < 1.0,
            ),
        ],
        [str(one) for one in (*sound, *found)],
    )
