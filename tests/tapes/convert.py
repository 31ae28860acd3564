"""Turns a trace of the lab's recorder into tapes, one a scenario.

    python tests/tapes/convert.py TRACE.jsonl.gz FOLDER

The lab's recorder read GPM every 100 ms, which is also how often the counters refresh, so that a
read now and then found them unchanged: all zero. Such a row belongs to the time of the next one.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

from gpunode.driver.nvidia import gpm
from gpunode.driver.nvidia.gpu import CLOCK_EVENTS

Row = dict[str, Any]

NAMES = {
    "occ": "occupancy",
    "dfma": "tensor_fp64",
    "hmma": "tensor_half",
    "imma": "tensor_integer",
    "pcie_tx": "pcie_transmit",
    "pcie_rx": "pcie_receive",
    "nvl_tx": "nvlink_transmit",
    "nvl_rx": "nvlink_receive",
}
SCALES = {metric.name: metric.scale for metric in gpm.METRICS}
THROTTLED = {
    "pol_power": "sw_power_cap",
    "pol_sync": "sync_boost",
    "sw_therm": "sw_thermal",
    "hw_therm": "hw_thermal",
    "hw_brake": "hw_power_brake",
}
RESERVED = 644939776
"""Bytes that the driver kept for itself: what was in use without a process."""

LIMITS = {
    "memory_bytes_per_second": 6144 / 8 * 3201e6 * 2,
    "nvlink_bytes_per_second": 18 * 26.562e9,
    "pcie_bytes_per_second": 32e9 / 8 * 16 * 128 / 130,
    "sm_clock_hertz": 1980e6,
    "memory_clock_hertz": 3201e6,
}


def uuid(gpu: int) -> str:
    """A stand-in: the lab did not record who the GPUs were."""
    return f"GPU-00000000-0000-0000-0000-00000000000{gpu}"


def unchanged(row: Row) -> bool:
    return all(value == 0 or math.isnan(value) for value in row["gpm"].values())


def activity(rows: list[Row]) -> list[Row]:
    """GPM rows as activity answers; an unchanged row between others is joined to the next."""
    lines: list[Row] = []
    before = rows[0]["t"] - 0.1
    for place, row in enumerate(rows):
        following = rows[place + 1] if place + 1 < len(rows) else None
        stale = unchanged(row) and following is not None and not unchanged(following)
        if stale and place and not unchanged(rows[place - 1]):
            continue
        seconds = row["t"] - before
        joined = place > 0 and seconds > 0.15
        before = row["t"]
        values = {}
        for name, value in row["gpm"].items():
            name = NAMES.get(name, name)
            if math.isnan(value) or name not in SCALES:
                continue
            # A rate was reckoned over the last 100 ms alone; a share over the counters' own time.
            halved = joined and SCALES[name] == gpm.MEBIBYTE
            values[name] = value * SCALES[name] / (2 if halved else 1)
        lines.append(line(row, "activity", {"seconds": seconds, "values": values}))
    return lines


def line(row: Row, call: str, answer: Any) -> Row:
    return {"t": row["t"], "of": uuid(row["g"]), "call": call, "answer": answer}


def fast(row: Row) -> list[Row]:
    return [
        line(row, "utilization", {"gpu": row["u"] / 100, "memory": row["m"] / 100}),
        line(row, "power", row["p"] / 1000),
        line(row, "sm_clock", row["clk"] * 1e6),
        line(row, "clock_events", [name for bit, name in CLOCK_EVENTS.items() if row["r"] & bit]),
        line(row, "temperature", row["T"]),
    ]


def slow(row: Row) -> list[Row]:
    fields = row["f"]
    processes = [{"pid": p, "memory": m, "kind": "compute"} for p, m in row["procs"]]
    memory = {
        "total": row["total"],
        "used": row["used"] - RESERVED,
        "reserved": RESERVED,
    }
    throttled = {name: fields[field] / 1e9 for field, name in THROTTLED.items()}
    return [
        line(row, "processes", processes),
        line(row, "memory", memory),
        line(row, "energy", fields["energy"] / 1000),
        line(row, "throttled", throttled),
        line(row, "memory_temperature", fields["memtemp"]),
        line(row, "pcie_replays", fields["replay"]),
    ]


def buffer(row: Row) -> Row:
    call, scale = {"power": ("power_samples", 1e-3), "util": ("utilization_samples", 1e-2)}[
        row["n"]
    ]
    samples = [
        [row["t0"] + ms * 1000, v * scale] for ms, v in zip(row["dt"], row["v"], strict=True)
    ]
    return line({**row, "t": samples[-1][0] / 1e6}, call, {"samples": samples})


def tape(scenario: str, rows: list[Row]) -> list[Row]:
    gpus = sorted({row["g"] for row in rows if "g" in row})
    identities = [
        {
            "index": gpu,
            "uuid": uuid(gpu),
            "name": "NVIDIA H200",
            "compute_capability": "9.0",
        }
        for gpu in gpus
    ]
    begin = min(row["t"] for row in rows if row["k"] == "fast") - 0.1
    lines: list[Row] = [{"t": begin, "of": "nvidia", "call": "gpus", "answer": identities}]
    for gpu in gpus:
        at = {"t": begin, "g": gpu}
        lines.append(line(at, "limits", LIMITS))
        lines.append(line(at, "power_limits", {"enforced": 700.0, "default": 700.0}))
        mine = [row for row in rows if row.get("g") == gpu]
        lines += activity([row for row in mine if row["k"] == "fast"])
        for row in mine:
            if row["k"] == "fast":
                lines += fast(row)
            elif row["k"] == "slow":
                lines += slow(row)
            elif row["k"] == "buf":
                lines.append(buffer(row))
    lines.sort(key=lambda entry: entry["t"])
    end = max(entry["t"] for entry in lines if entry["call"] == "activity")
    header = {"gpunode_tape": 1, "time": begin, "comment": scenario}
    return [header, *({**e, "t": round(min(e["t"], end) - begin, 3)} for e in lines)]


def main(trace: Path, folder: Path) -> None:
    scenarios: dict[str, list[Row]] = {}
    with gzip.open(trace, "rt") as file:
        for text in file:
            row = json.loads(text)
            scenarios.setdefault(row["s"], []).append(row)
    for scenario, rows in scenarios.items():
        text = "".join(
            json.dumps(entry, separators=(",", ":")) + "\n" for entry in tape(scenario, rows)
        )
        # Without a file name and time in it, the same trace makes the same bytes.
        (folder / f"{scenario}.jsonl.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
