"""Everything that depends on the model of GPU: its peak, and what kernels reach on it.

Peaks are from NVIDIA's datasheets (https://www.nvidia.com/en-us/data-center/), dense: figures that
a datasheet gives with sparsity are halved here. Numbers of SMs are from its architecture papers.
The power limit and the link speeds come from the driver instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.driver.driver import Identity

TERA = 1e12


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the sensors show for kernels that run alone, as shares of time; used by the ledger.

    The defaults were measured on H200s; ``docs/ledger.md`` shows the signatures.
    """

    tensor: float = 0.92
    """Tensor share of a large matrix product, the highest that was reached."""

    tensor_of_models: float = 0.62
    """Tensor share of the matrix products and attention of whole models (0.5 to 0.88)."""

    pipe: float = 0.75
    """Share of the FP32, FP64 or FP16 pipe in a matrix product on it."""

    pipe_of_models: float = 0.61
    """The same in whole models."""

    pipe_of_dram: float = 0.2
    """Share of the FP32 pipe in elementwise kernels and Fourier transforms, per HBM share (0.05 to
    0.25)."""

    dram: float = 0.87
    """HBM share of an elementwise kernel, the highest that was reached."""

    dram_of_models: float = 0.70
    """HBM share of the elementwise kernels, norms and updates of whole models (0.62 to 0.77)."""

    dram_of_tensor: float = 0.2
    """HBM share caused by a matrix product of tensor share 1 (0.19 at 8192², 0.25 at 4096²)."""

    dram_of_nvlink: float = 2.1
    """HBM bytes caused by a collective, per NVLink byte."""

    sm_of_wide: float = 0.97
    """SM share of kernels that fill the GPU."""

    sm_of_small: float = 0.65
    """SM share of small kernels while they run, whose ends leave SMs without work."""

    sms: int = 132
    """SMs of the GPU."""

    nvlink_channels: int = 24
    pcie_channels: int = 4
    """SMs that a collective of NCCL holds, by the links over which the data goes."""

    nvlink_of_collective: float = 0.52
    """Share of NVLink's rate in one direction that collectives reach; 0.6 in an endless one."""

    pcie_of_collective: float = 0.47
    """Share of PCIe's rate in its quieter direction that a large collective reaches."""

    resting_power: float = 0.175
    """Share of the power limit that a GPU draws while a process holds it and nothing runs.

    Used until the GPU has shown it.
    """

    waiting_power: float = 0.45
    """A GPU stays below this share of its power limit while it waits, copies or communicates."""

    @property
    def sm_of_nvlink(self) -> float:
        """SM share of a collective over NVLink."""
        return self.nvlink_channels / self.sms

    @property
    def sm_of_pcie(self) -> float:
        """SM share of a collective over PCIe."""
        return self.pcie_channels / self.sms


MEASURED_ON_H200 = Ceilings()
"""Also what is assumed of models that were not measured, but for the number of their SMs."""

MEASURED_ON_H100 = Ceilings(dram_of_models=0.82, dram_of_tensor=0.29, resting_power=0.19)
"""Its HBM has 0.7 of the H200's rate, so that the same traffic takes a larger share of it."""


@dataclass(frozen=True, slots=True)
class Model:
    """Peak FLOP/s of tensor cores by precision; ``half`` is BF16, or FP16 before Ampere."""

    name: str
    half: float
    fp8: float | None = None
    nccl_bus_bandwidth: tuple[tuple[int, float], ...] = ()
    """Bytes per second of an all-reduce by number of GPUs on one node, as measured in the field."""

    ceilings: Ceilings = MEASURED_ON_H200


GB = 1e9

# Bus bandwidths: https://github.com/stas00/ml-engineering/tree/master/network/benchmarks, rings up
# to four GPUs and NVLS above; B200 and A100 only with eight.
HOPPER_LINKS = ((4, 363 * GB), (5, 414 * GB), (6, 436 * GB), (7, 460 * GB), (8, 473 * GB))

MODELS = (
    # The order matters: the first model whose words are all in the driver's name is used.
    Model("GB300", 2500 * TERA, 5000 * TERA, ceilings=Ceilings(sms=160)),
    Model("GB200", 2500 * TERA, 5000 * TERA, ceilings=Ceilings(sms=148)),
    Model("GH200", 989 * TERA, 1979 * TERA),
    Model("B300", 2250 * TERA, 4500 * TERA, ceilings=Ceilings(sms=160)),
    Model("B200", 2250 * TERA, 4500 * TERA, ((8, 838 * GB),), ceilings=Ceilings(sms=148)),
    Model("H200 NVL", 836 * TERA, 1671 * TERA),
    Model("H200", 989 * TERA, 1979 * TERA, HOPPER_LINKS),
    Model("H100 NVL", 835 * TERA, 1671 * TERA),
    Model("H100 PCIe", 756 * TERA, 1513 * TERA, ceilings=Ceilings(sms=114)),
    Model("H100", 989 * TERA, 1979 * TERA, HOPPER_LINKS, MEASURED_ON_H100),
    Model("H800", 989 * TERA, 1979 * TERA, ceilings=MEASURED_ON_H100),
    Model("H20", 148 * TERA, 296 * TERA, ceilings=Ceilings(sms=78)),
    Model("A100", 312 * TERA, None, ((8, 235 * GB),), ceilings=Ceilings(sms=108)),
    Model("A800", 312 * TERA, ceilings=Ceilings(sms=108)),
    Model("A30", 165 * TERA, ceilings=Ceilings(sms=56)),
    Model("A40", 150 * TERA, ceilings=Ceilings(sms=84)),
    Model("A10", 125 * TERA, ceilings=Ceilings(sms=72)),
    Model("RTX A6000", 154.85 * TERA, ceilings=Ceilings(sms=84)),
    Model("L40S", 362 * TERA, 733 * TERA, ceilings=Ceilings(sms=142)),
    Model("L4", 121 * TERA, 242 * TERA, ceilings=Ceilings(sms=58)),
    Model("V100", 125 * TERA, ceilings=Ceilings(sms=80)),
    Model("T4", 65 * TERA, ceilings=Ceilings(sms=40)),
)

CAPABILITIES = {"7.0": "V100", "7.5": "T4", "8.0": "A100", "9.0": "H100", "10.0": "B200"}
"""By compute capability, the model that stands in for one that is not listed."""


def model_of(name: str, compute_capability: str | None = None) -> Model | None:
    """What is known about a GPU by the name that the driver gives it; None if nothing is.

    An unlisted name falls back to the model in ``CAPABILITIES`` for its compute capability.
    """
    words = name.upper().replace("-", " ").split()
    for model in MODELS:
        wanted = model.name.upper().split()
        if all(word in words for word in wanted):
            return model
    standing = CAPABILITIES.get(compute_capability or "")
    return next((model for model in MODELS if model.name == standing), None)


def ceilings_of(identity: Identity) -> Ceilings:
    """What kernels reach on a GPU; the H200 figures if its model is not known."""
    model = model_of(identity.name, identity.compute_capability)
    return model.ceilings if model else MEASURED_ON_H200
