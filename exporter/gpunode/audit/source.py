"""Runs the checks, as a source of metrics and for the command."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from gpunode.audit import gpu, job, network, storage, system
from gpunode.audit.check import CannotTell, Check, Subject
from gpunode.gpu.driver import DriverError
from gpunode.metric import Metric, Sample
from gpunode.node import Node
from gpunode.source import Reading

CHECKS: tuple[Check, ...] = (
    *system.CHECKS,
    *storage.CHECKS,
    *network.CHECKS,
    *gpu.CHECKS,
    *job.CHECKS,
)

OK = Metric(
    "gpunode_audit_ok",
    "gauge",
    "Whether the node is set up as advised; absent where that cannot be told. The advice is in "
    "docs/audit.md, what was found at /api/v1/audit.",
    ("check",),
)

Status = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a check; where it could not tell, ``found`` says why."""

    check: str
    status: Status
    found: str
    advised: str
    why: str
    remedy: str
    source: str


def audit(node: Node) -> list[Result]:
    """Run every check on a node."""
    subject = Subject(node)
    return [_run(check, subject) for check in CHECKS]


def _run(check: Check, subject: Subject) -> Result:
    status: Status
    try:
        finding = check.look(subject)
    except OSError as error:
        status, found = "unknown", f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    except (CannotTell, DriverError, ValueError) as error:
        status, found = "unknown", str(error)
    else:
        status, found = "ok" if finding.ok else "failed", finding.found
    return Result(check.name, status, found, check.advised, check.why, check.remedy, check.source)


class Audit:
    """Looks at the settings of the node every so often."""

    name = "audit"
    device = gpu = ""
    metrics = (OK,)

    def __init__(self, node: Node, interval: float) -> None:
        self.node = node
        self.every = interval

    def read(self) -> Reading:
        results = audit(self.node)
        samples = tuple(
            Sample(OK, (result.check,), float(result.status == "ok"))
            for result in results
            if result.status != "unknown"
        )
        return Reading(samples, {"checks": [asdict(result) for result in results]})
