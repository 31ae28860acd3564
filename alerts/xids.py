"""What to do after each XID that can page, as runbooks say it: from NVIDIA's catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.driver.nvidia.xids import CODES, OF_HARDWARE, OF_NVLINK5, Code

TITLES = {
    "en": ("it is", "do", "if it comes again within a month"),
    "ko": ("뜻", "할 일", "한 달 안에 다시 나타나면"),
}

ON_LINKS = {"en": "step 5, then A", "ko": "5단계, 그다음 A"}

STEPS: dict[str, dict[str, str]] = {
    "RESET_GPU": {"en": "A", "ko": "A"},
    "RESTART_BM": {"en": "B", "ko": "B"},
    "RESTART_VM": {"en": "restart the virtual machine", "ko": "가상 머신 재시작"},
    "WORKFLOW_XID_48": {"en": "A", "ko": "A"},
    "WORKFLOW_NVLINK_ERR": ON_LINKS,
    "WORKFLOW_NVLINK5_ERR": ON_LINKS,
}
"""Where GpuUnhealthy's runbook goes on from an immediate action of the catalogue."""

REPLACED = {"en": "A, then C", "ko": "A, 그다음 C"}
STEPS_OF: dict[str, dict[str, str]] = {"INFOROM_DRAM_RETIREMENT_FAILURE": REPLACED}
"""The same where more is known, by the name of the XID: memory that can be repaired no more.
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html (RMA policy)"""

_AS_BEFORE = {"en": "as before", "ko": "처음과 같음"}
_SOFTWARE = {
    "en": "update driver and firmware, then C",
    "ko": "드라이버와 펌웨어 업데이트, 그다음 C",
}

AGAIN: dict[str, dict[str, str]] = {
    "CONTACT_SUPPORT": {"en": "C", "ko": "C"},
    "IGNORE": _AS_BEFORE,
    "IGNORE (sympathetic)": _AS_BEFORE,
    "INVESTIGATE_LINK_SI": {"en": "step 5, then C", "ko": "5단계, 그다음 C"},
    "INVESTIGATE_SW": _SOFTWARE,
    "INVESTIGATE_SW_USER": _SOFTWARE,
    "WORKFLOW_NVLINK5_ERR": {
        "en": "step 5, then C where the link failed",
        "ko": "5단계, 그다음 링크가 고장 난 곳만 C",
    },
    "WORKFLOW_XID_48": _AS_BEFORE,
}
"""The same from an investigatory action of the catalogue."""


def told() -> Iterator[Code]:
    """XIDs for which GpuUnhealthy can page, in order."""
    return (CODES[number] for number in sorted({*OF_HARDWARE, *OF_NVLINK5}))


def table(language: str) -> str:
    """Every such XID, what it is, and where the runbook goes on."""
    rows = [
        [
            str(code.number),
            code.meaning,
            STEPS_OF.get(code.name, STEPS[code.action])[language],
            AGAIN[code.then][language],
        ]
        for code in told()
    ]
    titles = ["XID", *TITLES[language]]
    return "\n".join(f"| {' | '.join(row)} |" for row in [titles, ["---"] * len(titles), *rows])
