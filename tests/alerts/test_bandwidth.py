"""How fast a job's collectives are, whoever comes late: played by promtool over two nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from alerts.examples import TRAIN, ledger, owner, series
from alerts.recording.bandwidth import RATIO, SPEED
from alerts.rule_files import EXPRESSIONS, substituted
from tests.alerts.rule_tests import FIRST, Case
from tests.alerts.test_alerts import play, run, shipped

MINUTES = 30
JOB = dict(zip(("owner_namespace", "workload", "replica", "user"), TRAIN, strict=True))
COLLECTIVE = 0.125
"""Share of the time in which the links move what the job exchanges, if nobody comes late."""

SENT = {"NVLink": 20e9, "adapters": 4e9}
FULL = {over: sent / COLLECTIVE for over, sent in SENT.items()}


def two_nodes(name: str, *waits: float, work: float = 1.0) -> Case:
    """A job on a GPU of each of two nodes, of which each waits for a share of the time."""
    case = Case(name)
    for at, wait in enumerate(waits):
        node = {"instance": f"node-{at}"}
        shares = {"communication": work * COLLECTIVE, "blocked": work * wait}
        for state, share in ledger(**shares).items():
            case.give(state, [(MINUTES, share)], **node)
        case.give(owner(owner_pod=f"train-{at}"), [(MINUTES, 1.0)], **node)
        case.give(
            series("gpunode_gpu_nvlink_bytes_total", direction="transmit"),
            [(MINUTES, work * SENT["NVLink"])],
            **node,
        )
        case.give(
            series(
                "gpunode_infiniband_bytes_total", device="mlx5_0", port="1", direction="transmit"
            ),
            [(MINUTES, work * SENT["adapters"])],
            **node,
        )
    return case


def expect(case: Case, speeds: dict[str, float]) -> Case:
    """The speed of its collectives over each kind of link."""
    known = {name: value for name, value in JOB.items() if value}
    found = [
        (SPEED, {"cluster": case.name, **known, "over": over}, speed)
        for over, speed in speeds.items()
    ]
    case.expect(MINUTES - 2, f'{SPEED}{{cluster="{case.name}"}}', found)
    return case


def one_of_a_node() -> Case:
    """A job of which the first node has a second GPU: it waits for the first, as the other node."""
    case = two_nodes("one of a node is late", 0.0, 0.375)
    second = {"instance": "node-0", "gpu": "1", "uuid": "GPU-b"}
    for state, share in ledger(communication=COLLECTIVE, blocked=0.375).items():
        case.give(state, [(MINUTES, share)], **second)
    case.give(owner(owner_pod="train-0"), [(MINUTES, 1.0)], **second)
    sent = series("gpunode_gpu_nvlink_bytes_total", direction="transmit")
    case.give(sent, [(MINUTES, SENT["NVLink"])], **second)
    return expect(case, FULL)


def shared() -> Case:
    """A job that shares the second GPU's node, whose adapters are nobody's in particular."""
    case = two_nodes("shared", 0.0, 0.0)
    for node in ("node-0", "node-1"):
        case.give(
            owner(owner_pod="other-0"), [(MINUTES, 1.0)], instance=node, gpu="1", uuid="GPU-b"
        )
    return expect(case, {"NVLink": FULL["NVLink"]})


CASES = (
    expect(two_nodes("nobody is late", 0.0, 0.0), FULL),
    expect(two_nodes("one is late, and the other waits", 0.0, 0.375), FULL),
    expect(two_nodes("it waits for data half of the time", 0.0, 0.0, work=0.5), FULL),
    expect(
        two_nodes("the network is slow, and both wait", 0.125, 0.125),
        {over: speed / 2 for over, speed in FULL.items()},
    ),
    expect(two_nodes("hardly any collectives", 0.0, 0.0, work=0.25), {}),
    expect(two_nodes("one node", 0.0), {"NVLink": FULL["NVLink"]}),
    one_of_a_node(),
    shared(),
)


def test_only_slow_links_make_collectives_slow(tmp_path: Path) -> None:
    ran = play(tmp_path, CASES, shipped(*FIRST))
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("past", "ratio"),
    [
        pytest.param("100x160 50x7", 0.5, id="it was twice as fast"),
        pytest.param("100x160 100x7", 1.0, id="it is as fast as ever"),
        pytest.param("50x80 900 50x87", 1.0, id="one moment is no best"),
        pytest.param("50x3", 1.0, id="it has only begun"),
    ],
)
def test_the_best_of_a_week_is_what_was_reached_for_long(
    tmp_path: Path, past: str, ratio: float
) -> None:
    of = '{cluster="c",over="NVLink",workload="train"}'
    hours = sum(int(part.partition("x")[2] or 0) + 1 for part in past.split())
    test = {
        "evaluation_interval": "1h",
        "tests": [
            {
                "interval": "1h",
                "input_series": [{"series": f"{SPEED}{of}", "values": past}],
                "promql_expr_test": [
                    {
                        "expr": substituted(EXPRESSIONS[RATIO]),
                        "eval_time": f"{hours - 1}h",
                        "exp_samples": [{"labels": of, "value": ratio}],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.json").write_text(json.dumps(test))
    ran = run("promtool", "test", "rules", "test.json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
