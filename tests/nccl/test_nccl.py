"""What NCCL tells: its RAS service over a real socket, and its debug logs as H200s wrote them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

import gpunode.helper.tcp
from gpunode.config.daemon import Settings
from gpunode.helper.tcp import RAS
from gpunode.holders.census import Census
from gpunode.nccl import ras
from gpunode.nccl.log import DebugLog, NcclLogs, child_hash, transport
from gpunode.nccl.ras import NcclRas
from gpunode.nccl.ras_answer import Rank
from gpunode.node.local import LocalNode
from gpunode.node.node import lines_of
from tests.cases import with_each
from tests.corpus.families import load
from tests.machine import MachineGpu, begin
from tests.nccl.ras import RasNode, page, rank, ras_server, status
from tests.needs import as_root
from tests.tenant import says_who

LOGS = Path(__file__).with_name("recorded")


TEXT = """\
SERVER PROTOCOL 2
OK
ERROR: Unknown command SET FORMAT json
NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          4            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         2         1         4         4         4   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (00000000deadbeef) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 612
  Rank 2 has launched up to operation 611 -- GPU 0 (NVML 6) managed by process 4711 on node 10.0.0.7

"""


def test_an_answer_in_text_names_the_rank_too() -> None:
    with ras_server() as server:
        node = RasNode(server.port)
        source = NcclRas(Census(node), Settings())
        server.answer = TEXT
        page(source)
        node.stepped.now += 10
        found = page(source)
    assert "gpunode_nccl_communicators 2.0" in found
    assert (
        'gpunode_nccl_awaited_rank_info{communicator="deadbeef",host="10.0.0.7",nvml_device="6",'
        'pid="4711",rank="2",reason="behind"} 1.0'
    ) in found


AHEAD = """\
  3 ranks have launched up to operation 611
  Rank 2 has launched up to operation 612 -- GPU 0 managed by process 4711 on node 10.0.0.7
"""


def test_ranks_that_are_ahead_are_not_awaited() -> None:
    """NCCL lists the fewer, here those that wait; the others are behind."""
    head, _, _ = TEXT.partition("  3 ranks have")
    with ras_server() as server:
        node = RasNode(server.port)
        source = NcclRas(Census(node), Settings())
        server.answer = head + AHEAD
        assert "gpunode_nccl_stalled_communicators 0.0" in page(source)
        node.stepped.now += 10
        found = page(source)
        assert "gpunode_nccl_stalled_communicators 1.0" in found
        assert "gpunode_nccl_awaited_rank_info" not in found
        server.answer = head + AHEAD.replace("612", "613")
        node.stepped.now += 10
        assert "gpunode_nccl_stalled_communicators 0.0" in page(source)


def test_dead_and_unresponsive_ranks_are_named_at_once() -> None:
    gone = {"rank": 3, "host": "h", "pid": 9, "nvml_dev": 3, "status": {"considered_dead": True}}
    mute = {"rank": 4, "host": "h", "pid": 8, "nvml_dev": 4, "status": {"unresponsive": True}}
    left = {"rank": 5, "host": "h", "pid": 7, "nvml_dev": 5, "status": {}}
    with ras_server() as server:
        server.answer = status([rank(0, 5, os.getpid())], [gone, mute, left])
        found = page(NcclRas(Census(RasNode(server.port)), Settings()))
    assert 'rank="3",reason="dead"' in found
    assert 'rank="4",reason="unresponsive"' in found
    assert 'rank="5"' not in found


GROUPS = """\
Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4         8        32        32   RUNNING  INCOMPLETE,ERROR

Errors
======

"""
DEAD = """\
DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 3487984 on node 10.0.0.7 managing GPU 5

"""
MUTE = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 4711 on node 10.0.0.8 managing GPU 0 (NVML 6)

"""
LOST = "#0-0 (cafe) INCOMPLETE\n  Missing communicator data from"


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (
            f"{DEAD}{LOST} 1 rank\n  The missing rank: 21\n",
            [(Rank(21, "10.0.0.7", 3487984, 5), "dead")],
        ),
        (
            f"{MUTE}{LOST} 1 rank\n  The missing rank: 21\n",
            [(Rank(21, "10.0.0.8", 4711, 6), "unresponsive")],
        ),
        (
            f"{MUTE}{DEAD}{LOST} 2 ranks\n  The missing ranks: 3,21\n",
            [(Rank(3), "unresponsive"), (Rank(21), "unresponsive")],
        ),
        (
            f"{MUTE}{DEAD}{LOST} 3 ranks\n"
            "  Rank 3 -- GPU 0 (NVML 6) managed by process 4711 on node 10.0.0.8\n"
            "  Rank 21 -- GPU 5 managed by process 3487984 on node 10.0.0.7\n"
            "  Rank 22 -- [process information not found]\n",
            [
                (Rank(3, "10.0.0.8", 4711, 6), "unresponsive"),
                (Rank(21, "10.0.0.7", 3487984, 5), "dead"),
                (Rank(22), "unresponsive"),
            ],
        ),
    ],
    ids=["2.24, dead", "2.24, mute", "2.24, one of each", "2.26 and later"],
)
def test_the_text_of_any_version_names_who_is_gone(
    text: str, missing: list[tuple[Rank, str]]
) -> None:
    answer = ras.parse(GROUPS + text)
    assert answer.missing == [("cafe", *each) for each in missing]


def test_a_rank_of_too_many_digits_is_none() -> None:
    answer = ras.parse(f"{GROUPS}{LOST} 1 rank\n  The missing rank: {'9' * 150}\n")
    assert answer.missing == []


@with_each(
    [
        (
            "  Asynchronous error on 1 rank\n"
            "  Rank 3 reported Remote process error -- GPU 3 managed by process 9 on node ::1\n",
            1,
        ),
        (
            "  Asynchronous errors on 2 ranks\n  2 ranks reported System error\n"
            "  Rank 3 -- GPU 3 managed by process 9 on node 10.0.0.7\n"
            "  Rank 4 -- GPU 4 managed by process 10 on node 10.0.0.7\n",
            2,
        ),
        ("  Initialization errors on 31 ranks\n  31 ranks reported Internal error\n", 31),
        ("  Initialization error on 1 rank\n  Rank 3 reported Unexpected error -- [process ", 0),
    ]
)
def test_ranks_with_an_error_are_counted_in_a_text(text: str, errors: int) -> None:
    answer = ras.parse(f"{GROUPS}#0-0 (cafe) ERROR\n{text}\nWarnings\n========\n")
    assert len(answer.failed) == errors


def test_only_the_node_of_rank_0_asks_often() -> None:
    with ras_server() as server:
        node = RasNode(server.port)
        source = NcclRas(Census(node), Settings())
        server.answer = status([rank(0, 5, pid=7), rank(1, 5, os.getpid() - 1)])
        for _ in range(40):
            assert page(source) == ""
            node.stepped.now += 10
    assert server.asked == 2


def test_where_no_ras_listens_nothing_is_told_and_nothing_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert page(NcclRas(Census(RasNode(port)), Settings())) == ""
    switched_off = RasNode(port, {"NCCL_RAS_ENABLE": "0", "NCCL_RAS_ADDR": "192.0.2.1:1"})
    assert page(NcclRas(Census(switched_off), Settings())) == ""


def test_a_namespace_that_may_not_be_entered_is_counted_and_fails_nothing() -> None:
    class Closed(RasNode):
        def ask(self, pid: int, address: str, request: str) -> str:
            raise PermissionError(f"{pid} {address} {request}")

    found = page(NcclRas(Census(Closed(0)), Settings()))
    assert 'gpunode_nccl_ras_unanswered{reason="no_permission"} 1.0' in found


@with_each(["nonsense", "127.0.0.1:http", "127.0.0.1:99999999"])
def test_an_address_without_sense_is_a_failed_read(address: str) -> None:
    with pytest.raises(OSError, match=address):
        NcclRas(Census(RasNode(0, {"NCCL_RAS_ADDR": address})), Settings()).read()


NO_UNICODE = '{"communicators": [{"hash": "\\ud800", "size": 1}]}'
"""A name that no exposition can hold, as it would not be UTF-8."""


@with_each(["", "garbage", "{", '{"a": 1}', '{"communicators": 3}', '{"a":' * 9999, NO_UNICODE])
def test_garbage_is_a_failed_read(answer: str) -> None:
    with ras_server() as server:
        server.answer = "SERVER PROTOCOL 2\n" + answer
        with pytest.raises(ValueError, match=r"."):
            NcclRas(Census(RasNode(server.port)), Settings()).read()


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_server_that_takes_too_long_is_left(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpunode.helper.tcp, "DEADLINE", 0.2)
    with ras_server() as server:
        setattr(server, how, True)
        with pytest.raises(TimeoutError):
            NcclRas(Census(RasNode(server.port)), Settings()).read()


def test_a_service_that_has_answered_is_asked_again_at_once() -> None:
    """All ranks listen at one port, and the kernel may have chosen one that is stopped."""

    class Mute(RasNode):
        asked = 0

        def ask(self, *_: object) -> str:
            self.asked += 1
            if self.asked == 1:
                return status([rank(0, 5, os.getpid())])
            self.stepped.now += 8
            raise TimeoutError

    node = Mute(0)
    source = NcclRas(Census(node), Settings())
    asked = []
    for _ in range(4):
        with contextlib.suppress(TimeoutError):
            source.read()
        asked.append(node.asked)
        node.stepped.now += 10
    assert asked == [1, 2, 3, 3], "then it is left alone"


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpunode.helper.tcp, "MAX_ANSWER_BYTES", 1000)
    with ras_server() as server:
        server.answer = "x" * 100_000
        with pytest.raises(OSError, match="Message too long"):
            NcclRas(Census(RasNode(server.port)), Settings()).read()


OWN_PID = 77
"""The id of the process that writes a log, in its own PID namespace."""


def recorded(name: str, pid: int = OWN_PID) -> str:
    """A log that H200s wrote, as of the process with this id."""
    return re.sub(r"^vm:\d+", f"vm:{pid}", (LOGS / f"{name}.log").read_text(), flags=re.M)


class LogNode(LocalNode):
    """A node on which process 7 was started with a debug file."""

    def environment(self, pid: int) -> dict[str, str]:
        return {"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p.log"} if pid == 7 else {}


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    (tmp_path / "proc/7/root/etc").mkdir(parents=True)
    (tmp_path / "proc/7/root/tmp").mkdir()
    begin(tmp_path, 7)
    (tmp_path / "proc/7/status").write_text(f"Name:\tpython\nNSpid:\t7\t{OWN_PID}\n")
    says_who(tmp_path / "proc/7")
    (tmp_path / "proc/7/root/etc/hostname").write_text("pod-0\n")
    return tmp_path / f"proc/7/root/tmp/nccl.pod-0.{OWN_PID}.log"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h200x2", 'transport="P2P/CUMEM",uuid="GPU-aa"} 24.0'),
        ("h200x2_p2p_disabled", '"SHM",uuid="GPU-aa"} 4.0'),
    ],
)
def test_the_logs_of_h200s_tell_their_transports(
    name: str, expected: str, log_file: Path, tmp_path: Path
) -> None:
    log_file.write_text(recorded(name))
    source = NcclLogs(Census(LogNode(tmp_path)), MachineGpu(0, "GPU-aa", "0", (7, 8)), Settings())
    found = page(source)
    assert expected in found
    assert 'network="Socket",nodes="1",rank="0",ranks="2"' in found
    assert 'version="2.28.9"' in found
    assert 'topology="nvls",uuid="GPU-aa"} 0.0' in found


def test_a_log_is_followed_and_each_warning_counted_once(log_file: Path, tmp_path: Path) -> None:
    log_file.write_text(recorded("h200x2"))
    source = NcclLogs(Census(LogNode(tmp_path)), MachineGpu(0, "GPU-aa", "0", (7,)), Settings())
    assert 'gpunode_nccl_warnings_total{gpu="0",uuid="GPU-aa"} 0.0' in page(source)
    with log_file.open("a") as log:
        log.write(
            f"\npod-0:{OWN_PID}:1 [0] misc/shmutils.cc:87 NCCL WARN failed to extend /dev/shm\n"
        )
    assert 'gpunode_nccl_warnings_total{gpu="0",uuid="GPU-aa"} 1.0' in page(source)
    assert 'gpunode_nccl_warnings_total{gpu="0",uuid="GPU-aa"} 1.0' in page(source)


SPLIT = "rank 1 nranks 4 cudaDev 1 nvmlDev 1 busId 3b000 parent 0x55a0"
VIA_NET = "Channel 00/0 : 3[3b000] -> 4[86000] [send] via NET/AWS Libfabric/0"
FORMS: dict[str, list[str]] = {each["version"]: each["lines"] for each in load("nccl")["forms"]}


def logged(*lines: str) -> DebugLog:
    log = DebugLog("/nccl.log", OWN_PID)
    log.add(lines_of("\n".join([*lines, ""]).encode(), 0, log.line).kept)
    return log


def informed(*lines: str, gpu: int = 1, time: str = "") -> list[str]:
    """The lines as the log has them, from a GPU of the process."""
    return [f"{time}node-1:{OWN_PID}:{81 + gpu} [{gpu}] NCCL INFO {line}" for line in lines]


@with_each(product(FORMS, ["", "[2026-11-22 09:00:00] ", "[09:00:00.123]", "Sun 09:00:00 "]))
def test_every_version_tells_its_communicators(form: str, time: str) -> None:
    lines = ["NCCL version 2.18.6+cuda12.2", "Using network AWS Libfabric", *FORMS[form]]
    log = logged(*informed(*lines, time=time))
    (found,) = log.communicators
    named = "0x55a0" if form == "2.12" else "abc"
    assert (found.id, found.rank, found.ranks, found.bus) == (named, "3", "8", 0x3B000)
    assert found.transports == {"NET/AWS": 1}
    nvls = {} if form in ("2.12", "2.16") else {"nvls": 0.0}
    assert found.topologies == {"ring": 16.0, "tree": 2.0, **nvls}
    assert (log.version, log.network) == ("2.18.6", "AWS Libfabric")


@with_each(FORMS)
def test_the_next_communicator_takes_nothing_from_the_one_before(form: str) -> None:
    """Also where its lines come before its name."""
    second = [
        line.replace("0x55a0", "0x99e0")
        .replace("0xabc", "0xdef")
        .replace("via NET/AWS Libfabric/0", "via P2P/IPC")
        for line in FORMS[form]
    ]
    log = logged(*informed(*FORMS[form], *second))
    first, last = log.communicators
    assert (first.transports, last.transports) == ({"NET/AWS": 1}, {"P2P/IPC": 1})
    assert first.id != last.id


@pytest.mark.parametrize("form", ["2.22", "2.29"])
def test_a_communicator_that_is_used_late_has_its_own_channels(form: str) -> None:
    """As of groups that a program makes first, all of them, and then uses."""
    child = f"ncclCommSplit comm 0x77b0 {SPLIT} splitCount 1 color 2 key 0 - Init"
    made = [line for line in FORMS[form] if "Init" in line]
    of_the_first = [
        VIA_NET,
        "Channel 00/0 : 7[7] -> 3[3] [receive] via NET/IB/0/GDRDMA",
        "CollNet 00/0 : 3 [send] via COLLNET/SHARP/0",
    ]
    of_the_second = ["Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM"]
    of_another = ["Channel 00/0 : 5[5] -> 6[6] via SHM/direct/direct"]
    lines = [*made, f"{child} START", f"{child} COMPLETE"]
    log = logged(*informed(*lines, *of_the_first, *of_the_second, *of_another))
    first, second = log.communicators
    assert first.transports == {"NET/AWS": 1, "NET/IB/GDRDMA": 1, "COLLNET": 1}
    assert second.transports == {"P2P/CUMEM": 1}


@pytest.mark.parametrize("form", FORMS)
def test_a_process_with_several_gpus_is_a_rank_on_each(
    form: str, log_file: Path, tmp_path: Path
) -> None:
    """Its threads write one log, a line of each in turn."""
    ranks = [
        informed(
            *(
                line.replace("0x55a0", f"0x55a{gpu}")
                .replace("rank 3 ", f"rank {gpu} ")
                .replace(" : 3[", f" : {gpu}[")
                .replace("cudaDev 1", f"cudaDev {gpu}")
                .replace("busId 3b000", f"busId {gpu + 1}b000")
                .replace(
                    "via NET/AWS Libfabric/0", "via SHM/direct/direct" if gpu else "via P2P/IPC"
                )
                for line in FORMS[form]
            ),
            gpu=gpu,
        )
        for gpu in range(4)
    ]
    log_file.write_text(
        "\n".join(line for turn in zip(*ranks, strict=True) for line in turn) + "\n"
    )
    for gpu in range(4):
        sensors = MachineGpu(gpu, f"GPU-{gpu}", f"0000:{gpu + 1}b:00.0", (7,))
        found = page(NcclLogs(Census(LogNode(tmp_path)), sensors, Settings()))
        assert found.count("gpunode_nccl_communicator_info") == 1
        assert f'rank="{gpu}",ranks="8"' in found
        assert found.count("gpunode_nccl_channels") == 1
        assert f'transport="{"SHM" if gpu else "P2P/IPC"}",uuid="GPU-{gpu}"}} 1.0' in found


def test_a_log_that_begins_anew_adds_nothing_to_what_it_told() -> None:
    log = logged(*informed(*FORMS["2.22"], *FORMS["2.22"]))
    (found,) = log.communicators
    assert found.transports == {"NET/AWS": 1}


def test_a_process_on_the_gpu_of_another_rank_is_no_rank_there(
    log_file: Path, tmp_path: Path
) -> None:
    """As of a program that allocates a little on GPU 0 before it chooses its own."""
    log_file.write_text("\n".join(informed(*FORMS["2.22"])) + "\n")
    sensors = MachineGpu(0, "GPU-aa", "0000:1b:00.0", (7,))
    found = page(NcclLogs(Census(LogNode(tmp_path)), sensors, Settings()))
    assert "gpunode_nccl_communicator_info" not in found


@with_each(
    [
        ":77:81 [1] transport/net_socket.cc:412",
        "node-1:77:81 [1] ofi_init_connection:912",
        "[2026-11-22 09:00:00] node-1:77:81 [1] int rx_done(efa_request_t*, fid_cq*, uint16_t):46",
        "node-1:77:81 [1] transport/net_socket.cc:412",
        "[2026-11-22 09:00:00] node-1:77:81 [-1] ras/client_support.cc:159",
        "[09:00:00.123]node-1:77:81 [0] /build/src/misc/socket.cc:9",
        "[2026-11-22 09:00:00] node-1:77:81 [3] transport/net_ib/p2p.cc:403 (ncclIbTest)",
        "[2026-11-22 09:00:00] node-1:77:81 [3] proxy.cc:9 (operator())",
    ]
)
def test_a_warning_is_counted_however_it_begins(before: str) -> None:
    assert (
        logged("", f"{before} NCCL WARN Call to bind failed: Address already in use").warnings == 1
    )


@with_each(
    [
        "NCCL WARN",
        "node-1: NCCL WARN",
        "[1] a.cc:1 NCCL WARN",
        "node-1:77:81 [1] NCCL INFO said a.cc:1 NCCL WARN",
        "node-1:78:81 [1] a.cc:1 NCCL WARN of another process",
    ]
)
def test_no_line_but_its_own_nccls_is_a_warning(line: str) -> None:
    assert logged(line).warnings == 0


def test_a_log_that_processes_share_tells_each_its_own_lines() -> None:
    """Of one node or several, named without ``%p``: all write to the same file."""
    others = [
        line.replace(f":{OWN_PID}:", ":1977:").replace("via NET/AWS Libfabric/0", "via P2P/IPC")
        for line in informed("Using network Socket", *FORMS["2.22"])
    ]
    own = informed("Using network gIB", *FORMS["2.22"])
    log = logged(*(line for pair in zip(own, others, strict=True) for line in pair))
    (found,) = log.communicators
    assert found.transports == {"NET/AWS": 1}
    assert log.network == "gIB"


@pytest.mark.parametrize("count", ["splitCount", "childCount"])
def test_what_a_communicator_is_split_into_is_one_of_its_own(count: str) -> None:
    child = f"ncclCommSplit comm 0x77b0 {SPLIT} {count} 1 color 2 key 0- Init START"
    log = logged(
        *informed(
            *FORMS["2.22"],
            child,
            "Channel 00/0 : 1[1] -> 2[2] via P2P/CUMEM",
            "Channel 01/0 : 1[1] -> 2[2] via P2P/CUMEM",
        )
    )
    found = {one.id: dict(one.transports) for one in log.communicators}
    assert found == {"abc": {"NET/AWS": 1}, "dcd4a20bd41b54dd": {"P2P/CUMEM": 2}}
    assert log.communicators[1].ranks == "4"


@pytest.mark.parametrize(
    ("child", "name"),
    [
        (f"{SPLIT} color 2 key -1 commId 0xdef - Init START", "def"),
        (f"{SPLIT} color 2 key 0- Init START", "abc.2"),
    ],
    ids=["2.21", "2.23"],
)
def test_a_split_communicator_has_a_name_in_every_version(child: str, name: str) -> None:
    log = logged(*informed(*FORMS["2.22"], f"ncclCommSplit comm 0x77b0 {child}"))
    assert [one.id for one in log.communicators] == ["abc", name]


@with_each(
    [
        (0xABC, 1, 2, "dcd4a20bd41b54dd"),
        (0x7C38BB8CFFD3FB51, 3, 1234567890, "6898bc2de2ea48b0"),
        (2**64 - 1, 1, -1, "8d9e006306975d6f"),
    ]
)
def test_a_child_is_called_as_ras_calls_it(parent: int, count: int, color: int, child: str) -> None:
    """As NCCL's own code in C answers."""
    assert child_hash(parent, count, color) == child
    log = logged(
        *informed(
            f"f comm 0x1 rank 0 nranks 4 busId 60 commId 0x{parent:x} - Init START",
            f"f comm 0x2 rank 0 nranks 2 busId 60 parent 0x1 splitCount {count} color {color} key 0"
            "- Init START",
        )
    )
    assert [one.id for one in log.communicators] == [f"{parent:x}", child]


def test_the_name_of_a_split_communicator_stays_short() -> None:
    lines = FORMS["2.22"][:1]
    for depth in range(40):
        parent, own = 0x55A0 + depth, 0x55A1 + depth
        lines.append(
            f"ncclCommSplit comm 0x{own:x} rank 1 nranks 4 cudaDev 1 busId 60 parent 0x{parent:x} "
            "color 1234567890 key 0 - Init START"
        )
    log = logged(*informed(*lines))
    assert len([one for one in log.communicators if one.bus == 0x60]) == 8
    assert max(len(one.id) for one in log.communicators) <= 64


@with_each(
    [
        ("P2P/CUMEM/read", "P2P/CUMEM"),
        ("P2P/MNNVL", "P2P/MNNVL"),
        ("P2P/IPC", "P2P/IPC"),
        ("P2P/direct pointer", "P2P/direct"),
        ("SHM/direct/direct", "SHM"),
        ("NET/IB/0", "NET/IB"),
        ("NET/IB/3(2)/GDRDMA(PCI)/Shared", "NET/IB/GDRDMA"),
        ("NET/AWS Libfabric/0", "NET/AWS"),
        ("NET/Socket/0", "NET/Socket"),
        ("NET/gIB/1/GDRDMA", "NET/gIB/GDRDMA"),
        ("NET/IBext_v10/3/GDRDMA(PCI)", "NET/IBext/GDRDMA"),
        ("COLLNET/SHARP/0", "COLLNET"),
        ("direct shared memory", "SHM"),
        ("a pigeon", "other"),
    ]
)
def test_a_transport_is_a_label_of_few_values(via: str, label: str) -> None:
    assert transport(via) == label


@as_root
def test_a_server_in_the_network_namespace_of_another_process_is_reached() -> None:
    """A real namespace, with a real server on its own loopback."""
    code = (
        "import socket,subprocess,sys\n"
        "subprocess.run(['ip','link','set','lo','up'],check=False)\n"
        "s=socket.create_server(('127.0.0.1',28028))\n"
        "print('ready',flush=True)\n"
        "c,_=s.accept(); c.recv(99); c.sendall(b'from inside'); c.close()\n"
    )
    child = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            pytest.skip("this machine does not allow network namespaces")
        try:
            answer = LocalNode(Path("/")).ask(child.pid, "localhost:28028", RAS)
        except OSError as error:
            pytest.skip(f"this machine does not allow it: {error}")
        assert answer == "from inside"
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
