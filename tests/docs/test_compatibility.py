"""What docs/compatibility.md says of other programs' versions, and that no test elsewhere tries."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.host.infiniband import Infiniband
from gpunode.node.local import LocalNode
from tests.docs.compatibility import OF_MLX5, OFED, Adapter, document
from tests.machine import exported, read_source

DOCUMENT = Path(__file__).parents[2] / "docs/compatibility.md"


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == document(), "run: make docs"


@pytest.mark.parametrize("adapter", OFED, ids=lambda adapter: adapter.name)
def test_the_counters_of_an_adapter_by_its_driver(adapter: Adapter, tmp_path: Path) -> None:
    """A counter that the driver lacks has no series, and takes no other with it."""
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/hw_counters"
    counters.mkdir(parents=True)
    has = OF_MLX5.keys() - adapter.lacks
    for name in has:
        (counters / name).write_text("5\n")
    found = exported(read_source(Infiniband(LocalNode(tmp_path), Settings())))
    for kind in OF_MLX5.values():
        assert (f'kind="{kind}"' in found) is any(OF_MLX5[name] == kind for name in has)
