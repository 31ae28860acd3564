"""The parsers of what the node says: whatever it is, they return or raise ``ValueError``."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import pkgutil
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode import audit, gpu, host, jobs, nccl
from gpunode.host import cpu, kernel_log, lustre, memory, mounts, pcie
from gpunode.host.shm import Filling
from gpunode.jobs import cgroup, processes, versions
from gpunode.nccl import inspector
from gpunode.node import kernel, sockets
from gpunode.node.local import LocalNode
from gpunode.node.node import MAX_PROGRAM, program_of
from tests.cases import with_each
from tests.fuzz.seeds import UNIX_SOCKETS
from tests.machine import MACHINES

PACKAGES = (audit, gpu, host, jobs, nccl)
ADAPTED: dict[str, Callable[[str], Any]] = {
    "jobs.cgroup.locate": lambda text: cgroup.locate(text, LocalNode(Path("/gone"))),
    "jobs.processes.parse_fields": lambda text: processes.parse_fields(text, processes.OWN_MEMORY),
    "jobs.versions.parse_torch": lambda text: list(
        versions.parse_torch(versions.TORCH_VERSION_LINE.findall(text))
    ),
    "nccl.inspector.parse": lambda text: inspector.parse(text, 0.0),
    "host.memory.parse_vmstat": lambda text: memory.parse_vmstat(text, memory.VMSTAT_FIELDS),
    "host.lustre.parse_stripes": lambda text: lustre.parse_stripes(text, 4),
    "host.pcie.parse_total": lambda text: pcie.parse_total(text, "fatal"),
}
"""Parsers that require more than a text."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function of the modules that read the node, by its name."""
    for package in PACKAGES:
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(found.name)
            for name, value in vars(module).items():
                own = inspect.isfunction(value) and value.__module__ == found.name
                if own and not name.startswith("_"):
                    yield f"{found.name.partition('.')[2]}.{name}", value


def required(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.default is each.empty]


def takes_a_string(function: Callable[..., Any]) -> bool:
    return [each.annotation for each in required(function)] == ["str"]


def parses(name: str, function: Callable[..., Any]) -> bool:
    """Whether it looks like a parser, whatever else it requires."""
    first = [each.name for each in required(function)[:1]]
    return first == ["text"] or name.rpartition(".")[2].startswith("parse")


FOUND_PARSERS = {name: function for name, function in functions() if takes_a_string(function)}
OF_NODE: dict[str, Callable[[str], Any]] = {
    "node.kernel.counter": kernel.counter,
    "node.kernel.parse_scheduling": kernel.parse_scheduling,
    "node.kernel.parse_stat": kernel.parse_stat,
    "node.kernel.parse_status": kernel.parse_status,
    "node.sockets.listening": lambda text: [*sockets.listening(text.splitlines())],
}
PARSERS = {**FOUND_PARSERS, **ADAPTED, **OF_NODE}


def test_every_parser_is_given_anything_to_read() -> None:
    named = {name for name, function in functions() if parses(name, function)}
    assert named <= PARSERS.keys(), "adapt those that require more than a text"
    assert ADAPTED.keys() <= named - FOUND_PARSERS.keys()
    assert {"host.cpu.parse", "jobs.steps.parse", "nccl.ras.parse"} <= named


CLIENT_MESSAGE = {
    "v": 1,
    "steps": {"counts": [1, 2], "sum": 3.0},
    "median": 1.0,
    "phases": {"step": 3.0},
    "loss": 2.5,
    "loss_best": 2.25,
    "memory": {"reserved": 5, "allocated": 4, "retries": 2, "ooms": 1},
    "graphs": 3,
    "kernels": {"gemm": 1.0},
}
REAL = list(
    dict.fromkeys(
        path.read_text(errors="replace")
        for folder in (MACHINES, MACHINES.with_name("nccl"))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "golden" not in path.parts and path.stat().st_size < 20_000
    )
)
SOCKETS = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1574 1
   1: 0100007F:A237 0100007F:BFC0 06 00000000:00000000 03:00000C3D 00000000     0        0 0 3
   2: 0100007F:A238 0100007F:BFC0 01 00000000:00000000 00:00000000 00000000  1000        0 1577 1
"""
REAL.append(json.dumps(CLIENT_MESSAGE))
REAL.append(json.dumps({"NVIDIA H100 80GB HBM3": {"tensor": 0.929, "dram": 0.888, "sms": 132}}))
REAL.append(SOCKETS)
REAL.append("NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off\n")
NUMBERS = st.sampled_from(["-1", "9" * 30, "1e9", "nan", "0x10", "", "1_000", "٣", "max", "\0"])
ANYTHING = st.text() | st.recursive(
    st.none() | st.floats() | st.text() | st.integers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).map(json.dumps)


def readable(parse: Callable[[str], Any]) -> list[str]:
    """The real files in which a parser finds something."""
    found = []
    for text in REAL:
        with contextlib.suppress(ValueError):
            if parse(text) not in (None, [], {}, set()):
                found.append(text)
    return found


@st.composite
def spoiled(draw: st.DrawFn, files: Sequence[str]) -> str:
    """A real file with some of its words replaced, and perhaps cut short."""
    words = re.split("([ \n,:]+)", draw(st.sampled_from(files)))
    for _ in range(draw(st.integers(0, 5))):
        words[draw(st.integers(0, len(words) - 1))] = draw(NUMBERS | st.text(max_size=8))
    text = "".join(words)
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


@with_each(PARSERS)
def test_a_parser_of_a_spoiled_file_returns_or_raises_value_error(name: str) -> None:
    parse, files = PARSERS[name], readable(PARSERS[name])
    assert files, "no real file that it can read"

    @given(spoiled(files))
    @settings(max_examples=20)
    def holds(text: str) -> None:
        with contextlib.suppress(ValueError):
            parse(text)

    holds()


@given(ANYTHING)
@settings(max_examples=30)
def test_a_parser_of_anything_returns_or_raises_value_error(text: str) -> None:
    for parse in PARSERS.values():
        with contextlib.suppress(ValueError):
            parse(text)


REPEATED_PARTS = (
    "[",
    '{"a":',
    "(",
    " ",
    "1 ",
    "a",
    "\n",
    "a: 1 kB\n",
    "cpu0 1 2 3 4 5 6\n",
    "0-9,",
    "\\040",
)


@pytest.mark.attack
@with_each(PARSERS)
def test_a_parser_of_a_long_text_takes_no_time(name: str) -> None:
    for part in REPEATED_PARTS:
        begin = time.process_time()
        with contextlib.suppress(ValueError):
            PARSERS[name](part * (100_000 // len(part)))
        assert time.process_time() - begin < 0.5, repr(part)


COUNTS = st.integers(0, (1 << 53) - 1)


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS, COUNTS), min_size=1, max_size=8))
def test_the_times_of_cores_are_read_back(cores: list[tuple[int, int, int, int]]) -> None:
    text = "".join(f"cpu{at} {u} 0 {s} {i} {w} 0 0 0\n" for at, (u, s, i, w) in enumerate(cores))
    found = cpu.parse(text).cores
    for at, (user, system, idle, iowait) in enumerate(cores):
        core = found[str(at)]
        assert (core.user, core.system, core.idle, core.iowait) == (
            user / 100,
            system / 100,
            idle / 100,
            iowait / 100,
        )


@given(st.sets(st.integers(0, 300)))
def test_a_list_of_cpus_is_read_back(cpus: set[int]) -> None:
    ordered, parts = sorted(cpus), []
    while ordered:
        first = last = ordered.pop(0)
        while ordered and ordered[0] == last + 1:
            last = ordered.pop(0)
        parts.append(str(first) if first == last else f"{first}-{last}")
    assert cpu.parse_cpu_list(",".join(parts) + "\n") == set(map(str, cpus))


@given(st.text(min_size=1).filter(lambda name: "\0" not in name), COUNTS, COUNTS)
def test_any_name_of_a_process_is_read_back(name: str, ticks: int, start: int) -> None:
    stat = kernel.parse_stat(
        f"12 ({name}) S 1 1 1 0 -1 4 1 2 3 4 {ticks} 0 0 0 20 0 1 0 {start} 1\n"
    )
    assert (stat.name, stat.cpu, stat.start) == (name, ticks / 100, start)


@given(st.text().map(lambda name: name.replace("\n", "\\n")))
def test_no_name_of_a_process_makes_up_a_field_of_its_status(name: str) -> None:
    found = kernel.parse_status(f"Name:\t{name}\rUid:\t0\t0\nUid:\t7\t8\t9\t9\n")
    assert found["Uid"] == ["7", "8", "9", "9"]


@given(st.text(alphabet=st.characters(max_codepoint=126), min_size=1).map(lambda s: "/" + s))
def test_any_mount_point_is_read_back(point: str) -> None:
    escaped = "".join(f"\\{ord(c):03o}" if c in " \t\n\\" or ord(c) < 32 else c for c in point)
    found = mounts.parse(f"22 1 8:1 / {escaped} rw,noatime shared:1 - ext4 /dev/sda1 rw\n")
    assert [mount.point for mount in found] == [point]


@with_each(
    [
        ("rw", "rw,errors=remount-ro", False),
        ("ro,noatime", "rw", True),
        ("rw,noatime", "ro,errors=remount-ro", True),
        ("rw,noatime", "rw,errors=remount-ro,emergency_ro", True),
    ]
)
def test_a_filesystem_is_read_only_by_its_mount_or_after_an_error(
    mounted: str, filesystem: str, read_only: bool
) -> None:
    (mount,) = mounts.parse(f"22 1 8:1 / / {mounted} shared:1 - ext4 /dev/sda1 {filesystem}\n")
    assert ("ro" in mount.options) == read_only


@pytest.mark.attack
@with_each(["", "task ", "NVRM: Xid (PCI:", "AER: ", "LustreError: ", "mlx5_core "])
def test_a_long_line_of_the_kernel_log_takes_no_time(start: str) -> None:
    line = start + "a blocked Error was Link " * 3000
    begin = time.process_time()
    kernel_log.kind_of(line[: kernel_log.MAX_LINE])
    assert time.process_time() - begin < 0.1


def test_when_something_is_full_follows_from_the_last_minute() -> None:
    filling = Filling()
    assert filling.add(0.0, 100.0) is None
    assert filling.add(10.0, 90.0) == 90.0
    assert filling.add(20.0, 95.0) == pytest.approx(95.0 * 20 / 5)
    assert filling.add(80.0, 95.0) is None
    assert filling.add(90.0, 120.0) is None
    assert Filling().add(0.0, 0.0) is None


def test_a_socket_that_listens_is_told_from_one_that_is_connected() -> None:
    assert [*sockets.listening(SOCKETS.splitlines())] == [("1574", "0.0.0.0:2024")]
    assert [*sockets.listening(SOCKETS.splitlines()[:1])] == []


@pytest.mark.parametrize(
    ("port", "serves"),
    [(8000, True), (32767, True), (32768, False), (44871, False), (29500, False)],
)
def test_a_port_of_the_kernel_s_or_of_ranks_makes_no_server(
    tmp_path: Path, port: int, serves: bool
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(SOCKETS.replace("00000000:07E8", f"00000000:{port:04X}"))
    assert sockets.listens(str(tmp_path), lambda: {"1574"}) is serves


def test_a_communicators_socket_is_told_by_its_name() -> None:
    assert [*sockets.communicator_inodes(UNIX_SOCKETS.decode().splitlines())] == ["31415"]
    assert [*sockets.communicator_inodes(SOCKETS.splitlines())] == []


COMPILE_WORKER = "/opt/lib/python3.12/site-packages/torch/_inductor/compile_worker/__main__.py"


@with_each(
    [
        # torchrun, its workers, and other ways to start a training
        ("/usr/bin/python3\0/usr/local/bin/torchrun\0--nproc_per_node=8\0train.py\0", "torchrun"),
        ("/usr/bin/python3\0-u\0train.py\0--lr\0001\0", "train"),
        ("/usr/bin/python3.12\0-u\0-m\0research.pretrain\0--lr=1\0", "research.pretrain"),
        ("python\0-u\0-X\0dev\0train.py\0", "train"),
        ("python\0-Xdev\0-Werror\0train.py\0", "train"),
        ("python\0-W\0ignore\0-OO\0./scripts/train.py\0", "train"),
        ("python\0-BIum\0torch.distributed.run\0x.py\0", "torch.distributed.run"),
        ("python\0-mtorch.distributed.run\0x.py\0", "torch.distributed.run"),
        ("python\0--check-hash-based-pycs\0always\0train.py\0", "train"),
        ("python\0/home/me/project/\0", "project"),
        ("python\0__main__.py\0", "__main__"),
        # notebooks, servers, compilers
        ("/opt/bin/python\0-m\0ipykernel_launcher\0-f\0/run/kernel-1.json\0", "ipykernel_launcher"),
        ("/usr/bin/python3\0/opt/vllm/bin/vllm\0serve\0meta-llama/Llama-3\0", "vllm"),
        (
            "python3\0-m\0vllm.entrypoints.api_server\0--api-key\0hush\0",
            "vllm.entrypoints.api_server",
        ),
        ("VLLM::EngineCore\0\0\0\0", "VLLM::EngineCore"),
        ("sglang::scheduler_TP0\0", "sglang::scheduler_TP0"),
        ("gunicorn: worker [app:api]\0\0", "gunicorn"),
        (
            f"/opt/bin/python3.12\0{COMPILE_WORKER}\0--pickler=torch.x\0--kind=fork\0",
            "compile_worker",
        ),
        ("/usr/local/cuda/bin/ptxas\0-o\0/tmp/x.cubin\0", "ptxas"),
        ("tritonserver\0--model-repository=/models\0", "tritonserver"),
        # a title that begins with the interpreter is no command line
        ("python train.py --token hush\0\0", "python"),
        ("python3\0", "python3"),
        ("python3\0-i\0", "python3"),
        # code, standard input, the kernel's threads
        ("python\0-c\0from multiprocessing.spawn import spawn_main; hush()\0", ""),
        ("python\0-uc\0hush\0", ""),
        ("python\0-chush\0hush\0", ""),
        ("python\0-\0hush\0", ""),
        ("python\0-m\0", ""),
        ("", ""),
        (" \0", ""),
    ]
)
def test_the_program_is_told_from_its_command_line(command_line: str, program: str) -> None:
    assert program_of(command_line.split("\0")) == program


SECRET = "hush-hush"
WORDS = st.text(st.characters(exclude_characters="\0"), max_size=100)
FLAGS = st.sampled_from(["-u", "-B", "-OO", "-Es", "-X\0dev", "-Wignore", "-uX\0dev", "--version"])
RUN = st.sampled_from(
    ["train.py", "/a/train.py", "-m\0train", "-um\0train", "-mtrain", "/a/train/__main__.py"]
)


@given(st.lists(WORDS))
def test_any_command_line_has_a_program_of_few_characters(arguments: list[str]) -> None:
    assert len(program_of(arguments)) <= MAX_PROGRAM


@given(
    st.sampled_from(["python", "/usr/bin/python3.12"]),
    st.lists(FLAGS),
    RUN,
    st.lists(WORDS | FLAGS),
)
def test_arguments_of_a_program_are_never_told(
    python: str, flags: list[str], run: str, arguments: list[str]
) -> None:
    line = "\0".join([python, *flags, run, *arguments, SECRET, f"--token={SECRET}", ""])
    assert program_of(line.split("\0")) == "train"


@given(
    st.lists(FLAGS),
    st.sampled_from(["-c\0", "-c", "-uc\0", "-BIc\0", "-\0"]),
    st.lists(WORDS),
)
def test_code_on_a_command_line_is_never_told(
    flags: list[str], code: str, arguments: list[str]
) -> None:
    line = "\0".join(["python3", *flags, f"{code}{SECRET}", *arguments, ""])
    assert program_of(line.split("\0")) == ""
