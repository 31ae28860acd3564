"""``gpunode nccl-bench`` with programs that print what nccl-tests prints, and what comes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from gpunode.config.daemon import Settings
from gpunode.export.exposition import Exposition
from gpunode.nccl.bench import NcclBench, parse_text
from gpunode.node.local import LocalNode
from tests.cases import with_each
from tests.fakes.nvml import FakeDriver

# Columns as in https://github.com/NVIDIA/nccl-tests, version 2.17
TEXT = (Path(__file__).with_name("recorded") / "all_reduce_perf.txt").read_text()
JSON = (Path(__file__).with_name("recorded") / "all_reduce_perf.json").read_text()
PRINTS = f"#!/bin/sh\ncat <<'END'\n{TEXT}END\n"
KNOWS_J = f"""#!/bin/sh
for argument; do file=$argument; done
cat > "$file" <<'END'
{JSON}
END
"""
DOES_NOT_KNOW_J = f"""#!/bin/sh
case "$*" in *-J*) echo "all_reduce_perf: invalid option -- 'J'"; exit 0;; esac
cat <<'END'
{TEXT}END
"""
FAILS = (
    "#!/bin/sh\necho 'node-a: Test NCCL failure common.cu:1005 unhandled system error'\nexit 3\n"
)
SLOW = PRINTS.replace("472", "172").replace("473", "173")


def bench(
    fake: FakeDriver, folder: Path, program: str, *options: str, gpus: int = 8
) -> subprocess.CompletedProcess[str]:
    """Run the command on a machine with H200s and this nccl-tests."""
    fake.write(f"gpus {gpus}\n")
    perf = folder / "bin" / "all_reduce_perf"
    perf.parent.mkdir()
    perf.write_text(program)
    perf.chmod(0o755)
    (folder / "node").mkdir()
    path = f"{perf.parent}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "gpunode", "nccl-bench", f"--path.rootfs={folder}/node", *options],
        env={**os.environ, **fake.environment(), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def exported(folder: Path) -> str:
    node = LocalNode(folder / "node")
    samples = NcclBench(node, Settings()).read().samples
    return Exposition(lambda: samples).encode("")[0].decode()


@pytest.mark.parametrize("program", [KNOWS_J, DOES_NOT_KNOW_J])
def test_what_nccl_tests_measures_is_printed_and_exported(
    fake: FakeDriver, program: str, tmp_path: Path
) -> None:
    ran = bench(fake, tmp_path, program)
    assert ran.returncode == 0, ran.stderr
    assert "best 472.9 GB/s, expected 473" in ran.stdout
    found = exported(tmp_path)
    labels = '{collective="all_reduce",gpus="8",nodes="1"}'
    assert f"gpunode_nccl_bus_bandwidth_bytes_per_second{labels} 472870000000.0" in found
    assert f"gpunode_nccl_expected_bus_bandwidth_bytes_per_second{labels} 473000000000.0" in found
    assert f"gpunode_nccl_bench_timestamp_seconds{labels}" in found
    kept = (tmp_path / "node/var/lib/gpunode/nccl-bench/all_reduce.json").read_text()
    assert "hush" not in kept + ran.stdout + ran.stderr


def test_a_node_that_is_too_slow_ends_with_1(fake: FakeDriver, tmp_path: Path) -> None:
    ran = bench(fake, tmp_path, SLOW, "--json")
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["bandwidth"]["8589934592"] == pytest.approx(172.87e9)


def test_a_run_that_fails_says_what_nccl_tests_said(fake: FakeDriver, tmp_path: Path) -> None:
    ran = bench(fake, tmp_path, FAILS)
    assert ran.returncode == 2
    assert ran.stderr.count("\n") == 1
    assert "unhandled system error" in ran.stderr


def test_without_nccl_tests_and_gpus_for_torch_it_says_so(fake: FakeDriver, tmp_path: Path) -> None:
    ran = bench(fake, tmp_path, PRINTS, "--collective=all_gather", "--gpus=2")
    assert ran.returncode == 2
    assert "all_gather_perf is not installed, torch failed on 2 GPUs" in ran.stderr


def test_without_a_gpu_it_says_so(fake: FakeDriver, tmp_path: Path) -> None:
    ran = bench(fake, tmp_path, PRINTS, gpus=0)
    assert (ran.returncode, ran.stderr) == (2, "gpunode: the driver lists no GPU\n")


def test_where_it_never_ran_nothing_is_exported(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    assert exported(tmp_path) == ""


OLD_ALL_REDUCE = """\
# size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error
# (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)
  8388608  2097152  float  sum  80.12  104.70  183.22  0e+00  79.80  105.12  183.96  0e+00
  8589934592  2147483648  float  sum  31845  269.74  472.05  0e+00  31790  270.21  472.87  0e+00
"""
OLD_ALL_GATHER = """\
# size  count  type  time  algbw  busbw  error  time  algbw  busbw  error
  8388608  262144  float  80.12  104.70  91.61  0e+00  79.80  105.12  91.98  0e+00
"""
OLD_BROADCAST = """\
# size  count  type  root  time  algbw  busbw  error  time  algbw  busbw  error
  8388608  2097152  float  0  80.12  104.70  104.70  0e+00  79.80  105.12  105.12  0e+00
"""


VERSIONS = {
    "2.17": (TEXT, {8388608: 183.96, 8589934592: 472.87}),
    "2.10 all_reduce": (OLD_ALL_REDUCE, {8388608: 183.96, 8589934592: 472.87}),
    "2.10 all_gather": (OLD_ALL_GATHER, {8388608: 91.98}),
    "2.10 broadcast": (OLD_BROADCAST, {8388608: 105.12}),
}
TAGS = (
    *("", "[1,0]<stdout>:", "[1,12]<stdout>: ", "[prterun-node-1-77@1,0]<stdout>: "),
    *("0: ", " 0: ", "12: ", "[0] "),
)


@with_each(product(VERSIONS, TAGS))
def test_the_output_of_any_version_is_read(version: str, tag: str) -> None:
    text, gigabytes = VERSIONS[version]
    tagged = "\n".join(tag + line for line in text.splitlines())
    assert parse_text(tagged) == {size: speed * 1e9 for size, speed in gigabytes.items()}
