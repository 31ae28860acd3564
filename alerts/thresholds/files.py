"""Open files, of jobs and of nodes."""

from __future__ import annotations

from alerts.examples import HELD, series
from alerts.model import Example, Threshold, Tier
from alerts.promql import NODE
from alerts.recording.parts import OPEN_FILES

OPEN = series("gpunode_job_open_files_ratio")
ALLOCATED = series("gpunode_filefd_allocated")
MAXIMUM = series("gpunode_filefd_maximum")

FILES = (
    Threshold(
        alert="JobFilesNearLimit",
        group="system",
        summary="A process of a job has nearly as many files open as it may",
        summary_ko="작업 프로세스의 열린 파일 수가 한도에 근접했습니다",
        says="a process uses {value} of its limit on open files",
        meaning="At the limit the process cannot open another file or socket, and mostly ends.",
        remedy="Raise the limit (ulimit -n), or find what opens files and leaves them open.",
        source="https://man7.org/linux/man-pages/man2/getrlimit.2.html",
        record="job:gpunode_open_files:ratio",
        signal=OPEN_FILES.over_nodes(),
        window="0s",
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.9, after="5m"),),
        scope="job",
        of_owner=True,
        example=Example(fires={**HELD, OPEN: 0.95}, quiet={OPEN: 0.2}, value=0.95),
    ),
    Threshold(
        alert="NodeFilesNearLimit",
        group="system",
        summary="A GPU node has nearly as many files open as it may",
        summary_ko="GPU 노드의 열린 파일 수가 한도에 근접했습니다",
        says="uses {value} of its limit on open files",
        meaning="At the limit no unprivileged program of the node can open another file or socket.",
        remedy="Raise fs.file-max, or end the program that leaves files open.",
        source="https://docs.kernel.org/admin-guide/sysctl/fs.html#file-max-file-nr",
        record="node:gpunode_open_files:ratio",
        signal=(
            f"max by ({NODE}) (gpunode_filefd_allocated) "
            f"/ on ({NODE}) max by ({NODE}) (gpunode_filefd_maximum > 0)"
        ),
        window="0s",
        unit="percent",
        tiers=(Tier(severity="ticket", threshold=0.9, after="5m"),),
        scope="node",
        dashboard="host",
        example=Example(
            fires={ALLOCATED: 95.0, MAXIMUM: 100.0}, quiet={ALLOCATED: 20.0}, value=0.95
        ),
    ),
)
