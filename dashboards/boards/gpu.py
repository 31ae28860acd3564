"""One GPU under the lens: every sensor, its owners and its health."""

from __future__ import annotations

from dashboards.causes import HELD_UP
from dashboards.layout import Board, link_to, row, section
from dashboards.lines import LINES, SLOWED_DOWN
from dashboards.panels import (
    CLIENT,
    GPM,
    INSPECTOR,
    NOTHING_WRONG,
    OF_FAULTS,
    RULES,
    SHARE,
    XIDS,
    areas,
    figure,
    heat,
    lines,
    rows_of,
    timeline,
)
from dashboards.promql import (
    GPU,
    MEMBER,
    active,
    bounded,
    in_hour,
    of_gpus,
    of_time,
    rate,
)
from dashboards.queries import GPUS as SELECTED
from dashboards.queries import Query, numbered, selected
from dashboards.rules import Limit, limit
from dashboards.variables import datasource, of_few
from gpunode.export import palette

ONE = "{{instance}} GPU {{gpu}}"
OF_COLLECTIVE = f"{GPU}, collective, between"
TENSOR = active("tensor")
USEFUL = of_time('{state="compute"}')
PEAK = of_gpus('gpunode_gpu_peak_flops_per_second{precision="half"}')


def _query(expression: str, legend: str = ONE) -> Query:
    return Query(selected(expression, SELECTED), legend)


HOLDS = (
    numbered("gpunode_gpu_held_up_seconds", "cause", HELD_UP)
    + f" or 0 * max by ({GPU}) (gpunode_gpu_info)"
)
"""What holds each GPU up, as a number; 0 is nothing."""

SEEN = _query("count (gpunode_gpu_info)", "No such GPU")
"""What there must be for a panel to say that nothing is wrong."""


def _active(*units: tuple[str, str]) -> list[Query]:
    return [_query(active(unit), f"{ONE} {name}") for unit, name in units]


def _kinds(metric: str, label: str) -> Query:
    """What a counter of errors gained in an hour, by kind."""
    return _query(in_hour(metric, f"{GPU}, {label}"), f"{ONE} {{{{{label}}}}}")


NOW = (
    row(
        3,
        figure(
            "Useful",
            "Which share of its time does the GPU spend on arithmetic and memory?",
            [_query(f"sum by ({GPU}) ({USEFUL})")],
            SHARE,
        ),
        figure(
            "Utilisation",
            "What does nvidia-smi say? A kernel that waits counts as busy.",
            [_query(of_gpus("gpunode_gpu_utilization_ratio"))],
            SHARE,
        ),
        figure(
            "Power now",
            "How much does it draw?",
            [_query(of_gpus("gpunode_gpu_power_watts"))],
            "watt",
        ),
        figure(
            "Temperature",
            "How hot is it?",
            [_query(of_gpus("gpunode_gpu_temperature_celsius"))],
            "celsius",
            limit=limit("GpuHot"),
        ),
        figure(
            "Memory in use",
            "How much of its memory is in use?",
            [_query(LINES["gpu_memory_used"].signal)],
            SHARE,
            limit=LINES["gpu_memory_used"].limit,
        ),
        figure(
            "FLOP/s",
            "How much arithmetic do the tensor cores do, if it is in half precision?",
            [_query(f"{TENSOR} * on ({GPU}) {PEAK}")],
            "flops",
            needs=f"{GPM}; a known model",
        ),
    ),
    row(
        4,
        timeline(
            "What holds the GPU up",
            "Which resource is the bottleneck, and since when?",
            [_query(HOLDS)],
            names=HELD_UP,
        ),
        rows_of(
            "Identity",
            "Which GPU is this?",
            {"": (_query("gpunode_gpu_info", ""), "none")},
            names={
                "instance": "Node",
                "gpu": "GPU",
                "name": "Model",
                "serial": "Serial number",
                "bus_id": "PCI address",
                "uuid": "UUID",
                "vbios": "VBIOS",
            },
            sort_by="GPU",
            links={"Node": link_to("gpunode-node", node="instance")},
        ),
        widths=(9, 15),
    ),
    row(
        7,
        areas(
            "Ledger",
            "Where does each second go? The states add up to one for each GPU.",
            [_query(of_time(), "{{state}}")],
            SHARE,
            colours=palette.STATES,
        ),
        lines(
            "Roofline",
            "Which roof is nearer, that of arithmetic or that of HBM? Shares of each roof.",
            _active(("tensor", "tensor cores"), ("fp32", "FP32 pipe"), ("dram", "HBM")),
            SHARE,
            needs=GPM,
            highest=1,
        ),
    ),
)

GPU_BOARD = Board(
    uid="gpunode-gpu",
    title="GPU",
    description="What does this GPU do, who holds it, and is it healthy?",
    variables=(datasource(), of_few("cluster"), of_few("node"), of_few("gpu")),
    selection={"cluster": "cluster", "instance": "node"},
    sections=(
        section("", *NOW),
        section(
            "Work",
            row(
                8,
                lines(
                    "SMs",
                    "Do kernels run, and do they fill the SMs?",
                    [
                        _query(of_gpus("gpunode_gpu_utilization_ratio"), f"{ONE} utilisation"),
                        *_active(("graphics", "a kernel runs"), ("sm", "SMs")),
                        _query(
                            bounded(rate("gpunode_gpu_sm_occupancy_seconds_total")),
                            f"{ONE} occupancy",
                        ),
                    ],
                    SHARE,
                    needs=f"{GPM}, but for the driver's utilisation",
                    highest=1,
                ),
                lines(
                    "SM efficiency",
                    "Which share of the SMs is active while kernels run?",
                    [_query(LINES["sm_efficiency"].signal)],
                    SHARE,
                    needs=GPM,
                    limit=LINES["sm_efficiency"].limit,
                    highest=1,
                ),
                lines(
                    "Pipes",
                    "On which pipes does it compute?",
                    _active(
                        ("tensor_half", "tensor, half"),
                        ("tensor_integer", "tensor, integer"),
                        ("tensor_fp64", "tensor, FP64"),
                        ("fp16", "FP16"),
                        ("fp64", "FP64"),
                        ("integer", "integer"),
                    ),
                    SHARE,
                    needs=GPM,
                ),
            ),
            row(
                8,
                lines(
                    "Model FLOPs utilisation",
                    "Which share of the peak does the model use?",
                    [_query(LINES["mfu"].signal)],
                    SHARE,
                    needs=f"{CLIENT}, with FLOPs per token",
                    limit=LINES["mfu"].limit,
                ),
                lines(
                    "Time of a step",
                    "How long is a step, by the client and by the rhythm of the power?",
                    [
                        _query(of_gpus("gpunode_training_step_median_seconds"), f"{ONE} client"),
                        _query(of_gpus("gpunode_gpu_step_period_seconds"), f"{ONE} power"),
                    ],
                    "s",
                    needs=f"{CLIENT}, or work with a regular rhythm",
                ),
                lines(
                    "Had work",
                    "In which share of the last hour had it work, without gaps?",
                    [
                        _query(
                            f"1 - sum by ({GPU}) (avg_over_time("
                            'gpu:gpunode_gpu_seconds:rate5m{state=~"starved|idle"}[1h]))'
                        )
                    ],
                    SHARE,
                    needs=RULES,
                    limit=Limit(0.95, "<"),
                    highest=1,
                ),
                lines(
                    "Waits in one collective",
                    "For how long has it spun, with nothing moved or launched?",
                    [_query(of_gpus("gpunode_gpu_blocked_streak_seconds"))],
                    "s",
                ),
            ),
        ),
        section(
            "Power and heat",
            row(
                8,
                lines(
                    "Power",
                    "How much does it draw, and what is its limit?",
                    [
                        _query(of_gpus("gpunode_gpu_power_watts"), f"{ONE} draw"),
                        _query(of_gpus("gpunode_gpu_power_limit_watts"), f"{ONE} limit"),
                    ],
                    "watt",
                ),
                heat(
                    "Power at 50 Hz",
                    "How is the draw distributed, as a share of its limit? Two bands are work and "
                    "rest in turn.",
                    [
                        _query(
                            "sum by (le) (rate(gpunode_gpu_power_draw_ratio_bucket"
                            "[$__rate_interval]))",
                            "{{le}}",
                        )
                    ],
                    SHARE,
                    buckets=True,
                ),
                lines(
                    "Power limit",
                    "Has somebody lowered it? A share of the board's default limit.",
                    [_query(LINES["power_limit"].signal)],
                    SHARE,
                    limit=LINES["power_limit"].limit,
                ),
                lines(
                    "Power swings",
                    "How often does it swing between load and rest, in a minute?",
                    [_query(LINES["power_swings"].signal)],
                    "none",
                    limit=LINES["power_swings"].limit,
                ),
            ),
            row(
                8,
                lines(
                    "Clocks",
                    "How fast do the SMs and the memory run?",
                    [
                        _query(of_gpus("gpunode_gpu_sm_clock_hertz"), f"{ONE} SM"),
                        _query(of_gpus("gpunode_gpu_sm_clock_max_hertz"), f"{ONE} SM at most"),
                        _query(of_gpus("gpunode_gpu_memory_clock_hertz"), f"{ONE} memory"),
                    ],
                    "hertz",
                ),
                lines(
                    "Clocks lowered, by reason",
                    "Which share of the time are the clocks lowered? sw_power_cap is usual at "
                    "full load.",
                    [
                        _query(
                            bounded(rate("gpunode_gpu_throttled_seconds_total", f"{GPU}, reason")),
                            f"{ONE} {{{{reason}}}}",
                        )
                    ],
                    SHARE,
                    limit=SLOWED_DOWN,
                ),
                lines(
                    "Temperature of GPU and memory",
                    "How hot are they, and how far from slowing down?",
                    [
                        _query(of_gpus("gpunode_gpu_temperature_celsius"), f"{ONE} GPU"),
                        _query(of_gpus("gpunode_gpu_memory_temperature_celsius"), f"{ONE} memory"),
                        _query(of_gpus("gpunode_gpu_temperature_margin_celsius"), f"{ONE} margin"),
                    ],
                    "celsius",
                    limit=limit("GpuHot"),
                ),
            ),
        ),
        section(
            "Memory and links",
            row(
                8,
                lines(
                    "Memory",
                    "How much is in use, and by which process?",
                    [
                        _query(of_gpus("gpunode_gpu_memory_used_bytes"), f"{ONE} used"),
                        _query(of_gpus("gpunode_gpu_memory_size_bytes"), f"{ONE} size"),
                        _query(
                            f"max by ({GPU}, pid) (gpunode_gpu_process_memory_bytes)",
                            f"{ONE} process {{{{pid}}}}",
                        ),
                    ],
                    "bytes",
                ),
                lines(
                    "Shared through MPS",
                    "How many processes share the GPU? A fault of one ends them all.",
                    [_query(of_gpus("gpunode_gpu_mps_clients"))],
                    "none",
                    needs="MPS",
                ),
            ),
            row(
                8,
                lines(
                    "NVLink",
                    "How much moves over NVLink?",
                    [
                        _query(
                            rate("gpunode_gpu_nvlink_bytes_total", f"{GPU}, direction"),
                            f"{ONE} {{{{direction}}}}",
                        )
                    ],
                    "Bps",
                    needs="NVLink",
                ),
                lines(
                    "Collectives",
                    "Which bus bandwidth has each collective between the GPUs of a node, or "
                    "between nodes? A rank that comes early waits, and is slower.",
                    [
                        _query(
                            f"{rate('gpunode_nccl_measured_bus_bytes_total', OF_COLLECTIVE)} "
                            f"/ on ({OF_COLLECTIVE}) "
                            f"({rate('gpunode_nccl_measured_seconds_total', OF_COLLECTIVE)} > 0)",
                            f"{ONE} {{{{collective}}}} {{{{between}}}}",
                        )
                    ],
                    "Bps",
                    needs=INSPECTOR,
                ),
                lines(
                    "PCI Express",
                    "How much moves to and from the host, and over NVLink-C2C within a module?",
                    [
                        _query(
                            rate("gpunode_gpu_pcie_bytes_total", f"{GPU}, direction")
                            + " or label_replace("
                            + rate("gpunode_gpu_c2c_bytes_total", f"{GPU}, direction")
                            + ', "direction", "C2C $1", "direction", "(.+)")',
                            f"{ONE} {{{{direction}}}}",
                        ),
                    ],
                    "Bps",
                ),
            ),
        ),
        section(
            "Owners and health",
            row(
                8,
                timeline(
                    "Owners",
                    "Who held the GPU, and when?",
                    [
                        _query(
                            "max by (cluster, instance, gpu, owner_namespace, workload, user) "
                            f"({MEMBER})",
                            f"{ONE} · {{{{owner_namespace}}}} {{{{workload}}}} {{{{user}}}}",
                        )
                    ],
                    names={"free": palette.STATES["free"], "held": palette.STATES["compute"]},
                    nothing="Nobody",
                    among=SEEN,
                ),
                rows_of(
                    "Faults",
                    "What is wrong with it, and since when?",
                    {
                        "Since": (
                            _query('1000 * (time() - gpu:gpunode_fault:seconds{gpu!=""})', ""),
                            "dateTimeFromNow",
                        )
                    },
                    names={
                        "severity": "Level",
                        "gpu": "GPU",
                        "reason": "Reason",
                    },
                    sort_by="Since",
                    values={"Level": palette.SEVERITIES},
                    meanings={"Reason": OF_FAULTS},
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                rows_of(
                    "Repairs and modes",
                    "Why does it need repair, what is wrong with the NVSwitch fabric, and in which "
                    "modes is it?",
                    {
                        "": (
                            _query(
                                "gpunode_gpu_memory_fault_info or gpunode_gpu_fabric_fault_info "
                                "or gpunode_gpu_mode_active",
                                "",
                            ),
                            "none",
                        )
                    },
                    names={
                        "instance": "Node",
                        "gpu": "GPU",
                        "fault": "Fault",
                        "part": "Part",
                        "mode": "Mode",
                    },
                    sort_by="GPU",
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
                rows_of(
                    "XIDs",
                    "Which errors has the driver reported, and when last?",
                    {
                        "Last": (
                            _query(
                                f"1000 * max by ({GPU}, xid) "
                                "(gpunode_gpu_xid_last_timestamp_seconds)",
                                "",
                            ),
                            "dateTimeFromNow",
                        )
                    },
                    names={"instance": "Node", "gpu": "GPU", "xid": "XID"},
                    meanings={"XID": XIDS},
                    sort_by="Last",
                    nothing=NOTHING_WRONG,
                    among=SEEN,
                ),
            ),
            row(
                8,
                lines(
                    "Memory errors in an hour",
                    "Does its memory fail?",
                    [
                        _kinds("gpunode_gpu_ecc_errors_total", "kind"),
                        _kinds("gpunode_gpu_row_remaps_total", "kind"),
                    ],
                    "none",
                    needs="a GPU with ECC",
                ),
                lines(
                    "NVLink errors in an hour",
                    "Do its links fail?",
                    [_kinds("gpunode_gpu_nvlink_errors_total", "kind")],
                    "none",
                    needs="NVLink",
                ),
                lines(
                    "NVLinks with errors",
                    "Which of its links have had errors since the driver was loaded?",
                    [
                        _query(
                            f"max by ({GPU}, link, kind) (gpunode_gpu_nvlink_link_errors_total)",
                            f"{ONE} link {{{{link}}}} {{{{kind}}}}",
                        )
                    ],
                    "none",
                    needs="an NVLink that has had errors",
                ),
                lines(
                    "PCI Express errors in an hour",
                    "Does its slot fail?",
                    [
                        _kinds("gpunode_gpu_pcie_errors_total", "kind"),
                        _query(in_hour("gpunode_gpu_pcie_replays_total"), f"{ONE} replays"),
                    ],
                    "none",
                ),
            ),
        ),
    ),
    since="now-1h",
    refresh="30s",
)
