"""Runs the checks for the metrics and for ``gpunode audit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpunode.audit import job, network, nvidia, storage, system
from gpunode.audit.check import CannotTell, Check, Subject
from gpunode.config import Settings
from gpunode.driver.driver import DriverError
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node
from gpunode.source import NodeSource, Reading
from gpunode.text import escaped

CHECKS: tuple[Check, ...] = (
    *system.CHECKS,
    *storage.CHECKS,
    *network.CHECKS,
    *nvidia.CHECKS,
    *job.CHECKS,
)

OK = Metric(
    "gpunode_audit_ok",
    "gauge",
    "Whether the node is set up as advised; absent if the check cannot decide. docs/audit.md has "
    "the advice, /api/v1/audit the findings.",
    ("check",),
)

LONGEST = 400
"""Characters of a finding."""

Status = Literal["ok", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check; if the status is unknown, ``found`` says why."""

    check: str
    status: Status
    found: str
    advised: str
    why: str
    remedy: str
    source: str


@dataclass(frozen=True, slots=True)
class Audited:
    """The results of all checks."""

    checks: tuple[Result, ...]


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
    return Result(
        check.name,
        status,
        escaped(found, LONGEST),
        check.advised,
        check.why,
        check.remedy,
        check.source,
    )


class Audit:
    """Audits the node periodically."""

    name = "audit"
    metrics = (OK,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.audit_interval

    def read(self) -> Reading:
        results = audit(self.node)
        samples = tuple(
            Sample(OK, (result.check,), float(result.status == "ok"))
            for result in results
            if result.status != "unknown"
        )
        return Reading(samples, Audited(tuple(results)))


NODE_SOURCE: NodeSource = Audit
