"""Which versions run where, which nodes differ, and what has changed since a job's best pace.

A version is of something: ``what`` is the driver, the VBIOS of a model of GPU, the image of a job.
What differs by its hardware is compared with the same hardware only.
"""

from __future__ import annotations

from alerts.examples import HELD, NODE_A, OF_JOB, OF_NODE, TRAIN, series
from alerts.model import FOR_DAYS, FOR_HOURS, Record, minutes
from alerts.promql import GPU, JOB, NODE, OWNER
from alerts.recording.jobs import ON_NODE
from alerts.settings import BEST_PACE, FEW_NODES

OF_THE_NODE = ("driver", "cuda", "kernel", "os", "rdma", "lustre")
OF_THE_PRODUCT = ("bios", "bmc", "nvswitch")
OF_THE_MODEL = ("vbios", "inforom", "gsp")
OF_THE_PROCESS = ("torch", "nccl", "cuda", "image", "digest")
"""Labels of the exporter's series that are versions."""

OF_JOBS = "node:gpunode_job_version:info"
BY_VERSION = f"{JOB}, what, version"
STEP = series("gpunode_training_step_median_seconds")
NODE_INFO = series(
    "gpunode_node_info",
    **dict.fromkeys(
        ("cuda", "kernel", "os", "rdma", "lustre", "product", "bios", "bmc", "nvswitch"), ""
    ),
    driver="570.133.20",
)
NODE_INFO_B = series(
    "gpunode_node_info", **{**dict(NODE_INFO.labels), "driver": "580.159.04"}, instance="node-b"
)
JOB_INFO = series(
    "gpunode_job_version_info",
    torch="2.9.1+cu128",
    nccl="",
    cuda="12.8",
    image="registry.example.org/research/trainer:2026-11",
    digest="sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0",
)
EARLIER = series(
    "job:gpunode_training_step:by_version_hourly", workload="train", what="torch", version="2.8.0"
)


def _named(expression: str, version: str, what: str, of: str = "") -> str:
    """Series with ``what`` they are a version of, and with the label that is the version."""
    told = f'label_replace({expression}, "version", "$1", "{version}", "(.+)")'
    if of:
        return f'label_replace({told}, "what", "{what} of $1", "{of}", "(.*)")'
    return f'label_replace({told}, "what", "{what}", "", "")'


def _all() -> str:
    """Every version of a node, whatever it is of."""
    of_node = "gpunode_node_info"
    parts = [
        *(_named(f'{of_node}{{{one}!=""}}', one, one) for one in OF_THE_NODE),
        *(_named(f'{of_node}{{{one}!=""}}', one, one, "product") for one in OF_THE_PRODUCT),
        *(
            _named(f'gpunode_gpu_info{{{one}!="",parent=""}}', one, one, "name")
            for one in OF_THE_MODEL
        ),
        _named('gpunode_infiniband_info{board!=""}', "firmware", "firmware", "board"),
    ]
    return " or ".join(f"max by ({NODE}, what, version) ({part})" for part in parts)


def _alone(expression: str, by: str) -> str:
    """What has one version only: of two, as in a rolling update, neither counts."""
    return f"({expression} and on ({by}) count by ({by}) ({expression}) == 1)"


def _of_jobs() -> str:
    """The versions that a job runs with on a node: those of the node and of its processes."""
    of_nodes = (
        f"{ON_NODE} * on ({NODE}) group_left (what, version) {_alone(_of_a_node(one), NODE)}"
        for one in OF_THE_NODE
        if one != "cuda"  # which a job has of its own
    )
    told = (_named(f'gpunode_job_version_info{{{one}!=""}}', one, one) for one in OF_THE_PROCESS)
    of_processes = (
        f"max by ({NODE}, {OWNER}, what, version) (gpu:gpunode_job:member * on ({GPU}) "
        f"group_left (what, version) {_alone(f'max by ({GPU}, what, version) ({one})', GPU)})"
        for one in told
    )
    return " or ".join((*of_nodes, *of_processes))


def _of_a_node(what: str) -> str:
    return f'max by ({NODE}, what, version) (node:gpunode_version:info{{what="{what}"}})'


WEEK = "min_over_time(job:gpunode_training_step:by_version_hourly[7d])"

OF_NODES: tuple[Record, ...] = (
    Record(
        name="node:gpunode_version:info",
        labels=(*OF_NODE, "what", "version"),
        interval=FOR_DAYS,
        expression=_all(),
        purpose="Versions of a node: of `what`, and for firmware of which model, product or board.",
        given={NODE_INFO: 1.0},
        results={(NODE_A, "driver", "570.133.20"): 1.0},
    ),
    Record(
        name=OF_JOBS,
        labels=(*OF_NODE, *OF_JOB[1:], "what", "version"),
        interval=FOR_HOURS,
        expression=_of_jobs(),
        purpose="Versions with which a job runs on a node: those of the node, and of its processes "
        "there.",
        given={**HELD, NODE_INFO: 1.0, JOB_INFO: 1.0},
        results={
            (NODE_A, *TRAIN, "driver", "570.133.20"): 1.0,
            (NODE_A, *TRAIN, "torch", "2.9.1+cu128"): 1.0,
        },
    ),
)
"""Rules that need only the series of one node; each shard of Prometheus can evaluate them."""

OF_CLUSTERS: tuple[Record, ...] = (
    Record(
        name="cluster:gpunode_version:nodes",
        labels=("cluster", "what", "version"),
        interval=FOR_DAYS,
        expression="count by (cluster, what, version) (node:gpunode_version:info)",
        purpose="Nodes with each version.",
        given={NODE_INFO: 1.0, NODE_INFO_B: 1.0},
        results={("driver", "570.133.20"): 1.0},
    ),
    Record(
        name="node:gpunode_version:differs",
        labels=(*OF_NODE, "what", "version"),
        interval=FOR_DAYS,
        expression=(
            "node:gpunode_version:info and on (cluster, what, version) "
            f"(cluster:gpunode_version:nodes <= on (cluster, what) group_left () {FEW_NODES} * "
            "sum by (cluster, what) (cluster:gpunode_version:nodes))"
        ),
        purpose="Versions of nodes that most nodes with the same hardware do not have.",
        given={NODE_INFO: 1.0, NODE_INFO_B: 1.0},
        results={("node-b", "driver", "580.159.04"): 1.0},
    ),
    Record(
        name="job:gpunode_training_step:by_version",
        labels=(*OF_JOB, "what", "version"),
        interval=FOR_HOURS,
        expression=(
            f"max by ({BY_VERSION}) ({OF_JOBS}) "
            f"* on ({JOB}) group_left () job:gpunode_training_step:median"
        ),
        purpose="Time of a job's step, with each version that it runs with.",
        given={**HELD, STEP: 3.0, NODE_INFO: 1.0, JOB_INFO: 1.0},
        results={
            (*TRAIN, "driver", "570.133.20"): 3.0,
            (*TRAIN, "torch", "2.9.1+cu128"): 3.0,
        },
    ),
    Record(
        name="job:gpunode_training_step:by_version_hourly",
        labels=(*OF_JOB, "what", "version"),
        interval=FOR_DAYS,
        expression=(
            "avg_over_time(job:gpunode_training_step:by_version[1h]) "
            f"and on () (minute() < {minutes(FOR_DAYS)})"
        ),
        purpose="Time of a job's step with each version over an hour, for what looks back on days.",
        given={**HELD, STEP: 3.0, JOB_INFO: 1.0},
        results={(*TRAIN, "torch", "2.9.1+cu128"): 3.0},
    ),
    Record(
        name="job:gpunode_training_step:at_best",
        labels=(*OF_JOB, "what", "version"),
        interval=FOR_DAYS,
        expression=(
            f"{WEEK} <= on ({JOB}) group_left () {BEST_PACE} * min by ({JOB}) ({WEEK}) "
            f"and on ({JOB}) job:gpunode_training_step:median"
        ),
        purpose="Versions with which a job that runs came near its best pace of the last week, in "
        "this run or in one of the same name, and its step then.",
        given={**HELD, STEP: 3.0, JOB_INFO: 1.0, EARLIER: 1.0},
        results={(*TRAIN, "torch", "2.8.0"): 1.0},
    ),
    Record(
        name="job:gpunode_version:changed",
        labels=(*OF_JOB, "what", "version"),
        expression=(
            f"(job:gpunode_training_step:by_version unless on ({BY_VERSION}) "
            f"job:gpunode_training_step:at_best) / on ({JOB}, what) group_left () "
            f"(min by ({JOB}, what) (job:gpunode_training_step:at_best) > 0)"
        ),
        purpose="Versions that a job did not have at its best pace of the last week, and its step "
        "as a multiple of that with the version of then.",
        given={**HELD, STEP: 3.0, JOB_INFO: 1.0, EARLIER: 1.0},
        results={(*TRAIN, "torch", "2.9.1+cu128"): 3.0},
    ),
    Record(
        name="job:gpunode_training_step:slowed",
        labels=OF_JOB,
        expression=(
            f"max by ({JOB}) (job:gpunode_training_step:slowdown "
            f'or label_replace(max by ({JOB}) (job:gpunode_version:changed), "since", "change", '
            '"", ""))'
        ),
        purpose="Time of a job's step over the best pace of the same run, or of the last week's "
        "runs of the same name that had another version of something.",
        given={**HELD, STEP: 3.0, JOB_INFO: 1.0, EARLIER: 1.0},
        results={TRAIN: 3.0},
    ),
)
"""Rules that add up or compare nodes, for the Prometheus that sees them all."""
