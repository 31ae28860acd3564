"""``gpunode incident --job NAME``: the incidents of a job on all its nodes, as one page."""

from __future__ import annotations

import sys
import time
from contextlib import closing

from gpunode.cli import streams
from gpunode.cli.console import PipedConsole
from gpunode.cli.daemon import DaemonAddress, DaemonError
from gpunode.cli.report import deliver, secrets
from gpunode.cli.settings.incidents import IncidentCommandSettings
from gpunode.incidents.incident import parse
from gpunode.mistake import UsageError
from gpunode.report import claims, runs
from gpunode.report.claims import MAX_JOB_AGE, JobIncident, JobQuestions
from gpunode.report.document import Report
from gpunode.report.job_incidents import NodeAnswer, gathered
from gpunode.report.page import as_json, html
from gpunode.report.prometheus import Prometheus
from gpunode.report.terminal import print_report

MAX_INCIDENTS = 32
"""Incidents of which the nodes are asked, the earliest: those tell what began."""

TIMEOUT = 10.0
"""Seconds for an answer of a node."""

NO_NODES = "none"


def write(settings: IncidentCommandSettings) -> None:
    """Write the incidents of the job as the settings ask. Raises ``UsageError``."""
    if settings.tape is not None or settings.folder is not None:
        raise UsageError("job: tape and folder are of one incident on one node")
    if settings.html is not None:
        deliver(str(settings.html), lambda: html(ask(settings)))
        return
    report = ask(settings)
    with streams.printing():
        if settings.json_output:
            sys.stdout.write(f"{as_json(report)}\n")
        else:
            print_report(report, PipedConsole())


def ask(settings: IncidentCommandSettings) -> Report:
    """What Prometheus, and the nodes that answer, know. Raises ``UsageError`` without incidents."""
    end = int(time.time())
    with closing(Prometheus(settings.prometheus, secrets(settings.prometheus))) as server:
        name = settings.job.strip()
        job = runs.find(server, name, settings.cluster, end - MAX_JOB_AGE, end)
        questions = JobQuestions(server, job, end)
        found, proofs = questions.kept()
        if not found:
            raise UsageError(f"{job}: no incident on its GPUs is kept within a day")
        waited_for = questions.as_it_began(found).waited_for()
        began = claims.first_node(found, proofs, waited_for)
        answers = [_answer(one, settings) for one in found[:MAX_INCIDENTS]]
        answers += [NodeAnswer(one, None) for one in found[MAX_INCIDENTS:]]
        return gathered(questions, answers, began, waited_for)


def address(one: JobIncident, settings: IncidentCommandSettings) -> str:
    """Where a node is asked; a password goes out in clear only where a site says so."""
    known = settings.password_file or settings.ca_file or settings.cert_file
    form = settings.node_url or f"{'https' if known else 'http'}://{{instance}}"
    return form.replace("{instance}", one.instance)


def _answer(one: JobIncident, settings: IncidentCommandSettings) -> NodeAnswer:
    """What the node of an incident has kept."""
    if settings.node_url == NO_NODES:
        return NodeAnswer(one, None)
    try:
        daemon = DaemonAddress.of(settings.model_copy(update={"url": address(one, settings)}))
        return NodeAnswer(one, parse(daemon.get(f"/api/v1/incidents/{one.id}", TIMEOUT)))
    except DaemonError as error:
        return NodeAnswer(one, None, str(error))
    except ValueError as error:
        return NodeAnswer(one, None, f"no incident of this version: {error}")
