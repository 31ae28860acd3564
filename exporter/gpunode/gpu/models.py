"""Everything that depends on the model of GPU: its peak, its memory, and what kernels reach on it.

Peaks are dense, with FP32 accumulation: figures that a datasheet gives with sparsity are halved
here. Numbers of SMs are those that CUDA shows, fewer than a chip has. The power limit and the link
speeds come from the driver instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from gpunode.driver.driver import Identity, Limits

TERA = 1e12
GB = 1e9


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the sensors show for kernels that run alone, as shares of time; used by the ledger.

    The defaults were measured on H200s; ``docs/ledger.md`` shows the signatures.
    """

    tensor: float = 0.92
    """Tensor share of a large matrix product, the highest that was reached."""

    pipe: float = 0.75
    """Share of the FP32, FP64 or FP16 pipe in a matrix product on it."""

    pipe_of_dram: float = 0.2
    """Share of the FP32 pipe in elementwise kernels and Fourier transforms, per HBM share (0.05 to
    0.25)."""

    dram: float = 0.87
    """HBM share of an elementwise kernel, the highest that was reached."""

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

MEASURED_ON_H100 = Ceilings(
    tensor=0.93, pipe=0.77, dram=0.89, dram_of_tensor=0.29, resting_power=0.19
)
"""Its HBM has 0.7 of the H200's rate, so that the same traffic takes a larger share of it."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model by the words of its name, and its peak FLOP/s by precision.

    ``half`` is BF16, or FP16 before Ampere; None if NVIDIA publishes neither it nor what it follows
    from. ``memory`` is the rate of the memory in bytes per second; None if GPUs of the same name
    differ in it. Its use is where the driver does not tell the bus width.
    """

    name: str
    half: float | None
    fp8: float | None = None
    memory: float | None = None
    nccl_bus_bandwidth: tuple[tuple[int, float], ...] = ()
    """Bytes per second of an all-reduce by number of GPUs on one node, as measured in the field."""

    ceilings: Ceilings = MEASURED_ON_H200


def _model(
    name: str,
    sms: int,
    half: float | None,
    fp8: float | None = None,
    memory: float | None = None,
    links: tuple[tuple[int, float], ...] = (),
    ceilings: Ceilings = MEASURED_ON_H200,
) -> Model:
    """A model in TFLOP/s and GB/s."""

    def times(figure: float | None, factor: float) -> float | None:
        return None if figure is None else figure * factor

    return Model(
        name,
        times(half, TERA),
        times(fp8, TERA),
        times(memory, GB),
        links,
        replace(ceilings, sms=sms),
    )


# Bus bandwidths: https://github.com/stas00/ml-engineering/tree/master/network/benchmarks, rings up
# to four GPUs and NVLS above; B200 and A100 only with eight.
HOPPER_LINKS = ((4, 363 * GB), (5, 414 * GB), (6, 436 * GB), (7, 460 * GB), (8, 473 * GB))
B200_LINKS = ((8, 838 * GB),)
A100_LINKS = ((8, 235 * GB),)

MODELS = (
    # The order matters where a word is one of MORE_WORDS: H100 PCIe stands before H100.
    # Columns: words, SMs, TFLOP/s of BF16 and of FP8, GB/s of memory.
    #
    # https://resources.nvidia.com/en-us-blackwell-architecture; the SMs are those of CUDA's
    # deviceQuery, as https://verda.com/blog/gb300-nvl72-architecture has them.
    _model("GB300", 152, 2500, 5000, 8000),
    _model("GB200", 152, 2500, 5000, 8000),
    _model("B300", 148, 2250, 4500, 8000),
    # 7.7 TB/s: https://www.nvidia.com/en-us/data-center/hgx/
    _model("B200", 148, 2250, 4500, 7700, B200_LINKS),
    # https://www.nvidia.com/en-us/products/workstations/dgx-spark/: an eighth of 1 PFLOPS of FP4
    # with sparsity; 48 SMs: https://github.com/huggingface/kernels/pull/283
    _model("GB10", 48, 125, 250, 273),
    # Jetson T5000, https://huggingface.co/hardware/jetson-t5000: an eighth of 2070 TFLOPS of FP4
    # with sparsity; 20 SMs: https://forums.developer.nvidia.com/t/356355. A T4000 has 12.
    _model("Thor", 20, 258.5, 517, 273),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/quadro-product-literature/NVIDIA-RTX-Blackwell-PRO-GPU-Architecture-v1.0.pdf
    # 4 PFLOPS of FP4 with sparsity; the other editions by their FP32, of which BF16 is four times.
    _model("RTX PRO 6000 Blackwell Max-Q Workstation", 188, 440, 880, 1792),
    _model("RTX PRO 6000 Blackwell Workstation", 188, 503.8, 1007.6, 1792),
    # https://www.nvidia.com/en-us/data-center/rtx-pro-6000-blackwell-server-edition/
    _model("RTX PRO 6000 Blackwell Server", 188, 480, 960, 1597),
    # https://www.exxactcorp.com/blog/benchmark/nvidia-rtx-pro-4500-blackwell-llm-inference-benchmark
    _model("RTX PRO 4500 Blackwell Server", 82, None, None, 800),
    # 1760 TFLOPS of FP4 with sparsity: https://technical.city/en/video/RTX-PRO-4500-Blackwell
    _model("RTX PRO 4500 Blackwell", 82, 219.7, 439.5, 896),
    # https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf
    _model("GeForce RTX 5090", 170, 209.5, 419, 1792),
    _model("GeForce RTX 5080", 84, 112.6, 225.1, 960),
    # https://resources.nvidia.com/en-us-gpu-resources/h100-datasheet-24306 and the H200's; of the
    # H20 and H800, https://github.com/pytorch/torchtitan/pull/2307 and
    # https://github.com/ai-dynamo/aiconfigurator/pull/968
    _model("GH200", 132, 989, 1979),
    _model("H200 NVL", 132, 836, 1671, 4800),
    _model("H200", 132, 989, 1979, 4800, HOPPER_LINKS),
    _model("H100 NVL", 132, 835, 1671, 3938),
    _model("H100 PCIe", 114, 756, 1513, 2039),
    _model("H100", 132, 989, 1979, 3352, HOPPER_LINKS, MEASURED_ON_H100),
    _model("H800 PCIe", 114, 756, 1513, 2039),
    _model("H800", 132, 989, 1979, 3352, ceilings=MEASURED_ON_H100),
    _model("H20 3e", 78, 148, 296, 4800),
    _model("H20", 78, 148, 296, 4000),
    # https://images.nvidia.com/content/Solutions/data-center/vgpu-L40-datasheet.pdf
    _model("L40", 142, 181.05, 362, 864),
    # https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413
    _model("L40S", 142, 362.05, 733, 864),
    # https://github.com/feifeibear/LLMRoofline: half rate, as the L40
    _model("L20", 92, 119.5, 239, 864),
    # https://nvdam.widen.net/s/rvq98gbwsw/l4-datasheet-2595652
    _model("L4", 58, 121, 242, 300),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/design-visualization/rtx-6000/proviz-print-rtx6000-datasheet-web-2504660.pdf
    # A quarter of 1457 TFLOPS of FP8 with sparsity.
    _model("RTX 6000 Ada", 142, 364.2, 728.5, 960),
    # A quarter of 1044.4, 634 and 427.6: https://www.nvidia.com/en-us/products/workstations/
    _model("RTX 5000 Ada", 100, 261.1, 522.2, 576),
    _model("RTX 4500 Ada", 60, 158.5, 317, 432),
    _model("RTX 4000 Ada", 48, 106.9, 213.8, 360),
    # https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf
    _model("GeForce RTX 4090", 128, 165.2, 330.3, 1008),
    _model("GeForce RTX 4080", 76, 97.5, 194.9, 716.8),
    # https://images.nvidia.com/aem-dam/en-zz/Solutions/data-center/nvidia-ampere-architecture-whitepaper.pdf
    _model("A100", 108, 312, links=A100_LINKS),
    _model("A800", 108, 312),
    _model("A30", 56, 165, memory=933),
    # https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf
    _model("A40", 84, 149.7, memory=696),
    _model("RTX A6000", 84, 154.85, memory=768),
    # Half of 272.8, 222.2, 189.2 and 153.4 with sparsity: https://www.nvidia.com/en-us/products/workstations/
    _model("RTX A5500", 80, 136.4, memory=768),
    _model("RTX A5000", 64, 111.1, memory=768),
    _model("RTX A4500", 56, 94.6, memory=640),
    _model("RTX A4000", 48, 76.7, memory=448),
    _model("GeForce RTX 3090 Ti", 84, 80, memory=1008),
    _model("GeForce RTX 3090", 82, 71, memory=936),
    # https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf
    _model("A10G", 80, 70, memory=600),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf
    _model("A10", 72, 125, memory=600),
    # Each of the four of a board: https://images.nvidia.com/content/Solutions/data-center/vgpu-a16-datasheet.pdf
    _model("A16", 10, 17.4, memory=200),
    # https://www.nvidia.com/content/dam/en-zz/solutions/data-center/a2/pdf/a2-datasheet.pdf
    _model("A2", 10, 18, memory=200),
    # https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
    _model("V100S PCIE", 80, 130, memory=1134),
    _model("V100 PCIE", 80, 112, memory=900),
    _model("V100", 80, 125, memory=900),
    # https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
    _model("T4", 40, 65, memory=320),
)

MORE_WORDS = re.compile(
    r"NVIDIA|TESLA|GRID"
    r"|(?!64)\d+GB?|HBM3E?|PCIE|SXM\d?|AC|ACTIVE"
    r"|DGXS|GENERATION|EDITION|\d+[ABCQ]"
)
"""Words of a name that make no other model of it: memory, form factor, profile of a virtual GPU.

A100 and H100 of 64 GB were made for one site each and have other numbers of SMs.
"""

CAPABILITIES = {
    "7.0": "V100",
    "7.5": "T4",
    "8.0": "A100",
    "8.6": "A40",
    "8.9": "L40S",
    "9.0": "H100",
    "10.0": "B200",
    "10.3": "B300",
    "11.0": "Thor",
    "12.0": "RTX PRO 6000 Blackwell Server",
    "12.1": "GB10",
}
"""By compute capability, the model whose ceilings stand in for one that is not listed.

Not its peak: GPUs of one compute capability differ by ten times in that.
"""

UNIFIED_MEMORY = frozenset({"7.2", "8.7", "11.0", "12.1"})
"""Compute capabilities of the GPUs that are part of a chip with CPUs and share their memory.

Jetson Xavier, Orin and Thor, and GB10: https://developer.nvidia.com/cuda-gpus
"""


@lru_cache(maxsize=64)
def model_of(name: str) -> Model | None:
    """What is known about a GPU by the name that the driver gives it; None if nothing is.

    A word that is neither the model's nor one of ``MORE_WORDS`` makes it another model: an L40S is
    no L40, and an RTX 4090 D no RTX 4090.
    """
    words = set(_name_words(name.upper().partition(" MIG ")[0]))
    for model in MODELS:
        rest = words.difference(wanted := _name_words(model.name.upper()))
        if words.issuperset(wanted) and all(MORE_WORDS.fullmatch(word) for word in rest):
            return model
    return None


def _name_words(name: str) -> list[str]:
    return name.replace("-", " ").split()


MEASURED_MODELS = frozenset({"H200", "H100"})
"""The models whose ceilings were measured on GPUs of that model."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What kernels reach on a GPU, and where that was measured."""

    ceilings: Ceilings
    measured_on: str
    """The model on which it was measured, as ``MODELS`` names it, or as the driver does where
    ``gpunode calibrate`` measured it."""

    own: bool
    """Whether that is the GPU's own model; otherwise the ledger is less accurate."""


NO_CEILINGS: Mapping[str, Ceilings] = {}


def calibration_of(identity: Identity, own: Mapping[str, Ceilings] = NO_CEILINGS) -> Calibration:
    """What is known of a GPU of that name; the H200's figures if nothing is known of its kind.

    ``own`` has what ``gpunode calibrate`` measured on this site, by the name of a GPU; a MIG
    instance has what its GPU has.
    """
    name = identity.name.partition(" MIG ")[0]
    if name in own:
        return Calibration(own[name], name, own=True)
    named = model_of(identity.name)
    model = named or model_of(CAPABILITIES.get(identity.compute_capability or "", ""))
    if named is not None and named.name in MEASURED_MODELS:
        return Calibration(named.ceilings, named.name, own=True)
    ceilings = model.ceilings if model else MEASURED_ON_H200
    on_h100 = replace(ceilings, sms=MEASURED_ON_H100.sms) == MEASURED_ON_H100
    return Calibration(ceilings, "H100" if on_h100 else "H200", own=False)


def ceilings_of(identity: Identity) -> Ceilings:
    """What kernels reach on a GPU; the H200's figures if nothing is known of its kind."""
    return calibration_of(identity).ceilings


def limits_of(identity: Identity, told: Limits) -> Limits:
    """The limits that the driver told, with the memory's rate if only the model tells it."""
    model = model_of(identity.name)
    if identity.mig or told.memory_bytes_per_second is not None or model is None:
        return told
    return replace(told, memory_bytes_per_second=model.memory)
