"""Measures collectives with torch.distributed, on the GPUs of one node or of several.

As ``run_torch.py COLLECTIVE GPUS LARGEST`` it starts a rank for each GPU of this node and prints
the result like nccl-tests. As ``run_torch.py fabric LARGEST MASTER FOLDER`` it is one of the ranks
that srun, mpirun or torchrun started: all measure the collectives together, and then each GPU
exchanges data with the same GPU of every other host. Rank 0 prints the result as a line of JSON,
and each host keeps its own in FOLDER, unless that is empty.

It needs only Python and torch, so its text can be sent to hosts that do not have gpunode.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MIN_BYTES = 8 << 20
WARM_UP, TIMES = 5, 20

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
"""What all ranks of several hosts measure; then each pair of GPUs sends and receives."""

MESSAGE = 64 << 20
"""Bytes that a GPU sends to another at once: large enough for the bandwidth of any adapter."""

FEWEST, MOST_MESSAGES = 3, 200
SECONDS = 1.0
"""A measurement is repeated for so long, at least ``FEWEST`` times; a collective at most ``TIMES``
and a message at most ``MOST_MESSAGES`` times."""

MAX_SECONDS = 2.0
"""Seconds of a collective from which no larger one is measured: a link may be very slow."""

MAX_ROUNDS = 64
"""Each host meets at most so many others, so that a large fabric takes minutes and not hours."""

BEST_QUANTILE = 0.8
"""Of what several reach, that which is faster than this share of them: a median would be one of the
slow ones where most are."""

MESSAGE_PREFIX = "nccl-bench: "
"""Begins what a rank has to say to whoever started it."""

RANK_TIMEOUT = timedelta(seconds=180)
"""A rank that is away for so long ends the run."""


def size_of(text: str) -> int:
    """Parse a size such as 8G into bytes."""
    return int(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else int(text)


def bus_factor(collective: str, ranks: int) -> float:
    """Ratio of bus to algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md)."""
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "alltoall"):
        return (ranks - 1) / ranks
    return 1.0


def operate(distributed: Any, collective: str, whole: Any, part: Any, received: Any) -> None:
    """Run a collective on the tensor ``whole``, of which each rank has a ``part``.

    ``received`` is where an all-to-all writes: a tensor as large as ``whole``.
    """
    if collective == "all_reduce":
        distributed.all_reduce(whole)
    elif collective == "all_gather":
        distributed.all_gather_into_tensor(whole, part)
    elif collective == "reduce_scatter":
        distributed.reduce_scatter_tensor(part, whole)
    elif collective == "alltoall":
        distributed.all_to_all_single(received, whole)
    elif collective == "broadcast":
        distributed.broadcast(whole, 0)
    else:
        raise SystemExit(f"{collective}: not supported with torch; install nccl-tests")


@dataclass(frozen=True)
class Ranks:
    """What measures together: torch, its ranks, and the device of this one."""

    torch: Any
    distributed: Any
    device: Any
    rank: int
    count: int

    def settle(self) -> None:
        """Wait until all that this rank began has ended."""
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    def meet(self) -> None:
        """Wait for all ranks."""
        self.settle()
        self.distributed.barrier()
        self.settle()

    def timed(self, action: Callable[[], None], times: int) -> float:
        """Seconds that an action takes, the mean of so many times."""
        self.settle()
        begin = time.perf_counter()
        for _ in range(times):
            action()
        self.settle()
        return (time.perf_counter() - begin) / times

    def often(self, seconds: float, most: int) -> int:
        """How many times an action of so many seconds is repeated."""
        return max(FEWEST, min(most, int(SECONDS / max(seconds, 1e-6))))

    def first(self, value: float) -> float:
        """The value that rank 0 has, on all ranks."""
        shared = self.torch.tensor([value], dtype=self.torch.float32, device=self.device)
        self.distributed.broadcast(shared, 0)
        return float(shared)

    def can(self, allocate: Callable[[], Any]) -> Any:
        """What all ranks allocate, or a ``RuntimeError`` on each if one of them cannot."""
        try:
            found, error = allocate(), None
        except RuntimeError as failed:
            found, error = None, failed
        able = self.torch.tensor([float(error is None)], device=self.device)
        self.distributed.all_reduce(able, op=self.distributed.ReduceOp.MIN)
        if not float(able):
            raise RuntimeError(str(error or "another rank has no memory for it"))
        return found

    def seconds(self, collective: str, size: int) -> float:
        """Seconds of a collective of so many bytes over all ranks, the same on each."""
        # Without a GPU the backend is gloo, of which few versions know bfloat16.
        kind = self.torch.bfloat16 if self.device.type == "cuda" else self.torch.float32
        elements = size // self.torch.empty(0, dtype=kind).element_size()
        count = elements // self.count * self.count

        def allocate() -> tuple[Any, Any, Any]:
            whole = self.torch.zeros(count, dtype=kind, device=self.device)
            part = self.torch.zeros(count // self.count, dtype=kind, device=self.device)
            return whole, part, self.torch.empty_like(whole if collective == "alltoall" else part)

        whole, part, received = self.can(allocate)

        def once() -> None:
            operate(self.distributed, collective, whole, part, received)

        once()
        self.meet()
        times = int(self.first(self.often(self.timed(once, 1), TIMES)))
        self.timed(once, min(WARM_UP, times))
        self.meet()
        return self.first(self.timed(once, times))


def run(rank: int, collective: str, ranks: int, largest: int, port: int) -> None:
    """Measure all sizes as one rank of this node."""
    import torch
    from torch import distributed

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", rank=rank, world_size=ranks, device_id=device)
    all_of_them = Ranks(torch, distributed, device, rank, ranks)
    size = MIN_BYTES
    while size <= largest:
        seconds = all_of_them.seconds(collective, size)
        if rank == 0:
            speed = size / seconds / 1e9
            columns = (
                f"{seconds * 1e6:.1f} {speed:.2f} {speed * bus_factor(collective, ranks):.2f} 0"
            )
            print(f"{size} {size // 2} bfloat16 sum -1 {columns} {columns}", flush=True)
        size *= 2
    distributed.destroy_process_group()


LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH and Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),  # srun
)
"""Where a launcher tells a rank its number, the number of all, and its number on its host."""


def read_rank() -> tuple[int, int, int, bool]:
    """Number of this rank, number of ranks, number of this rank on its host; whether srun told."""
    for names in LAUNCHERS:
        found = [os.environ.get(name, "") for name in names]
        if all(text.isdecimal() for text in found):
            return int(found[0]), int(found[1]), int(found[2]), names[0].startswith("SLURM")
    raise SystemExit("no launcher: start it with srun, mpirun or torchrun")


def first_of(nodes: str) -> str:
    """The first host of Slurm's list, such as node-[03-04,07],login-1."""
    head, bracket, rest = nodes.partition("[")
    if not bracket or "," in head:
        return head.partition(",")[0]
    number = rest.partition("]")[0].partition(",")[0].partition("-")[0]
    return head + number + rest.partition("]")[2].partition(",")[0]


def meeting_point(master: str, by_srun: bool) -> str:
    """Host and port where the ranks meet: what the launcher says, or ``master``."""
    host, _, port = master.rpartition(":")
    if "MASTER_ADDR" in os.environ:
        return f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', port)}"
    nodes = os.environ.get("SLURM_STEP_NODELIST", "") if by_srun else ""
    return f"{first_of(nodes) or host}:{port}"


def adapters() -> list[float]:
    """Bytes per second of each active port for RDMA; empty without one, or if NCCL uses none."""
    if os.environ.get("NCCL_IB_DISABLE") == "1":
        return []
    speeds = []
    for port in Path("/sys/class/infiniband").glob("*/ports/*"):
        if not is_used(port.parts[-3], os.environ.get("NCCL_IB_HCA", "")):
            continue
        try:
            if "ACTIVE" in (port / "state").read_text():
                speeds.append(float((port / "rate").read_text().split()[0]) * 1e9 / 8)
        except (OSError, ValueError, IndexError):
            continue
    return speeds


def is_used(adapter: str, chosen: str) -> bool:
    """Whether NCCL may use an adapter, by ``NCCL_IB_HCA``; ports are not told apart.

    https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    names = [one.partition(":")[0] for one in chosen.lstrip("^=").split(",") if one]
    exactly = chosen.lstrip("^").startswith("=")
    named = any(adapter == one if exactly else adapter.startswith(one) for one in names)
    return not names or named != chosen.startswith("^")


def rounds(hosts: int) -> list[list[tuple[int, int]]]:
    """Pairs of hosts, in rounds in which each host meets one other.

    All meet, if there are few hosts: the first one stays and the others move on by a place
    (https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method). Of many hosts, each meets
    its neighbours, which may share a switch, and as many far away.
    """
    if hosts > MAX_ROUNDS:
        half, size = MAX_ROUNDS // 2, 1 << (hosts - 1).bit_length()
        far = {place * (size - half) // half + half for place in range(half)}
        apart = [*range(1, half), *sorted(far)]
        pairs = [[(one, one ^ d) for one in range(hosts) if one < one ^ d] for d in apart]
        return [[(a, b) for a, b in met if b < hosts] for met in pairs]
    circle = list(range(hosts + hosts % 2))
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(a, b) for a, b in met if max(a, b) < hosts])
        circle.insert(1, circle.pop())
    return found


def send(ranks: Ranks, message: Any, peer: int) -> None:
    """Send to a peer as often as it wants."""
    times = ranks.torch.zeros(1, dtype=ranks.torch.int64, device=ranks.device)
    for _ in range(2):
        ranks.distributed.send(message, peer)
    ranks.distributed.recv(times, peer)
    for _ in range(int(times)):
        ranks.distributed.send(message, peer)
    ranks.settle()


def receive(ranks: Ranks, message: Any, peer: int) -> float:
    """Bytes per second that arrive from a peer. The first message connects the two."""

    def once() -> None:
        ranks.distributed.recv(message, peer)

    once()
    often = ranks.often(ranks.timed(once, 1), MOST_MESSAGES)
    ranks.distributed.send(ranks.torch.tensor([often], device=ranks.device), peer)
    return len(message) / ranks.timed(once, often)


def exchanged(ranks: Ranks, hosts: list[list[int]], size: int) -> list[tuple[int, int, int, float]]:
    """What this rank received from the same GPU of other hosts, in messages of so many bytes.

    Each is the sender's and the receiver's host, the number of the GPU, and bytes per second.
    ``hosts`` has the ranks of each host.
    """
    here = next(place for place, of_host in enumerate(hosts) if ranks.rank in of_host)
    gpu = hosts[here].index(ranks.rank)
    message = ranks.torch.zeros(size, dtype=ranks.torch.int8, device=ranks.device)
    found = []
    for pairs in rounds(len(hosts)):
        pair = next((pair for pair in pairs if here in pair), None)
        for sender, receiver in (pair, pair[::-1]) if pair else ():
            if gpu < min(len(hosts[sender]), len(hosts[receiver])):
                if here == sender:
                    send(ranks, message, hosts[receiver][gpu])
                else:
                    speed = receive(ranks, message, hosts[sender][gpu])
                    found.append((sender, receiver, gpu, speed))
        ranks.meet()
    return found


def measured_by_all(ranks: Ranks, largest: int) -> dict[str, dict[int, float]]:
    """Bus bandwidth in bytes per second of each collective that the backend has, by size."""
    found: dict[str, dict[int, float]] = {}
    for collective in COLLECTIVES:
        size, seconds = MIN_BYTES, 0.0
        while size <= largest and seconds < MAX_SECONDS:
            try:
                seconds = ranks.seconds(collective, size)
            except (RuntimeError, NotImplementedError, AttributeError) as error:
                if ranks.rank == 0:
                    print(
                        f"{MESSAGE_PREFIX}{collective} of {size} bytes: {error!r:.150}",
                        file=sys.stderr,
                    )
                break
            speed = size / seconds * bus_factor(collective, ranks.count)
            found.setdefault(collective, {})[size] = speed
            size *= 2
    return found


def keep(folder: Path, results: list[dict[str, Any]]) -> None:
    """Leave results for the daemon of this host, and none of an earlier run.

    A folder that may not be written is told.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("fabric-*.json"):
            old.unlink()
        for measured in results:
            path = folder / f"fabric-{measured['collective']}.json"
            fresh = path.with_name(f".{path.name}.new")
            fresh.write_text(json.dumps(measured))
            fresh.rename(path)
    except OSError as error:
        what = f"{socket.gethostname()}: {folder}: not kept for the daemon: {error.strerror}"
        print(f"{MESSAGE_PREFIX}{what}", file=sys.stderr)


def best_of(values: Iterable[float]) -> float:
    """What is faster than ``BEST_QUANTILE`` of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(BEST_QUANTILE * len(ordered)))]


def usual_rate(exchanges: Iterable[Sequence[Any]]) -> float:
    """What a pair of hosts reaches that nothing slows, in bytes per second.

    Most pairs may be slow, as when several hosts or all uplinks are. So a host counts by the best
    pair but one that it has, and of hosts one of the better.
    """
    pairs = defaultdict[tuple[int, int], list[float]](list)
    for sender, receiver, _, speed in exchanges:
        pairs[sender, receiver].append(speed)
    of_hosts = defaultdict[int, list[float]](list)
    for pair, speeds in pairs.items():
        for host in pair:
            of_hosts[host].append(max(speeds))
    return best_of(sorted(of)[-2 if len(of) > 2 else -1] for of in of_hosts.values())


def keep_of_host(fabric: dict[str, Any], here: int, folder: Path) -> None:
    """Leave what a host exchanges with others, and on the first host the collectives of all.

    A GPU counts by its better partners, so that a bad one is told on its own host alone.
    """
    about = {"gpus": fabric["gpus"], "model": fabric["model"], "time": fabric["time"]}
    about["nodes"] = len(fabric["hosts"])
    expected = fabric["expected"]
    ways = defaultdict[tuple[int, int], list[float]](list)
    for exchange in fabric["exchanges"]:
        for end in (0, 1):
            if exchange[end] == here:
                ways[end, exchange[2]].append(exchange[3])
    results = []
    if ways:
        # Of two hosts, none is the measure of the other.
        others = usual_rate(fabric["exchanges"]) if len(fabric["hosts"]) > 2 else None
        reached = min(best_of(speeds) for speeds in ways.values())
        speeds, other = {fabric["message"]: reached}, expected.get("sendrecv") or others
        results = [{"collective": "sendrecv", **about, "bandwidth": speeds, "other": other}]
    if here == 0:
        for collective, of_all in fabric["collectives"].items():
            other = expected.get(collective)
            results.append({"collective": collective, **about, "bandwidth": of_all, "other": other})
    keep(folder, results)


def adapter_rate(speeds: list[float], gpus: int) -> float:
    """Bytes per second that a GPU of a host has from its adapters.

    Those of the rate that gives most count, and each GPU has as many: of ten equal ones beside
    eight GPUs two are for storage, and one that is faster than the others is no GPU's.
    """
    counts = Counter(speeds)
    used = {rate: n - n % gpus if n >= gpus else n for rate, n in counts.items()}
    return max(rate * n for rate, n in used.items()) / gpus


def expectations(hosts: list[tuple[list[float], int]]) -> dict[str, float]:
    """Bus bandwidth that the adapters allow in bytes per second; empty if a host has none.

    ``hosts`` has the speeds of each host's ports and its number of GPUs. What most hosts have is
    expected of all, so that one whose ports are down is told.
    """
    if not all(speeds for speeds, _ in hosts):
        return {}
    each = statistics.median_high(adapter_rate(speeds, gpus) for speeds, gpus in hosts)
    gpus = max(gpus for _, gpus in hosts)
    ranks = sum(gpus for _, gpus in hosts)
    return {
        "sendrecv": each,
        **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), each * gpus),
        # Of what a GPU sends, only what leaves the host takes an adapter.
        "alltoall": each * (ranks - 1) / (ranks - gpus),
    }


def fabric(largest: int, master: str, folder: str) -> None:
    """Measure as one rank of several hosts; rank 0 prints the result."""
    # That messages wait for each other is what a measurement of single ones wants.
    os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
    import torch
    from torch import distributed

    rank, count, local, by_srun = read_rank()
    met = meeting_point(master, by_srun)
    try:
        socket.getaddrinfo(met.rpartition(":")[0], None)
    except OSError as error:
        where = socket.gethostname()
        raise SystemExit(f"error on {where}: {met}: {error.strerror}: rank 0 is there") from error
    cuda = torch.cuda.is_available()
    device = torch.device("cpu")
    if cuda:
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"tcp://{met}",
        rank=rank,
        world_size=count,
        timeout=RANK_TIMEOUT,
        **({"device_id": device} if cuda else {}),
    )
    ranks = Ranks(torch, distributed, device, rank, count)
    name = os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME")
    about: list[Any] = [None] * count
    distributed.all_gather_object(about, (name or socket.gethostname(), adapters()))
    names = list(dict.fromkeys(name for name, _ in about))
    if len(names) < 2:
        raise SystemExit(f"all {count} ranks are on {names[0]}: start them on several hosts")
    hosts = [[rank for rank, (of, _) in enumerate(about) if of == name] for name in names]
    # Pairs first: they tell what is slow, also where a collective takes too long.
    exchanges: list[Any] = [None] * count
    distributed.all_gather_object(exchanges, exchanged(ranks, hosts, min(MESSAGE, largest)))
    collectives = measured_by_all(ranks, largest)
    result = {
        "hosts": names,
        "gpus": count,
        "model": torch.cuda.get_device_name(device) if cuda else "CPU",
        "time": time.time(),
        "collectives": collectives,
        "message": min(MESSAGE, largest),
        "exchanges": sorted(one for of_rank in exchanges for one in of_rank),
        "expected": expectations([(about[one[0]][1], len(one)) for one in hosts]),
    }
    here = next(place for place, of_host in enumerate(hosts) if rank in of_host)
    if folder and rank == hosts[here][0]:
        keep_of_host(result, here, Path(folder))
    if rank == 0:
        print(json.dumps({"fabric": result}), flush=True)
    distributed.destroy_process_group()


def main(arguments: list[str]) -> None:
    """Measure as a rank of several hosts, or start a rank for each GPU of this one."""
    if arguments[0] == "fabric":
        fabric(size_of(arguments[1]), *arguments[2:])
        return
    from torch import multiprocessing

    collective, ranks, largest = arguments
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    given = collective, int(ranks), size_of(largest), port
    multiprocessing.spawn(run, given, nprocs=int(ranks))


if __name__ == "__main__":
    main(sys.argv[1:])
