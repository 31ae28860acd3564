"""Fans and temperatures of the chassis and the processors, where a driver of the kernel reads them.

On many servers only the BMC sees the fans and the inlet; then the kernel has no such sensors.
https://docs.kernel.org/hwmon/sysfs-interface.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gpunode.config.daemon import Settings
from gpunode.metric import Metric, Sample
from gpunode.node.node import Node, names_in, text_of
from gpunode.source import NodeSource, Reading, bounded, limit
from gpunode.text import printable
from gpunode.unread import Unknown, Unread, shape

SENSOR = ("chip", "sensor")
FAN = Metric(
    "gpunode_hwmon_fan_rpm",
    "gauge",
    "Revolutions per minute of a fan that has turned since the daemon started: a connector without "
    "a fan reads 0, too (/sys/class/hwmon/*/fan*_input).",
    SENSOR,
)
TEMPERATURE = Metric(
    "gpunode_hwmon_temperature_celsius",
    "gauge",
    "Temperature of the air at an inlet or outlet, or of a whole processor (`place`) "
    "(/sys/class/hwmon/*/temp*_input).",
    (*SENSOR, "place"),
)
UNREADABLE = Unknown(
    "sensor_value",
    "a fan or temperature that the kernel reads has a value that no such sensor has",
)

FOLDER = "/sys/class/hwmon"
INPUT = re.compile(r"(?P<sensor>(?P<kind>fan|temp)\d{1,3})_input")
PLACES = {
    "inlet": re.compile(r"inlet|intake|ambient", re.IGNORECASE),
    "outlet": re.compile(r"outlet|exhaust", re.IGNORECASE),
    "processor": re.compile(r"Package id \d+|Tdie|Tctl"),
}
"""Labels of the temperatures that say something about the whole node or a whole processor:
https://docs.kernel.org/hwmon/coretemp.html, https://docs.kernel.org/hwmon/k10temp.html. What
mlxsw calls front panel is a transceiver."""

MORE_SENSORS = limit("sensors")

CHIPS = 64
SENSORS = 256
"""The most chips, and sensors of one, to look at."""

FANS, TEMPERATURES = 32, 16
"""The most to export."""

NAME = 40
"""Characters of a name."""

FASTEST = 200_000
"""Revolutions per minute."""

COLDEST, HOTTEST = -60_000, 250_000
"""Millidegrees. A virtual NVMe controller, as those of AWS, says that it has 0 kelvin:
https://github.com/oxidecomputer/propolis/issues/1213"""


def parse_fan(text: str) -> float:
    """Revolutions per minute. Raises ``ValueError``."""
    rpm = int(text)
    if not 0 <= rpm <= FASTEST:
        raise ValueError(f"not the speed of a fan: {text[:80]!r}")
    return float(rpm)


def parse_temperature(text: str) -> float:
    """Degrees Celsius from millidegrees. Raises ``ValueError``."""
    millidegrees = int(text)
    if not COLDEST <= millidegrees <= HOTTEST:
        raise ValueError(f"not a temperature: {text[:80]!r}")
    return millidegrees / 1e3


class Hwmon:
    """Reads the fans, and the temperatures with a name that says what they measure."""

    name = "hwmon"
    needs = (
        "fans or temperatures that the kernel reads (hwmon), and /sys of the node: its root at "
        "path.rootfs; sensors of the BMC are not among them"
    )
    metrics = (FAN, TEMPERATURE)
    unknowns = (UNREADABLE, MORE_SENSORS)

    def __init__(self, node: Node, settings: Settings) -> None:
        self.node = node
        self.every = settings.host.interval
        self._turned: set[tuple[str, str]] = set()

    def read(self) -> Reading:
        fans: list[Sample] = []
        temperatures: list[Sample] = []
        unread: list[Unread] = []
        names: set[tuple[str, str]] = set()
        for folder, chip in self._chips(unread):
            for file, sensor, place in self._sensors(folder, unread):
                parse: Callable[[str], float] = parse_temperature if place else parse_fan
                try:
                    text = self.node.read_text(f"{folder}/{file}")
                except OSError:  # the sensor does not answer
                    continue
                try:
                    value = parse(text)
                except ValueError:
                    unread.append(UNREADABLE.seen(f"{file} of {chip}: {shape(text.strip())}"))
                    continue
                at = _unique_label(chip, sensor, names)
                if place:
                    temperatures += TEMPERATURE.at(value, *at, place)
                elif value or at in self._turned:
                    self._turned.add(at)
                    fans += FAN.at(value, *at)
        told, without = bounded(fans, MORE_SENSORS, FANS, "fans")
        more, left_out = bounded(temperatures, MORE_SENSORS, TEMPERATURES, "temperatures")
        return Reading((*told, *more), None, (*unread, *without, *left_out))

    def _chips(self, unread: list[Unread]) -> Iterator[tuple[str, str]]:
        """The folder and the name of each chip, in the order of their numbers."""
        listed = names_in(self.node, FOLDER)
        numbered = sorted((int(n[5:]), n) for n in listed if re.fullmatch(r"hwmon\d{1,6}", n))
        chips, left_out = bounded(numbered, MORE_SENSORS, CHIPS, "chips with sensors")
        unread += left_out
        for _, name in chips:
            folder = f"{FOLDER}/{name}"
            try:
                yield folder, printable(self.node.read_text(f"{folder}/name").strip(), NAME)
            except OSError:
                continue

    def _sensors(self, folder: str, unread: list[Unread]) -> Iterator[tuple[str, str, str]]:
        """The file and the label of each sensor to export, and the place of a temperature."""
        found = filter(None, map(INPUT.fullmatch, names_in(self.node, folder)))
        inputs, left_out = bounded(found, MORE_SENSORS, SENSORS, "sensors of a chip")
        unread += left_out
        for match in inputs:
            sensor = match["sensor"]
            label = text_of(self.node, f"{folder}/{sensor}_label")
            place = place_of(label)
            if match["kind"] == "fan":
                yield match[0], printable(label or sensor, NAME), ""
            elif place:
                yield match[0], printable(label, NAME), place


def place_of(label: str) -> str:
    """The part that a temperature is of, by its label; empty for one that is not exported."""
    return next((place for place, of in PLACES.items() if of.search(label)), "")


def _unique_label(chip: str, sensor: str, names: set[tuple[str, str]]) -> tuple[str, str]:
    """The labels of a sensor; chips of one kind, as of two processors, are numbered."""
    number, at = 1, (chip, sensor)
    while at in names:
        number += 1
        at = chip, f"{sensor} ({number})"
    names.add(at)
    return at


NODE_SOURCE: NodeSource = Hwmon
