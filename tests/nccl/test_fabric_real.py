"""The bandwidth between four hosts: network namespaces, each with a link, of which one is slow."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes_validate import validate

from gpunode.nccl import run_torch
from tests.nccl.hosts import Hosts, hosts
from tests.nccl.test_fabric import command
from tests.needs import ROOT, as_root, need, python_with

pytestmark = [pytest.mark.integration, as_root]

NUMBERS = itertools.count(os.getpid() % 200 * 5)
"""Of networks: tests of other workers have theirs."""

PROGRAM = Path(run_torch.__file__)


@pytest.fixture
def four_hosts() -> Iterator[Hosts]:
    """Four hosts that send 400 Mbit/s each, the third one 100 Mbit/s."""
    for program in ("ip", "tc", "unshare"):
        need(program)
    with hosts(next(NUMBERS), ["400mbit", "400mbit", "100mbit", "400mbit"]) as found:
        yield found


def with_torch() -> str:
    python = python_with("numpy")
    if python is None:
        pytest.skip("torch: apt-get install python3-torch")
    return python


def test_ranks_that_somebody_started_name_the_slow_host(four_hosts: Hosts, tmp_path: Path) -> None:
    python = with_torch()
    first = next(iter(four_hosts.addresses.values()))
    count = str(len(four_hosts.addresses))
    ranks = [
        four_hosts.start(
            host,
            [python, str(PROGRAM), "fabric", "8M", "", str(tmp_path / host)],
            RANK=str(rank),
            WORLD_SIZE=count,
            LOCAL_RANK="0",
            MASTER_ADDR=first,
            MASTER_PORT="29400",
            GLOO_SOCKET_IFNAME="eth0",
        )
        for rank, host in enumerate(four_hosts.addresses)
    ]
    said = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0, 0], said
    ran = command("--result=-", text=said[0][0])
    names = list(four_hosts.addresses)
    assert ran.returncode == 1, ran.stderr
    [only] = [line for line in ran.stdout.splitlines() if ": look at" in line]
    assert only.startswith(f"{names[2]} sends 0.0")
    assert all((tmp_path / host / "fabric-sendrecv.json").exists() for host in names)


def test_mpirun_starts_ranks_on_hosts_that_have_no_gpunode(
    four_hosts: Hosts, tmp_path: Path
) -> None:
    python = with_torch()
    need("mpirun")
    agent = tmp_path / "agent"
    names = "".join(f"{address}) host={host};;\n" for host, address in four_hosts.addresses.items())
    agent.write_text(
        f'#!/bin/sh\ncase "$1" in\n{names}esac\nshift\n'
        'exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"\n'
    )
    agent.chmod(0o755)
    ran = command(
        f"--hosts={','.join(four_hosts.addresses.values())}",
        *("--gpus=1", "--largest=8M", "--launcher=mpirun", f"--python={python}"),
        f"--host.nccl-bench-folder={tmp_path}",
        PATH=os.environ["PATH"],
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_plm_rsh_agent=str(agent),
        OMPI_MCA_oob_tcp_if_include=f"{four_hosts.bridge},eth0",
        GLOO_SOCKET_IFNAME="eth0",
    )
    assert ran.returncode == 1, ran.stderr
    assert f"{list(four_hosts.addresses)[2]} sends 0.0" in ran.stdout


def test_the_job_for_kubernetes_takes_free_gpus_and_yields() -> None:
    documents = list(yaml.safe_load_all((ROOT / "helm/examples/nccl-bench.yaml").read_text()))
    for document in documents:
        validate(document, "1.37", strict=True)
    priority, service, job = documents
    assert priority["value"] < 0
    assert priority["preemptionPolicy"] == "Never"
    pod = job["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == priority["metadata"]["name"]
    assert pod["subdomain"] == service["metadata"]["name"]
    [container] = pod["containers"]
    arguments = [*container["command"], *container["args"]]
    assert f"--nnodes={job['spec']['completions']}" in arguments
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert f"--nproc-per-node={gpus}" in arguments
    assert f"/program/{PROGRAM.name}" in arguments
