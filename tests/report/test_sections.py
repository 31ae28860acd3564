"""What the report says of periods that are put together by hand, to the hour."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from gpunode.report.billing import Billing
from gpunode.report.document import Report, Table
from gpunode.report.history import (
    DAY,
    HOUR,
    JobHours,
    JobKey,
    NodeHours,
    NodeKey,
    Period,
    PeriodHours,
)
from gpunode.report.mail import text
from gpunode.report.page import html
from gpunode.report.sacct import SlurmJob, accounts
from gpunode.report.sections import report
from gpunode.report.sections.bills import team_bills, team_report
from gpunode.report.view import PeriodView
from gpunode.report.words import as_text
from gpunode.verdict.causes import CAUSES
from tests.needs import ROOT
from tests.report import demand

START = 1_785_542_400 // DAY * DAY
Days = Mapping[int, float]


def past(days: int = 42) -> PeriodHours:
    return PeriodHours(Period(START, START + days * DAY))


def cluster(
    of: PeriodHours, name: str, gpus: float, used: float, idle: float = 0.0, grows: float = 0.0
) -> None:
    """A cluster whose held GPUs grow by so many a day."""
    own = of.clusters.setdefault(name, {})
    for at in range(of.period.start + HOUR, of.period.end + 1, HOUR):
        grown = used + grows * ((at - of.period.start) // DAY)
        own[at] = {"compute": grown, "idle": idle, "free": gpus - grown - idle}


def job(of: PeriodHours, name: str, *, states: Mapping[str, float], user: str = "kim") -> JobHours:
    """A job with these GPUs in each state all the time."""
    found = of.jobs[JobKey("a", "", name, user)]
    for state, gpus in states.items():
        found.states[state] += gpus * of.period.hours
    for at in range(of.period.start + DAY, of.period.end + 1, DAY):
        found.held[at] += 24 * sum(states.values())
        found.idle[at] += 24 * states.get("idle", 0.0)
    return found


def build(of: PeriodHours, before: PeriodHours | None = None, **billing: object) -> Report:
    view = PeriodView(
        of, before or PeriodHours(of.period.before), Billing.model_validate(billing), "namespace"
    )
    return report(view, "http://prometheus", ())


def says(of: Report, section: str) -> str:
    return next(one.says for one in of.sections if one.name == section)


def table(of: Report, section: str, name: str) -> Table:
    return next(one for one in of.sections if one.name == section).table(name)


def cells(found: Table, column: str) -> list[object]:
    at = [one.name for one in found.columns].index(column)
    return [row[at] for row in found.rows]


def test_a_gap_in_one_cluster_does_not_lower_demand() -> None:
    whole, holed = past(), past()
    for of in (whole, holed):
        cluster(of, "a", 256, 140, grows=1)
        cluster(of, "b", 200, 90)
    for at in list(holed.clusters["b"])[500:564]:
        del holed.clusters["b"][at]
    for at in list(holed.clusters["b"])[-30:]:  # also at the end, where it is no cluster that went
        del holed.clusters["b"][at]
    trend = table(build(holed), "demand", "trend")
    for held, supply in zip(cells(trend, "busiest"), cells(trend, "supply"), strict=True):
        assert held is None or (isinstance(held, float) and held >= 230)
        assert supply is None or supply == pytest.approx(456)
    trends = [cells(table(build(of), "demand", "trend"), "trend")[-1] for of in (whole, holed)]
    assert trends[1] == pytest.approx(trends[0], abs=0.1)
    assert "For 94 of 2,016 cluster hours there are no data" in build(holed).finding
    assert "94 of 2,016 cluster hours have no data" in says(build(holed), "coverage")
    assert "In 0 of 914 hours every GPU was held" in says(build(holed), "demand")


def test_a_cluster_that_goes_is_no_gap() -> None:
    of = past()
    cluster(of, "a", 100, 50)
    cluster(of, "b", 100, 50)
    for at in list(of.clusters["b"])[400:]:
        del of.clusters["b"][at]
    assert "In 0 of 1,008 hours" in says(build(of), "demand")


def test_the_finding_names_the_price_of_all_of_what_was_lost_and_of_what_comes_back() -> None:
    of = past(7)
    cluster(of, "a", 100, 60, idle=10)
    for states in of.clusters["a"].values():
        states |= {"starved": 10.0, "free": 20.0}
    trains = job(of, "llm", states={"starved": 10.0, "compute": 60.0})
    trains.causes["data_loading_cpu"] = 10.0 * 168
    job(of, "notebook", states={"idle": 8.0})
    of.gains["data_loading_cpu"] = {"estimate": 1200.0, "lower": 900.0, "upper": 1400.0}
    finding = build(of, price=2, currency="EUR").finding
    assert "Of 16,800 GPU hours, worth EUR 33,600, jobs held 80.0\u202f%" in finding
    assert (
        "3,360 were held and lost, worth EUR 6,720; about 2,544 of these (75.7\u202f%; at least "
        "66.8\u202f%, at most 91.7\u202f%) can be had back, worth EUR 5,088."
    ) in finding
    assert "the time that can be had back is worth 15 GPUs" in finding, "2,544 of 168 hours"
    assert "worth" not in build(of).finding.partition("Whether")[0], "nothing has a price"


def test_hours_of_gpus_that_jobs_share_have_no_cause_and_none_are_counted_twice() -> None:
    of = past(7)
    cluster(of, "a", 100, 60, idle=10)
    job(of, "blurred", states={"idle": 12.0})  # an hour in which it began is blurred
    for at, states in of.clusters["a"].items():
        of.clusters["a"][at] = {**states, "starved": 5.0, "free": 25.0}
    rows = table(build(of), "summary", "waterfall")
    hours = dict(zip(cells(rows, "part"), cells(rows, "gpu_hours"), strict=True))
    assert hours["no_cause"] == pytest.approx(5 * 168)
    assert hours["idle"] == pytest.approx(10 * 168)
    assert hours["lost"] == pytest.approx(15 * 168)


def test_the_smallest_causes_share_a_row() -> None:
    of = past(7)
    cluster(of, "a", 100, 60)
    for at, states in of.clusters["a"].items():
        of.clusters["a"][at] = {**states, "starved": 8.0, "free": 32.0}
    causes = ("shm", "compile", "checkpoint", "host_compute", "kernel_launch", "queue")
    for place, cause in enumerate((*causes, "host_bound", "kv_transfer")):
        own = job(of, cause, states={"starved": 1.0})
        own.causes[cause] = 168.0 - place
    rows = table(build(of), "summary", "waterfall")
    assert {*causes, "others"} <= set(cells(rows, "part"))
    assert not {"host_bound", "kv_transfer"} & set(cells(rows, "part"))
    assert "kv_transfer" in cells(table(build(of), "summary", "causes"), "cause")


def test_who_runs_the_nodes_is_asked_where_nodes_explain_what_was_lost() -> None:
    of = past(7)
    cluster(of, "a", 32, 20)
    for states in of.clusters["a"].values():
        states |= {"blocked": 10.0, "free": 2.0}
    trains = job(of, "llm", states={"blocked": 10.0, "compute": 20.0})
    trains.causes["straggler"] = 10.0 * 168
    for node in range(4):
        key = NodeKey("a", f"n{node}")
        of.nodes[key] = NodeHours({"compute": 8.0 * 168}, 168.0)
        for day in range(1, 8):
            shares = of.blocked.setdefault((JobKey("a", "", "llm", "kim"), START + day * DAY), {})
            shares[key] = [0.0 if node == 0 else 24 * 0.4, 24.0]
    assert cells(table(build(of), "summary", "actions"), "ask") == ["whoever runs the nodes: n0"]
    of.blocked.clear()
    assert cells(table(build(of), "summary", "actions"), "ask") == ["kim (1,680)"]


def test_little_of_the_period_before_is_not_compared_with() -> None:
    now = past(28)
    little, half = PeriodHours(now.period.before), PeriodHours(now.period.before)
    for of, gpus in ((now, 60), (little, 50), (half, 50)):
        cluster(of, "a", 100, gpus, idle=20)
    for before, hours in ((little, 22), (half, 336)):
        for at in list(before.clusters["a"])[hours:]:
            del before.clusters["a"][at]
    found = build(now, little)
    assert "before" not in found.finding
    assert says(found, "change") == (
        "Of the 28 days before, 22 of 672 hours have data: too few to compare with."
    )
    assert not table(found, "change", "change").rows
    compared = build(now, half)
    assert "rose by 3.6 points, to 75.0\u202f%." in compared.finding
    rows = table(compared, "change", "change")
    by_what = dict(zip(cells(rows, "what"), cells(rows, "now"), strict=True))
    assert by_what["Useful, of all GPU hours"] == pytest.approx(0.6), "as the finding begins"


@pytest.mark.parametrize(
    ("prices", "note"),
    [
        ({"NVIDIA H200": 3.1}, "at EUR 3.10 for a GPU hour"),
        ({"NVIDIA H200": 3.1, "NVIDIA H100": 2.1}, "at EUR 2.60 for a GPU hour, in the mean"),
    ],
)
def test_a_price_is_to_the_cent_and_a_mean_only_of_several(
    prices: Mapping[str, float], note: str
) -> None:
    of = past(7)
    cluster(of, "a", 100, 60, idle=20)
    for model in prices:
        of.models[model] = {"compute": 30.0 * 168, "idle": 10.0 * 168}
    found = build(of, prices=prices, currency="EUR")
    assert next(one.note for one in found.sections[0].figures if one.name == "lost_cost") == note
    assert f"A GPU hour is taken to cost EUR {2.6 if len(prices) > 1 else 3.1:.2f}." in html(found)


def test_demand_that_the_supply_hides_is_said() -> None:
    of = past(28)
    cluster(of, "a", 100, 80)
    assert "not seen" not in says(build(of), "demand")
    for at, states in of.clusters["a"].items():
        if of.period.end - at < 3 * DAY:
            states.update(compute=100.0, free=0.0)
    assert (
        "In 72 of 672 hours every GPU was held. In the last week, that was so in the busiest hour "
        "of 3 of 7 days: what was wanted beyond it is not seen."
    ) in says(build(of), "demand")
    (demand,) = (one for one in build(of).sections if one.name == "demand")
    (full,) = (one for one in demand.figures if one.name == "full_hours")
    assert (full.value, full.note) == (72, "of 672 hours")


def test_an_interval_without_an_end_is_said_in_words() -> None:
    of = past(28)
    cluster(of, "a", 120, 90, grows=0.1)
    for number, states in enumerate(of.clusters["a"].values()):
        swing = 8 * (number // 24 // 5 % 2)
        states["compute"] += swing
        states["free"] -= swing
    found = says(build(of), "demand")
    assert found.endswith(
        "Do not buy yet: when jobs come to hold all 120 GPUs in the busiest hour cannot be told, "
        "as with 80\u202f% confidence it is from 19 Sep 2026 on, perhaps not within two years."
    )


def test_an_upper_bound_is_called_one() -> None:
    of = past(2)
    cluster(of, "a", 100, 60)
    for name in ("first", "second"):
        job(of, name, states={"starved": 4.0, "compute": 4.0}).causes["shm"] = 300.0
    (losers,) = (one for one in build(of).sections if one.name == "losers")
    for rows in losers.tables:
        assert "To get back at most" in [column.title for column in rows.columns]


def test_a_node_that_failed_says_of_what() -> None:
    of = past(7)
    cluster(of, "a", 8, 4)
    node = NodeKey("a", "n0")
    of.nodes[node] = NodeHours({"free": 8.0 * 168}, 168.0)
    of.faults["", node, "network"] = {START + DAY: 0.25}
    of.faults["", node, "thermal"] = {START + DAY: 0.25, START + 2 * DAY: 0.25}
    assert cells(table(build(of), "failures", "nodes"), "faults") == ["cooling 2, network port 1"]


def test_faults_at_once_cost_the_gpus_of_a_node_once() -> None:
    of = past(7)
    cluster(of, "a", 8, 4)
    node = NodeKey("a", "n0")
    of.nodes[node] = NodeHours({"free": 8.0 * 168}, 168.0)
    day = {START + DAY + quarter * 900: 0.25 for quarter in range(96)}
    for fault in ("network", "filesystem"):
        of.faults["", node, fault] = day
    of.faults["GPU-1", node, "XID 79"] = day
    assert cells(table(build(of), "failures", "nodes"), "lost") == [192.0]
    assert cells(table(build(of), "failures", "faults"), "lost") == [192.0, 192.0, 24.0]


def test_a_command_in_a_sentence_is_shown_as_code() -> None:
    of = past(7)
    cluster(of, "a", 100, 50)
    page = html(build(of))
    assert "<code>gpunode report</code>" in page
    assert "`" not in page.partition("<body>")[2]


def test_a_short_bar_is_told_to_be_no_loss_of_gpus() -> None:
    whole, holed = past(7), past(7)
    for of in (whole, holed):
        cluster(of, "a", 100, 50)
    for at in list(holed.clusters["a"])[-20:]:
        del holed.clusters["a"][at]
    assert "shorter bar" in says(build(holed), "change")
    assert "shorter bar" not in says(build(whole), "change")


def test_columns_and_charts_have_their_units() -> None:
    of = past(14)
    cluster(of, "a", 100, 50)
    for at in range(START + DAY, of.period.end + 1, DAY):
        of.energy["a", at] = 1000.0
    page = html(build(of, price=2))
    assert "Held<small>GPU hours</small></th>" in page
    assert "GPU hours<small>" not in page, "once is enough"


def test_energy_is_divided_by_the_useful_hours_of_the_clusters_that_drew_it() -> None:
    of = past(7)
    for name in ("east", "west"):
        cluster(of, name, 8, 8)
    for at in range(START + DAY, of.period.end + 1, DAY):
        of.energy["east", at] = 192.0
    report = build(of)
    (section,) = (one for one in report.sections if one.name == "energy")
    (figure,) = (one for one in section.figures if one.name == "energy_per_useful_hour")
    assert figure.value == pytest.approx(1.0, rel=0.01)
    assert "No power is recorded of west." in section.says


def test_no_change_has_no_sign_of_one() -> None:
    assert as_text(-0.0001, "points") == "+0.0"
    assert [as_text(value, "GPUs") for value in (-1e-15, -0.004, -0.006)] == ["0", "0.00", "-0.01"]
    of = past(28)
    cluster(of, "a", 64, 60, idle=2)
    demand = next(one for one in build(of).sections if one.name == "demand")
    (gain,) = (figure for figure in demand.figures if figure.name == "demand_gain")
    assert gain.note == "GPUs a week (80\u202f%: +0.0 to +0.0)"


@pytest.mark.parametrize(
    ("gpus", "grows", "idle", "says_so"),
    [
        (200, 0.9, 0, "Buy: jobs come to hold all 200 GPUs in the busiest hour around "),
        (
            200,
            0.9,
            4,
            "and the time that can be had back is worth 4 GPUs, which moves that by days",
        ),
        (
            200,
            0.9,
            40,
            "Reclaim before you buy: jobs come to hold all 200 GPUs in the busiest hour",
        ),
        (400, 0.0, 40, "Buy nothing: at this trend jobs do not come to hold all 400 GPUs in the"),
        (
            100,
            0.0,
            40,
            "Reclaim before you buy: jobs hold all 100 GPUs in the busiest hour already",
        ),
    ],
)
def test_buy_or_reclaim_is_one_sentence(gpus: int, grows: float, idle: int, says_so: str) -> None:
    of = past(84)
    cluster(of, "a", gpus, 60, idle=idle, grows=grows)
    if idle:
        job(of, "forgotten", states={"idle": float(idle)})
    found = says(build(of), "demand").partition(" every GPU was held. ")[2]
    found = found.partition("is not seen. ")[2] or found
    assert says_so in found
    assert found in build(of).finding, "said once, and the same"
    assert found.count(".") == 1


@pytest.mark.parametrize(
    ("days", "told_of"),
    [
        (13, "it takes 14 days of data"),
        (20, "it takes 21 days of data"),
        (35, "80\u202f% interval"),
    ],
)
def test_a_short_history_has_no_interval(days: int, told_of: str) -> None:
    of = past(days)
    cluster(of, "a", 200, 60, grows=0.9)
    for number, states in enumerate(of.clusters["a"].values()):
        states["compute"] += (number // 24) ** 2 * 7 % 5
    assert told_of in says(build(of), "demand")
    assert ("80\u202f%" in says(build(of), "demand")) == (days >= 21)


def test_jobs_that_held_idle_gpus_say_what_they_hold_now() -> None:
    of = past(2)
    cluster(of, "a", 100, 20, idle=8)
    job(of, "parked", states={"idle": 4.0})
    job(of, "busy", states={"compute": 4.0})
    rows = table(build(of), "idle", "idle")
    assert cells(rows, "job") == ["parked"]
    assert cells(rows, "now") == [pytest.approx(4.0)]


def test_the_report_says_causes_in_words() -> None:
    of = past(7)
    cluster(of, "a", 400, 60)
    for states in of.clusters["a"].values():
        states |= {"starved": 40.0, "blocked": 20.0, "communication": 20.0, "copy": 20.0}
    for cause in CAUSES:
        own = job(of, "llm", states={"starved": 1.0, "blocked": 1.0, "copy": 1.0}, user=cause)
        own.causes[cause] = 300.0
    found = build(of)
    said = [found.finding, *(says(found, section.name) for section in found.sections)]
    for section, name, columns in (
        ("summary", "actions", ("what", "remedy")),
        ("summary", "waterfall", ("what",)),
        ("losers", "jobs", ("cause", "evidence", "remedy")),
    ):
        said += [str(cell) for one in columns for cell in cells(table(found, section, name), one)]
    raw = [name for name in CAUSES if "_" in name]
    assert not [name for name in raw if any(name in text for text in said)]


def ran(of: JobHours, first: int, gpus: int, step: float, mfu: float | None, days: int = 4) -> None:
    """Make a job run on so many GPUs for some days, for half of each."""
    for day in range(first, first + days):
        at = START + (day + 1) * DAY
        of.held[at], of.hours[at], of.steps[at] = 12.0 * gpus, 12.0, step
        if mfu is not None:
            of.mfu[at] = mfu


@pytest.mark.parametrize(
    ("small", "large", "days", "expected"),
    [
        ((16, 8.0, 0.4), (32, 4.4, 0.36), 4, (0.9, "MFU")),
        ((16, 8.0, 0.4), (32, 8.0, 0.36), 4, (0.9, "MFU")),
        ((16, 8.0, None), (32, 5.0, None), 4, (0.8, "time of a step")),
        ((16, 8.0, None), (32, 8.0, None), 4, None),  # the batch grew with the GPUs
        ((16, 8.0, 0.4), (24, 6.0, 0.39), 4, None),
        ((16, 8.0, 0.4), (32, 4.4, 0.36), 2, None),
    ],
)
def test_what_twice_the_gpus_are_worth_is_said_where_a_job_ran_on_both(
    small: tuple[int, float, float | None],
    large: tuple[int, float, float | None],
    days: int,
    expected: tuple[float, str] | None,
) -> None:
    of = past(14)
    cluster(of, "a", 100, 50)
    llm = job(of, "llm", states={"compute": 16.0})
    ran(llm, 0, *small, days=days)
    ran(llm, 6, *large, days=days)
    rows = table(build(of), "training", "scaling")
    assert len(rows.rows) == (expected is not None)
    if expected:
        efficiency, seen_from = expected
        assert cells(rows, "efficiency") == [pytest.approx(efficiency)]
        assert cells(rows, "faster") == [pytest.approx(2 * efficiency)]
        assert (cells(rows, "gpus"), cells(rows, "gpus_twice")) == ([16.0], [32.0])
        assert cells(rows, "seen_from") == [seen_from]


def test_holding_more_is_not_called_better() -> None:
    now = past(7)
    before = PeriodHours(now.period.before)
    cluster(now, "a", 100, 50, idle=40)
    cluster(before, "a", 100, 50)
    rows = table(build(now, before), "change", "change")
    verdicts = dict(zip(cells(rows, "what"), cells(rows, "verdict"), strict=True))
    assert verdicts["Held, of all GPU hours"] == "more"
    assert verdicts["Used, of all GPU hours"] == "as before"
    assert "better" not in verdicts.values()


def test_a_gpu_that_flaps_is_one_failure() -> None:
    of = past(28)
    cluster(of, "a", 32, 16)
    for node in range(4):
        of.nodes[NodeKey("a", f"n{node}")] = NodeHours({"free": 8.0 * 672}, 672.0)
    flapping = {START + day * DAY: 0.25 for day in range(1, 13)}
    of.faults["GPU-1", NodeKey("a", "n0"), "XID 94"] = flapping
    for node in range(1, 4):
        of.faults["", NodeKey("a", f"n{node}"), "network"] = {START + node * DAY: 0.25}
    of.faults["", NodeKey("a", "n1"), "network"][START + 20 * DAY] = 0.25
    rows = table(build(of), "failures", "faults")
    assert dict(zip(cells(rows, "fault"), cells(rows, "count"), strict=True)) == {
        "XID 94": 1,
        "network port": 4,
    }
    assert dict(zip(cells(rows, "fault"), cells(rows, "times"), strict=True)) == {
        "XID 94": 12,
        "network port": 4,
    }


def test_what_a_cause_was_named_for_has_no_price_where_nothing_comes_back() -> None:
    of = past(7)
    cluster(of, "a", 100, 50)
    of.gains["memory_bandwidth"] = {"estimate": 0.0, "lower": 0.0, "upper": 0.0}
    assert cells(table(build(of, price=2.5), "summary", "causes"), "cause") == []
    assert "16,0" not in html(build(of, price=2.5))


def test_what_helps_is_below_the_figures_and_no_word_is_broken() -> None:
    of = past(7)
    cluster(of, "a", 100, 50)
    long = job(of, "x" * 60, states={"starved": 4.0})
    long.causes["data_loading_cpu"] = 9999.0
    page = html(build(of))
    row = page[page.index('<tr class="said">') :]
    assert row.index("What helps</b>") < row.index("</tr>")
    assert "<th" not in page[page.index("Jobs that lost most") :].split("What helps")[0][-400:]
    assert "Data loading: CPUs at limit" in page, "no word of a cause is broken"
    assert f"{'x' * 24}<wbr>{'x' * 24}<wbr>{'x' * 12}" in page
    assert "anywhere }" not in page.partition("code {")[0]


def test_the_bill_of_a_team_in_two_clusters_names_the_job_first_in_lines_of_a_mail() -> None:
    of = past(28)
    for name in ("frankfurt", "paris"):
        cluster(of, name, 100, 50)
    long = "llama-70b-continued-pretraining-worker"
    job(of, long, states={"compute": 8.0, "starved": 4.0}).models["NVIDIA H200"] = 8064.0
    job(of, "short", states={"compute": 2.0})
    view = PeriodView(
        of,
        PeriodHours(of.period.before),
        Billing.model_validate({"price": 2.5, "currency": "EUR"}),
        "namespace",
    )
    lines = text(team_report(view, team_bills(view)[0], "http://prometheus")).splitlines()
    assert max(map(len, lines)) <= 78, "RFC 5322"
    heads = [line.strip() for line in lines if line.startswith("  ") and line[2] != " "]
    assert heads.count(long) == 2, "once among the losses, once among the jobs"
    assert "short" in heads
    said = " ".join(" ".join(lines).split())
    assert f"{long} cluster a, owner kim, cause Starved: nothing to run, to get back" in said
    assert f"{long} cluster a, owner kim, held 8,064 GPU hours, useful 66.7%, lost 2,688" in said
    assert "price of held EUR 20,160" in said


@pytest.mark.parametrize(
    ("clusters", "named", "expected"),
    [
        (("a",), "", {("a", "slurm-77"): "ml"}),
        (("a",), "slurm's own name", {("a", "slurm-77"): "ml"}),
        (("a", "b"), "b", {("b", "slurm-77"): "ml"}),
    ],
)
def test_an_account_is_of_the_job_of_its_own_cluster(
    clusters: tuple[str, ...], named: str, expected: dict[tuple[str, str], str]
) -> None:
    job = SlurmJob("77", "ml", 1.0, 2.0, named)
    assert accounts([job], clusters) == expected


def test_an_account_is_of_no_job_where_its_cluster_is_not_known() -> None:
    found = accounts([SlurmJob("77", "ml", 1.0, 2.0)], ("a", "b"))
    assert ("a", "slurm-77") not in found
    assert ("b", "slurm-77") not in found


def test_the_report_asks_for_what_the_document_has_sacct_print() -> None:
    of = past(7)
    cluster(of, "a", 100, 50)
    document = (ROOT / "docs/report.md").read_text()
    asked = re.search(r"SLURM_TIME_FORMAT=%s sacct (?:.*\\\n)*.*(?= >)", document)
    assert asked is not None
    command = " ".join(asked[0].replace("\\\n", "").split())
    assert "--starttime" in command, "else it begins with today"
    assert f"`{command}`" in says(build(of), "queue")


def test_intervals_hold_what_they_say() -> None:
    """As `make bench BENCH=forecasts` measures with 200 fleets of each length of time."""
    for what, share in demand.interval_coverage(40, days=42, others=12).items():
        assert 0.7 <= share <= 0.92, (what, share)
