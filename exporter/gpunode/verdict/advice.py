"""What each cause means to who is on call: how urgent it is, in plain words, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Urgency = Literal["now", "soon", "note", "fine"]
"""Something stands still or is broken; time is lost; it is worth knowing; all is well."""

URGENCIES: tuple[Urgency, ...] = ("now", "soon", "note", "fine")
"""The most urgent first."""


@dataclass(frozen=True, slots=True)
class Advice:
    """How urgent a cause is, what the GPU does in a few words, and what to do about it.

    ``PID`` in a remedy stands for the process on the GPU.
    """

    urgency: Urgency
    does: str
    remedy: str


ADVICE: dict[str, Advice] = {
    "none": Advice("fine", "at work", ""),
    "data_loading_cpu": Advice(
        "soon",
        "starved: the CPUs that prepare the data are at their limit",
        "Give the job more CPUs and loader workers, and no CPU limit. If a neighbour takes the "
        "CPUs, move the neighbour.",
    ),
    "data_loading_storage": Advice(
        "soon",
        "starved: storage is too slow",
        "Look for the slow disk or file server under I/O. If several jobs suffer, call the storage "
        "team; else cache the data on local disks, use larger files, prefetch more.",
    ),
    "data_loading_copy": Advice(
        "soon",
        "waiting for copies between host and GPU",
        "Pin the host memory (`pin_memory=True`), copy with `non_blocking=True`, and bring fewer "
        "results back to the host.",
    ),
    "data_loading": Advice(
        "soon",
        "starved: the training waits for data, and nothing on this node is at its limit",
        "See what the loader waits for: `py-spy dump --pid PID`. Often it is a remote service.",
    ),
    "shm": Advice(
        "soon",
        "starved: the job's /dev/shm is full",
        "Remove what dead processes left in it. Start the job again with a larger /dev/shm (in "
        "Kubernetes an `emptyDir` of medium Memory) or fewer loader workers.",
    ),
    "host_compute": Advice(
        "soon",
        "starved while the process computes on CPUs",
        "See what it computes: `py-spy dump --pid PID`. Move that to the GPU or to loader workers.",
    ),
    "compile": Advice(
        "note",
        "idle while kernels are compiled",
        "Nothing, if it ends within minutes. Keep a compile cache if every start pays for it.",
    ),
    "checkpoint": Advice(
        "note",
        "idle while the job saves its state",
        "Nothing, if it ends by itself. If it comes often, save asynchronously or less often.",
    ),
    "no_requests": Advice(
        "note",
        "held, but nobody asks for work",
        "Nothing is broken. If this goes on for hours, ask the owner to give the GPU back.",
    ),
    "stopped": Advice(
        "now",
        "at a standstill: the process is stopped, or waits in the kernel",
        "If it was stopped, continue it: `kill -CONT PID`. If it waits in the kernel, look for a "
        "disk or file server that does not answer, under I/O.",
    ),
    "unexplained": Advice(
        "soon",
        "held with nothing to run, and nothing on this node explains it",
        "See what the process waits for: `py-spy dump --pid PID`. Often it is a remote service, a "
        "sleep or a lock.",
    ),
    "communication": Advice(
        "soon",
        "moving data between GPUs while nothing is computed",
        "Check that NCCL uses NVLink and RDMA (links up, `NCCL_P2P_DISABLE` unset); larger batches "
        "and overlap hide what remains.",
    ),
    "straggler": Advice(
        "soon",
        "waiting for a slower rank of the job",
        "Look at the GPU that is waited for. If it is on another node, ask that node's page, or "
        "NCCL's RAS service.",
    ),
    "stalled_collective": Advice(
        "now",
        "hanging in a collective: a rank of the job does not come",
        "Keep evidence first: `py-spy dump --pid PID`. If no GPU here is named, look at the "
        "idle ones here, then at the job's other nodes. Then restart the job.",
    ),
    "kernel_launch": Advice(
        "soon",
        "waiting between kernels that are too small",
        "Launch fewer and larger kernels: CUDA graphs, `torch.compile`, larger batches.",
    ),
    "thermal": Advice(
        "soon",
        "slowed down by heat",
        "Check fans, air flow and inlet temperature. Drain the node if it goes on.",
    ),
    "power": Advice(
        "soon",
        "slowed down by a power limit or power brake",
        "Set the board's default limit (`nvidia-smi -pl WATTS`). If the node brakes, check its "
        "power supplies.",
    ),
    "precision": Advice(
        "note",
        "computing without tensor cores",
        "Tell the owner: BF16, or TF32 with `torch.set_float32_matmul_precision('high')`, is "
        "several times faster.",
    ),
    "memory_bandwidth": Advice(
        "fine",
        "at work, limited by memory bandwidth",
        "Nothing is wrong. Fused kernels (`torch.compile`) do more for each byte.",
    ),
    "memory_capacity": Advice(
        "note",
        "at work, with memory nearly full",
        "Nothing yet. A larger batch or longer sequence may end in an out-of-memory error.",
    ),
}
"""By cause of a verdict."""

OF_REASONS: dict[str, Advice] = {
    "gone": Advice(
        "now",
        "whose process has ended",
        "Read the first error in the log of the rank that ended, then restart the job.",
    ),
    "stopped": Advice(
        "now",
        "whose process is stopped by a signal or a debugger",
        "Continue it: `kill -CONT PID`. Or detach the debugger, or end the job.",
    ),
    "uninterruptible": Advice(
        "now",
        "whose process waits in the kernel and cannot be interrupted",
        "Look for a disk or file server that does not answer, under I/O. The job goes on when it "
        "does.",
    ),
    "checkpointing": Advice(
        "note",
        "which saves the state of the training",
        "Nothing, if it ends by itself. If it comes often, save from all ranks, or asynchronously.",
    ),
    "evaluating": Advice(
        "note",
        "which is at work alone, as in an evaluation",
        "Nothing, if it ends by itself. If it comes often, evaluate on all ranks.",
    ),
    "preparing": Advice(
        "note",
        "whose job prepares data on CPUs",
        "Nothing, if it ends by itself. If it comes often, give the job more CPUs.",
    ),
    "computing": Advice(
        "soon",
        "which takes longer than the others",
        "Compare its clock, temperature and load with the others: either it is slow, or it has "
        "more to do.",
    ),
    "cpu_bound": Advice(
        "soon",
        "whose process keeps a whole CPU busy",
        "See what that thread does: `py-spy dump --pid PID`.",
    ),
    "unknown": Advice(
        "soon",
        "and nothing on this node tells why",
        "See where it stands: `py-spy dump --pid PID`. Restart the job if it does not come.",
    ),
}
"""By the reason why a GPU is waited for; ``does`` goes on after its name."""
