"""A kernel that has pressure stall information, and has it turned off."""

from __future__ import annotations

import errno

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.pressure import Pressure
from tests.machine import MACHINES, Machine


class Refusing(Machine):
    """A node each of whose files is refused with an error."""

    def __init__(self, number: int) -> None:
        super().__init__(MACHINES / "dgx")
        self.number = number

    def read_text(self, path: str) -> str:
        raise OSError(self.number, "refused", path)


def test_what_is_turned_off_is_absent_and_no_failure() -> None:
    # https://github.com/prometheus/node_exporter/issues/1961
    assert not Pressure(Refusing(errno.EOPNOTSUPP), Settings()).read().samples


def test_another_error_is_a_failure() -> None:
    with pytest.raises(OSError, match="refused"):
        Pressure(Refusing(errno.EIO), Settings()).read()
