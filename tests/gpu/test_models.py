"""Which model a name of the driver is, and what is assumed of one that is not listed."""

from __future__ import annotations

from gpunode.driver.driver import Identity, Limits
from gpunode.gpu.models import (
    CAPABILITIES,
    MEASURED_MODELS,
    MODELS,
    Model,
    calibration_of,
    ceilings_of,
    limits_of,
    model_of,
)
from tests.cases import with_each

NAMES = {
    "NVIDIA L4": "L4",
    "NVIDIA L40": "L40",
    "NVIDIA L40S": "L40S",
    "NVIDIA L40S-48Q": "L40S",
    "NVIDIA L20": "L20",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A100 80GB PCIe": "A100",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb": "A100",
    "NVIDIA A30": "A30",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H100 NVL": "H100 NVL",
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": "H200 NVL",
    "NVIDIA H200 MIG 1c.2g.35gb": "H200",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA GH200 144G HBM3e": "GH200",
    "NVIDIA H800 PCIe": "H800 PCIe",
    "NVIDIA H20-3e": "H20 3e",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb": "RTX PRO 6000 Blackwell Server",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTX PRO 6000 Blackwell Workstation",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX A6000": "RTX A6000",
    "NVIDIA RTX A5000": "RTX A5000",
    "NVIDIA RTX 4000 Ada Generation": "RTX 4000 Ada",
    "Tesla V100-SXM2-16GB": "V100",
    "Tesla V100-PCIE-32GB": "V100 PCIE",
    "Tesla V100S-PCIE-32GB": "V100S PCIE",
    "Tesla T4": "T4",
}
OTHERS = (
    "NVIDIA Graphics Device",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA H20Z",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4080 SUPER",
    "NVIDIA RTX 6000D",
    "Quadro RTX 6000",
    "NVIDIA RTX 4000 SFF Ada Generation",
    "NVIDIA RTX A5000 Laptop GPU",
    "NVIDIA RTX A2000 12GB",
    "NVIDIA RTX PRO 6000 Blackwell",
    "NVIDIA T400 4GB",
    "",
)


@with_each(NAMES.items())
def test_a_name_is_of_one_model(name: str, model: str) -> None:
    found = model_of(name)
    assert found is not None
    assert found.name == model


@with_each(OTHERS)
def test_a_name_with_another_word_is_of_no_model(name: str) -> None:
    assert model_of(name) is None


@with_each(MODELS)
def test_each_model_is_found_by_its_own_name(model: Model) -> None:
    assert model_of(f"NVIDIA {model.name}") is model


@with_each(CAPABILITIES)
def test_one_of_its_compute_capability_stands_in_for_an_unlisted_model(capability: str) -> None:
    stands_in = model_of(CAPABILITIES[capability])
    assert stands_in is not None
    who = Identity(0, "GPU-0", "NVIDIA Graphics Device", compute_capability=capability)
    assert ceilings_of(who) == stands_in.ceilings
    assert limits_of(who, Limits()) == Limits()


def test_the_driver_is_believed_before_the_table() -> None:
    spark = Identity(0, "GPU-0", "NVIDIA GB10", compute_capability="12.1")
    assert limits_of(spark, Limits()).memory_bytes_per_second == 273e9
    assert limits_of(spark, Limits(1e9)) == Limits(1e9)


@with_each(MODELS)
def test_only_a_measured_model_is_calibrated(model: Model) -> None:
    who = Identity(0, "GPU-0", f"NVIDIA {model.name}")
    assert calibration_of(who).own == (model.name in MEASURED_MODELS)


def test_a_gpu_tells_whose_ceilings_it_has() -> None:
    measured_on = {
        "NVIDIA H200": "H200",
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H800": "H100",
        "NVIDIA B200": "H200",
        "NVIDIA Graphics Device": "H200",
    }
    for name, model in measured_on.items():
        assert calibration_of(Identity(0, "GPU-0", name)).measured_on == model
