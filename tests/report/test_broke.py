"""What broke, and what it cost: the report's prices beside those of a fleet with known faults."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpunode.cli.main import main
from gpunode.incidents.incident import KINDS
from gpunode.report.history import HOUR
from tests.needs import ROOT, need
from tests.prometheus.known import Fleet, Job, KnownIncident, recorded_fleet

START = 1_785_542_400
"""2026-08-01, 00:00 UTC."""

DAY = 24
PRICE = 2.5
NODES = {f"n{at}": (0, 3 * DAY) for at in range(6)}


def parts(workload: str, nodes: tuple[str, ...], *lost: tuple[int, int, int]) -> tuple[Job, ...]:
    """A job that only computes, but from some hours on waits for one and starts for another."""
    own: list[Job] = []
    at = 0
    for begin, waits, starts in lost:
        for state, end in (
            ("compute", begin),
            ("blocked", begin + waits),
            ("starved", begin + waits + starts),
        ):
            if end > at:
                own.append(
                    Job(
                        workload=workload,
                        nodes=nodes,
                        begin=at,
                        end=end,
                        shares={state: 1.0},
                        namespace="ml",
                    )
                )
            at = max(at, end)
    return (
        *own,
        Job(
            workload=workload,
            nodes=nodes,
            begin=at,
            end=3 * DAY,
            shares={"compute": 1.0},
            namespace="ml",
        ),
    )


def part(**hours: float) -> dict[str, float]:
    return {"waiting": 0.0, "starting": 0.0, "repeating": 0.0, **hours}


LLM = ("n0", "n1", "n2")
FLEET = Fleet(
    start=START,
    hours=3 * DAY,
    nodes=NODES,
    jobs=(
        *parts("llm", LLM, (22, 2, 1), (50, 1, 1)),
        *parts("vit", ("n3",), (30, 3, 0)),
        *parts("asr", ("n4",)),
    ),
    incidents=(
        # Across midnight, and told by all three nodes within a minute.
        *(
            KnownIncident(
                "llm", kind, 22 * HOUR + later, part(waiting=16, starting=8, repeating=8), (n,)
            )
            for n, kind, later in (("n0", "stall", 0), ("n1", "stall", 12), ("n2", "gpu_lost", 3))
        ),
        # Of what is repeated, one node alone knows.
        KnownIncident("llm", "xid", 50 * HOUR, part(waiting=8, starting=8, repeating=12), ("n0",)),
        *(
            KnownIncident("llm", "stall", 50 * HOUR + 30, part(waiting=8, starting=8), (n,))
            for n in ("n1", "n2")
        ),
        KnownIncident("vit", "stall", 30 * HOUR, part(waiting=24), ("n3",)),
    ),
    repeated={("llm", 26): 24.0, ("llm", 53): 24.0, ("llm", 54): 12.0, ("asr", 40): 6.0},
)
TRUTH = {
    ("llm", "gpu_lost"): (48.0, 24.0, 24.0),
    ("llm", "xid"): (24.0, 24.0, 36.0),
    ("vit", "stall"): (24.0, 0.0, 0.0),
    ("asr", ""): (0.0, 0.0, 6.0),
}
"""GPU hours without work, to start again, and repeated, by the job and what began."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    need("prometheus")
    need("promtool")
    with recorded_fleet(FLEET, tmp_path_factory.mktemp("past")) as found:
        yield found


GOODPUT = """
rule_files: [{rules}/boards.yaml]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {{series: 'gpu:gpunode_owner:info{{gpu="0",workload="llm"}}', values: 1x60}}
      - {{series: 'gpu:gpunode_owner:info{{gpu="1",workload="llm"}}', values: 1x60}}
      - {{series: 'gpunode_training_seconds_total{{gpu="0",phase="step"}}', values: 0+24x60}}
      - {{series: 'gpunode_training_seconds_total{{gpu="0",phase="data"}}', values: 0+6x60}}
      - {{series: 'gpunode_training_seconds_total{{gpu="1",phase="step"}}', values: 0+30x60}}
      - series: 'gpunode_job_repeated_seconds_total{{gpu="0",bound="estimate"}}'
        values: {repeats}
    promql_expr_test:
      - expr: sum by (phase) (job:gpunode_training_seconds:rate5m)
        eval_time: 20m
        exp_samples:
          - {{labels: '{{phase="step"}}', value: {step}}}
          - {{labels: '{{phase="data"}}', value: 0.2}}
          - {{labels: '{{phase="repeated"}}', value: {repeated}}}
"""


@pytest.mark.parametrize(
    ("repeats", "step", "repeated"), [(0, 1.8, 0), (15, 1.3, 0.5), (30, 1, 0.8)]
)
def test_goodput_has_lost_the_steps_that_are_repeated_and_every_second_one_phase(
    repeats: int, step: float, repeated: float, tmp_path: Path
) -> None:
    """Also where all of the time of a GPU is repeated, in which it waits for data as well."""
    cases = tmp_path / "cases.yaml"
    given = {"repeats": f"0+{repeats}x60", "step": step, "repeated": repeated}
    cases.write_text(GOODPUT.format(rules=ROOT / "alerts/rules", **given))
    command = [need("promtool"), "test", "rules", str(cases)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_price_is_that_of_its_fault_and_the_sum_that_of_the_ledger(
    url: str, tmp_path: Path
) -> None:
    times = ("--from=2026-08-01", "--to=2026-08-04", f"--price={PRICE}", "--format=json")
    main(["report", f"--prometheus.url={url}", *times, f"--output={tmp_path}/report.json"])
    sections = {
        one["name"]: one for one in json.loads((tmp_path / "report.json").read_text())["sections"]
    }
    (table,) = sections["broke"]["tables"]
    names = [column["name"] for column in table["columns"]]
    rows = [dict(zip(names, row, strict=True)) for row in table["rows"]]
    assert [row["job"] for row in rows] == ["llm", "llm", "vit", "asr"]
    for row, ((job, kind), hours) in zip(rows, TRUTH.items(), strict=True):
        assert row["job"] == job
        assert row["what"] == (KINDS[kind] if kind else row["what"])  # type: ignore[index]
        found = row["waiting"], row["starting"], row["repeating"]
        print(job, kind, "truth", hours, "told", found, row["cost"])
        assert found == pytest.approx(hours, rel=0.05)
        assert row["cost"] == pytest.approx(PRICE * sum(hours), rel=0.05)
    assert rows[0]["nodes"] == 3
    assert "20260801T220000Z-stall-0 on n0" in rows[0]["evidence"]
    lost = sum(
        FLEET.by_state(0, 3 * DAY).get(state, 0.0) for state in ("blocked", "starved", "idle")
    )
    told = sum(row["waiting"] + row["starting"] for row in rows)
    assert told == pytest.approx(lost, rel=0.01)
    (days,) = (t for t in sections["change"]["tables"] if t["name"] == "days")
    columns = [column["name"] for column in days["columns"]]
    by_state = {
        state: sum(row[columns.index(state)] for row in days["rows"])
        for state in ("blocked", "starved")
    }
    assert told == pytest.approx(by_state["blocked"] + by_state["starved"], rel=0.01)
    assert sum(row["repeating"] for row in rows) == pytest.approx(sum(FLEET.repeated.values()))
