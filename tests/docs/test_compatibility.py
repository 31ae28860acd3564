"""What docs/compatibility.md says of other programs' versions, and that no test elsewhere tries."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config import Settings
from gpunode.host.infiniband import CONGESTION_KINDS, TRANSPORT_ERROR_KINDS, Infiniband
from gpunode.node.local import LocalNode
from tests.docs.compatibility import OFED, Adapter, document
from tests.machine import exported, told

DOCUMENT = Path(__file__).parents[2] / "docs/compatibility.md"


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: make docs"


@pytest.mark.parametrize("adapter", OFED, ids=lambda adapter: adapter.name)
def test_the_counters_of_an_adapter_by_its_driver(adapter: Adapter, tmp_path: Path) -> None:
    """A counter that the driver lacks has no series, and takes no other with it."""
    kinds = CONGESTION_KINDS | TRANSPORT_ERROR_KINDS
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/hw_counters"
    counters.mkdir(parents=True)
    for name in kinds.keys() - adapter.lacks:
        (counters / name).write_text("5\n")
    found = exported(told(Infiniband(LocalNode(tmp_path), Settings())))
    for name, kind in kinds.items():
        assert (f'kind="{kind}"' in found) is (name not in adapter.lacks)
