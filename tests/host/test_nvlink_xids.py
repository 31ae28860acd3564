"""XIDs in the kernel's log: those of NVLink 5 are exported with severity, link and action."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.kernel_log import KernelLog
from gpunode.host.nvlink_xids import ERRORS, LAST
from gpunode.node.local import LocalNode

LOG = "var/log/kern.log"
BUS = "0000:19:00.0"
LINK_DOWN = "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)"
REMAP = "145, pid=1, name=a, b, RLW_REMAP Nonfatal XC1 i0 Link 02 (0x00000004 0x00000004)"
ADVISES = "154, GPU recovery action changed from 0x0 (None) to"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    device = tmp_path / "sys/bus/pci/devices" / BUS
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    (tmp_path / LOG).parent.mkdir(parents=True)
    (tmp_path / LOG).touch()
    return tmp_path


def nvlink_errors(
    root: Path, *xids: str
) -> tuple[dict[tuple[str, ...], object], list[tuple[str, str]]]:
    """Errors of NVLink 5 that are exported, and what is unread, after these XIDs of a GPU."""
    source = KernelLog(LocalNode(root), Settings())
    source.read()
    with (root / LOG).open("a") as log:
        for xid in xids:
            log.write(f"Nov  1 12:00:00 n kernel: NVRM: Xid (PCI:0000:19:00): {xid}\n")
    reading = source.read()
    found: dict[tuple[str, ...], object] = {
        sample.labels: sample.value for sample in reading.samples if sample.metric is ERRORS
    }
    assert {sample.labels for sample in reading.samples if sample.metric is LAST} == set(found)
    return found, [(each.kind.what, each.example) for each in reading.unread]


def test_an_error_of_nvlink_5_tells_its_link_and_what_to_do(root: Path) -> None:
    found, unread = nvlink_errors(
        root, LINK_DOWN, LINK_DOWN, REMAP, "79, GPU has fallen off the bus."
    )
    assert found == {
        (BUS, "149", "8", "fatal", "reset_gpu"): 2.0,
        (BUS, "145", "2", "nonfatal", "xid_154_eval"): 1.0,
    }
    assert unread == []


@pytest.mark.parametrize(
    ("xid", "what", "example"),
    [
        ("999, pid=1, name=secret, Ch 00000001", "xid", "XID 999"),
        ("149, pid=1, name=secret, a new form", "nvlink_xid", "XID 149, pid=0, "),
        (
            "149, pid=1, name=secret, NEW_UNIT Fatal XC0 i0 Link 02 (0x0000007f 0x1)",
            "nvlink_xid",
            "XID 149, NEW_UNIT Fatal XC0 i0 Link 02 (0x0000007f 0x1)",
        ),
        (f"{ADVISES} 0x9 (Pray)", "enum_value", "XID 154, GPU recovery action changed"),
    ],
)
def test_what_the_catalogue_does_not_have_is_counted(
    root: Path, xid: str, what: str, example: str
) -> None:
    _, unread = nvlink_errors(root, xid)
    ((kind, shown),) = unread
    assert kind == what
    assert shown.startswith(example)
    assert "secret" not in shown


def test_what_the_driver_advises_has_a_name(root: Path) -> None:
    assert nvlink_errors(root, f"{ADVISES} 0x5 (Anything)") == ({}, [])


def test_endless_kinds_of_errors_are_bounded(root: Path) -> None:
    lines = [
        f"{xid}, RLW_REMAP {severity} XC0 i0 Link {link} (0x00000004 0x00000001)"
        for xid in range(144, 151)
        for severity in ("Fatal", "Nonfatal")
        for link in range(100)
    ]
    found, unread = nvlink_errors(root, *lines)
    assert len(found) == 448
    assert any("more kinds" in example for _, example in unread)
