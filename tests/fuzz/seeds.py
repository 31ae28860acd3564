"""Real files, and texts as other versions of the kernel, Lustre and NCCL write them."""

from __future__ import annotations

import gzip
import json
import struct

from h2.config import H2Configuration
from h2.connection import H2Connection

from gpunode.node.kubelet import podresources_pb2 as messages
from gpunode.node.kubelet import unary
from gpunode.recorded import INCIDENTS
from tests.machine import MACHINES
from tests.nccl.ras import rank, status

NCCL = MACHINES.with_name("nccl") / "recorded"
PAGES = MACHINES.with_name("corpus") / "engines"
HTTP = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n"
ENGINE_PAGES = tuple(HTTP + path.read_bytes() for path in sorted(PAGES.glob("*.txt")))
LONG_ENGINE_PAGE = (
    (HTTP + b"vllm:num_requests_running{", b'a="b",', b"} 1"),
    (HTTP + b"vllm:num_requests_running{", b"} ", b"1"),
    (HTTP + b'vllm:num_requests_running{model_name="', b"\\\\", b'"} 1'),
    (HTTP, b"vllm:num_requests_running 1\n", b""),
    (HTTP, b'vllm:time_to_first_token_seconds_bucket{le="1"} 1\n', b""),
    (HTTP, b"\n", b""),
    (HTTP, b"# TYPE ", b""),
    (b"HTTP/1.0 200 OK", b"\r\n", b""),
)
MAX_SEED_BYTES = 64 << 10
"""The most bytes of a file to begin with."""


def files(*patterns: str) -> tuple[bytes, ...]:
    """The different contents of the test machines' files of these names."""
    found = [
        path.read_bytes()
        for pattern in patterns
        for path in sorted(MACHINES.glob(f"*/*/{pattern}"))
        if path.is_file() and path.stat().st_size <= MAX_SEED_BYTES
    ]
    return tuple(dict.fromkeys(found))


KMSG = b"""\
6,1234,5678901,-;usb 1-1: new high-speed USB device number 2 using xhci_hcd
3,1235,5678902,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', GPU has fallen off the bus.
4,1236,5678903,c;NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 94, Contained error
4,1237,5678904,-,caller=T1;python3[4242]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so.6
 SUBSYSTEM=pci
 DEVICE=+pci:0000:1b:00.0
4,1238,5678905,-;Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB
3,1239,5678906,-;INFO: task python3:4242 blocked for more than 120 seconds.
3,1240,5678907,-;LustreError: 167-0: a-MDT0000-mdc-ffff: This client was evicted by a-MDT0000
3,1241,5678908,-;nfs: server filer not responding, still trying
30,1242,5678909,-;systemd[1]: Started Session 3 of User alice.
2,1243,5678910,-;EXT4-fs (nvme0n1p1): Remounting filesystem read-only
4,1244,5678911,-;mlx5_core 0000:3b:00.0 ens1: Link down
4,1245,5678912,-;pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0
4,1246,5678913,-;nvidia-nvswitch3: SXid (PCI:0000:c5:00.0): 12028, Non-fatal, Link 44
"""
SYSLOG = b"""\
Nov  1 12:00:00 node1 kernel: [  123.456789] NVRM: Xid (PCI:0000:1b:00): 31, pid=4242, Ch 00000010
2026-11-01T12:00:00.123456+00:00 node1 kernel: [12345.678901] mce: [Hardware Error]: Machine check
2026-11-01T12:00:00Z node1 kernel: watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]
Nov 11 12:00:00 node1 alice: NVRM: Xid (PCI:0000:1b:00): 79, forged
"""

MOUNTSTATS = b"""\
device rootfs mounted on / with fstype rootfs
device filer:/home mounted on /home with fstype nfs statvers=1.0
\topts:\trw,vers=3,rsize=8192
\tbytes:\t1 2 0 0 5000000 0 0 0
\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)
\txprt:\ttcp 0 1 2 3 4 5 6 7 8 9 10
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0
\t        READ: 5000 5001 2 1 1 5 60000 60050
\t       WRITE: 10 10 0 1 1 5 6 7
"""

LUSTRE_2_15 = b"""\
snapshot_time             1700000000.123456789 secs.nsecs
start_time                1699000000.123456789 secs.nsecs
elapsed_time              1000000.000000000 secs.nsecs
read_bytes                299768458 samples [bytes] 0 4194304 6895163247966 123456789012345678901
write_bytes               10208130 samples [bytes] 1 4194304 10917616761706 43663
read                      120 samples [usec] 1 90 1234 5678
open                      5 samples [usecs] 1 9 20 90
inode_permission          77 samples [usec] 0 3 40 60
"""
LUSTRE_2_10 = b"""\
snapshot_time             1637627183.394337 secs.usecs
dirty_pages_hits          12 samples [regs]
read_bytes                7 samples [bytes] 4096 1048576 1234567
open                      5 samples [regs]
close                     5 samples [regs]
"""

CGROUPS = (
    b"0::/kubepods/burstable/pod6f1b7c1e-3a44-4f0e-9a55-1f2f6f0b7a11/" + b"3f" * 32 + b"\n",
    b"0::/system.slice/containerd.service/kubepods-pod6f1b7c1e_3a44_4f0e_9a55_1f2f6f0b7a11.slice"
    b":cri-containerd:" + b"3f" * 32 + b"\n",
    b"11:memory:/docker/" + b"a0" * 32 + b"\n5:cpu,cpuacct:/docker/" + b"a0" * 32 + b"\n0::/\n",
    b"0::/machine.slice/libpod-" + b"a0" * 32 + b".scope/container\n",
    b"0::/../../kubepods-pod6f1b7c1e_3a44_4f0e_9a55_1f2f6f0b7a11.slice/crio-"
    + b"0b" * 32
    + b".scope\n",
    b"12:cpuset:/slurm/uid_2002/job_17/step_batch\n",
    b"0::/hpc.slice/n1_slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0\n",
    b"0::/kubepods/pod6f1b7c1e-3a44-4f0e-9a55-1f2f6f0b7a11/system.slice/slurmstepd.scope/job_7\n",
)
SLUID = "s5K1KKYAYG5D00"
SLURMSTEPD = f"0::/system.slice/slurmstepd.scope/{SLUID}/step_batch/slurm\n"
SLURM = (
    b"slurmstepd: [4301.batch]\0",
    b"slurmstepd: [4301.0+1 stepmgr]\0",
    b"901\n903\n0\n",
    b"populated 1\nfrozen 0\n",
    b"Name:\tslurmstepd\nUid:\t0\t0\t0\t0\n",
    b"SLURM_JOB_UID=1000\nSLURM_JOB_GPUS=0,1\nCUDA_VISIBLE_DEVICES=GPU-aa,MIG-bb\n"
    b"SLURM_JOB_END_TIME=1795000000\n",
    b"SLURM_JOB_ID=7\0SLURM_JOB_GPUS=0\0CUDA_VISIBLE_DEVICES=0\0",
    b"SLURM_JOB_ID=4301\0SLURM_STEP_GPUS=0,1\0",
    SLURMSTEPD.encode(),
)

CGROUP_FILES = (
    b"usage_usec 5\nnr_periods 3\nnr_throttled 1\nthrottled_usec 7\n",
    b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 total=3\n",
    b"max\n",
    b"9223372036854771712\n",
    b"oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
)

DATAGRAM = json.dumps(
    {
        "v": 1,
        "phase": "step",
        "phases": {"step": 3.0, "data": 0.5},
        "step": 1042,
        "collected": 0.25,
        "collecting": 8.5,
        "steps": {"counts": [1, 2], "sum": 3.0},
        "median": 1.0,
        "since_step": 0.5,
        "tokens": 8192,
        "flops": 1e15,
        "loss_finite": True,
        "memory": {"reserved": 5, "allocated": 4, "retries": 2, "ooms": 1},
        "kernels": {"sm90_xmma_gemm": 1.0},
        "requests": {"counts": [3], "sum": 0.01, "items": 5},
        "where": [["step", "/home/a/train.py", 88], ["<module>", "/home/a/train.py", 99]],
    }
).encode()
OLD_DATAGRAM = b'{"v": 1, "steps": {"counts": [1], "sum": 0.1}}'

PROGRAMS = (
    b"/usr/bin/python3\0-u\0-m\0torch.distributed.run\0train.py\0",
    b"python\0-X\0dev\0-Werror\0/a/train/__main__.py\0--token\0hush\0",
    b"VLLM::EngineCore\0\0\0",
    b"gunicorn: worker [app:api]\0",
    b"/usr/local/cuda/bin/ptxas\0-o\0/tmp/x.cubin\0",
)

DEVICES = f"Inter-|\n face |\n  eth0: {'1 ' * 16}\n"
STAT = f"{4242} (python3) D 1 {'5 ' * 40}\n"

SOCKETS = b"""\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:07E8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1574 1
   1: 0100007F:A237 0100007F:BFC0 06 00000000:00000000 03:00000C3D 00000000     0        0 0 3
"""
UNIX_SOCKETS = b"""\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00000000 0002 01 31415 @tmp/nccl-socket-1-ec5917e5bbc94fbd@@@@
0000000000000000: 00000003 00000000 00000000 0001 03 27182
0000000000000000: 00000002 00000000 00010000 0001 01 16180 /run/systemd/private
"""
FIB_TRIE = b"""\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 192.0.2.2
        /32 host LOCAL
"""
IF_INET6 = b"""\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000042acfffe110002 02 40 20 80     eth0
"""

RAS_JSON = (
    (NCCL / "h200x2_hang_ras_json.txt").read_bytes(),
    (NCCL / "h200x2_unresponsive_ras_json.txt").read_bytes(),
    status([rank(0, 5), rank(1, 4)]).encode(),
    status(
        [rank(0, 5)],
        [
            {**rank(1, 0), "status": {"unresponsive": True, "considered_dead": True}},
            {**rank(2, 0), "status": {"unresponsive": True}},
        ],
    ).encode(),
)
RAS_TEXT = (
    (NCCL / "h200x2_hang_ras.txt").read_bytes(),
    b"""\
NCCL version 2.24.3 compiled with CUDA 12.8
Job summary
===========

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         2         2       2-3         4         8   RUNNING  INCOMPLETE,MISMATCH

Errors
======

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.210 managing GPUs 3
  Rank 5 -- GPU 5 managed by process 3487984 on node 172.16.64.210

Warnings
========

#0-1 (27a079b828ff1a76) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 6650
  Rank 3 has launched up to operation 6 -- GPU 3 (NVML 7) managed by process 9 on node fd00::1
  1 ranks have not launched any operations
  Rank 4 has not launched any operations -- GPU 4 managed by process 100 on node 172.16.64.211
""",
    b"NCCL version 2.27.3\n\nNo communicator data collected!\n",
)

NCCL_PID = 12
NCCL_LOGS = (
    *(
        (NCCL / name).read_bytes().replace(b"vm:%d:" % pid, b"vm:%d:" % NCCL_PID)
        for name, pid in (("h200x2.log", 749), ("h200x2_p2p_disabled.log", 785))
    ),
    b"""\
node1:12:12 [0] NCCL INFO NCCL version 2.18.5+cuda12.2
node1:12:40 [0] NCCL INFO Using network AWS Libfabric
node1:12:40 [0] NCCL INFO comm 0x5 rank 0 nranks 16 cudaDev 0 busId 60 commId 0xabc1 - Init START
n:12:40 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 16 busId 60 commId 0xa - Init START
node1:12:40 [0] NCCL INFO comm 0x55d0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
node1:12:40 [0] NCCL INFO Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IBext/0/GDRDMA
node1:12:40 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
node1:12:40 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/1/GDRDMA(PCI)
node1:12:40 [0] NCCL INFO Trees [0] 1/8/-1->0->-1 [1] 1/-1/-1->0->8
node1:12:40 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels
node1:12:40 [0] NCCL INFO Connected all rings
node1:12:40 [0] NCCL INFO Connected all trees
node1:12:99 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer
node1:12:99 [0] NCCL WARN Cuda failure 'out of memory'
""",
)

INSPECTOR_LOGS = tuple(
    (NCCL / f"inspector_{name}.jsonl").read_bytes()
    for name in ("2.28.9", "2.30.7", "2.30.7_verbose", "published")
)
LONG_INSPECTOR_LOG = (
    (b"", b'"coll_perf":{"coll":"AllReduce","coll_sn":1', b""),
    (b"", b'"nnodes":1,"dump_timestamp_us":', b""),
)

RULES_OF_A_SITE = (
    b"groups:\n  - name: mine\n    rules:\n      - {record: a:b:c, expr: up}\n",
    b'groups: [{name: x, rules: [{alert: A, expr: \'sum by (a) (rate(b{c="d"}[5m])) > on (a) '
    b"group_left () (e) and on (a, b) f unless g or h', for: 1m, labels: {severity: page}}]}]\n",
)

BILLING = (
    b"currency: EUR\nprice: 2.5\nprices: {NVIDIA H200: 3.1, NVIDIA H100*: 2.2}\n",
    b"from: bills@example.com\nteams:\n  vision: {namespaces: [vision-*], mail: [a@b.org]}\n"
    b"  ml: {users: [kim], accounts: [ml*]}\n",
)
SACCT = (
    b"JobIDRaw|Account|Submit|Eligible|Start\n"
    b"77|ml|2026-08-14T20:00:00|2026-08-14T22:00:00|2026-08-15T00:00:00\n"
    b"77.batch|ml|1786752000|1786752000|1786755600\n78|bio|2026-08-16T00:00:00|Unknown|None\n",
)

BASELINE = (
    b'{"sections": [{"name": "changes", "tables": [{"name": "pace", "columns": [{"name": "user"}, '
    b'{"name": "cluster"}, {"name": "owner_namespace"}, {"name": "workload"}, {"name": "step"}, '
    b'{"name": "useful"}], "rows": [["", "", "ml", "llm", 1.5, 0.6], ["kim", "a", "", "x", 2, null]'
    b"]}]}]}",
)

SETTINGS = (
    b"gpu:\n  interval: 1.0\nweb:\n  listen_address: 127.0.0.1:9816\nlog: {level: debug}\n",
    b"host: &a\n  interval: 10\n  slow_interval: 60.5\nclient:\n  socket: ''\ncompat: dcgm\n",
    b"kubernetes:\n  pod_resources_socket: /var/lib/kubelet/pod-resources/kubelet.sock\n",
    b"path:\n  rootfs: /\ndiscovery:\n  interval: 0x10\n---\n",
    b"<<: {compat: none}\n? [a]\n: !!python/object:os.system {}\n",
)


HASHED = b"$2b$04$" + b"." * 53
WEB_FILES = (
    b"tls_server_config:\n  cert: a\n  key: b\n  client_auth_type: RequireAndVerifyClientCert\n",
    b"tls_server_config: {cert_file: a, key_file: b, cipher_suites: [TLS_AES_128_GCM_SHA256]}\n",
    b"tls_server_config:\n  min_version: TLS13\n  client_allowed_sans:\n    - a\n",
    b"basic_auth_users:\n  alice: " + HASHED + b"\n  bob: ''\n",
    b"http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n",
)


def grpc() -> tuple[bytes, ...]:
    """Answers of servers of gRPC: a message, an error, and one in many frames."""
    answers = []
    for code, parts in (("0", (b"\0\0\0\0\2ab",)), ("8", ()), ("0", (b"\0\0\0", b"\0\0"))):
        server = H2Connection(H2Configuration(client_side=False))
        server.initiate_connection()
        server.receive_data(unary.UnaryCall("/a/B", b"", 100, 5.0).to_send())
        server.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
        for part in parts:
            server.send_data(1, part)
        trailers = [("grpc-status", code), ("grpc-message", "not%20now")]
        server.send_headers(1, trailers, end_stream=True)
        answers.append(server.data_to_send())
    return tuple(answers)


def kubelet() -> tuple[bytes, ...]:
    """Answers of a kubelet with devices, shared devices, MIG instances and claims."""
    answer = messages.ListPodResourcesResponse()
    for at, device in enumerate(("GPU-aa", "GPU-aa::3", "MIG-bb", "nvidia0/gi7", "nvidia1")):
        pod = answer.pod_resources.add(name=f"trainer-{at}", namespace="research")
        held = pod.containers.add(name="main")
        held.devices.add(resource_name="nvidia.com/gpu", device_ids=[device, "GPU-cc"])
    pod = answer.pod_resources.add(name="claimer", namespace="research")
    claim = pod.containers.add(name="main").dynamic_resources.add(claim_name="claim")
    claim.claim_resources.add(driver_name="gpu.nvidia.com", device_name="gpu-0")
    return answer.SerializeToString(), b""


def tape() -> tuple[bytes, ...]:
    """The beginning of recordings, not compressed."""
    whole = [
        gzip.decompress((INCIDENTS / f"{name}.jsonl.gz").read_bytes())
        for name in ("straggler", "h200_four_phases")
    ]
    return tuple(b"\n".join(lines.split(b"\n")[:n]) + b"\n" for lines in whole for n in (3, 60))


ACCEPTS = (
    b"application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1"
    b";q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2"
    b",*/*;q=0.1",
    b"text/plain",
    b"application/openmetrics-text; version=1.0.0; charset=utf-8",
    b"",
)
BENCH = (
    *((NCCL / name).read_bytes() for name in ("all_reduce_perf.txt", "all_reduce_perf.json")),
    b'{"collective": "all_reduce", "gpus": 8, "model": "NVIDIA H200", "time": 1.7e9,'
    b' "bandwidth": {"8388608": 1e11, "1073741824": 4.7e11}}',
    b'{"fabric": {"hosts": ["a", "b", "c"], "gpus": 6, "model": "NVIDIA H200", "time": 1.7e9,'
    b' "collectives": {"all_reduce": {"8388608": 1e11}}, "message": 8388608,'
    b' "exchanges": [[0, 1, 0, 4.8e10], [1, 0, 1, 1e10], [2, 0, 0, 4.7e10], [0, 2, 1, 1e9]],'
    b' "expected": {"sendrecv": 5e10}}}',
)

LONG_JSON = (
    (b'{"communicators": [', b'{"hash": "0x1", "ranks": []},', b"]}"),
    (b'{"communicators": [{"hash": "0x1", "ranks": [', b'{"rank": 1, "pid": 1},', b"]}]}"),
    (b'{"communicators": [{"hash": "0x1", "missing_ranks": [', b"{},", b"]}]}"),
    (b'{"other": [', b"[[[[[]]]]],", b'], "communicators": []}'),
    (b'{"other": "', b"\\\\u0041", b'", "communicators": []}'),
    (b"", b"\n{", b""),
)
LONG_TEXT = (
    (b"Group  Comms\n", b"#0-0 (1) MISMATCH\n#0-0 (2) MISMATCH\n", b""),
    (
        b"Group  Comms\n#0-0 (1) INCOMPLETE\n",
        b"  Rank 1 -- GPU 1 managed by process 1 on node ::1\n",
        b"",
    ),
    (b"Group", b" ", b"Comms"),
    (b"", b"Group ", b""),
)
LONG_NCCL_LOG = (
    (b"x:1:1 [0] NCCL INFO Trees [", b"1", b"\n"),
    (b"x:1:1 [0] NCCL INFO Channel 0 : 1[1] -> 1[1] via A", b" ", b"\n"),
    (b"x:1:1 [0] NCCL INFO NCCL version ", b"1.", b"\n"),
)
LONG_KERNEL_LOG = tuple(
    (b"3,1,2,-;NVRM: Xid (PCI:0000:1b:00): ", part, b"\n")
    for part in (b";", b"NVRM: ", b"0000:1b:00.0 ", b"nvme0: (1) [", b"9,")
)
LONG_DATAGRAM = (
    (b'{"v":1,"tokens":', b"9", b"}"),
    (b'{"v":1,"tokens":0.', b"1", b"}"),
    (b'{"v":1,"kernels":{"a":[]', b',"b":[]', b"}}"),
    (b'{"v":1,"steps":{"counts":[', b"1,", b"1]}}"),
    (b"{", b'"v":1,', b'"v":1}'),
)
LONG_YAML = (
    (b"a: [", b"&a x, *a, ", b"]"),
    (b"a: &a {b: c}\nd:\n  <<: [", b"*a, ", b"]\n"),
    (b"web: ", b"? ", b""),
    (b"", b"a: 1\n", b""),
    (b"a: '", b"''", b"'"),
    (b'a: "', b"\\x41", b'"'),
    (b"a: |\n", b"  b\n", b""),
    (b"", b"# x\n", b""),
)
LONG_TAPE = (
    (
        b'{"gpunode_tape": 1, "time": 1.0}\n',
        b'{"t": 1, "of": "/proc/stat", "call": "read_text", "answer": "cpu"}\n',
        b"",
    ),
    (b'{"gpunode_tape": 1, "time": 1.0}\n', b'{"t": 1, "of": "", "call": "x"}\n', b""),
    (
        b'{"gpunode_tape": 1, "time": 1.0}\n{"t": 1, "of": "x", "call": "power_samples", '
        b'"answer": {"samples": [',
        b"[1, 1.0], ",
        b"[1, 1.0]]}}\n",
    ),
)
LONG_PROTOCOL = ((b"", b"\x0a\x00", b""), (b"", b"\x0a\x02\x1a\x00", b""))
"""Pods, and pods with one container, of which each field is missing."""
LONG_AUDIT = ((b"", b"[a", b""), (b"1: ", b"mlx5_", b""), (b"", b"[always] ", b""))
LONG_MAPS = (
    (b"", b"7f00-7f01 r-xp 00000000 00:9b 22  /a/libnccl.so.2\n", b""),
    (b"7f00-7f01 r-xp 00000000 00:9b 22  ", b"/torch/lib", b"/libtorch_cuda.so\n"),
    (b"", b"a ", b""),
)
CONTAINERS = (
    b'{"annotations": {"io.kubernetes.cri-o.ImageName": "quay.io/team/train:1.4", '
    b'"io.kubernetes.cri-o.ImageRef": "' + 32 * b"a7" + b'"}, "process": {"env": ["A=b"]}}',
    b'{"ID": "' + 32 * b"3f" + b'", "Image": "sha256:' + 32 * b"b8" + b'", '
    b'"Config": {"Image": "nvcr.io/nvidia/pytorch:25.10-py3", "Env": ["A=b"]}}',
)

ROUND_TRIPS = (
    struct.pack("=IHHII", 16 + 72 + 4 + 72, 20, 2, 0, 0)
    + struct.pack("=4B2H16s16s32x", 2, 1, 0, 0, 1, 2, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
    + struct.pack("=HH68xI", 4 + 72, 2, 187)
    + struct.pack("=IHHIIi", 20, 3, 2, 0, 0, 0)
)
"""What sock_diag says of a connection with a round trip of 187 µs."""

FAULTS = (
    rb"""{"faults": [{"where": ["1", "GPU-1", "gpu", "0000:2b:00.0"], "respect": "xid_79",
"reason": "xid_79", "severity": "page", "start": 1700000058.0, "clears": 0.0, "ends": null,
"event": true, "energy": 5e6, "advised": false, "used": true}],
"repaired": [[["GPU-2", "gpu", "0000:3b:00.0", "xid_95"], 1700000000.0]],
"well": [["", "", "network", "mlx5_0/1"]], "on_bus": {"0000:2b:00.0": ["1", "GPU-1"]}}""",
)
INCIDENT = rb"""{"brief": {"id": "20261125T204022Z-stall-0", "kind": "stall", "node": "gpu-17",
"began": 1795639222.0, "over": null, "complete": false, "title": "GPU 0 hangs", "where": "",
"gpus": ["0", "1"], "owners": ["research/llama-0"], "tape_bytes": 10}, "version": "0.1.0",
"remedy": "Continue it.", "evidence": [{"series": "s{gpu=\"0\"}", "value": 46.0, "threshold": 6.0,
"meaning": "seconds"}], "waits": [{"at": ["1", "GPU-1"], "reason": "stopped", "where": ""}],
"moments": [{"time": 1795639222.0, "what": "kernel", "text": "NVRM: Xid 31", "gpus": ["0"]}],
"looks": [{"at": ["1", "GPU-1"], "pid": 7, "start": 5.0, "rank": "1", "owner": "", "waits": false,
"time": 1795639232.0, "stacks": {"pid": 7, "threads": [{"thread": 7, "name": "python3",
"state": "S", "waits_in": "futex_do_wait", "kernel": ["futex_do_wait"], "frames": [{"function": "f",
"file": "/a/train.py", "line": 7}], "holds_gil": true}], "all_threads": 70,
"without_python": ""}}], "processes": [{"gpu": "1", "pid": 7, "start": 5.0, "rank": "1",
"owner": "", "seen": 1795639200.0, "gone": 1795639900.0, "end": "it ended"}], "figures":
[{"column": "io", "name": "I/O pressure", "value": 0.5, "unit": "ratio", "of": null, "limit": 0.2,
"short": true, "what": "", "remedy": ""}], "times": [1795639212.0, 1795639222.0], "history": [{
"gpu": "0", "uuid": "GPU-0", "states": {"blocked": [null, 1.0]}, "power_watts": [126.0, null],
"memory_used_bytes": [1.0, 1.0], "cause": [null, "stalled_collective"]}], "left_out": 1}"""

GDB = (MACHINES.with_name("node") / "recorded/gdb.txt").read_bytes()

PY_SPY = json.dumps(
    [
        {
            "pid": 7,
            "thread_id": 140356588111552,
            "thread_name": "MainThread",
            "os_thread_id": 7,
            "active": False,
            "owns_gil": False,
            "frames": [
                {
                    "name": name,
                    "filename": f"/opt/venv/lib/python3.12/{file}",
                    "module": None,
                    "short_filename": file,
                    "line": 335,
                    "locals": None,
                    "is_entry": False,
                    "is_shim_entry": False,
                }
                for name, file in (
                    ("Condition.wait", "threading.py"),
                    ("all_reduce", "site-packages/torch/distributed/distributed_c10d.py"),
                )
            ],
            "process_info": None,
        },
        {"thread_name": None, "os_thread_id": None, "owns_gil": True, "frames": []},
    ]
).encode()
