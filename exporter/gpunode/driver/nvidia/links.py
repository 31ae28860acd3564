"""What connects a GPU: PCI Express and NVLink."""

from __future__ import annotations

import contextlib

import pynvml

from gpunode.driver.driver import ChipLinks, DriverError, NvLink, PcieLink, Unsupported
from gpunode.driver.nvidia.device import Device
from gpunode.driver.nvidia.possible import (
    BYTES_PER_SECOND,
    COUNTS,
    GENERATIONS,
    LANES,
    LINKS,
    Range,
    in_range,
    reading,
    scaled,
)

ALL_LINKS = 0xFFFFFFFF
"""``scopeId`` that sums an NVLink field over all links."""

PCIE_ERRORS = {
    pynvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS: "correctable",
    pynvml.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR: "non_fatal",
    pynvml.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR: "fatal",
    pynvml.NVML_FI_DEV_PCIE_COUNT_BAD_TLP: "bad_tlp",
    pynvml.NVML_FI_DEV_PCIE_COUNT_BAD_DLLP: "bad_dllp",
    pynvml.NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER: "link_recovery",
}
C2C_ERRORS = {
    pynvml.NVML_FI_DEV_C2C_LINK_ERROR_INTR: "interrupt",
    pynvml.NVML_FI_DEV_C2C_LINK_ERROR_REPLAY: "replay",
    pynvml.NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B: "replay_back_to_back",
}
NVLINK_ERRORS = {
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: "replay",
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: "recovery",
    pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: "crc",
    213: "recovery_successful",  # NVLink 5 (Blackwell) replaces the three above
    214: "recovery_failed",
    208: "receive",
    219: "effective",
    221: "symbol",
}
NVLINK_BIT_ERRORS = {220: "effective", 222: "symbol"}
"""Bit error ratios of NVLink 5: of what error correction left, and of symbols."""

LINK_STATES = {
    pynvml.NVML_NVLINK_STATE_INACTIVE: "inactive",
    pynvml.NVML_NVLINK_STATE_ACTIVE: "active",
    pynvml.NVML_NVLINK_STATE_SLEEP: "sleep",
    pynvml.NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED: "active_traffic_disabled",
}
UP = ("active", "sleep")
"""States of a link that carries data, or wakes up for it."""


PCIE_LANE = {
    1: 2.5e9 / 10,
    2: 5e9 / 10,
    3: 8e9 / 8 * 128 / 130,
    4: 16e9 / 8 * 128 / 130,
    5: 32e9 / 8 * 128 / 130,
    6: 64e9 / 8 * 242 / 256,
}
"""Bytes/s in one direction by generation: https://en.wikipedia.org/wiki/PCI_Express#Comparison_table"""


class NvLinks:
    """Reads the NVLinks of one GPU.

    Fields are slow: kinds that no link has while one is up are asked for once, and so are speeds.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._kinds: list[int] = []
        self._speeds: dict[int, float] = {}

    def read(self) -> list[NvLink]:
        """Every link whose state is known. Raises ``Unsupported`` for a GPU without NVLink."""
        fields = self.device.fields
        ((_, count),) = fields(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT).items()
        count = reading("NVLinks", count, LINKS)
        links, state = range(int(count)), pynvml.NVML_FI_DEV_NVLINK_GET_STATE
        kinds = self._kinds or [state, *NVLINK_ERRORS, *NVLINK_BIT_ERRORS]
        values = fields(*((kind, link) for link in links for kind in kinds))
        states = {
            link: self.device.name("NVLink state", LINK_STATES, int(values[state, link]))
            for link in links
            if (state, link) in values
        }
        up = [link for link, name in states.items() if name in UP]
        if up and not self._kinds:
            # A link that is down may answer for fewer kinds.
            self._kinds = sorted({kind for kind, _ in values})
        if not self._speeds.keys() >= set(up):
            speed = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
            with contextlib.suppress(Unsupported):
                answers = fields(*((speed, link) for link in links))
                self._speeds = {link: megabytes for (_, link), megabytes in answers.items()}
        return [
            NvLink(
                link=link,
                up=name in UP,
                bytes_per_second=in_range(scaled(self._speeds.get(link), 1e6), BYTES_PER_SECOND),
                errors={
                    name: values[field, link]
                    for field, name in NVLINK_ERRORS.items()
                    if (field, link) in values
                },
                bit_errors={
                    name: _bit_error_ratio(int(values[field, link]))
                    for field, name in NVLINK_BIT_ERRORS.items()
                    if (field, link) in values
                },
            )
            for link, name in states.items()
            if name is not None
        ]

    def read_if_any(self) -> list[NvLink]:
        """Every link whose state is known; none for a GPU without NVLink."""
        try:
            return self.read()
        except Unsupported:
            return []


def _bit_error_ratio(packed: int) -> float:
    """A ratio as NVML packs it: four bits of mantissa above eight of a negative exponent of ten.

    A link without an error has all ones in the exponent.
    https://docs.nvidia.com/deploy/nvml-api/group__NvLink.html (NVML_NVLINK_BER_*)
    """
    mantissa, exponent = packed >> 8 & 0xF, packed & 0xFF
    return 0.0 if exponent == 0xFF else mantissa * 10.0**-exponent


def nvlink_bytes(device: Device) -> dict[str, float]:
    """Bytes over all links by direction; see ``driver.Gpu``, as for the functions below."""
    transmit = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    receive = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
    values = device.fields((transmit, ALL_LINKS), (receive, ALL_LINKS))
    names = {transmit: "transmit", receive: "receive"}
    return {names[field]: kib * 1024 for (field, _), kib in values.items()}


def chip_links(device: Device) -> ChipLinks:
    """The links to the CPU of the module, and their errors together, if all links answer.

    Raises ``Unsupported`` if it is not known which of them are up.
    """
    ((_, count),) = device.fields(pynvml.NVML_FI_DEV_C2C_LINK_COUNT).items()
    links = range(int(reading("C2C links", count, LINKS)))
    if not links:
        raise Unsupported(f"C2C: GPU {device.index} has none")
    status = pynvml.NVML_FI_DEV_C2C_LINK_GET_STATUS
    kinds = (status, *C2C_ERRORS)
    values = device.fields(*((kind, link) for link in links for kind in kinds))
    of_all = {
        kind: [values[kind, link] for link in links]
        for kind in kinds
        if all((kind, link) in values for link in links)
    }
    if status not in of_all:
        raise Unsupported(f"C2C: GPU {device.index} does not say which of its links are up")
    return ChipLinks(
        len(links),
        sum(state == 1 for state in of_all[status]),
        {name: sum(of_all[kind]) for kind, name in C2C_ERRORS.items() if kind in of_all},
    )


def peers(device: Device) -> dict[int, int]:
    """By index, the status of NVLink to each other GPU that the driver can name."""
    library, generation = device.library, device.generation
    found: dict[int, int] = {}
    for index in range(library.call("nvmlDeviceGetCount", generation=generation)):
        if index == device.index:
            continue
        with contextlib.suppress(DriverError):
            other = library.call("nvmlDeviceGetHandleByIndex", index, generation=generation)
            found[index] = int(
                library.call(
                    "nvmlDeviceGetP2PStatus",
                    device.handle,
                    other,
                    pynvml.NVML_P2P_CAPS_INDEX_NVLINK,
                    gpu=device.uuid,
                    generation=generation,
                )
            )
    return found


def pcie_link(device: Device) -> PcieLink:
    """Generation and lanes, now and at most."""

    def ask(name: str, within: Range) -> int:
        return int(reading(name, device.call(name), within))

    return PcieLink(
        generation=ask("nvmlDeviceGetCurrPcieLinkGeneration", GENERATIONS),
        width=ask("nvmlDeviceGetCurrPcieLinkWidth", LANES),
        max_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration", GENERATIONS),
        max_width=ask("nvmlDeviceGetMaxPcieLinkWidth", LANES),
    )


def pcie_bytes_per_second(board: Device) -> float | None:
    """What the widest and fastest link of GPU and slot can carry, in one direction."""
    generation = board.if_supported("nvmlDeviceGetMaxPcieLinkGeneration")
    lanes = in_range(board.if_supported("nvmlDeviceGetMaxPcieLinkWidth"), LANES)
    names = {number: str(number) for number in PCIE_LANE}
    if not generation or not lanes or not board.name("PCIe generation", names, generation):
        return None
    return PCIE_LANE[generation] * lanes


def pcie_replays(device: Device) -> float:
    """Packets that were sent again."""
    return reading("PCIe replays", device.call("nvmlDeviceGetPcieReplayCounter"), COUNTS)


def pcie_errors(device: Device) -> dict[str, float]:
    """Errors of the link by kind."""
    return {PCIE_ERRORS[f]: count for (f, _), count in device.fields(*PCIE_ERRORS).items()}
