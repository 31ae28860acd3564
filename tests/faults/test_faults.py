"""What is broken, since when, and until there is evidence of repair: as exported."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.faults.register import MAX_FAULTS, Register
from gpunode.faults.sightings import MAX_PARTS
from gpunode.gpu import health, nvlink, power, xids
from gpunode.gpu.activity import PROCESSES
from gpunode.gpu.operational_events import EVENT_TIME
from gpunode.host import disk, filesystem, infiniband, kernel_log, nfs, nvlink_xids, pcie, repair
from gpunode.host.drained import DRAINED
from gpunode.source import Place
from tests.cases import with_each
from tests.faults.node import BEGIN, GPUS, TestNode, Told, bus


def broken(told: Told) -> list[tuple[str, str, str, str]]:
    """GPU, part, reason and severity of each fault."""
    return sorted((gpu, part, reason, severity) for gpu, part, _, reason, severity in told)


def test_nothing_is_broken_where_all_is_well() -> None:
    node = TestNode()
    assert node.play(1200) == {}


XID = xids.XID_TIME


def test_an_xid_of_the_hardware_lasts_until_the_node_is_started_again() -> None:
    node = TestNode()
    node.play(60)
    node.set(XID, BEGIN + 58.0, "1", "GPU-1", "79")
    assert node.play(10) == {("1", "gpu", bus(1), "xid_79", "page"): 58.0}
    assert broken(node.play(6000)) == [("1", "gpu", "xid_79", "page")]
    node.set(repair.BOOTED, BEGIN + 6500.0)
    assert node.play(1000) == {}


@with_each({"a reset": "reset", "another GPU": "replaced", "a person": "declared"})
def test_evidence_of_repair_ends_it_for_good(how: str) -> None:
    node = TestNode()
    node.play(60)
    node.set(XID, BEGIN + 58.0, "1", "GPU-1", "79")
    node.play(60)
    if how == "reset":
        node.set(power.DRIVER_ENERGY, 12.0, "1", "GPU-1")
    elif how == "replaced":
        node.unplug(1)
        node.plug(1, "GPU-9")
    else:
        node.set(repair.REPAIRED, node.clock.time())
    assert node.play(900) == {}, "the driver goes on to tell of the XID"


def test_the_driver_s_advice_that_was_followed_is_evidence_too() -> None:
    node = TestNode()
    node.play(60)
    node.set(XID, BEGIN + 58.0, "1", "GPU-1", "95")
    node.action("reset")
    reasons = ["driver_advises_reset", "xid_95"]
    assert [reason for _, _, reason, _ in broken(node.play(30))] == reasons
    node.action("none")
    assert node.play(30) == {}


def test_the_kernel_log_tells_of_a_gpu_that_is_lost_and_it_is_one_fault() -> None:
    node = TestNode()
    node.play(60)
    node.set(kernel_log.LAST_XID, BEGIN + 61.0, bus(2), "79")
    node.set(XID, BEGIN + 62.0, "2", "GPU-2", "79")
    node.play(10)
    node.unplug(2)
    told = node.play(1000)
    assert broken(told) == [("2", "gpu", "missing", "page"), ("2", "gpu", "xid_79", "page")]


def test_what_the_catalogue_asks_of_a_program_is_told_for_a_quarter_of_an_hour() -> None:
    node = TestNode()
    node.play(60)
    node.set(XID, BEGIN + 58.0, "0", "GPU-0", "31")
    assert broken(node.play(30)) == [("0", "gpu", "xid_31", "info")]
    assert node.play(900) == {}


def test_an_nvlink5_error_counts_by_its_line() -> None:
    node = TestNode()
    node.play(60)
    node.set(XID, BEGIN + 58.0, "0", "GPU-0", "149")
    node.set(nvlink_xids.LAST, BEGIN + 58.0, bus(0), "149", "3", "nonfatal", "ignore")
    node.set(nvlink_xids.LAST, BEGIN + 58.0, bus(1), "149", "4", "fatal", "reset_gpu")
    assert node.play(30) == {("1", "nvlink", "4", "xid_149_fatal", "page"): 58.0}


def event(
    node: TestNode, gpu: int, origin: str, xid: str = "", trace: str = "7", **of: str
) -> None:
    """What a driver from R615 on tells of an error, now."""
    labels = {"module": "gpu-nvlink", "code": "0x0005", "category": "interconnect", **of}
    fatal = {"severity": "fatal", "origin": origin, "xid": xid, "trace": trace}
    told = {"gpu": str(gpu), "uuid": f"GPU-{gpu}", **labels, **fatal}
    at = tuple(told[label] for label in EVENT_TIME.labels)
    node.set(EVENT_TIME, node.clock.time(), *at)


def test_an_operational_event_and_its_xid_are_one_fault() -> None:
    node = TestNode()
    node.play(60)
    event(node, 1, "primary", "120")
    node.set(xids.XID_TIME, node.clock.time(), "1", "GPU-1", "120")
    node.set(kernel_log.LAST_XID, node.clock.time(), bus(1), "120")
    assert list(node.play(60)) == [("1", "gpu", bus(1), "xid_120", "page")]


def test_what_came_from_another_gpu_never_pages_beside_it() -> None:
    """In whichever order the kernel's line and the events come; without the primary it does."""
    node = TestNode()
    node.play(60)
    for gpu in (2, 3):
        node.set(kernel_log.LAST_XID, node.clock.time(), bus(gpu), "120")
    node.play(20)
    event(node, 1, "primary", "120")
    event(node, 2, "propagated", "120")
    event(node, 2, "secondary", module="gpu-bus")
    event(node, 3, "propagated", "120", trace="8")
    found = {(gpu, reason): severity for gpu, _, _, reason, severity in node.play(60)}
    assert found == {
        ("1", "xid_120"): "page",
        ("2", "xid_120_propagated"): "info",
        ("3", "xid_120"): "page",
    }


def test_an_event_without_an_xid_is_a_fault_unless_it_is_over_or_a_test() -> None:
    node = TestNode()
    node.play(60)
    event(node, 0, "primary")
    for origin in ("recovered", "before", "simulated"):
        event(node, 1, origin, trace=origin)
    event(node, 2, "propagated")
    found = {(gpu, reason): severity for gpu, _, _, reason, severity in node.play(60)}
    reason = "event_gpu-nvlink_0x0005_fatal"
    assert found == {("0", reason): "page", ("2", f"{reason}_propagated"): "info"}


def test_a_gpu_that_does_not_answer_is_a_fault_after_four_minutes() -> None:
    node = TestNode()
    node.play(60)
    node.silent.add(Place("3", "GPU-3"))
    assert node.play(200) == {}
    assert broken(node.play(120)) == [("3", "gpu", "no_answer", "page")]
    node.silent.clear()
    assert node.play(30) == {}


def test_memory_that_lost_data_waits_for_a_reset_unless_it_was_contained() -> None:
    node = TestNode()
    node.play(60)
    node.set(XID, BEGIN + 58.0, "2", "GPU-2", "94")
    node.set(health.ECC, 4.0, "2", "GPU-2", "uncorrected")
    node.set(health.ECC, 4.0, "3", "GPU-3", "uncorrected")
    told = broken(node.play(30))
    assert ("2", "gpu", "memory_lost_data_contained", "ticket") in told
    assert ("3", "gpu", "memory_lost_data", "page") in told
    node.set(power.DRIVER_ENERGY, 1.0, "3", "GPU-3")
    assert "memory_lost_data" not in [reason for _, _, reason, _ in broken(node.play(30))]


def test_a_reset_for_a_row_of_memory_can_wait() -> None:
    node = TestNode()
    node.set(health.REMAP_PENDING, 1.0, "1", "GPU-1")
    node.action("reset")
    told = broken(node.play(60))
    assert told == [
        ("1", "gpu", "driver_advises_reset_for_a_row", "ticket"),
        ("1", "gpu", "row_remap_pending", "ticket"),
    ]


def test_nobody_is_woken_for_what_nobody_uses_or_what_is_drained() -> None:
    node = TestNode()
    for gpu in range(GPUS):
        node.set(PROCESSES, 0.0, str(gpu), f"GPU-{gpu}", "compute")
    node.play(60)
    node.set(XID, BEGIN + 58.0, "1", "GPU-1", "79")
    assert broken(node.play(30)) == [("1", "gpu", "xid_79", "ticket")]
    node.set(PROCESSES, 1.0, "1", "GPU-1", "compute")
    assert broken(node.play(30)) == [("1", "gpu", "xid_79", "page")]
    node.set(DRAINED, 1.0)
    assert broken(node.play(30)) == [("1", "gpu", "xid_79", "ticket")]


def test_who_broke_under_a_job_was_used_for_as_long_as_it_takes_to_look() -> None:
    node = TestNode()
    node.play(60)
    node.set(XID, BEGIN + 58.0, "1", "GPU-1", "79")
    node.set(PROCESSES, 0.0, "1", "GPU-1", "compute")
    assert broken(node.play(600)) == [("1", "gpu", "xid_79", "page")]
    assert broken(node.play(600)) == [("1", "gpu", "xid_79", "ticket")]


def test_a_port_is_down_that_was_up_until_it_is_back_for_five_minutes() -> None:
    node = TestNode()
    node.set(infiniband.ACTIVE, 0.0, "mlx5_9", "1")
    node.play(60)
    node.set(infiniband.ACTIVE, 0.0, "mlx5_0", "1")
    assert broken(node.play(60)) == [("", "network", "down", "ticket")]
    for up in (1.0, 0.0, 1.0):
        node.set(infiniband.ACTIVE, up, "mlx5_0", "1")
        told = node.play(120)
        assert told == {("", "network", "mlx5_0/1", "down", "ticket"): pytest.approx(60, abs=6)}
    assert node.play(240) == {}


def test_a_link_a_disk_and_a_filesystem() -> None:
    node = TestNode()
    node.play(60)
    node.set(nvlink.NVLINK_UP, 0.0, "1", "GPU-1", "0")
    node.set(disk.STATE, 0.0, "nvme1")
    node.set(filesystem.READ_ONLY, 1.0, "/", "ext4")
    node.silent.add(Place(mountpoint="/data"))
    del node.series[filesystem.SIZE]["/data", "nfs4"]
    assert broken(node.play(120)) == [
        ("", "disk", "not_live", "ticket"),
        ("", "filesystem", "readonly", "page"),
        ("", "filesystem", "unanswering", "page"),
        ("1", "nvlink", "down", "ticket"),
    ]


def recover(node: TestNode, gpu: int, link: int, times: float) -> None:
    node.set(nvlink.LINK_ERRORS, times, f"{gpu}", f"GPU-{gpu}", f"{link}", "recovery_successful")


@with_each((1, 4, -4))
def test_an_nvlink_that_recovers_again_and_again_while_the_others_do_not(which: int) -> None:
    node = TestNode()
    for gpu in range(GPUS):
        for link in range(4):
            node.set(nvlink.NVLINK_UP, 1.0, f"{gpu}", f"GPU-{gpu}", f"{link}")
    recover(node, 1, 0, 5.0)
    node.play(60)
    assert node.faults == {}, "that was before"
    places = [(gpu, 1) for gpu in range(4)] if which < 0 else [(2, link) for link in range(which)]
    for times in (1.0, 2.0):
        assert node.play(900) == {}
        for gpu, link in places:
            recover(node, gpu, link, times)
    found = [("2", "nvlink", "0", "recovers", "ticket")] if which == 1 else []
    assert list(node.play(600)) == found
    assert node.play(3600) == {}


def test_a_pci_express_link_that_lacks_lanes_or_has_errors() -> None:
    node = TestNode()
    node.set(pcie.DEGRADED, 1.0, bus(1), "gpu")
    node.set(pcie.DEGRADED, 1.0, "0000:e1:00.0", "nic")
    node.set(pcie.AER, 7.0, bus(2), "gpu", "fatal")
    node.set(pcie.AER, 7.0, bus(2), "gpu", "correctable")
    assert node.play(880) == {}
    assert broken(node.play(60)) == [
        ("", "pcie", "degraded", "ticket"),
        ("1", "pcie", "degraded", "ticket"),
    ]
    for of in list(node.series[pcie.DEGRADED]):
        node.set(pcie.DEGRADED, 0.0, *of)
    node.set(pcie.AER, 99.0, bus(2), "gpu", "correctable")
    assert node.play(140) == {}
    node.set(pcie.AER, 8.0, bus(2), "gpu", "fatal")
    assert broken(node.play(1700)) == [("2", "pcie", "uncorrected_errors", "ticket")]
    assert node.play(200) == {}


def test_a_file_server_that_answers_nothing_for_two_minutes() -> None:
    node = TestNode()
    node.play(60)
    node.set(nfs.IN_FLIGHT, 9.0, "/data")
    assert node.play(60) == {}
    told = node.play(90)
    assert told == {("", "filesystem", "/data", "unanswering", "page"): pytest.approx(60, abs=6)}
    node.set(nfs.IN_FLIGHT, 0.0, "/data")
    node.play(10)
    assert node.play(130) == {}


def test_a_part_of_the_fabric_may_take_five_minutes_to_start() -> None:
    node = TestNode()
    node.play(60)
    node.set(health.FABRIC_HEALTHY, 0.0, "0", "GPU-0", "access_timeout")
    assert node.play(240) == {}
    assert broken(node.play(90)) == [("0", "fabric", "access_timeout", "page")]


def test_clocks_that_heat_lowers_for_minutes() -> None:
    node = TestNode()
    node.play(60)
    seconds = 7.0
    for minute in range(6):
        seconds += 30.0
        node.set(health.THROTTLED, seconds, "2", "GPU-2", "hw_thermal")
        told = node.play(60)
        assert minute > 3 or told == {}
    assert broken(told) == [("2", "thermal", "hw_thermal", "ticket")]
    assert broken(node.play(300)) == [("2", "thermal", "hw_thermal", "ticket")]
    assert node.play(600) == {}


def test_an_index_that_changes_leaves_a_fault_its_gpu() -> None:
    node = TestNode()
    node.action("reset", 2)
    node.play(60)
    for of in node.series.values():
        for labels in [one for one in of if "GPU-2" in one]:
            moved = tuple("1" if label == "2" else label for label in labels)
            of[moved] = of.pop(labels)
    assert broken(node.play(30)) == [("1", "gpu", "driver_advises_reset", "page")]


def test_what_a_replaced_gpu_had_is_gone_with_it() -> None:
    node = TestNode()
    node.play(60)
    node.action("reset")
    node.set(nvlink.NVLINK_UP, 0.0, "1", "GPU-1", "0")
    node.unplug(1)
    told = broken(node.play(700))
    assert ("1", "gpu", "missing", "page") in told
    node.plug(1, "GPU-9")
    assert node.play(30) == {}


def test_a_person_s_word_ends_a_link_that_stays_down_for_good() -> None:
    node = TestNode()
    node.play(60)
    node.set(nvlink.NVLINK_UP, 0.0, "1", "GPU-1", "0")
    assert broken(node.play(30)) == [("1", "nvlink", "down", "ticket")]
    node.set(repair.REPAIRED, node.clock.time())
    assert node.play(600) == {}


def test_mounts_that_come_and_go_take_no_memory_without_end() -> None:
    node = TestNode()
    for number in range(40):
        for mount in range(50):
            node.set(filesystem.READ_ONLY, 0.0, f"/pods/{number}-{mount}", "ext4")
        node.play(10)
        for mount in range(50):
            del node.series[filesystem.READ_ONLY][f"/pods/{number}-{mount}", "ext4"]
    assert len(node.found._register.before.well) <= MAX_PARTS
    node.set(filesystem.READ_ONLY, 1.0, "/", "ext4")
    assert broken(node.play(30)) == [("", "filesystem", "readonly", "page")]


def test_repaired_links_and_filesystems_are_told_for_two_minutes() -> None:
    node = TestNode()
    node.play(60)
    links = (
        (nvlink.NVLINK_UP, ("1", "GPU-1", "0"), 0.0),
        (filesystem.READ_ONLY, ("/", "ext4"), 1.0),
    )
    for metric, of, value in links:
        node.set(metric, value, *of)
    node.play(60)
    for metric, of, value in links:
        node.set(metric, 1.0 - value, *of)
    assert len(node.play(110)) == 2
    assert node.play(25) == {}


def test_faults_beyond_all_that_are_remembered_are_counted() -> None:
    node = TestNode()
    for number in range(MAX_FAULTS + 3):
        node.set(disk.STATE, 0.0, f"nvme{number}")
    assert len(node.play(60)) == MAX_FAULTS
    refused = [one for one in node.loop.unread() if one.what == "faults"]
    assert [one.times > 0 for one in refused] == [True]


# What outlives the daemon


def test_a_fault_outlives_the_daemon_and_so_does_its_repair(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    node = TestNode(file)
    node.play(60)
    node.set(XID, BEGIN + 58.0, "1", "GPU-1", "79")
    node.set(infiniband.ACTIVE, 0.0, "mlx5_0", "1")
    before = node.play(60)
    assert len(before) == 2
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = TestNode(file, at=200.0)
    again.set(infiniband.ACTIVE, 0.0, "mlx5_0", "1")
    assert again.play(10) == before, "the next driver tells of no XID from before"
    again.set(repair.REPAIRED, BEGIN + 205.0)
    assert [part for _, part, *_ in broken(again.play(30))] == ["network"]
    later = TestNode(file, at=400.0)
    later.set(kernel_log.LAST_XID, BEGIN + 58.0, bus(1), "79")
    later.set(infiniband.ACTIVE, 0.0, "mlx5_0", "1")
    assert [part for _, part, *_ in broken(later.play(30))] == ["network"], "the log is read anew"


@pytest.mark.parametrize("content", [None, b"{", b"[" * (1 << 19)], ids=["folder", "{", "large"])
def test_without_a_file_that_can_be_used_faults_are_told_all_the_same(
    content: bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / "faults.json"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    node = TestNode(file)
    node.set(XID, BEGIN + 2.0, "1", "GPU-1", "79")
    assert broken(node.play(60)) == [("1", "gpu", "xid_79", "page")]


def test_a_disk_that_never_answers_keeps_nothing(
    tmp_path: Path,
) -> None:
    fifo = tmp_path / "faults.json"
    os.mkfifo(fifo)  # opened without waiting: it is no file, and cannot be replaced while it hangs
    node = TestNode(fifo)
    node.set(XID, BEGIN + 2.0, "1", "GPU-1", "79")
    assert broken(node.play(60)) == [("1", "gpu", "xid_79", "page")]


@given(st.binary(max_size=200) | st.text().map(str.encode))
@settings(max_examples=50)
def test_no_file_spoils_a_register(content: bytes) -> None:
    with suppress(ValueError):
        Register().unpack(content)


def test_a_disk_that_takes_no_more_files_and_a_volume_mounted_to_be_read() -> None:
    node = TestNode()
    node.set(filesystem.FILES, 1e6, "/", "ext4")
    node.set(filesystem.FILES_FREE, 5e5, "/", "ext4")
    node.set(filesystem.AVAILABLE, 5e11, "/", "ext4")
    node.set(filesystem.READ_ONLY, 0.0, "pvc-datasets", "nfs4")
    assert broken(node.play(60)) == []
    node.set(filesystem.READ_ONLY, 1.0, "pvc-datasets", "nfs4")
    node.set(filesystem.FILES_FREE, 500.0, "/", "ext4")
    assert broken(node.play(60)) == [("", "filesystem", "full", "page")]
    node.set(filesystem.FILES_FREE, 5e5, "/", "ext4")
    assert broken(node.play(180)) == []
    node.set(filesystem.AVAILABLE, 4e9, "/", "ext4")
    assert broken(node.play(60)) == [("", "filesystem", "full", "page")]
