"""What is claimed of a job: errors of its GPUs, by whoever told of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from gpunode.config.prometheus import PrometheusSettings
from gpunode.report.claims import JobQuestions, ProvenAnswer
from gpunode.report.prometheus import Prometheus, Secrets
from gpunode.report.runs import JobName
from tests.needs import need
from tests.prometheus.known import remembering
from tests.report.test_why import HOUR, NOW, Series

LOGGED = "gpunode_kernel_log_last_xid_timestamp_seconds"
XID_SERIES = "gpunode_gpu_xid_last_timestamp_seconds"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with three jobs on a GPU each, on nodes of their own."""
    need("prometheus")
    need("promtool")
    series = Series()
    for job in ("well", "logged", "new"):
        gpu = {"instance": f"n-{job}", "gpu": "0", "uuid": f"GPU-{job}"}
        member = {"owner_namespace": "ml", "workload": job, **gpu}
        for name in ("gpu:gpunode_owner:info", "gpu:gpunode_gpu_owner:workload"):
            series.put(name, member, lambda _: 1.0, NOW - 3 * HOUR, NOW)
        watched = {**gpu, "xid": "79"}
        series.put("gpunode_gpu_xid_errors_total", watched, lambda _: 0.0, NOW - 3 * HOUR, NOW)
    at = {"instance": "n-logged", "bus_id": "0000:17:00.0", "xid": "79"}
    series.put(LOGGED, at, lambda _: float(NOW - HOUR), NOW - HOUR, NOW)
    unwatched = {"instance": "n-new", "gpu": "0", "uuid": "GPU-new", "xid": "13"}
    series.put("gpunode_gpu_xid_errors_total", unwatched, lambda _: 1.0, NOW - HOUR, NOW)
    series.put(XID_SERIES, unwatched, lambda _: float(NOW - HOUR), NOW - HOUR, NOW)
    with (
        remembering(series.text(), tmp_path_factory.mktemp("claims")) as url,
        closing(Prometheus(PrometheusSettings(url=url), Secrets())) as found,
    ):
        yield found


def change_claims(server: Prometheus, job: str) -> ProvenAnswer:
    return JobQuestions(server, JobName("c", "ml", job), NOW).changed()


@pytest.mark.parametrize(
    ("job", "says", "value"),
    [
        ("well", "no XID on its nodes within a day", 0.0),
        ("logged", "XID 79 on the GPU at 0000:17:00.0 of n-logged, within a day", NOW - HOUR),
        ("new", "XID 13 on GPU 0 of n-new, within a day", NOW - HOUR),
    ],
)
def test_an_xid_is_told_whoever_saw_it(
    server: Prometheus, job: str, says: str, value: float
) -> None:
    (claim,) = [one for one in change_claims(server, job).claims if "XID" in one.says]
    assert (claim.says, claim.value) == (says, value)
    (proof,) = server.at(claim.promql, NOW)
    assert proof[1] == value
