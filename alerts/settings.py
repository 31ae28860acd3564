"""What more than one rule depends on, and what a site may want otherwise.

Expressions name a setting as ``${name}``; ``alerts/generate.py`` puts in its value.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.driver.nvidia.xids import FROM_APPLICATIONS, OF_HARDWARE, OF_REPAIRED_MEMORY


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that expressions name, and what it decides."""

    value: str | float
    meaning: str


def _any(xids: tuple[int, ...]) -> str:
    return "|".join(str(xid) for xid in sorted(xids))


SETTINGS: dict[str, Setting] = {
    "scrape_jobs": Setting(
        ".*gpunode.*", "Pattern of the names of the scrape jobs that scrape gpunode."
    ),
    "grafana_url": Setting(
        "", "Address of Grafana, such as https://grafana.example.org, to which alerts lead."
    ),
    "fleet_nodes": Setting(
        5, "From this many nodes with the same fault on, one alert speaks for all of them."
    ),
    "fleet_share": Setting(
        0.05,
        "From this share of the nodes on as well, if there are at least two.",
    ),
    "busy_share": Setting(
        0.25, "From this share of its time at work on, a GPU runs something that can be harmed."
    ),
    "paused_at_most": Setting(
        3600, "Seconds for which a pause that training reports excuses that nothing moves."
    ),
    "uninterruptible_at_most": Setting(
        180,
        "Seconds for which a process that waits for a disk or file server excuses that nothing "
        "moves; then its storage is either back or has an alert of its own.",
    ),
    "xids_of_hardware": Setting(_any(OF_HARDWARE), "XIDs of a GPU that somebody must attend to."),
    "xids_of_applications": Setting(
        _any(FROM_APPLICATIONS), "XIDs of programs; they are only kept for a review."
    ),
    "xids_of_repaired_memory": Setting(
        _any(OF_REPAIRED_MEMORY), "XIDs of memory that the driver has repaired; nobody is told."
    ),
}
