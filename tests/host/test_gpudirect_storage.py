"""GPUDirect Storage: what its driver counts, and what it does not count by default."""

from __future__ import annotations

import pytest

from gpunode.host.gpudirect_storage import DirectIo, parse
from tests.cases import with_each
from tests.machine import MACHINES

COUNTED = (MACHINES / "dgx/first/proc/driver/nvidia-fs/stats").read_text()
# https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/index.html, section 13.3
NOT_COUNTED = """\
GDS Version: 1.0.0.82
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2.7.49)
Mellanox PeerDirect Supported: True
IO stats: Disabled, peer IO stats: Disabled
Logging level: info

Active Shadow-Buffer (MiB): 0
Active Process: 0
Reads : err=0 io_state_err=0
Sparse Reads : n=230 io=0 holes=0 pages=0
Writes : err=0 io_state_err=237 pg-cache=0 pg-cache-fail=0 pg-cache-eio=0
Mmap : n=27 ok=27 err=5 munmap=27
"""


def test_bytes_and_errors_are_told_by_direction() -> None:
    found = parse(COUNTED)
    assert found["read"] == DirectIo(3.0, 4095.0 * 2**20)
    assert found["write"] == DirectIo(0.0, 0.0)


def test_bytes_that_are_not_counted_are_not_zero() -> None:
    assert parse(NOT_COUNTED) == {"read": DirectIo(0.0, None), "write": DirectIo(237.0, None)}


@with_each(["", "Reads : err=1\n", COUNTED.replace("Reads", "Lesen")])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="missing"):
        parse(text)
