"""Runs the checks for the metrics and for ``gpunode audit``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpunode.audit import firmware, job, network, nvidia, storage, system
from gpunode.audit.check import Check, Subject, Undecided
from gpunode.config.daemon import Settings
from gpunode.driver.driver import DriverError, list_gpus
from gpunode.driver.errands import Errands
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node, NoDescriptors
from gpunode.source import MORE_PROCESSES, NodeSource, Reading
from gpunode.text import escaped

CHECKS: tuple[Check, ...] = (
    *system.CHECKS,
    *storage.CHECKS,
    *network.CHECKS,
    *nvidia.CHECKS,
    *firmware.CHECKS,
    *job.CHECKS,
)

OK = Metric(
    "gpunode_audit_ok",
    "gauge",
    "Whether the node is set up as advised; absent if the check cannot decide. docs/audit.md has "
    "the advice, /api/v1/audit the findings.",
    ("check",),
)

MAX_FINDING = 400
"""Characters of a finding."""

CHECK_TIMEOUT = 3.0
"""Seconds for a check; a driver that hangs over a GPU never answers."""

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
class AuditResults:
    """The results of all checks."""

    checks: tuple[Result, ...]


def audit(node: Node, errands: Errands | None = None) -> list[Result]:
    """Run every check on a node, none for long; ``errands`` knows those that hang."""
    return _results(Subject(node, list_gpus(node.drivers)), errands or Errands(CHECK_TIMEOUT))


def _results(subject: Subject, errands: Errands) -> list[Result]:
    return [_run(check, subject, errands) for check in CHECKS]


def _run(check: Check, subject: Subject, errands: Errands) -> Result:
    answers: list[tuple[Status, str]] = [("unknown", f"no answer within {CHECK_TIMEOUT:g} s")]
    errands.run({check.name: lambda: answers.append(_run_check(check, subject))})
    status, found = answers[-1]
    return Result(
        check.name,
        status,
        escaped(found, MAX_FINDING),
        check.advised,
        check.why,
        check.remedy,
        check.source,
    )


def _run_check(check: Check, subject: Subject) -> tuple[Status, str]:
    """What a check finds, or why it cannot tell."""
    try:
        finding = check.look(subject)
    except OSError as error:
        return "unknown", f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    except (Undecided, DriverError, NoDescriptors, ValueError) as error:
        return "unknown", str(error)
    return "ok" if finding.ok else "failed", finding.found


class Audit:
    """Audits the node periodically."""

    name = "audit"
    needs = "files of the node: its root at path.rootfs"
    metrics = (OK,)
    unknowns = (MORE_PROCESSES,)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.audit_interval
        self._errands = Errands(CHECK_TIMEOUT)

    def read(self) -> Reading:
        subject = Subject(self.node, list_gpus(self.node.drivers))
        results = _results(subject, self._errands)
        samples = tuple(
            Sample(OK, (result.check,), float(result.status == "ok"))
            for result in results
            if result.status != "unknown"
        )
        return Reading(samples, AuditResults(tuple(results)), subject.unread)


NODE_SOURCE: NodeSource = Audit
