"""Every parser of what comes from outside, with what it reads: one row each.

A parser takes bytes as they come to the reader. It may raise what its callers expect, and nothing
else; ``tests/fuzz/test_fuzz.py`` and ``make fuzz`` give it mutations of ``seeds``.
"""

from __future__ import annotations

import contextlib
import gzip
import math
import re
import struct
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import AF_INET, socket
from typing import Any, cast

from google.protobuf.message import DecodeError

from gpunode.audit.source import Audit
from gpunode.cli import incidents
from gpunode.cli.loader import load
from gpunode.client import protocol
from gpunode.config.daemon import Settings, SlurmSettings
from gpunode.config.yaml_file import MAX_SETTINGS, read_yaml
from gpunode.driver.driver import DriverError, Identity
from gpunode.driver.nvidia import identity
from gpunode.explain import promql, rule_files
from gpunode.explain.promql import PromqlError
from gpunode.export import incident_page
from gpunode.export.exposition import requested
from gpunode.export.web.access import WebFile, read_access
from gpunode.faults.register import Register
from gpunode.faults.source import START
from gpunode.helper import tcp
from gpunode.helper.environment import MAX_VALUE
from gpunode.helper.files import MAX_BYTES
from gpunode.holders import slurm, slurmstepd
from gpunode.holders.census import Census
from gpunode.holders.holder import Holder
from gpunode.holders.owner import tenant
from gpunode.holders.pods import Pods
from gpunode.host import (
    cpu,
    disk,
    energy,
    filefd,
    filesystem,
    gpudirect_storage,
    hwmon,
    imex,
    infiniband,
    kernel_log,
    lustre,
    memory,
    mounts,
    network,
    nfs,
    pcie,
    pressure,
    repair,
    versions,
)
from gpunode.incidents import incident
from gpunode.jobs import cgroup, processes, steps
from gpunode.jobs.files import parse_open_files_limit
from gpunode.jobs.owners import GpuOwners, ProcessRoles
from gpunode.jobs.versions import TORCH_VERSION_LINE, parse_torch
from gpunode.loop.door import Door
from gpunode.mistake import UsageError
from gpunode.nccl import bench, fabric, inspector, ras
from gpunode.nccl.log import HOSTNAME, MAX_COMMUNICATORS, DebugLog
from gpunode.nccl.ras_answer import (
    COLLECTIVES,
    FAILED,
    MAX_AWAITED,
    MAX_BEHIND,
    MAX_LOCAL_RANKS,
    ServicePeers,
)
from gpunode.node import containers, gdb, http, kernel, kubelet, sockets, tape
from gpunode.node.cgroup import cgroup_owner
from gpunode.node.datagram_socket import Datagram
from gpunode.node.kubelet import Allocation, unary
from gpunode.node.kubelet import podresources_pb2 as messages
from gpunode.node.node import (
    MAX_FILE,
    MAX_LIBRARIES,
    MAX_PROGRAM,
    MAX_READ,
    SHARED_MEMORY,
    Image,
    KeptLines,
    environment_of,
    libraries_of,
    lines_of,
    program_of,
    sums_of,
)
from gpunode.node.round_trips import parse_round_trips
from gpunode.node.stacks import (
    MAX_FRAMES,
    MAX_THREADS,
    ProcessStacks,
    ThreadStack,
    stacks_of,
)
from gpunode.node.tape import TapeError, TapeNode
from gpunode.report import baseline, billing, sacct
from gpunode.report.changes import hodges_lehmann
from gpunode.report.fabric_picture import drawn
from gpunode.report.history import JobKey
from gpunode.serving import page as engine
from gpunode.serving import totals
from gpunode.serving.engines import READ_SERIES
from gpunode.serving.requests import FIRST_TOKEN_BOUNDS
from gpunode.source import FAILURES, Source
from gpunode.verdict.where import Looks, StackLook, reason_of, sentence
from tests.fuzz import seeds
from tests.fuzz.seeds import files
from tests.machine import MachineGpu, OneGpu

PID = 4242
DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class Parser:
    """A parser, what it reads, and the bounds that it keeps."""

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    refuses: tuple[type[Exception], ...] = (ValueError,)
    largest: int = MAX_FILE
    """The most bytes that the reader lets through."""

    long: tuple[tuple[bytes, bytes, bytes], ...] = ()
    """What is hard to read if it is repeated, besides lines of the seeds, and what is around it."""

    allocates: int = 32
    """The most bytes allocated at a time for each byte of a long input."""

    runs: int = 128
    """The most lines of Python that run for each byte of a long input."""

    long_enough: int = 1 << 14
    """Bytes of a long input in each run of the tests."""

    def tolerates(self, data: bytes) -> None:
        """Read the data, whatever it is; any exception is a finding."""
        try:
            self.read(data)
        except self.refuses:
            return


class OneTextNode(OneGpu):
    """A node that answers one text whichever file is read; two processes are on its GPU."""

    def __init__(self, data: bytes, **folders: Sequence[str]) -> None:
        super().__init__(1, PID)
        self.data = data
        self.text = data.decode("utf-8", "replace")
        self.folders = {name: list(listed) for name, listed in folders.items()}
        self.real: dict[str, str] = {}

    def read_text(self, path: str) -> str:
        """The text, but for a file that is to be a real one so that others are read."""
        return self.real.get(path.rpartition("/")[2], self.text)

    def list_directory(self, path: str) -> list[str]:
        return self.folders.get(path.rpartition("/")[2], ["0", "1", "eth0", "nvme0"])

    def log_lines(self, _: str) -> list[str]:
        return self.text.split("\n")

    def lines(self, _: str, after: int, pattern: Any) -> KeptLines:
        return lines_of(self.data[after : after + MAX_READ], after, pattern)

    def environment(self, _: int) -> dict[str, str]:
        return environment_of(self.text)

    def program(self, _: int) -> str:
        return program_of(self.text.split("\0"))

    def read_link(self, _: str) -> str:
        return self.text[:100]

    def libraries(self, _: int) -> list[str]:
        return libraries_of(self.data)

    def shares_memory(self, _: int) -> bool:
        return SHARED_MEMORY.search(self.data) is not None

    def image(self, _: str) -> Image:
        return containers.parse_bundle(self.text)

    def listens(self, _: int) -> bool:
        return any(sockets.listening(self.text.splitlines()))

    def round_trips(self) -> list[float]:
        return parse_round_trips(self.data)

    def open_files(self, _: int) -> int:
        return len(self.text)

    def communicates(self, _: int) -> bool:
        return any(sockets.communicator_inodes(self.text.splitlines()))

    def network_statistics(self, _: str) -> dict[str, int]:
        return {"rx_prio3_pause": 1}

    def datagrams(self, _: str, __: Collection[int]) -> list[Datagram]:
        return [
            Datagram(PID, text[: protocol.MAX_MESSAGE_BYTES], 1.0) for text in self.text.split("\n")
        ]

    def allocations(self, _: str) -> list[Allocation]:
        answer = messages.ListPodResourcesResponse.FromString(self.data)
        return list(kubelet._flattened(answer))


def exports(source: Source, node: OneTextNode) -> None:
    """Read a source twice, as the loop does, and see that what it exports can be encoded."""
    door = Door()
    for _ in range(2):
        try:
            reading = source.read()
        except FAILURES:
            reading = None
        if reading is not None:
            for sample in door.admit(reading).samples:
                assert len(sample.labels) == len(sample.metric.labels)
                assert not any(label.encode() is None for label in sample.labels)
                assert not isinstance(sample.value, float | int) or float(sample.value) >= -1e300
        node.stepped.now += 60.0


def text(*parsers: Callable[[str], object]) -> Callable[[bytes], None]:
    """Parsers of text, which all read the same."""

    def read(data: bytes) -> None:
        decoded = data.decode("utf-8", "replace")
        for parse in parsers:
            try:
                parse(decoded)
            except ValueError:
                continue

    return read


def ras_answer(data: bytes) -> None:
    asked = ServicePeers({692, 100}, {693}, {"192.0.2.2", "10.0.0.1"})
    answer = ras.parse(data.decode("ascii", "ignore"), asked)
    assert len(answer.behind) <= MAX_BEHIND
    assert all(len(found.ranks) <= MAX_AWAITED and len(found.name) <= 16 for found in answer.behind)
    assert len(answer.missing) <= MAX_AWAITED
    assert len(answer.failed) <= FAILED
    assert len(answer.launched) <= MAX_LOCAL_RANKS
    assert all(len(rank.host) <= 64 for _, rank, _ in answer.missing)
    for found, launches in answer.launched.values():
        assert launches.keys() <= COLLECTIVES | {"other"}
        assert len(found.host.encode()) <= 64


def engine_page(data: bytes) -> None:
    """A page as it comes over a socket, and a later one of which half of the lines are left."""
    answer = data.decode("ascii", "ignore")
    for part in (answer, answer[: len(answer) // 2]):
        told = engine.parse(http.scraped_of(part, READ_SERIES).kept)
        if told is None:
            continue
        assert len(told.models) <= engine.MODELS + 1
        for name, of in told.models.items():
            assert len(name) <= engine.MAX_MODEL
            assert all(0 <= value <= 1e21 for value in of.figures.values())
            for times in of.times.values():
                sums = totals.bucket_counts(times, FIRST_TOKEN_BOUNDS)
                assert sorted(sums[:-1]) == list(sums[:-1])
                counts = totals.distribution(sums, FIRST_TOKEN_BOUNDS).counts
                assert min(counts) >= 0


def nccl_log(data: bytes) -> None:
    log = DebugLog("", seeds.NCCL_PID)
    for at in range(0, len(data), MAX_READ):
        log.add(lines_of(data[at : at + MAX_READ], at, log.line).kept)
    lines_of(data[:MAX_READ], 0, HOSTNAME)
    assert len(log.communicators) <= MAX_COMMUNICATORS
    assert len(log.on(None)) <= 8
    assert all(len(found.transports) <= 64 for found in log.communicators)


def nccl_inspector(data: bytes) -> None:
    names = {
        f"{metric.name} {collective} {between}"
        for metric in inspector.NcclInspector.metrics
        for collective in inspector.FUNCTIONS.values()
        for between in inspector.SCOPES
    }
    for at in range(0, len(data), MAX_READ):
        part = data[at : at + MAX_READ]
        found = sums_of(part, at, partial(inspector.parse, since=0.0)).sums
        assert found.keys() <= names | {inspector.NOT_COUNTED.what}
        assert all(0 <= value < math.inf for value in found.values())
    lines_of(data[:MAX_READ], 0, inspector.HOSTNAME)


def of_the_kernel(data: bytes) -> None:
    node = OneTextNode(data, devices=["0000:1b:00.0"])
    source = kernel_log.KernelLog(node, DEFAULTS)
    source._devices, source.xids = {"0000:1b:00.0"}, {"0000:1b:00.0": {}}
    exports(source, node)
    for line in node.text.split("\n"):
        told = kernel_log.KernelLine.of("/var/log/messages", line)
        if told is not None:
            assert len(list(source._count_event([told]))) <= 3
    assert all(
        len(counts) <= 64 + len(kernel_log.ALWAYS_COUNTED) + 1 for counts in source.xids.values()
    )


def of_mounts(data: bytes) -> None:
    found = mounts.parse(data.decode("utf-8", "replace"))
    for mount in found:
        assert len(mount.point) <= len(data)
    watched = filesystem.select_mounts(OneTextNode(b'{"specVolID": "pv"}'), found)
    assert len(watched) <= len(found)
    filesystem.unknown_types(OneTextNode(b""), found)


def of_nfs(data: bytes) -> None:
    node = OneTextNode(data)
    exports(nfs.Nfs(node, DEFAULTS), node)


def of_lustre(data: bytes) -> None:
    text(lustre.parse_stats, lustre.parse_import, lambda told: lustre.parse_stripes(told, 4))(data)
    node = OneTextNode(
        data,
        osc=["a-OST0000-osc-ffff88105db50000"],
        llite=["a-ffff88105db50000"],
        lov=["a-clilov-ffff88105db50000"],
    )
    exports(lustre.Lustre(node, DEFAULTS), node)


def of_infiniband(data: bytes) -> None:
    node = OneTextNode(data, infiniband=["mlx5_0"], ports=["1"])
    exports(infiniband.Infiniband(node, DEFAULTS), node)


def of_a_cgroup(data: bytes) -> None:
    text(cgroup.parse_pairs, cgroup.parse_limit, pressure.parse, cgroup_owner)(data)
    node = OneTextNode(data)
    place = cgroup.locate(node.text, node)
    if place is not None:
        cgroup.read_cgroup(node, place)
    cgroup.read_cgroup(node, cgroup.Paths("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a/b", 2))
    cgroup.read_cgroup(node, cgroup.Paths("/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a/b", 1))


def of_slurm(data: bytes) -> None:
    """What Slurm's tree, its processes and the files of a Prolog say, each of them spoiled."""
    text(slurmstepd.parse_title, slurmstepd.parse_pids, slurm.parse_job_file)(data)
    text(lambda said: slurm.parse_gpus(said, said))(data)
    tree = {
        "cgroup": ["system.slice"],
        "system.slice": ["slurmstepd.scope"],
        "slurmstepd.scope": [seeds.SLUID, "job_7"],
        seeds.SLUID: ["step_batch"],
        "job_7": ["step_0"],
        "user": ["task_0"],
        "proc": ["1"],
        "jobs": ["7", "8"],
    }
    for folder in ("", "/run/jobs"):
        for real in ({}, {"cgroup.procs": "1\n", "cgroup": seeds.SLURMSTEPD, "stat": seeds.STAT}):
            node = OneTextNode(data, **tree)
            node.real = real
            settings = Settings(slurm=SlurmSettings(jobs_folder=folder))
            exports(slurm.SlurmJobs(Census(node), settings), node)
            slurmstepd.job_of(node, f"/system.slice/slurmstepd.scope/{seeds.SLUID}")


def of_gdb(data: bytes) -> None:
    """What gdb says of a process."""
    found = gdb.parse(data.decode("utf-8", "replace"))
    assert len(found) <= MAX_THREADS
    assert all(len(thread.frames) <= MAX_FRAMES for thread in found)
    assert all(
        f"{frame.function}{frame.file}".isprintable() for one in found for frame in one.frames
    )


def of_py_spy(data: bytes) -> None:
    """What py-spy says of a process, whose threads the kernel knows by other numbers."""
    said = data.decode("utf-8", "replace")
    stat = "7 (python3) S 1 1 1 0 -1 0 9 0 0 0 1 1 0 0 20 0 1 0 50 0 0"
    found = stacks_of(7, [7, 8], lambda: said, lambda path: stat if "stat" in path else said)
    assert len(found.threads) <= MAX_THREADS
    assert all(len(thread.frames) <= MAX_FRAMES for thread in found.threads)
    told = Looks((StackLook(("0", "GPU-0"), 7, 1.0, "0", "", False, 0.0, found),), code=True)
    reason_of(found)
    assert told.sentence(told.looks[0]).isprintable()
    assert len(told.sentence(told.looks[0])) <= 2000


def datagrams(data: bytes) -> None:
    node = OneTextNode(data)
    source = steps.TrainingSteps(Census(node), DEFAULTS)
    source._holders = {PID: (1.0, Identity(0, "GPU-aa", "NVIDIA H200"))}
    source._looked = 1e9
    exports(source, node)
    detail = source.read().detail
    assert isinstance(detail, steps.ClientReports)
    found = ProcessStacks(PID, (ThreadStack(PID, ""),), 1)
    for one in detail.processes:
        said = sentence(found, code=True, progress=one.progress)
        assert said.isprintable()
        assert len(said) <= 200


SCRATCH = tempfile.TemporaryDirectory(prefix="gpunode-fuzz")
"""A folder for what a parser reads from a file; it goes with the process."""


def of_faults(data: bytes) -> None:
    """What a daemon before has kept of faults, exported."""
    register = Register()
    register.unpack(data)
    assert all(len(fault.labels) == len(START.labels) for fault in register.faults())


def of_incident(data: bytes) -> None:
    """An incident from a folder or a daemon, shown as a page and in a terminal."""
    with contextlib.suppress(ValueError):
        found = incident.parse(data)
        assert "<script" not in incident_page.page(found)
        assert all(line.isprintable() for line in incidents.lines(found))


def compressed_tape(data: bytes) -> None:
    """Play a tape to its end and over it, whatever is asked of it."""
    path = Path(SCRATCH.name) / "tape.jsonl.gz"
    path.write_bytes(data)
    node = TapeNode(path)
    for now in (0.0, node.end / 2, node.end, 1.5 * node.end):
        node.clock.now = now
        for of, call in list(node.tracks)[:200]:
            try:
                if call in tape.NODE_CALLS:
                    getattr(node, call)(of)
            except (OSError, DriverError):
                continue
        for driver in node.drivers:
            try:
                gpus = driver.gpus()
            except (OSError, DriverError):
                continue
            for gpu in gpus:
                _ask(gpu)


def _ask(gpu: Any) -> None:
    for call in tape.GPU_CALLS:
        try:
            getattr(gpu, call)(*((0,) if call.endswith("_samples") else ()))
        except DriverError:
            continue


def tape_lines(data: bytes) -> None:
    compressed_tape(gzip.compress(data, 1))


def settings_file(data: bytes) -> None:
    path = Path(SCRATCH.name) / "settings.yaml"
    path.write_bytes(data)
    if (
        read_yaml(path).keys() & Settings.model_fields.keys()
    ):  # the rest takes a hundred times as long
        load(Settings, "gpunode", [f"--config.file={path}"])


def of_status(data: bytes) -> None:
    fields = partial(processes.parse_fields, names=processes.MOVED)
    text(fields, kernel.parse_scheduling, parse_open_files_limit)(data)
    holder = Holder(OneTextNode(data), 1, None)
    for fact in (lambda: tenant(holder), holder.own_pid):
        with contextlib.suppress(OSError, ValueError):
            fact()


def of_environ(data: bytes) -> None:
    found = environment_of(data.decode("utf-8", "replace"))
    assert all(len(value) <= MAX_VALUE for value in found.values())


def of_cmdline(data: bytes) -> None:
    assert len(program_of(data.decode("utf-8", "replace").split("\0"))) <= MAX_PROGRAM


def of_maps(data: bytes) -> None:
    found = libraries_of(data)
    assert len(found) <= MAX_LIBRARIES
    assert all("\n" not in path for path in found)


def of_a_container(data: bytes) -> None:
    """What the runtimes keep of a container: whatever it is, only names and digests are left."""
    for parse in (containers.parse_bundle, containers.parse_docker):
        with contextlib.suppress(ValueError):
            image = parse(data.decode("utf-8", "replace"))
            assert re.fullmatch(r"[\w.:/-]{0,255}", image.name, re.ASCII)
            assert re.fullmatch(r"(sha256:[0-9a-f]{64})?", image.digest)


def of_libraries(data: bytes) -> None:
    """What a tenant's files say of versions."""
    for _, version in parse_torch(lines_of(data[:MAX_READ], 0, TORCH_VERSION_LINE).kept):
        assert re.fullmatch(r"[\w.+-]{1,64}", version, re.ASCII)


def of_a_process(data: bytes) -> None:
    """All that is read of a process on a GPU and its job, also where it has a real stat file."""
    node = OneTextNode(data)
    gpu = MachineGpu(0, "GPU-aa", "0", (1, PID))
    for real in ({}, {"stat": seeds.STAT}):
        node.real = real
        for source in (
            GpuOwners(Census(node), gpu, DEFAULTS, Pods(node, DEFAULTS)),
            ProcessRoles(Census(node), gpu, DEFAULTS),
            processes.JobProcesses(Census(node), gpu, DEFAULTS),
        ):
            node.stepped.now = 0.0
            exports(source, node)


class Kernel:
    """A netlink socket that answers what it was given."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def sendmsg(self, _: list[bytes]) -> int:
        return 0

    def recv(self, size: int) -> bytes:
        return self.answer[:size]


def sock_diag(data: bytes) -> None:
    near = tcp.Address(AF_INET, "127.0.0.1", 40000)
    tcp.server_of(cast(socket, Kernel(data)), near, near)


def of_round_trips(data: bytes) -> None:
    assert all(0 < one < 4300 for one in parse_round_trips(data))


def of_sockets(data: bytes) -> None:
    table = data.decode("utf-8", "replace").splitlines()
    for rows in (sockets.listening, sockets.communicator_inodes):
        with contextlib.suppress(OSError, ValueError):  # more rows than are looked at
            list(rows(table))
    with contextlib.suppress(OSError):
        for _, at in sockets.listening(table):
            assert not at or sockets.port_of(at) >= 0
    ras._addresses(Holder(OneTextNode(data), 1, None))


def address(data: bytes) -> None:
    tcp.Address.parse(data.decode("utf-8", "replace"))


def driver_text(data: bytes) -> None:
    found = identity.label(data)
    assert found.isprintable()
    assert len(found) <= 256


def of_the_kubelet(data: bytes) -> None:
    pods = Pods(OneTextNode(data), DEFAULTS)
    pods.read()
    held = pods.holders(Identity(0, "GPU-aa", "NVIDIA H200", minor=0, gpu_instance=7))
    assert all(len(given.pod) <= 253 for given in held or ())


def of_grpc(data: bytes) -> None:
    calling = unary.UnaryCall("/a/B", b"", kubelet.MAX_ANSWER_BYTES, 5.0)
    for at in range(0, len(data), unary.READ_BYTES):
        calling.to_send()
        if calling.take(data[at : at + unary.READ_BYTES]):
            calling.answer()
            return


def rules_of_a_site(data: bytes) -> None:
    for rule in rule_files.rules_of(data.decode("utf-8", "replace"), "x.yaml"):
        promql.strip_parentheses(rule.expression)
        promql.comparison(rule.expression)
        promql.alternatives(rule.expression)
        promql.names(rule.expression)


def billing_file(data: bytes) -> None:
    path = Path(SCRATCH.name) / "billing.yaml"
    path.write_bytes(data)
    billing.parse(path).team(JobKey("", "research", "slurm-77", "kim"), "ml")


def of_sacct(data: bytes) -> None:
    found = sacct.parse(data.decode())
    sacct.accounts(found, ("a", "b"))
    list(sacct.job_waits(found, 0, 2e9))


def of_baseline(data: bytes) -> None:
    hodges_lehmann([math.log(pace.step) for pace in baseline.parse(data.decode()).values()])


def web_file(data: bytes) -> None:
    path = Path(SCRATCH.name) / "web.yml"
    path.write_bytes(data)
    if read_yaml(path).keys() & WebFile.model_fields.keys():
        read_access(path)


def accept(data: bytes) -> None:
    requested(data.decode("latin-1"))


def of_the_host(data: bytes) -> None:
    """The counters of the kernel, each file by its own parser and then by its source."""
    text(
        kernel.counter,
        cpu.parse_cpu_list,
        filefd.parse,
        network.parse_devices,
        network.parse_protocols,
        pcie.parse_speed,
        lambda told: pcie.parse_total(told, "fatal"),
        versions.parse_release,
        versions.parse_switch,
        hwmon.parse_fan,
        hwmon.parse_temperature,
        gpudirect_storage.parse,
        imex.parse,
        repair.parse_boot,
        repair.parse_repaired,
    )(data)
    kinds = (
        cpu.Cpu,
        disk.Disks,
        memory.NodeMemory,
        network.Network,
        pcie.Pcie,
        pressure.Pressure,
        versions.NodeVersions,
        gpudirect_storage.GpuDirectStorage,
    )
    for kind in kinds:
        node = OneTextNode(data, devices=["0000:1b:00.0"], nvme0=["hwmon1"])
        exports(kind(node, DEFAULTS), node)
    node = OneTextNode(data, hwmon=["hwmon1"], hwmon1=["fan1_input", "temp1_input"])
    node.real["temp1_label"] = "Inlet"
    exports(hwmon.Hwmon(node, DEFAULTS), node)
    for name in ("package-0", node.text):
        node = OneTextNode(data, powercap=["intel-rapl:0", "intel-rapl:0:0"])
        node.real["name"] = name
        exports(energy.Energy(node, DEFAULTS), node)
    node = OneTextNode(data)
    node.real["dev"] = seeds.DEVICES
    exports(network.Network(node, DEFAULTS), node)


def of_the_audit(data: bytes) -> None:
    node = OneTextNode(data)
    exports(Audit(node, DEFAULTS), node)


def of_the_fabric(printed: str) -> None:
    found = fabric.parse(printed)
    fabric.problems(found)
    drawn(found)


def of_the_bench(data: bytes) -> None:
    text(bench.parse_text, bench.parse_json, of_the_fabric)(data)
    node = OneTextNode(data)
    exports(bench.NcclBench(node, DEFAULTS), node)


DIAGNOSED = struct.pack("=IHHII", 88, 20, 0, 0, 0) + struct.pack("=2B2x60xII", 2, 1, 1000, 1574)
REFUSED = struct.pack("=IHHIIi", 36, 2, 0, 0, 0, -2)
HOST = ("proc/stat", "proc/meminfo", "proc/vmstat", "proc/diskstats", "proc/pressure/*")
MORE = ("proc/1/net/*", "proc/sys/fs/file-nr", "sys/bus/pci/devices/*/current_link_speed")
RELEASES = (
    "etc/*-release",
    "etc/nvidia-imex/*",
    "proc/driver/nvidia-nvswitch/devices/*/information",
)
SENSORS = ("sys/class/hwmon/*/*", "sys/class/powercap/*/*", "proc/driver/nvidia-fs/stats")
LINKS = ("sys/class/net/*/speed", "sys/class/net/*/operstate", "sys/class/net/*/carrier_changes")

TABLE: tuple[Parser, ...] = (
    Parser(
        "ras_json", ras_answer, seeds.RAS_JSON, largest=tcp.MAX_ANSWER_BYTES, long=seeds.LONG_JSON
    ),
    Parser(
        "ras_text", ras_answer, seeds.RAS_TEXT, largest=tcp.MAX_ANSWER_BYTES, long=seeds.LONG_TEXT
    ),
    Parser(
        "engine_page",
        engine_page,
        seeds.ENGINE_PAGES,
        (OSError,),
        largest=tcp.MAX_ANSWER_BYTES,
        long=seeds.LONG_ENGINE_PAGE,
    ),
    Parser("nccl_log", nccl_log, seeds.NCCL_LOGS, long=seeds.LONG_NCCL_LOG),
    Parser("nccl_inspector", nccl_inspector, seeds.INSPECTOR_LOGS, long=seeds.LONG_INSPECTOR_LOG),
    Parser(
        "kernel_log",
        of_the_kernel,
        (seeds.KMSG, seeds.SYSLOG),
        largest=MAX_READ,
        long=seeds.LONG_KERNEL_LOG,
    ),
    Parser("mountstats", of_nfs, (*files("proc/*/mountstats"), seeds.MOUNTSTATS)),
    Parser(
        "lustre",
        of_lustre,
        (
            *files("**/lustre/**/stats", "**/lustre/**/import", "**/lustre/**/stripecount"),
            seeds.LUSTRE_2_10,
            seeds.LUSTRE_2_15,
        ),
    ),
    Parser("infiniband", of_infiniband, files("sys/class/infiniband/*/ports/**/*")),
    Parser(
        "cgroup",
        of_a_cgroup,
        (*files("proc/*/cgroup", "sys/fs/cgroup/**/*"), *seeds.CGROUPS, *seeds.CGROUP_FILES),
        long=tuple((b"0::", part, b"") for part in (b"/..", b"/kubepods", b"/docker", b"/slurm")),
    ),
    Parser("slurm", of_slurm, seeds.SLURM, largest=1 << 16, runs=512),
    Parser("gdb", of_gdb, (seeds.GDB,), largest=MAX_BYTES),
    Parser("py_spy", of_py_spy, (seeds.PY_SPY,), largest=MAX_BYTES),
    Parser("incident", of_incident, (seeds.INCIDENT,), largest=1 << 18),
    Parser("faults", of_faults, seeds.FAULTS, largest=1 << 18),
    Parser(
        "datagram",
        datagrams,
        (seeds.DATAGRAM, seeds.OLD_DATAGRAM),
        largest=1 << 18,
        long=seeds.LONG_DATAGRAM,
    ),
    Parser("tape", tape_lines, seeds.tape(), (TapeError,), long=seeds.LONG_TAPE),
    Parser("tape_gzip", compressed_tape, tuple(map(gzip.compress, seeds.tape())), (TapeError,)),
    Parser(
        "settings",
        settings_file,
        seeds.SETTINGS,
        (UsageError,),
        MAX_SETTINGS,
        seeds.LONG_YAML,
        allocates=320,
        runs=512,
        long_enough=1 << 10,
    ),
    Parser(
        "rules_of_a_site",
        rules_of_a_site,
        seeds.RULES_OF_A_SITE,
        (UsageError, PromqlError),
        rule_files.MAX_FILE,
        seeds.LONG_YAML,
        allocates=320,
        long_enough=1 << 10,
    ),
    Parser(
        "billing_file",
        billing_file,
        seeds.BILLING,
        (UsageError,),
        MAX_SETTINGS,
        seeds.LONG_YAML,
        allocates=320,
        long_enough=1 << 10,
    ),
    Parser("sacct", of_sacct, seeds.SACCT),
    Parser("baseline", of_baseline, seeds.BASELINE),
    Parser("mountinfo", of_mounts, files("proc/*/mountinfo")),
    Parser("status", of_status, files("proc/*/status", "proc/*/limits")),
    Parser("environ", of_environ, files("proc/*/environ")),
    Parser("cmdline", of_cmdline, (*files("proc/*/cmdline"), *seeds.PROGRAMS)),
    Parser("maps", of_maps, files("proc/*/maps"), largest=MAX_FILE, long=seeds.LONG_MAPS),
    Parser(
        "container",
        of_a_container,
        (*files("run/containerd/**/*"), *seeds.CONTAINERS),
        largest=MAX_READ,
    ),
    Parser(
        "libraries",
        of_libraries,
        files("proc/*/root/**/*"),
        largest=MAX_READ,
    ),
    Parser(
        "process",
        of_a_process,
        (*files("proc/*/stat"), *seeds.CGROUPS, *seeds.PROGRAMS),
        largest=1 << 12,
        runs=512,
    ),
    Parser("sock_diag", sock_diag, (DIAGNOSED, REFUSED), (OSError,), 1 << 13),
    Parser("round_trips", of_round_trips, (seeds.ROUND_TRIPS,)),
    Parser(
        "sockets", of_sockets, (seeds.SOCKETS, seeds.UNIX_SOCKETS, seeds.FIB_TRIE, seeds.IF_INET6)
    ),
    Parser("address", address, (b"localhost:28028", b"[::1]:1", b"10.0.0.1:65535"), (OSError,)),
    Parser("driver_text", driver_text, (b"NVIDIA H200", b"GPU-340afd41-8631", b"96.00.A5.00.01")),
    Parser(
        "kubelet",
        of_the_kubelet,
        seeds.kubelet(),
        (DecodeError,),
        kubelet.MAX_ANSWER_BYTES,
        seeds.LONG_PROTOCOL,
    ),
    Parser("grpc", of_grpc, seeds.grpc(), (OSError,), kubelet.MAX_ANSWER_BYTES),
    Parser(
        "web_file",
        web_file,
        seeds.WEB_FILES,
        (UsageError,),
        MAX_SETTINGS,
        seeds.LONG_YAML,
        allocates=320,
        runs=512,
        long_enough=1 << 10,
    ),
    Parser("accept", accept, seeds.ACCEPTS, largest=1 << 16),
    Parser("host", of_the_host, files(*HOST, *MORE, *LINKS, *RELEASES, *SENSORS)),
    Parser(
        "audit",
        of_the_audit,
        files("proc/sys/**/*", "sys/kernel/**/*", "proc/*/limits", "proc/interrupts"),
        long=seeds.LONG_AUDIT,
    ),
    Parser("nccl_bench", of_the_bench, seeds.BENCH),
)


def named(names: Iterable[str]) -> list[Parser]:
    """These rows, or all if none is named."""
    wanted = set(names)
    return [parser for parser in TABLE if not wanted or parser.name in wanted]
