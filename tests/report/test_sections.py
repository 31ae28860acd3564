"""What the report says of periods that are put together by hand, to the hour."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from gpunode.export import palette
from gpunode.report.billing import Billing
from gpunode.report.document import Report, Table
from gpunode.report.history import DAY, HOUR, JobKey, JobPast, NodeKey, NodePast, Past, Period
from gpunode.report.mail import text
from gpunode.report.page import html
from gpunode.report.sacct import SlurmJob, accounts
from gpunode.report.sections import report
from gpunode.report.sections.bills import team_bills, team_report
from gpunode.report.sections.losses import loss_of
from gpunode.report.view import PeriodView
from gpunode.report.words import written
from tests.needs import ROOT
from tests.report import demand

START = 1_785_542_400 // DAY * DAY
Days = Mapping[int, float]


def past(days: int = 42) -> Past:
    return Past(Period(START, START + days * DAY))


def cluster(
    of: Past, name: str, gpus: float, used: float, idle: float = 0.0, grows: float = 0.0
) -> None:
    """A cluster whose held GPUs grow by so many a day."""
    own = of.clusters.setdefault(name, {})
    for at in range(of.period.start + HOUR, of.period.end + 1, HOUR):
        grown = used + grows * ((at - of.period.start) // DAY)
        own[at] = {"compute": grown, "idle": idle, "free": gpus - grown - idle}


def job(of: Past, name: str, *, states: Mapping[str, float], user: str = "kim") -> JobPast:
    """A job with these GPUs in each state all the time."""
    found = of.jobs[JobKey("a", "", name, user)]
    for state, gpus in states.items():
        found.states[state] += gpus * of.period.hours
    for at in range(of.period.start + DAY, of.period.end + 1, DAY):
        found.held[at] += 24 * sum(states.values())
        found.idle[at] += 24 * states.get("idle", 0.0)
    return found


def told(of: Past, before: Past | None = None, **billing: object) -> Report:
    view = PeriodView(
        of, before or Past(of.period.before), Billing.model_validate(billing), "namespace"
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
    week = table(told(holed), "demand", "week")
    for held, supply in zip(cells(week, "held"), cells(week, "supply"), strict=True):
        assert isinstance(held, float)
        assert held >= 230
        assert supply == pytest.approx(456)
    trends = [cells(table(told(of), "demand", "trend"), "trend")[-1] for of in (whole, holed)]
    assert trends[1] == pytest.approx(trends[0], abs=0.1)
    assert "For 94 of 2,016 cluster hours there are no data" in told(holed).finding
    assert "94 of 2,016 cluster hours have no data" in says(told(holed), "coverage")
    assert "In 0 of 914 hours every GPU was held" in says(told(holed), "demand")


def test_a_cluster_that_goes_is_no_gap() -> None:
    of = past()
    cluster(of, "a", 100, 50)
    cluster(of, "b", 100, 50)
    for at in list(of.clusters["b"])[400:]:
        del of.clusters["b"][at]
    assert "In 0 of 1,008 hours" in says(told(of), "demand")


def test_the_finding_names_what_costs_most() -> None:
    free, lost = past(), past()
    cluster(free, "a", 100, 20, idle=10)
    cluster(lost, "a", 100, 20, idle=60)
    assert "What costs most is GPUs that nobody held: 70,560 GPU hours, worth EUR 141,120." in (
        told(free, price=2, currency="EUR").finding
    )
    assert "nobody held" not in told(lost, price=2).finding
    assert "nobody held" not in told(free).finding, "nothing has a price"


def test_the_finding_names_the_whole_price_and_what_gives_back_most_over_all_jobs() -> None:
    of = past(7)
    cluster(of, "a", 100, 70, idle=10)
    of.causes.update({"kernel_launch": 2000.0, "data_loading_cpu": 1500.0, "no_requests": 1600.0})
    of.gains["no_requests"] = {"estimate": 1600.0, "lower": 1600.0, "upper": 1600.0}
    of.gains["kernel_launch"] = {"estimate": 300.0, "lower": 100.0, "upper": 500.0}
    of.gains["data_loading_cpu"] = {"estimate": 1200.0, "lower": 900.0, "upper": 1400.0}
    finding = told(of, price=2, currency="EUR").finding
    assert "Of 16,800 GPU hours, worth EUR 33,600, jobs held 80.0\u202f%" in finding
    assert (
        "Over all jobs, most comes back by giving back GPUs that idle (up to 1,680 GPU hours, "
        "worth EUR 3,360), then by mending data_loading_cpu (about 1,200 GPU hours, worth "
        "EUR 2,400)."
    ) in finding, "no_requests is among what idles"
    assert "kernel_launch" not in finding
    job(of, "llm", states={"starved": 4.0})
    assert "EUR 2,400). The job llm of kim lost most" in told(of, price=2, currency="EUR").finding
    assert "worth" not in told(of).finding, "nothing has a price"


def test_little_of_the_period_before_is_not_compared_with() -> None:
    now = past(28)
    little, half = Past(now.period.before), Past(now.period.before)
    for of, gpus in ((now, 60), (little, 50), (half, 50)):
        cluster(of, "a", 100, gpus, idle=20)
    for before, hours in ((little, 22), (half, 336)):
        for at in list(before.clusters["a"])[hours:]:
            del before.clusters["a"][at]
    found = told(now, little)
    assert "before" not in found.finding
    assert says(found, "change") == (
        "Of the 28 days before, 22 of 672 hours have data: too few to compare with."
    )
    assert not table(found, "change", "change").rows
    compared = told(now, half)
    assert "rose by 3.6 points, to 75.0\u202f%." in compared.finding
    rows = table(compared, "change", "change")
    by_what = dict(zip(cells(rows, "what"), cells(rows, "now"), strict=True))
    assert by_what["Useful, of all GPU hours"] == pytest.approx(0.6), "as the finding begins"


def test_the_price_of_all_gpu_hours_is_told_and_its_parts_add_up() -> None:
    of = past(7)
    cluster(of, "a", 100, 60, idle=20)
    (bills,) = (one for one in told(of, price=2).sections if one.name == "bills")
    whole, *parts = (figure.value for figure in bills.figures)
    assert whole == pytest.approx(2 * 168 * 100)
    assert [figure.name for figure in bills.figures[1:]] == [
        "price_useful",
        "price_lost",
        "price_free",
    ]
    assert sum(map(float, map(str, parts))) == pytest.approx(float(str(whole)))
    (bills,) = (one for one in told(of).sections if one.name == "bills")
    assert not bills.figures


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
    found = told(of, prices=prices, currency="EUR")
    assert next(one.note for one in found.sections[0].figures if one.name == "lost_cost") == note
    assert f"A GPU hour is taken to cost EUR {2.6 if len(prices) > 1 else 3.1:.2f}." in html(found)


def test_demand_that_the_supply_hides_is_said() -> None:
    of = past(28)
    cluster(of, "a", 100, 80)
    assert "not seen" not in says(told(of), "demand")
    for at, states in of.clusters["a"].items():
        if of.period.end - at < 3 * DAY:
            states.update(compute=100.0, free=0.0)
    assert (
        "In 72 of 672 hours every GPU was held. In the last week, that was so in the busiest hour "
        "of 3 of 7 days: what was wanted beyond it is not seen."
    ) in says(told(of), "demand")
    (demand,) = (one for one in told(of).sections if one.name == "demand")
    (full,) = (one for one in demand.figures if one.name == "full_hours")
    assert (full.value, full.note) == (72, "of 672 hours")


def test_an_interval_without_an_end_is_said_in_words() -> None:
    of = past(28)
    cluster(of, "a", 120, 90, grows=0.1)
    for number, states in enumerate(of.clusters["a"].values()):
        swing = 8 * (number // 24 // 5 % 2)
        states["compute"] += swing
        states["free"] -= swing
    found = says(told(of), "demand")
    assert "at any time from 19 Sep 2026 on, perhaps not within two years." in found
    (demand,) = (one for one in told(of).sections if one.name == "demand")
    (days,) = (one for one in demand.figures if one.name == "days_until_full")
    assert days.note.endswith(" to more than two years)")
    assert "and not within" not in found


def test_an_upper_bound_is_called_one() -> None:
    of = past(2)
    cluster(of, "a", 100, 60)
    for name in ("first", "second"):
        job(of, name, states={"starved": 4.0, "compute": 4.0}).causes["shm"] = 300.0
    (losers,) = (one for one in told(of).sections if one.name == "losers")
    for rows in losers.tables:
        assert "To get back at most" in [column.title for column in rows.columns]
    (evidence,) = cells(losers.table("owners"), "evidence")
    assert "up to 384 GPU hours to get back, over 2 jobs; in the job that loses most" in str(
        evidence
    )


def test_a_node_that_failed_says_of_what() -> None:
    of = past(7)
    cluster(of, "a", 8, 4)
    node = NodeKey("a", "n0")
    of.nodes[node] = NodePast({"free": 8.0 * 168}, 168.0)
    of.faults["", node, "network"] = {START + DAY: 0.25}
    of.faults["", node, "thermal"] = {START + DAY: 0.25, START + 2 * DAY: 0.25}
    assert cells(table(told(of), "failures", "nodes"), "faults") == ["thermal 2, network 1"]


def test_faults_at_once_cost_the_gpus_of_a_node_once() -> None:
    of = past(7)
    cluster(of, "a", 8, 4)
    node = NodeKey("a", "n0")
    of.nodes[node] = NodePast({"free": 8.0 * 168}, 168.0)
    day = {START + DAY + quarter * 900: 0.25 for quarter in range(96)}
    for fault in ("network", "filesystem"):
        of.faults["", node, fault] = day
    of.faults["GPU-1", node, "XID 79"] = day
    assert cells(table(told(of), "failures", "nodes"), "lost") == [192.0]
    assert cells(table(told(of), "failures", "faults"), "lost") == [192.0, 192.0, 24.0]


def test_a_command_in_a_sentence_is_shown_as_code() -> None:
    of = past(7)
    cluster(of, "a", 100, 50)
    page = html(told(of))
    assert "<code>gpunode report</code>" in page
    assert "`" not in page.partition("<body>")[2]


def test_a_short_bar_is_told_to_be_no_loss_of_gpus() -> None:
    whole, holed = past(7), past(7)
    for of in (whole, holed):
        cluster(of, "a", 100, 50)
    for at in list(holed.clusters["a"])[-20:]:
        del holed.clusters["a"][at]
    assert "shorter bar" in says(told(holed), "summary")
    assert "shorter bar" not in says(told(whole), "summary")


def test_columns_and_charts_have_their_units() -> None:
    of = past(14)
    cluster(of, "a", 100, 50)
    for at in range(START + DAY, of.period.end + 1, DAY):
        of.energy["a", at] = 1000.0
    page = html(told(of, price=2))
    assert "Held<small>GPU hours</small></th>" in page
    assert "GPU hours<small>" not in page, "once is enough"
    assert "Energy<small>kWh</small></th>" in page
    assert "Energy for a useful GPU hour by week, in kWh</figcaption>" in page
    assert "by hour of the week in UTC: the darker, the more</figcaption>" in page


def test_energy_is_divided_by_the_useful_hours_of_the_clusters_that_drew_it() -> None:
    of = past(7)
    for name in ("east", "west"):
        cluster(of, name, 8, 8)
    for at in range(START + DAY, of.period.end + 1, DAY):
        of.energy["east", at] = 192.0
    report = told(of)
    (section,) = (one for one in report.sections if one.name == "energy")
    (figure,) = (one for one in section.figures if one.name == "energy_per_useful_hour")
    assert figure.value == pytest.approx(1.0, rel=0.01)
    assert "No power is recorded of west." in section.says


def test_what_is_no_state_has_no_colour_of_one() -> None:
    of = past(14)
    cluster(of, "a", 100, 50)
    trains = job(of, "llm", states={"compute": 8.0})
    trains.kinds["training"] = 8.0 * of.period.hours
    training = html(told(of)).partition('<section id="training"')[2].partition("</section>")[0]
    assert palette.STATES["compute"] in training
    for state in ("blocked", "communication"):
        assert palette.STATES[state] not in training


def test_no_change_has_no_sign_of_one() -> None:
    assert written(-0.0001, "points") == "+0.0"
    assert [written(value, "GPUs") for value in (-1e-15, -0.004, -0.006)] == ["0", "0.00", "-0.01"]
    of = past(28)
    cluster(of, "a", 64, 60, idle=2)
    demand = next(one for one in told(of).sections if one.name == "demand")
    assert "gains +0.0 GPUs a week (80\u202f% interval +0.0 to +0.0)" in demand.says
    (gain,) = (figure for figure in demand.figures if figure.name == "demand_gain")
    assert gain.note == "GPUs a week (80\u202f%: +0.0 to +0.0)"


def test_reclaiming_what_is_merely_held_makes_supply_last() -> None:
    of = past(84)
    cluster(of, "a", 200, 60, idle=40, grows=0.9)
    job(of, "notebook", states={"idle": 16.0}, user="ann")
    job(of, "forgotten", states={"idle": 14.0, "compute": 2.0}, user="bob")
    job(of, "left", states={"idle": 8.0}, user="cem")
    job(of, "small", states={"idle": 2.0}, user="dee")
    job(of, "works", states={"idle": 40.0, "compute": 60.0}, user="eve")
    found = says(told(of), "demand")
    before, reclaimed = found.split(" Reclaim these 3 holdings")
    assert "takes every GPU around 20 Nov 2026" in before
    for name in ("notebook of ann (16 GPUs)", "forgotten of bob (14 GPUs)", "left of cem (8 GPUs)"):
        assert name in reclaimed
    assert "around 1 Jan 2027" in reclaimed
    rows = table(told(of), "demand", "reclaimable")
    assert cells(rows, "job") == ["notebook", "forgotten", "left"]
    merely = next(
        figure.value
        for section in told(of).sections
        for figure in section.figures
        if figure.name == "merely_held"
    )
    assert merely == pytest.approx(40)


@pytest.mark.parametrize(
    ("days", "told_of"),
    [(13, "it takes 14 of them"), (20, "it takes 21 days of data"), (35, "80\u202f% confidence")],
)
def test_a_short_history_has_no_interval(days: int, told_of: str) -> None:
    of = past(days)
    cluster(of, "a", 200, 60, grows=0.9)
    for number, states in enumerate(of.clusters["a"].values()):
        states["compute"] += (number // 24) ** 2 * 7 % 5
    assert told_of in says(told(of), "demand")
    assert ("80\u202f%" in says(told(of), "demand")) == (days >= 21)


def test_a_job_that_used_nothing_is_among_those_under_half() -> None:
    of = past(2)
    cluster(of, "a", 100, 20, idle=8)
    job(of, "parked", states={"idle": 4.0})
    job(of, "busy", states={"compute": 4.0})
    assert cells(table(told(of), "idle", "half_used"), "job") == ["parked"]


def test_what_an_owner_gets_back_is_the_sum_of_his_jobs() -> None:
    of = past(2)
    cluster(of, "a", 100, 60)
    first = job(of, "first", states={"starved": 4.0, "compute": 4.0})
    first.causes["shm"] = 100.0
    job(of, "second", states={"idle": 8.0})
    job(of, "third", states={"starved": 1.0, "compute": 7.0})
    rows = table(told(of, price=3), "losers", "owners")
    (back,) = cells(rows, "given_back")
    assert back == pytest.approx(
        sum(loss_of(one.states, one.causes).given_back for one in of.jobs.values())
    )
    assert back == sum(map(float, map(str, cells(table(told(of), "losers", "jobs"), "given_back"))))
    assert cells(rows, "cause") == ["idle"]
    assert cells(rows, "cost") == [pytest.approx(3 * 48 * 13)]


def test_holding_more_is_not_called_better() -> None:
    now = past(7)
    before = Past(now.period.before)
    cluster(now, "a", 100, 50, idle=40)
    cluster(before, "a", 100, 50)
    rows = table(told(now, before), "change", "change")
    verdicts = dict(zip(cells(rows, "what"), cells(rows, "verdict"), strict=True))
    assert verdicts["Held, of all GPU hours"] == "more"
    assert verdicts["Used, of all GPU hours"] == "as before"
    assert "better" not in verdicts.values()


def test_a_gpu_that_flaps_is_one_failure() -> None:
    of = past(28)
    cluster(of, "a", 32, 16)
    for node in range(4):
        of.nodes[NodeKey("a", f"n{node}")] = NodePast({"free": 8.0 * 672}, 672.0)
    flapping = {START + day * DAY: 0.25 for day in range(1, 13)}
    of.faults["GPU-1", NodeKey("a", "n0"), "XID 94"] = flapping
    for node in range(1, 4):
        of.faults["", NodeKey("a", f"n{node}"), "network"] = {START + node * DAY: 0.25}
    of.faults["", NodeKey("a", "n1"), "network"][START + 20 * DAY] = 0.25
    rows = table(told(of), "failures", "faults")
    assert dict(zip(cells(rows, "fault"), cells(rows, "count"), strict=True)) == {
        "XID 94": 1,
        "network": 4,
    }
    assert dict(zip(cells(rows, "fault"), cells(rows, "times"), strict=True)) == {
        "XID 94": 12,
        "network": 4,
    }


def test_what_a_cause_was_named_for_has_no_price_where_nothing_comes_back() -> None:
    of = past(7)
    cluster(of, "a", 100, 50)
    of.causes["memory_bandwidth"] = 6400.0
    of.gains["memory_bandwidth"] = {"estimate": 0.0, "lower": 0.0, "upper": 0.0}
    assert cells(table(told(of, price=2.5), "causes", "causes"), "cost") == [0.0]
    assert "16,0" not in html(told(of, price=2.5))


def test_what_helps_is_below_the_figures_and_no_word_is_broken() -> None:
    of = past(7)
    cluster(of, "a", 100, 50)
    long = job(of, "x" * 60, states={"starved": 4.0})
    long.causes["data_loading_cpu"] = 9999.0
    page = html(told(of))
    row = page[page.index('<tr class="said">') :]
    assert row.index("What helps</b>") < row.index("</tr>")
    assert "<th" not in page[page.index("Jobs that lost most") :].split("What helps")[0][-400:]
    assert "data_loading_cpu" in page, "a name of a cause is whole"
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
        Past(of.period.before),
        Billing.model_validate({"price": 2.5, "currency": "EUR"}),
        "namespace",
    )
    lines = text(team_report(view, team_bills(view)[0], "http://prometheus")).splitlines()
    assert max(map(len, lines)) <= 78, "RFC 5322"
    heads = [line.strip() for line in lines if line.startswith("  ") and line[2] != " "]
    assert heads.count(long) == 2, "once among the losses, once among the jobs"
    assert "short" in heads
    said = " ".join(" ".join(lines).split())
    assert f"{long} cluster a, owner kim, cause starved, to get back" in said
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
    assert f"`{command}`" in says(told(of), "queue")


def test_intervals_hold_what_they_say() -> None:
    """As `make bench BENCH=forecasts` measures with 200 fleets of each length of time."""
    for what, share in demand.held(40, days=42, others=12).items():
        assert 0.7 <= share <= 0.92, (what, share)
