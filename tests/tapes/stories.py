"""Makes the demo's tapes: ``python -m tests.tapes.stories``.

Each is a node of eight GPUs and one job. It opens with recorded healthy work, which fills the hour
before; then each GPU does what a GPU of a recorded incident did. What was not recorded
is edited, as ``Story`` says.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpunode.holders.pods import CONTAINER_LOGS, KUBELET, POD_LOGS
from gpunode.recorded import INCIDENTS, STORIES

Line = dict[str, Any]

GPUS = 8
OPENING = 8.0
"""Seconds of healthy work: all that was recorded."""

LASTS = 45.0
"""Seconds from the beginning of the opening until the next story."""

BEGINS = 1795266120.0
PODS = "/var/lib/kubelet/pod-resources/kubelet.sock"
COUNTED = {"energy", "throttled", "nvlink_bytes", "pcie_replays", "pcie_errors"}
"""Counters since the driver was loaded, which one GPU has once."""

PROCESS = re.compile(r"/proc/(\d+)/")
OF_NOBODY = {"1"}


def unedited(_: int, line: Line) -> Iterator[Line]:
    """The line as it was recorded."""
    yield line


@dataclass(frozen=True, slots=True)
class Story:
    """What the demo tells, and the recording that it is made of.

    ``most`` and ``odd`` are the GPUs of the recording whose part most GPUs and the odd one play.
    ``edit`` gives what was not recorded, for a GPU (-1: the node) and a line of its part.
    """

    title: str
    look: str
    finding: str
    """In which words of gpunode it ends."""

    tape: str
    job: str
    memory: float
    """Bytes that the process on each GPU holds, as such a job would: the recordings were small."""

    most: int = 0
    odd: tuple[str, int] | None = None
    begins: float = 0.0
    """Seconds of the recording that are left out."""

    again_from: float | None = None
    edit: Callable[[int, Line], Iterator[Line]] = unedited


ODD = 5

LINKS = 18


def launched(gpu: int, line: Line, **variables: str) -> Iterator[Line]:
    """Before a GPU's process: what a launcher of ranks sets, with other variables."""
    if line.get("call") == "processes" and gpu >= 0:
        pid, rank = line["answer"][0]["pid"], str(gpu)
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(GPUS)}
        meets = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
        given = {**ranks, **meets, **variables}
        yield {"t": line["t"], "of": str(pid), "call": "environment", "answer": given}


def hot(gpu: int, line: Line) -> Iterator[Line]:
    """GPU 5 is held down by heat: its clock, its temperature, its power, and how long."""
    call, after = line.get("call"), line.get("t", 0.0)
    yield from launched(gpu, line)
    if gpu != ODD:
        yield line
    elif call == "sm_clock":
        yield {**line, "answer": 705e6}
    elif call == "clock_events":
        yield {**line, "answer": ["hw_thermal"]}
    elif call in ("temperature", "memory_temperature"):
        yield {**line, "answer": 91.0 if call == "temperature" else 97.0}
    elif call == "power":
        yield {**line, "answer": 0.45 * line["answer"]}
    elif call == "power_samples":
        samples = [[at, 0.45 * watts] for at, watts in line["answer"]["samples"]]
        yield {**line, "answer": {"samples": samples}}
    elif call == "throttled":
        yield {**line, "answer": {**line["answer"], "hw_thermal": 0.9 * after}}
    else:
        yield line


def without_p2p(gpu: int, line: Line) -> Iterator[Line]:
    """The variable with which it was recorded, and the links of an H200."""
    yield from launched(gpu, line, NCCL_P2P_DISABLE="1")
    if line.get("call") == "limits":
        rate = line["answer"]["nvlink_bytes_per_second"] / LINKS
        of_each = {"up": True, "bytes_per_second": rate, "errors": {}, "bit_errors": {}}
        answer = [{"link": link, **of_each} for link in range(LINKS)]
        yield {**line, "call": "nvlinks", "answer": answer}
    yield line


def leaking(_: int, line: Line) -> Iterator[Line]:
    """/dev/shm fills up within two seconds; it was recorded full."""
    if line.get("call") != "filesystem" or not str(line["of"]).endswith("/dev/shm"):
        yield line
        return
    answer = line["answer"]
    for at in (0.0, OPENING, line["t"]) if line["t"] < OPENING + 1.0 else (line["t"],):
        full = min(0.97, 0.2 + 0.77 * max(0.0, at - OPENING) / 2)
        free = round((1 - full) * answer["size"])
        yield {**line, "t": at, "answer": {**answer, "free": free, "available": free}}


STORY = {
    "storage": Story(
        "The job is starved by storage",
        "nvidia-smi shows 60 to 100 %; GPUs stand still for half of the time. On the page, the "
        "table at the bottom shows under I/O how long tasks wait for storage.",
        "GPUs 0–7 are starved: storage is too slow",  # noqa: RUF001
        "h200_storage",
        "resnet-imagenet-0",
        34e9,
    ),
    "hang": Story(
        "A training job hangs",
        "nvidia-smi calls seven GPUs busy. The finding says which process they wait for, "
        "and what continues it.",
        "GPUs 0–4, 6 and 7 hang: they wait for GPU 5",  # noqa: RUF001
        "h200_hang",
        "llama-70b-worker-0",
        129e9,
        odd=("h200_hang", 1),
        begins=8.0,
        again_from=20.0,
    ),
    "p2p": Story(
        "The job runs with NCCL_P2P_DISABLE=1",
        "nvidia-smi calls all GPUs busy, at a fifth of their power. They only move data.",
        "while nothing is computed: NCCL_P2P_DISABLE=1 is set",
        "comm_nop2p",
        "mixtral-pretrain-0",
        127e9,
        edit=without_p2p,
    ),
    "throttled": Story(
        "One GPU is throttled by heat, and seven wait for it",
        "Seven GPUs look busy and wait. GPU 5 is at 91 °C and at a third of its clock.",
        "GPUs 0–4, 6 and 7 wait for GPU 5, which is slowed down by heat",  # noqa: RUF001
        "straggler",
        "gemma-tune-worker-0",
        92e9,
        odd=("healthy", 0),
        edit=hot,
    ),
    "shm": Story(
        "A leak fills /dev/shm",
        "The finding names the job's /dev/shm: its loaders wait for room in it.",
        "GPUs 0–7 are starved: the job's /dev/shm is full",  # noqa: RUF001
        "h200_shm",
        "clip-laion-0",
        48e9,
        edit=leaking,
    ),
}


DRIVER = 9e6
"""Bytes of each GPU that no process holds."""


def holding(memory: float, line: Line) -> Line:
    """A line in which the processes hold so much memory."""
    if line.get("call") == "processes":
        return {**line, "answer": [{**one, "memory": memory} for one in line["answer"]]}
    if line.get("call") == "memory":
        return {**line, "answer": {**line["answer"], "used": memory + DRIVER}}
    return line


POD_UID = "6f1c2a3e-7d54-4b0e-9a41-2b8c5d0e7f93"
RECORDED_IN = "/user.slice/training.scope"
CONTAINER = "b1946ac92492d2347c6235b4d2611184" * 2


def in_its_pod(job: str, lines: list[Line]) -> Iterator[Line]:
    """The lines with every process in the pod of the job: the recordings were made outside."""
    names = {
        POD_LOGS: [f"research_{job}_{POD_UID}"],
        CONTAINER_LOGS: [f"{job}_research_trainer-{CONTAINER}.log"],
    }
    for folder, within in names.items():
        yield {"t": 0.0, "of": folder, "call": "list_directory", "answer": within}
    cgroup = f"/kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice"
    cgroup += f"/cri-containerd-{CONTAINER}.scope"
    processes = {p["pid"] for line in lines if line["call"] == "processes" for p in line["answer"]}
    told = {line["of"] for line in lines}
    for of in sorted({f"/proc/{pid}/cgroup" for pid in processes} - told):
        yield {"t": 0.0, "of": of, "call": "read_text", "answer": f"0::{cgroup}\n"}
    for line in lines:
        yield json.loads(json.dumps(line).replace(RECORDED_IN, cgroup))


@cache
def recorded(name: str) -> tuple[float, list[Line]]:
    """When a recording began, and its lines."""
    with gzip.open(INCIDENTS / f"{name}.jsonl.gz", "rt") as file:
        header, *lines = (json.loads(line) for line in file)
    return header["time"], lines


def uuid(gpu: int) -> str:
    return f"GPU-00000000-0000-0000-0000-00000000000{gpu}"


def part(name: str, which: int, gpu: int, later: float) -> Iterator[Line]:
    """What a GPU of a recording did, and its processes, as another GPU so many seconds later.

    What was recorded for less than it lasts goes on.
    """
    _, lines = recorded(name)
    length = max(line["t"] for line in lines)
    laps = int((LASTS - later) // length) if later > 0 and length < 10 else 0
    for lap in range(laps + 1):
        yield from _part(name, which, gpu, later + lap * length)


def _part(name: str, which: int, gpu: int, later: float) -> Iterator[Line]:
    began, lines = recorded(name)
    listed = next(line["answer"] for line in lines if line.get("call") == "gpus")
    uuids = [one["uuid"] for one in listed]
    mine = [line for line in lines if line["of"] == uuids[which]]
    pids = _tree(lines, {p["pid"] for m in mine if m["call"] == "processes" for p in m["answer"]})
    names = {str(pid): str(41_000 + 100 * gpu + at) for at, pid in enumerate(sorted(pids))}
    renamed = re.compile("|".join(rf"\b{pid}\b" for pid in names) or "$^")
    for line in lines:
        owner = PROCESS.match(line["of"]) or re.match(r"(\d+)$", line["of"])
        if line["of"] != uuids[which] and not (owner and owner[1] in names):
            continue
        if line["call"] == "ask":
            continue
        text = renamed.sub(lambda found: names[found[0]], json.dumps(line))
        made = json.loads(text.replace(uuids[which], uuid(gpu)))
        made["t"] = round(line["t"] + later, 6)
        if "samples" in made["call"] and "answer" in line:
            shift = round((BEGINS + later - began) * 1e6)
            made["answer"] = {"samples": [[at + shift, v] for at, v in line["answer"]["samples"]]}
        if made["call"] == "environment" and "RANK" in made.get("answer", {}):
            ranks = {"RANK": str(gpu), "LOCAL_RANK": str(gpu), "WORLD_SIZE": str(GPUS)}
            made["answer"] = {**made["answer"], **ranks}
            made["answer"].pop("NVIDIA_VISIBLE_DEVICES", None)
        yield made


def _tree(lines: list[Line], roots: set[int]) -> set[int]:
    """These processes and those that they started."""
    found = set(roots)
    for line in lines:
        if str(line["of"]).endswith("/children") and int(PROCESS.match(line["of"])[1]) in found:  # type: ignore[index]
            found |= set(map(int, str(line.get("answer", "")).split()))
    return found


def story_lines(story: Story) -> Iterator[Line]:
    """The lines of a story, in no order."""
    _, lines = recorded(story.tape)
    identities = [
        {
            "index": gpu,
            "uuid": uuid(gpu),
            "name": "NVIDIA H200",
            "bus_id": f"00000000:{gpu + 1:02X}:00.0",
            "compute_capability": "9.0",
        }
        for gpu in range(GPUS)
    ]
    yield {"t": 0.0, "of": "nvidia", "call": "gpus", "answer": identities}
    hostname = "/proc/sys/kernel/hostname"
    yield {"t": 0.0, "of": hostname, "call": "read_text", "answer": "gpu-h200-17\n"}
    for folder, within in (
        (KUBELET, ["pod-resources"]),
        (str(Path(PODS).parent), ["kubelet.sock"]),
    ):
        yield {"t": 0.0, "of": folder, "call": "list_directory", "answer": within}
    allocated = [
        {
            "namespace": "research",
            "pod": story.job,
            "container": "trainer",
            "resource": "nvidia.com/gpu",
            "device": uuid(gpu),
        }
        for gpu in range(GPUS)
    ]
    yield {"t": 0.0, "of": PODS, "call": "allocations", "answer": allocated}
    for gpu in range(GPUS):
        name, which = (story.tape, story.most)
        if gpu == ODD and story.odd:
            name, which = story.odd
        incident = list(part(name, which, gpu, OPENING - story.begins))
        incident = [line for line in incident if line["t"] >= OPENING or line["call"] in COUNTED]
        incident = [{**line, "t": max(OPENING, line["t"])} for line in incident]
        known = {line["call"] for line in incident}
        processes = next(line for line in incident if line["call"] == "processes")
        for line in part("healthy", 0, gpu, 0.0):
            if line["call"] == "processes":
                line = {**line, "answer": processes["answer"]}
            if line["call"] not in COUNTED & known:
                yield line
        for line in incident:
            yield from story.edit(gpu, line)
    for line in lines:
        mine = line["call"] in ("gpus", "ask") or str(line["of"]).startswith("GPU-")
        owner = PROCESS.match(line["of"]) or re.match(r"(\d+)$", line["of"])
        if not mine and (not owner or owner[1] in OF_NOBODY):
            at = max(OPENING, line["t"] + OPENING - story.begins)
            yield from story.edit(-1, {**line, "t": round(at, 6)})


def main(folder: Path = STORIES) -> None:
    """Write every tape."""
    folder.mkdir(exist_ok=True)
    for name, story in STORY.items():
        header: Line = {
            "gpunode_tape": 1,
            "time": BEGINS,
            "comment": story.title,
            "look": story.look,
            "opening": OPENING,
        }
        if story.again_from is not None:
            header["again_from"] = OPENING - story.begins + story.again_from
        lines = list(in_its_pod(story.job, list(story_lines(story))))
        lines.sort(key=lambda line: float(line["t"]))
        if story.again_from is None:
            header["again_from"] = OPENING
        with gzip.GzipFile(folder / f"{name}.jsonl.gz", "wb", mtime=0) as file:
            kept = (holding(story.memory, one) for one in lines if one["t"] <= LASTS)
            for line in (header, *kept):
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    main()
