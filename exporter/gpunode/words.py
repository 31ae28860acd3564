"""The words for people: each state, cause, reason and fault once, by its raw name.

The node page, ``gpunode top``, boards, alerts, the report, ``gpunode why`` and MCP all say these.
Of what a board or an alert shows, the headline has the words of the raw name in it: alerts can but
turn its ``_`` into spaces, and a reader finds one in the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of one thing; ``PID`` stands for the process on the GPU."""

    headline: str
    """Names it: a cell of a table, a legend, the row of a strip."""

    sentence: str
    """Says what it is: of a cause it goes on after "GPU 3 is"."""

    yourself: str = ""
    """What to do now, as far as the owner of the job can do it without root."""

    operator: str = ""
    """What to do now that takes the operator of the node or of a server: what to ask for."""

    for_good: str = ""
    """What who decides about the fleet can do, so that it does not come again."""

    @property
    def do(self) -> str:
        """All that is to be done now, for who is on call."""
        return f"{self.yourself} {self.operator}".strip()


STACKS = "`gpunode stacks --pid PID`"
NOTHING_YET = "Nothing, if it ends by itself."
NO_REQUEST = "Nothing is broken. If this goes on for hours, ask the owner to give the GPU back."
DISK_OR_SERVER = (
    "Look for a disk or file server that does not answer, under I/O. The job goes on when it does."
)

STATES: dict[str, Words] = {
    "compute": Words("compute", "the job's own kernels, whatever limits them"),
    "communication": Words("communication", "moving data between GPUs or nodes"),
    "blocked": Words("blocked by a late peer", "a resident kernel spinning while a peer is late"),
    "copy": Words("copy", "copies between host and device while no kernel runs"),
    "starved": Words(
        "starved: nothing to run",
        "no kernel runs, although a running job holds the GPU",
        for_good="Profile the data loader and what else runs between steps.",
    ),
    "idle": Words(
        "idle: held, not used",
        "a job holds the GPU and has run nothing for a while",
        for_good="End the job when it is done; set an idle time-out for notebooks.",
    ),
    "free": Words("free", "no process on the GPU, and no job that is known to have it"),
    "unknown": Words(
        "unknown to the sensors",
        "the sensors cannot tell",
        for_good="Give the exporter its sensors back: nobody knows what these hours went to.",
    ),
}
"""By state of the ledger; the sentence says what the time went to."""

CAUSES: dict[str, Words] = {
    "none": Words("at work", "at work"),
    "data_loading": Words(
        "data loading: unseen reason",
        "starved: the training waits for data, and nothing on this node is at its limit",
        f"See what the loader waits for: {STACKS}. Often it is a remote service.",
        for_good="Profile the data loader: it waits for something beyond the node.",
    ),
    "data_loading_cpu": Words(
        "data loading: CPUs at limit",
        "starved: the CPUs that prepare the data are at their limit",
        "Give the job more CPUs and loader workers, and no CPU limit.",
        "If a neighbour takes the CPUs, move the neighbour.",
        "Give the job more CPUs and loader workers, or prepare its data beforehand.",
    ),
    "data_loading_storage": Words(
        "data loading: slow storage",
        "starved: storage is too slow",
        "Look for the slow disk or file server under I/O. If only this job suffers, cache the data "
        "on local disks, use larger files, prefetch more.",
        "If several jobs suffer, call the storage team.",
        "Cache the data on local disks, use larger files and prefetch more.",
    ),
    "data_loading_copy": Words(
        "data loading: copy to GPU",
        "waiting for copies between host and GPU; whether their memory is pinned is not known",
        "Pin the host memory (`pin_memory=True`), copy with `non_blocking=True`, and bring fewer "
        "results back to the host.",
        for_good="Pin host memory and copy while the GPU computes.",
    ),
    "shm": Words(
        "full /dev/shm",
        "starved: the job's /dev/shm is full",
        "Remove what dead processes left in it. Start the job again with a larger /dev/shm (in "
        "Kubernetes an `emptyDir` of medium Memory) or fewer loader workers.",
        for_good="Mount a larger /dev/shm, or start fewer loader workers.",
    ),
    "host_compute": Words(
        "host compute: CPUs busy",
        "starved while the process computes on CPUs",
        f"See what it computes: {STACKS}. Move that to the GPU or to loader workers.",
        for_good="Move what the process computes on CPUs to the GPU or to loader workers.",
    ),
    "compile": Words(
        "compile of kernels",
        "idle while kernels are compiled",
        "Nothing, if it ends within minutes. Keep a compile cache if every start pays for it. If "
        "it goes on, each new shape is compiled: pad lengths and sizes to a few.",
        for_good="Keep the compile cache between runs; pad inputs to a few sizes.",
    ),
    "checkpoint": Words(
        "saving a checkpoint",
        "idle while the job saves its state",
        f"{NOTHING_YET} If it comes often, save asynchronously or less often.",
        for_good="Write checkpoints asynchronously, sharded or less often.",
    ),
    "no_requests": Words(
        "no requests",
        "held, but nobody asks for work",
        NO_REQUEST,
        for_good="Run fewer replicas, or let several services share a GPU.",
    ),
    "stopped": Words(
        "process stopped",
        "at a standstill: the process is stopped, or waits in the kernel",
        "If it was stopped, continue it: `kill -CONT PID`.",
        "If it waits in the kernel, look for a disk or file server that does not answer, under "
        "I/O.",
        "Find out what stops processes: a debugger that was left, or a file server that hangs.",
    ),
    "unexplained": Words(
        "unexplained pause",
        "held with nothing to run, and nothing that is read on this node explains it",
        f"See what the process waits for: {STACKS}. Often it is a remote service, a sleep or a "
        "lock.",
        for_good="Profile the process: nothing on its node explains why it pauses.",
    ),
    "memory_allocation": Words(
        "GPU memory allocation",
        "waiting while its memory is allocated and freed again and again",
        "Keep memory: no `torch.cuda.empty_cache()` in the loop, no "
        "`PYTORCH_NO_CUDA_MEMORY_CACHING`. If memory is nearly full, use a smaller batch or "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. In C++, allocate before the loop.",
        for_good="Let the allocator keep its memory, or allocate before the loop.",
    ),
    "kv_transfer": Words(
        "KV cache transfer",
        "waiting for the KV cache of requests from or to another instance",
        "If requests wait at the prefill instances, start more of them; if they wait at the decode "
        "instances, more of those, or more memory for their KV cache. If they wait at neither, it "
        "is the network: see that the cache goes over NVLink or RDMA "
        "(`--disaggregation-ib-device` of SGLang, `UCX_TLS` and `UCX_NET_DEVICES` with NIXL).",
        for_good="Change how many instances prefill and decode, or send the cache over RDMA.",
    ),
    "kv_full": Words(
        "KV cache full",
        "serving as many requests as its KV cache holds, while others wait",
        "Make room: more memory for the cache (`--gpu-memory-utilization` of vLLM, "
        "`--mem-fraction-static` of SGLang, `free_gpu_memory_fraction` of TensorRT-LLM, "
        "`--cache-max-entry-count` of LMDeploy), a cache in FP8 (`--kv-cache-dtype fp8`), a "
        "shorter `--max-model-len`, or another replica.",
        for_good="Give the KV cache more memory or fewer bits, or add a replica.",
    ),
    "queue": Words(
        "requests queue",
        "able to do more at a time, and requests wait",
        "Let more requests run at a time: `--max-num-seqs` and `--max-num-batched-tokens` of vLLM, "
        "`--max-running-requests` of SGLang, `max_batch_size` of TensorRT-LLM and Triton, "
        "`--max-batch-total-tokens` of TGI, `--max-batch-size` of LMDeploy, `--parallel` of "
        "llama.cpp.",
        for_good="Raise the engine's limit of requests that run at a time.",
    ),
    "host_bound": Words(
        "host bound: engine code",
        "waiting for the engine's scheduler, tokeniser or launches between steps",
        "If the process that takes requests is busy, start more of them: `--api-server-count` of "
        "vLLM, `--tokenizer-worker-num` of SGLang, `--validation-workers` of TGI. Else use CUDA "
        "graphs (no `--enforce-eager` of vLLM, no `--disable-cuda-graph` of SGLang or TGI), "
        "several steps or an overlapped scheduler (`--async-scheduling` of vLLM; no "
        "`--disable-overlap-schedule` of SGLang), and faster or more CPUs.",
        for_good="Use CUDA graphs, an asynchronous scheduler, several API servers, and faster "
        "CPUs.",
    ),
    "cold_start": Words(
        "cold start",
        "starting: the engine loads its model, compiles or captures graphs",
        "Nothing, if it ends within minutes. If each start takes long, keep weights on a local "
        "disk, keep the compile cache (`VLLM_CACHE_ROOT`), capture fewer graphs "
        "(`--cuda-graph-sizes` of vLLM, `--cuda-graph-max-bs` of SGLang), and scale ahead of need.",
        for_good="Keep weights near and the compile cache; scale ahead of need.",
    ),
    "prefill_interference": Words(
        "prefill interference",
        "at work on prompts, for which the tokens of other requests wait",
        "If tokens come too slowly, cut prompts into smaller pieces (`--max-num-batched-tokens` of "
        "vLLM, `--chunked-prefill-size` of SGLang), or prefill on other instances.",
        for_good="Nothing is lost; prefill in smaller pieces or on other instances.",
    ),
    "batch_small": Words(
        "batch too small",
        "decoding for few requests, which costs nearly as much as for many",
        "Nothing is broken. Send the requests of several replicas to one, or use a smaller or "
        "quantised model, or speculative decoding.",
        for_good="Run fewer replicas with larger batches, or quantise the weights.",
    ),
    "communication": Words(
        "communication not hidden",
        "moving data between GPUs while nothing is computed",
        "Check that NCCL uses NVLink and RDMA (links up, `NCCL_P2P_DISABLE` unset); larger batches "
        "and overlap hide what remains.",
        for_good="Check NVLink and RDMA; overlap communication, use larger batches.",
    ),
    "straggler": Words(
        "waiting for a straggler",
        "waiting for a slower rank of the job",
        "Look at the GPU that is waited for. If it is on another node, ask that node's page, or "
        "NCCL's RAS service.",
        for_good="Replace the slow node, or balance the work between the ranks.",
    ),
    "stalled_collective": Words(
        "stalled collective",
        "hanging in a collective: a rank of the job does not come",
        f"Keep evidence first: {STACKS}. If no GPU here is named, look at the "
        "idle ones here, then at the job's other nodes. Then restart the job.",
        for_good="Set a time-out for collectives and restart from a checkpoint.",
    ),
    "kernel_launch": Words(
        "kernel launch gaps",
        "waiting between kernels that are too small",
        "Launch fewer and larger kernels: CUDA graphs, `torch.compile`, larger batches.",
        for_good="Use CUDA graphs, torch.compile or larger batches.",
    ),
    "thermal": Words(
        "thermal slowdown",
        "slowed down by heat",
        operator="Check fans, air flow and inlet temperature. Drain the node if it goes on.",
        for_good="Have the cooling of the nodes checked.",
    ),
    "power": Words(
        "power limit",
        "slowed down by a power limit or power brake",
        operator="Set the board's default limit (`nvidia-smi -pl WATTS`). If the node brakes, "
        "check its power supplies.",
        for_good="Set the board's default power limit; check the power supplies.",
    ),
    "precision": Words(
        "precision: no tensor cores",
        "computing without tensor cores",
        "Tell the owner: BF16, or TF32 with `torch.set_float32_matmul_precision('high')`, is "
        "several times faster.",
        for_good="Compute in BF16 or TF32, so that the tensor cores work.",
    ),
    "memory_bandwidth": Words(
        "memory bandwidth limit",
        "at work, limited by memory bandwidth",
        "Nothing is wrong. Fused kernels (`torch.compile`) do more for each byte.",
        for_good="Nothing is lost; fused kernels would move fewer bytes.",
    ),
    "memory_capacity": Words(
        "memory capacity limit",
        "at work, with memory nearly full",
        "Nothing yet. A larger batch or longer sequence may end in an out-of-memory error.",
        for_good="Nothing is lost; use a smaller batch, or shard the model.",
    ),
    "gpu_lost": Words(
        "GPU lost",
        "not answering its driver",
        "Start the job again on another node.",
        "Read the kernel log for XIDs (`dmesg`), then drain the node and reset or replace the GPU.",
    ),
    "no_process": Words(
        "no process on the GPU",
        "given to a job, and no process is on it",
        "Read the log of the rank that should be there.",
    ),
    "no_tokens": Words(
        "no tokens",
        "at a standstill: its engine has requests and makes no token",
        "Start the server again.",
    ),
    "starting": Words(
        "starting an engine",
        "starting: its engine loads, and answers no request yet",
        "Nothing, if it ends within minutes.",
    ),
    "filesystem_silent": Words(
        "filesystem silent",
        "at a standstill: its process waits in the kernel, as for a disk or file server",
        operator=DISK_OR_SERVER,
    ),
    "preparing": Words(
        "preparing or evaluating",
        "waiting while its job prepares data or evaluates",
        NOTHING_YET,
    ),
    "unseen": Words(
        "unseen: silent node",
        "on a node that does not answer",
        "Start the job again without this node, if it is dead.",
        "See whether the node is dead, or only its exporter.",
    ),
}
"""By cause: of a verdict, and what holds a GPU up beside those. The last one is of the boards."""

CLOSER: dict[str, Words] = {
    "data_loading_cpu": Words(
        CAUSES["data_loading_cpu"].headline,
        "at work, with short gaps in which its process waits for a CPU or its data",
        CAUSES["data_loading_cpu"].yourself,
    ),
    "communication": Words(
        "communication without P2P",
        "moving data between GPUs while nothing is computed: NCCL_P2P_DISABLE=1 is set",
        "Start the job again without it: `unset NCCL_P2P_DISABLE`. With it, NCCL takes the way "
        "through the host's memory between GPUs of a node, not NVLink.",
    ),
    "unexplained": Words(
        CAUSES["unexplained"].headline,
        "at work, with short gaps in which its process sleeps",
        f"See what the process waits for: {STACKS}. Often it is a lock, a queue, or another "
        "process.",
    ),
}
"""By cause, what is said of it instead where the evidence tells more."""

REASONS: dict[str, Words] = {
    "gone": Words(
        "process gone",
        "its process has ended",
        "Read the first error in the log of the rank that ended, then restart the job.",
    ),
    "stopped": Words(
        "process stopped",
        "its process is stopped by a signal or a debugger",
        "Continue it: `kill -CONT PID`. Or detach the debugger, or end the job.",
    ),
    "uninterruptible": Words(
        "uninterruptible in kernel",
        "its process waits in the kernel and cannot be interrupted",
        operator=DISK_OR_SERVER,
    ),
    "checkpointing": Words(
        "checkpointing",
        "its process saves the state of the training",
        f"{NOTHING_YET} If it comes often, save from all ranks, or asynchronously.",
    ),
    "evaluating": Words(
        "evaluating",
        "its GPU is at work alone, as in an evaluation",
        f"{NOTHING_YET} If it comes often, evaluate on all ranks.",
    ),
    "preparing": Words(
        "preparing data",
        "its job prepares data on CPUs",
        f"{NOTHING_YET} If it comes often, give the job more CPUs.",
    ),
    "computing": Words(
        "computing longer",
        "its GPU takes longer than the others",
        "Compare its clock, temperature and load with the others: either it is slow, or it has "
        "more to do.",
    ),
    "cpu_bound": Words(
        "CPU bound",
        "its process keeps a whole CPU busy",
        f"See what that thread does: {STACKS}.",
    ),
    "garbage_collection": Words(
        "garbage collection",
        "its process collects garbage in Python",
        "Call `gc.freeze()` and `gc.disable()` after the set-up, and `gc.collect()` at the same "
        "step on all ranks. If one collection goes on and on, a finalizer hangs: "
        "`gpunode stacks` shows it.",
    ),
    "lock": Words(
        "waiting for a lock",
        "its process waits for a lock, a queue or another thread of its own",
        "See which thread holds it: `gpunode stacks` shows all of them. It does not come by "
        "itself if they wait for each other.",
    ),
    "loader": Words(
        "waiting for its loader",
        "its process waits for its data loader",
        "See what the processes of its loader do: `gpunode stacks`. One of them may hang or have "
        "ended.",
    ),
    "download": Words(
        "download over HTTP",
        "its process exchanges data with a server over HTTP",
        "See which line asks: `gpunode stacks`. Give the request a timeout, or fetch the data "
        "before the training.",
    ),
    "socket": Words(
        "waiting at a socket",
        "its process waits for an answer over a socket",
        "See which line waits: `gpunode stacks`. Then see what the other end does.",
    ),
    "storage": Words(
        "waiting for storage",
        "its process waits for a disk or a file server",
        operator=DISK_OR_SERVER,
    ),
    "another_process": Words(
        "waiting: another process",
        "its process waits for another process",
        "See which line waits: `gpunode stacks`. The process at the other end, or with the lock, "
        "may hang or have ended.",
    ),
    "debugger": Words(
        "in a debugger",
        "its process stands at the prompt of a debugger",
        "Continue it in the debugger, or end the job. Take `breakpoint()` out of the code.",
    ),
    "exiting": Words(
        "exiting after an error",
        "its process handles an exception or exits, and does not get to its end",
        "Read the first error in the log of this rank, then restart the job.",
    ),
    "sleeping": Words(
        "sleeping",
        "its process sleeps, as by `time.sleep`",
        "See which line sleeps: `gpunode stacks`. A loop that tries again and again looks so, too.",
    ),
    "collective": Words(
        "in another collective",
        "its process is in a collective that its GPU has not begun, or another than the others",
        "Compare the lines at which the ranks stand: `gpunode stacks`. All must call the same "
        "collectives in the same order.",
    ),
    "unknown": Words(
        "unknown reason",
        "nothing on this node tells why",
        f"See where it stands: {STACKS}. Restart the job if it does not come.",
    ),
}
"""By reason for which the other GPUs of a job wait for one; the sentence begins with "its"."""

GPUS: dict[str, Words] = {
    "free": Words("free", "free: no process holds it"),
    "idle": Words("idle", "held, and has run nothing for a while", NO_REQUEST),
    "unknown": Words(
        "unknown",
        "in use, but no sensor tells what for",
        operator="See which sensors the ledger lacks: `/api/v1/gpus`.",
    ),
    "idle_in_a_hang": Words(
        "idle while another hangs",
        "held, and has run nothing for a while, as another GPU hangs",
        "If both are of one job, its rank here is the one that does not come: see where it stands, "
        f"{STACKS}. If they are not, nothing is broken here.",
    ),
    "while_short": Words(
        "starved on a short node",
        "held with nothing to run",
        "The node is past a limit, which may be why: begin there. If that is not of this job, see "
        f"what the process waits for: {STACKS}.",
    ),
    "unread": Words(
        "unexplained: not all read",
        "held with nothing to run, and what may explain it is not all read on this node",
        f"See what the process waits for: {STACKS}.",
        "`gpunode doctor` says what it takes to read the rest of the node.",
    ),
    "not_on_tape": Words(
        "unexplained: not on tape",
        "held with nothing to run, and what may explain it is not all on the tape",
        "What was not recorded cannot be found. On a node that can be asked, `gpunode stacks` "
        "shows what a process waits for.",
    ),
    "not_yet": Words("not judged yet", "not judged yet"),
    "lost": Words("not answering", "not answering", operator=CAUSES["gpu_lost"].operator),
}
"""What else is said of a GPU on its node's page: no verdict names a cause, or not surely."""

INCIDENTS: dict[str, str] = {
    "stall": "GPUs wait for another, and nothing goes on",
    "slow": "a job is slower than before, or one of its GPUs holds the others up",
    "gpu_lost": "a GPU does not answer",
    "xid": "the driver reported an error that ends a program, or takes the GPU out of use",
    "out_of_memory": "a process was killed for memory, or a training ran out of GPU memory",
    "crash_loop": "the processes on a GPU end soon and are started again",
}
"""By kind of an incident, what it is."""

RESET = "Drain the node; then reset the GPU (`nvidia-smi --gpu-reset -i {gpu}`)."
REBOOT = "Drain the node; then reboot it."
VENDOR = "Drain the node; then have the vendor replace the GPU."
FABRIC_MANAGER = "Check the fabric manager (`nvidia-fabricmanager`)."
DISK = "Drain the node and replace the disk."
PORT = "Check cable, switch port and, for InfiniBand, the subnet manager."
CARD = "Reseat the card, or replace the riser or cable."
COOLING = "Check airflow and cooling; lower the power limit meanwhile (`nvidia-smi -pl`)."
LOOK = "Look it up; the node may go on."
RESTART = "Restart the program."
END_PROGRAMS = "End the programs that use several GPUs of the node."

PARTS: dict[str, str] = {
    "gpu": "GPU",
    "nvlink": "NVLink",
    "fabric": "NVSwitch fabric",
    "pcie": "PCI Express",
    "disk": "disk",
    "filesystem": "filesystem",
    "network": "network port",
    "thermal": "cooling",
    "power": "power supply",
    "exporter": "gpunode itself",
}
"""By part of a node that a fault is in; the last one is of the rules."""

FAULTS: dict[tuple[str, str], Words] = {
    ("gpu", "no_answer"): Words("no answer", "does not answer its driver", operator=REBOOT),
    ("gpu", "missing"): Words("missing", "is not listed by its driver any more", operator=REBOOT),
    ("gpu", "memory_lost_data"): Words("memory lost data", "its memory lost data", operator=RESET),
    ("gpu", "memory_lost_data_contained"): Words(
        "memory lost data, contained", "its memory lost data of one program", RESTART
    ),
    ("gpu", "row_remap_pending"): Words(
        "row remap pending", "a bad row of its memory is replaced at the next reset", operator=RESET
    ),
    ("gpu", "row_remap_failed"): Words(
        "row remap failed", "a bad row of its memory cannot be replaced", operator=VENDOR
    ),
    ("gpu", "sram_threshold_exceeded"): Words(
        "SRAM error threshold exceeded", "SRAM errors above the threshold", operator=VENDOR
    ),
    ("gpu", "unrepairable"): Words("unrepairable", "memory unrepairable", operator=VENDOR),
    ("gpu", "driver_advises_reset"): Words(
        "driver advises reset", "its driver asks for: reset", operator=RESET
    ),
    ("gpu", "driver_advises_reboot"): Words(
        "driver advises reboot", "its driver asks for: reboot", operator=REBOOT
    ),
    ("gpu", "driver_advises_system_reboot"): Words(
        "driver advises system reboot", "its driver asks for: system reboot", operator=REBOOT
    ),
    ("gpu", "driver_advises_bus_reset"): Words(
        "driver advises bus reset",
        "its driver asks for: bus reset",
        operator="Drain the node; then reset the GPU by its bus, or reboot the node.",
    ),
    ("gpu", "driver_advises_drain_and_reset"): Words(
        "driver advises drain and reset", "its driver asks for: drain and reset", operator=RESET
    ),
    ("gpu", "driver_advises_drain_p2p"): Words(
        "driver advises drain P2P", "its driver asks for: drain p2p", operator=END_PROGRAMS
    ),
    ("gpu", "driver_advises_reset_for_a_row"): Words(
        "driver advises reset for a row",
        "its driver asks for a reset, which can wait",
        operator=RESET,
    ),
    ("gpu", "driver_advises_recover_imex_domain"): Words(
        "driver advises recover IMEX domain",
        "its driver asks for: recover imex domain",
        operator="Restart `nvidia-imex` on the nodes of the NVLink domain.",
    ),
    ("fabric", "not_joined"): Words(
        "not joined", "it has not joined the NVSwitch fabric", operator=FABRIC_MANAGER
    ),
    ("nvlink", "down"): Words(
        "down",
        "NVLink {name} is down",
        operator="Check the fabric manager and the GPU's XIDs; drain the node and reset the GPUs.",
    ),
    ("nvlink", "recovers"): Words(
        "recovers again and again",
        "NVLink {name} fails and recovers again and again",
        operator="Have its cable, tray or GPU tested soon: such a link often fails for good within "
        "days.",
    ),
    ("pcie", "degraded"): Words(
        "link degraded",
        "the PCI Express link of {name} is slower or narrower than its slot",
        operator=CARD,
    ),
    ("pcie", "uncorrected_errors"): Words(
        "uncorrected errors",
        "the PCI Express link of {name} has uncorrected errors",
        operator=CARD,
    ),
    ("network", "down"): Words("down", "port {name} is down", operator=PORT),
    ("network", "missing"): Words("missing", "port {name} is missing", operator=PORT),
    ("disk", "not_live"): Words("not live", "disk {name} does not work", operator=DISK),
    ("disk", "missing"): Words("missing", "disk {name} is missing", operator=DISK),
    ("filesystem", "readonly"): Words(
        "become readonly",
        "{name} has become read-only",
        operator="Drain the node and look at the disk of {name} (`dmesg`).",
    ),
    ("filesystem", "full"): Words(
        "full", "{name} takes no more files", "Free space or inodes on {name}."
    ),
    ("filesystem", "unanswering"): Words(
        "unanswering",
        "{name} does not answer",
        operator="Look at the server of {name}; programs that wait go on when it answers.",
    ),
    ("thermal", "sw_thermal"): Words(
        "thermal: lower clocks", "its clocks are lowered by heat", operator=COOLING
    ),
    ("thermal", "hw_thermal"): Words(
        "thermal: clocks halved", "its clocks are halved by heat", operator=COOLING
    ),
    ("power", "hw_power_brake"): Words(
        "power brake: clocks halved",
        "its clocks are halved by the power supply",
        operator="Check the power supplies and the limit of the rack.",
    ),
}
"""By part and reason; the rest (XIDs, other advice of the driver) is made of what names it."""


def on_a_board(table: dict[str, Words], name: str) -> str:
    """The headline for a board or a table, with the raw name where its words are not in it."""
    headline = table[name].headline
    told = re.search(name.replace("_", ".*"), headline.lower())
    return headline if told else f"{headline} [{name}]"
