"""RDMA ports of several drivers: captured trees, and what each counter is taken for."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.infiniband import COUNTERS, Infiniband
from gpunode.host.rdma_counters import CXI, DRIVERS
from gpunode.node.local import LocalNode
from gpunode.source import MAX_ITEMS, Reading
from tests.corpus.families import load
from tests.machine import exported

TREES = {tree["id"]: tree for tree in load("rdma")["trees"]}


def put(root: Path, files: dict[str, str], device: str = "mlx5_0", port: str = "1") -> None:
    """Write files below the folder of a port."""
    for name, text in files.items():
        path = root / f"sys/class/infiniband/{device}/ports/{port}/{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def of_driver(root: Path, device: str, driver: str) -> None:
    path = root / f"sys/class/infiniband/{device}/device/uevent"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"DRIVER={driver}\nPCI_SLOT_NAME=0000:00:06.0\n")


def read(root: Path) -> Reading:
    return Infiniband(LocalNode(root), Settings()).read()


def page(root: Path) -> str:
    return exported(read(root).samples)


def unread(root: Path) -> list[tuple[str, str]]:
    return [(one.kind.what, one.example) for one in read(root).unread]


@pytest.mark.parametrize("name", TREES)
def test_a_captured_port_says_the_bytes_that_went_through_it(name: str, tmp_path: Path) -> None:
    tree: dict[str, Any] = TREES[name]
    put(tmp_path, tree["files"], tree["device"], tree["port"])
    of_driver(tmp_path, tree["device"], tree["driver"])
    found = page(tmp_path)
    for direction in ("receive", "transmit"):
        wanted = tree["expect"][f"{direction}_bytes"]
        series = (
            f'gpunode_infiniband_bytes_total{{device="{tree["device"]}",direction="{direction}",'
            f'port="{tree["port"]}"}}'
        )
        assert (f"{series} {float(wanted)}" if wanted is not None else series) in found or (
            wanted is None and series not in found
        )
    expected = [] if wanted is not None else [("port", tree["driver"])]
    if full := tree["expect"].get("full"):
        expected += [("counter_full", f"{tree['driver']}: {full}")]
    assert unread(tmp_path) == expected


def test_no_two_drivers_use_a_name_for_different_things() -> None:
    meanings: dict[str, set[tuple[str, str, float] | None]] = defaultdict(set)
    for counters in DRIVERS.values():
        for name, of in counters.items():
            meanings[name].add((of.what, of.kind, of.unit) if of else None)
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_the_kinds_of_a_port_are_few() -> None:
    series: set[tuple[str, str]] = set()
    for counters in (*DRIVERS.values(), CXI):
        series |= {(of.what, of.kind) for of in counters.values() if of is not None}
    assert {what for what, _ in series} == COUNTERS.keys()
    assert len(series) < 50


def test_each_counter_is_told(tmp_path: Path) -> None:
    for driver, counters in DRIVERS.items():
        for name, series in counters.items():
            if series is not None:
                root = tmp_path / driver / name
                put(root, {f"hw_counters/{name}": "5"})
                found = page(root)
                assert f"{COUNTERS[series.what].name}{{" in found, (driver, name)
                assert found.endswith(f" {5 * series.unit}"), (driver, name)


def test_bytes_that_two_counters_tell_count_once(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "counters/port_rcv_data": "1000",
            "hw_counters/rx_bytes": "3999",
            "hw_counters/rx_roce_only_bytes": "3500",
            "hw_counters/tx_bytes": "7",
        },
        "bnxt_re0",
    )
    found = page(tmp_path)
    assert 'direction="receive",port="1"} 4000.0' in found
    assert 'direction="transmit",port="1"} 7.0' in found


def test_a_counter_of_the_port_and_of_its_device_counts_once(tmp_path: Path) -> None:
    put(tmp_path, {"hw_counters/out_of_buffer": "3", "hw_counters/lifespan": "12"})
    put(tmp_path, {"../../hw_counters/out_of_buffer": "9", "../../hw_counters/cmds_err": "2"})
    found = page(tmp_path)
    assert 'kind="out_of_buffer",port="1"} 3.0' in found
    assert 'failures_total{device="mlx5_0",kind="command",port="1"} 2.0' in found


def test_counters_of_a_device_with_two_ports_belong_to_neither(tmp_path: Path) -> None:
    put(tmp_path, {"hw_counters/rq_num_oos": "3"}, "mlx4_0", "1")
    put(tmp_path, {"hw_counters/rq_num_oos": "4"}, "mlx4_0", "2")
    put(tmp_path, {"../../hw_counters/num_cqovf": "9"}, "mlx4_0")
    assert "failures" not in page(tmp_path)


def test_what_no_link_of_this_node_did_is_told_only_where_it_is_not_zero(tmp_path: Path) -> None:
    put(tmp_path, {"counters/VL15_dropped": "0", "counters/symbol_error": "0"})
    assert "vl15_dropped" not in page(tmp_path)
    assert 'kind="symbol",port="1"} 0.0' in page(tmp_path)
    put(tmp_path, {"counters/VL15_dropped": "2"})
    assert 'kind="vl15_dropped",port="1"} 2.0' in page(tmp_path)


def test_names_with_spaces_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"hw_counters/Nak Sequence Error": "1", "hw_counters/RNR sent": "2"}, "irdma0")
    assert 'kind="sequence_nak",port="1"} 1.0' in page(tmp_path)
    assert unread(tmp_path) == []


def test_a_port_at_an_embedded_switch_is_read(tmp_path: Path) -> None:
    put(tmp_path, {"hw_counters/vport_out_of_sequence": "4"})
    assert 'kind="out_of_sequence",port="1"} 4.0' in page(tmp_path)


def test_a_counter_without_a_meaning_is_unread_and_named_once(tmp_path: Path) -> None:
    for device in ("efa_0", "efa_1"):
        put(tmp_path, {"hw_counters/tx_bytes": "1", "hw_counters/ecn_lost_pkts": "2"}, device)
        of_driver(tmp_path, device, "efa")
    assert unread(tmp_path) == [("counter", "efa: ecn_lost_pkts")]


def test_the_registers_of_a_chip_are_no_counters_that_lack_a_meaning(tmp_path: Path) -> None:
    put(tmp_path, {"counters/port_rcv_data": "1", "hw_counters/RxCtx07": "3"}, "hfi1_0")
    of_driver(tmp_path, "hfi1_0", "hfi1")
    assert unread(tmp_path) == []
    of_driver(tmp_path, "hfi1_0", "hfi2")
    assert unread(tmp_path) == [("counter", "hfi2: RxCtx07")]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("symbol_error", 65535),
        ("link_downed", 255),
        ("excessive_buffer_overrun_errors", 15),
        ("port_xmit_wait", 4294967295),
        ("port_xmit_data", 4294967295),
    ],
)
def test_a_full_counter_is_no_reading_until_it_is_reset(
    name: str, full: int, tmp_path: Path
) -> None:
    of_driver(tmp_path, "mlx5_0", "mlx5_core")
    for value in (0, full - 1, full + 1):
        put(tmp_path, {f"counters/{name}": str(value), "counters/port_rcv_data": "8"})
        assert len(read(tmp_path).samples) == 2
        assert unread(tmp_path) == []
    put(tmp_path, {f"counters/{name}": str(full)})
    assert [sample.value for sample in read(tmp_path).samples] == [32.0]
    assert unread(tmp_path) == [("counter_full", f"mlx5_core: {name}")]


def test_a_sum_with_a_full_counter_is_no_reading(tmp_path: Path) -> None:
    constraints = {"port_rcv_constraint_errors": "255", "port_xmit_constraint_errors": "3"}
    put(tmp_path, {f"counters/{name}": count for name, count in constraints.items()})
    assert page(tmp_path) == ""
    put(tmp_path, {"counters/port_rcv_data": "4294967295", "counters_ext/port_rcv_data_64": "9"})
    assert 'direction="receive",port="1"} 36.0' in page(tmp_path)


def test_a_port_without_counters_is_unread_and_says_nothing_of_its_owner(tmp_path: Path) -> None:
    put(tmp_path, {"state": "4: ACTIVE"}, "alice7")
    assert unread(tmp_path) == [("port", "a0")]
    of_driver(tmp_path, "alice7", "siw")
    assert unread(tmp_path) == [("port", "siw")]


def test_of_many_ports_and_counters_a_few_are_told(tmp_path: Path) -> None:
    for port in range(1, 80):
        put(tmp_path, {"hw_counters/tx_bytes": "1"}, "mlx5_0", str(port))
    put(tmp_path, {f"hw_counters/counter{n}": "1" for n in range(300)})
    found = read(tmp_path)
    assert len(found.samples) == MAX_ITEMS
    assert sum(not one.kind.bound for one in found.unread) == MAX_ITEMS
    assert ("ports", "79 RDMA ports, 64 are read") in unread(tmp_path)


def test_slingshot_has_its_own_folder_and_a_time_beside_each_count(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/cxi/cxi0/device/telemetry"
    folder.mkdir(parents=True)
    assert unread(tmp_path) == [("port", "cxi")]
    (folder / "hni_sts_rx_ok_octets").write_text("123456@1700000000.123456789\n")
    (folder / "hni_pcs_uncorrected_cw").write_text("2@1700000000.123456789\n")
    (folder / "hni_rx_ok_64").write_text("9@1700000000.123456789\n")
    found = page(tmp_path)
    assert 'bytes_total{device="cxi0",direction="receive",port="0"} 123456.0' in found
    assert 'errors_total{device="cxi0",kind="uncorrected_codewords",port="0"} 2.0' in found
    assert unread(tmp_path) == []
