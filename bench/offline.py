"""Benchmarks that need no GPU: recorded incidents, and the fake driver."""

from __future__ import annotations

import gzip
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psutil

from bench.node_tree import CORES, DISKS, GPUS, LOADERS, LUSTRES, PORTS, THREADS, NodeTree
from bench.report import Report, Result, machine
from gpunode.client import Session
from gpunode.gpu.activity import WindowDetail
from gpunode.node.tape import TapeNode
from gpunode.recorded import INCIDENTS as TAPES
from tests.daemon import SETTLE, Daemon, daemon, free_port
from tests.fakes.kubelet import FakeKubelet, kubelet
from tests.fakes.nvml import FakeDriver, build
from tests.nccl.ras import rank, ras_server, status
from tests.replay import replayed
from tests.tapes.truth import TRUTH, errors

SCRAPE_EVERY = 15.0
SCRAPES = 6

ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""What Prometheus asks for."""

PEER_COLLECTORS = """
cpu diskstats filesystem infiniband loadavg meminfo mountstats netclass netdev netstat
pressure stat vmstat
""".split()  # noqa: SIM905


def ledger() -> Report:
    """Every recorded incident: the ledger against what the workload did."""
    worst, drift, details = 0.0, 0.0, ["error  incident, GPU: ledger"]
    for name, truths in TRUTH.items():
        loop, node = replayed(name)
        for told in loop.details(WindowDetail):
            shares = {state: s / node.end for state, s in told.detail.ledger.items()}
            wrong = errors(truths[int(told.place.gpu)], shares)
            most = max(wrong.values(), key=abs)
            worst = max(worst, abs(most))
            drift = max(drift, abs(sum(shares.values()) - 1))
            split = ", ".join(f"{s} {share:.2f}" for s, share in shares.items() if share >= 0.01)
            details.append(f"{most:+.3f} {name}, {told.place.gpu}: {split}")
    return Report(
        "The ledger against recorded incidents",
        machine(),
        f"{len(TRUTH)} incidents of 8 s on two H200s, replayed through the daemon's code.",
        [
            Result("largest error of any state", f"{worst:.3f}", "≤ 0.10", worst <= 0.10),
            Result("states sum to elapsed time within", f"{drift:.2%}", "≤ 1 %", drift <= 0.01),
        ],
        details,
    )


def memory() -> Report:
    """Resident memory after an hour of tape with eight GPUs, the web server included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "eight.jsonl.gz"
        _widen(TAPES / "straggler.jsonl.gz", path, 4)
        laps = round(3600 / TapeNode(path).end)
        command = [sys.executable, "-m", "gpunode", "replay", str(path), f"--times={laps}"]
        options = ["--speed=10000", f"--web.listen-address=127.0.0.1:{free_port()}"]
        begin = time.monotonic()
        subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
        took = time.monotonic() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return Report(
        "Memory after an hour",
        machine(),
        f"An incident with eight GPUs repeated for an hour of tape time, played in {took:.0f} s.",
        [Result("peak resident memory", f"{peak:.0f} MiB", "≤ 80 MiB", peak <= 80)],
        [],
    )


def _widen(source: Path, target: Path, times: int) -> None:
    """Copy a tape with every GPU on it several times."""
    with gzip.open(source, "rt") as read, gzip.open(target, "wt") as write:
        for line in map(json.loads, read):
            for copy in range(times):
                if line.get("call") == "gpus":
                    gpus = [
                        {**gpu, "index": gpu["index"] + 2 * at, "uuid": f"{gpu['uuid']}-{at}"}
                        for at in range(times)
                        for gpu in line["answer"]
                    ]
                    write.write(json.dumps({**line, "answer": gpus}) + "\n")
                    break
                if not line.get("of"):
                    write.write(json.dumps(line) + "\n")
                    break
                write.write(json.dumps({**line, "of": f"{line['of']}-{copy}"}) + "\n")


def scrapes() -> Report:
    """How long a scrape takes with eight GPUs, also while one of them hangs."""
    at_work = busy(dict.fromkeys(range(8), 1))
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder))
        driver = FakeDriver(Path(folder))
        driver.write("\n".join(["gpus 8", *at_work]) + "\n")
        with daemon(
            "--log.level=error", environment={**os.environ, **driver.environment()}
        ) as watched:
            for gpu in range(8):
                watched.next_window(gpu)
            healthy = percentile(watched)
            series = watched.series()
            hang = "gpu 3 hang nvmlDeviceGetUtilizationRates 60"
            driver.write("\n".join(["gpus 8", *at_work, hang]) + "\n")
            hanging = percentile(watched)
    return Report(
        "Scrapes with eight GPUs",
        machine(),
        "300 scrapes per row as OpenMetrics, each on a new connection, with the fake driver.",
        [
            Result("series", str(series)),
            Result("/metrics p99", f"{healthy:.1f} ms", "≤ 10 ms", healthy <= 10),
            Result(
                "/metrics p99 while a driver call hangs",
                f"{hanging:.1f} ms",
                "≤ 10 ms",
                hanging <= 10,
            ),
        ],
        [],
    )


@contextmanager
def large_node() -> Iterator[tuple[Path, dict[str, str]]]:
    """The root of a large node whose GPUs are at work, and the environment with its driver."""
    with tempfile.TemporaryDirectory() as folder:
        tree = NodeTree(Path(folder) / "node")
        tree.build()
        build(Path(folder))
        driver = FakeDriver(Path(folder))
        pids = {gpu: tree.main_process(gpu) for gpu in range(GPUS)}
        driver.write("\n".join([f"gpus {GPUS}", *busy(pids)]) + "\n")
        with tree.running():
            yield tree.root, {**os.environ, **driver.environment()}


def watching(
    root: Path, environment: Mapping[str, str] = os.environ
) -> AbstractContextManager[Daemon]:
    """A daemon on a node."""
    return daemon("--log.level=error", f"--path.rootfs={root}", environment=environment)


def node() -> Report:
    """What everything on a large node costs, beside what node_exporter takes for its part of it."""
    with (
        large_node() as (root, environment),
        watching(root, environment) as whole,
        watching(root) as host,
        node_exporter(root) as peer,
    ):
        time.sleep(SETTLE)
        ours, ours_host, theirs = _cost_a_scrape([whole, host, peer])
        series = [program.series() for program in (whole, host, peer)]
        taken = percentile(whole)
        resident = whole.process.memory_info().rss / 2**20
    share = ours / SCRAPE_EVERY
    return Report(
        "The whole node",
        machine(),
        f"{GPUS} GPUs (fake driver) with a process of {THREADS} threads and {LOADERS} loaders "
        f"each, {CORES} cores, {DISKS} disks, {PORTS} InfiniBand ports, {LUSTRES} Lustre mounts: a "
        f"folder of files that change over time. Scraped every {SCRAPE_EVERY:g} s for "
        f"{SCRAPES * SCRAPE_EVERY:g} s, all three programs at the same time. node_exporter is "
        "Debian's, with the collectors for the same files (it has none for Lustre, processes, "
        "cgroups and PCI Express links).",
        [
            Result("series", str(series[0]), "≤ 3,000", series[0] <= 3000),
            Result("CPU, share of one core", f"{share:.2%}", "≤ 1.5 %", share <= 0.015),
            Result("resident memory", f"{resident:.0f} MiB", "≤ 80 MiB", resident <= 80),
            Result("/metrics p99", f"{taken:.1f} ms", "≤ 15 ms", taken <= 15),
            Result(
                "CPU per scrape without GPUs, including reads",
                f"{ours_host * 1e3:.0f} ms, {series[1]} series",
            ),
            Result("node_exporter: CPU per scrape", f"{theirs * 1e3:.0f} ms, {series[2]} series"),
        ],
        [],
    )


CLIENT = """
import sys, time
from gpunode import client
client.configure(flops_per_token=6e9)
sys.stdout.write("ready\\n"); sys.stdout.flush()
while True:
    time.sleep(0.05)
    client.step(tokens=8192, samples=4, loss=1.0)
"""
RANKS = 64
PODS = 200


def jobs() -> Report:
    """What it costs to know whose second it was, with everything else of a large node on."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder, ExitStack() as stack:
        root = Path(folder)
        tree = NodeTree(root / "node")
        tree.build()
        build(root)
        driver = FakeDriver(root)
        listens = root / "client.sock"
        ras = stack.enter_context(ras_server())
        pods = stack.enter_context(
            kubelet(tree.root / "var/lib/kubelet/pod-resources/kubelet.sock")
        )
        environment = {
            **os.environ,
            **driver.environment(),
            "GPUNODE_CLIENT_SOCKET": str(listens),
            "NCCL_RAS_ADDR": f"127.0.0.1:{ras.port}",
        }
        clients = [
            stack.enter_context(_running([sys.executable, "-c", CLIENT], environment))
            for _ in range(GPUS)
        ]
        pids = {gpu: tree.main_process(gpu) for gpu in range(GPUS)}
        lines = [f"gpu {gpu} process {child.pid} 1000000" for gpu, child in enumerate(clients)]
        driver.write("\n".join([f"gpus {GPUS}", *busy(pids), *lines]) + "\n")
        for child in clients:  # real processes, which the node shows as it does its own
            stat = f"/proc/{child.pid}/stat"
            tree.write(stat, Path(stat).read_text())
        for pid in pids.values():
            tree.write(f"/proc/{pid}/environ", f"RANK=0\0NCCL_RAS_ADDR=127.0.0.1:{ras.port}\0")
            # The service runs here, so the processes hold its sockets as this one does.
            (tree.root / f"proc/{pid}/fd").symlink_to(f"/proc/{os.getpid()}/fd")
        ras.answer = status([rank(number, 1000) for number in range(RANKS)])
        stack.enter_context(tree.running())
        options = [f"--path.rootfs={tree.root}", f"--client.socket={listens}"]
        whole = stack.enter_context(daemon("--log.level=error", *options, environment=environment))
        uuids = [entry["uuid"] for entry in whole.gpus()]
        _reassign(pods, uuids, 0)
        time.sleep(SETTLE)
        (used,) = _cost_a_scrape([whole])
        series = [whole.series()]
        for day in range(1, 6):  # a thousand pods come and go
            _reassign(pods, uuids, day)
            time.sleep(11)
            series.append(whole.series())
        text = whole.get("/metrics").decode()
        left = sum("gpunode_gpu_owner_info{" in line for line in text.splitlines())
        accepted = _value(text, 'gpunode_client_messages_total{result="accepted"}')
        taken = percentile(whole)
        before, begin = whole.cpu_seconds(), time.monotonic()
        sent, dropped = _flood(listens)
        flooded = (whole.cpu_seconds() - before) / (time.monotonic() - begin)
        resident = whole.process.memory_info().rss / 2**20
    share = used / SCRAPE_EVERY
    step, watched = _client_cost()
    return Report(
        "Owners, jobs and clients",
        machine(),
        f"The large node again, with a kubelet of {PODS} pods of which {GPUS} hold a GPU, an NCCL "
        f"job of {RANKS} ranks whose RAS service answers, and {GPUS} training processes that "
        "report 20 steps a second. Then a thousand pods come and go, and a process floods the "
        "clients' socket.",
        [
            Result("CPU, share of one core", f"{share:.2%}", "≤ 3 %", share <= 0.03),
            Result(
                "resident memory at the end", f"{resident:.0f} MiB", "≤ 130 MiB", resident <= 130
            ),
            Result("series", f"{series[0]}"),
            Result(
                "series after 1,000 pods",
                f"{series[-1]}, {left} owners",
                "as before",
                abs(series[-1] - series[0]) <= 0.02 * series[0],
            ),
            Result("/metrics p99", f"{taken:.1f} ms"),
            Result("client.step()", f"{step:.2f} µs", "≤ 1 µs", step <= 1),
            Result("client.watch(), per iteration", f"{watched:.2f} µs", "≤ 2 µs", watched <= 2),
            Result("client messages received", f"{accepted:.0f}", "", accepted > 0),
            Result(
                "messages sent per second in the flood",
                f"{sent:.0f} received, {dropped:.0f} dropped by the sender",
                "≥ 10,000",
                sent + dropped >= 10_000,
            ),
            Result("CPU in the flood, share of one core", f"{flooded:.1%}"),
        ],
        [],
    )


def _reassign(pods: FakeKubelet, uuids: Sequence[str], day: int) -> None:
    """Replace every pod: the first of them hold a GPU each, the others none."""
    pods.pods = {
        ("research", f"train-{day}-{at}", "main"): (
            [("nvidia.com/gpu", uuids[at])] if at < len(uuids) else []
        )
        for at in range(PODS)
    }


def _value(text: str, series: str) -> float:
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(series))


@contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child
        finally:
            child.kill()


def _flood(path: Path) -> tuple[float, float]:
    """Messages a second that a process sends and those that the full socket refuses."""
    seconds, sent, dropped = 5.0, 0, 0
    message = b'{"v":1,"tokens":1}'
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                client.sendto(message, str(path))
                sent += 1
            except BlockingIOError:
                dropped += 1
    return sent / seconds, dropped / seconds


def _client_cost() -> tuple[float, float]:
    """Microseconds that a call of ``step`` and an iteration of ``watch`` take."""
    session = Session()
    times = 200_000
    step = min(timeit.repeat(lambda: session.step(tokens=4096), number=times, repeat=5)) / times
    begin = time.perf_counter()
    for _ in session.watch(range(times)):
        pass
    return step * 1e6, (time.perf_counter() - begin) / times * 1e6


def _cost_a_scrape(programs: list[Daemon]) -> list[float]:
    """CPU seconds that each program takes for a scrape and what it does between two."""
    before = [program.cpu_seconds() for program in programs]
    for _ in range(SCRAPES):
        for program in programs:
            program.get("/metrics")
        time.sleep(SCRAPE_EVERY)
    used = [program.cpu_seconds() for program in programs]
    return [(end - begin) / SCRAPES for begin, end in zip(before, used, strict=True)]


@contextmanager
def node_exporter(root: Path) -> Iterator[Daemon]:
    """Debian's node_exporter over a folder, with the collectors that read what we read."""
    port = free_port()
    command = ["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}"]
    command += [f"--path.procfs={root}/proc", f"--path.sysfs={root}/sys", f"--path.rootfs={root}"]
    command += ["--collector.disable-defaults"]
    command += [f"--collector.{name}" for name in PEER_COLLECTORS]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        running = Daemon(psutil.Process(child.pid), port)
        running.wait_for("/metrics", child)
        yield running
    finally:
        child.terminate()
        child.wait(5)


def busy(pids: Mapping[int, int]) -> list[str]:
    """Lines for the fake driver: every GPU at work for a process."""
    return [
        line
        for gpu, pid in pids.items()
        for line in (
            f"gpu {gpu} process {pid} 1000000000",
            f"gpu {gpu} gpm 1 60",
            f"gpu {gpu} gpm 2 55",
            f"gpu {gpu} gpm 5 50",
            f"gpu {gpu} power square 860 125 0.12 0.08",
        )
    ]


def percentile(watched: Daemon) -> float:
    """Milliseconds within which 99 of 100 scrapes were answered."""
    taken = []
    for _ in range(300):
        time.sleep(0.03)
        begin = time.perf_counter()
        watched.get("/metrics", ACCEPT)
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[296] * 1e3
