"""``gpunode advise`` as it is called: by an agent on the node each minute, and by an operator."""

from __future__ import annotations

import gzip
import io
import json
import socket
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpunode.cli.main import main
from gpunode.jobs.owners import OWNER_LABELS
from tests.needs import need
from tests.prometheus.known import remembering
from tests.prometheus.programs import served

NOW = 1_800_000_000
WELL = 'gpunode_gpu_info{gpu="3",uuid="GPU-3",parent="",compute_capability="9.0"} 1\n'
BROKEN = (
    WELL + 'gpunode_fault_start_timestamp_seconds{gpu="3",uuid="GPU-3",part="gpu",name="",'
    f'reason="xid_119",severity="page"}} {NOW - 60}\n'
    'gpunode_gpu_owner_info{gpu="3",uuid="GPU-3",owner_namespace="ml",owner_pod="llama-0"} 1\n'
)
REASON = "gpunode reset GPU 3, XID 119, reset the GPU, harms ml/llama-0\n"


class Outcome(NamedTuple):
    """How the command ended and what it printed."""

    code: int
    out: str
    err: str


Advise = Callable[..., Outcome]


@pytest.fixture
def advise(capfd: pytest.CaptureFixture[str]) -> Advise:
    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        try:
            main(["advise", *arguments])
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        return Outcome(code, *capfd.readouterr())

    return run


def serving(text: str, node: str = '{"node": ""}') -> type[BaseHTTPRequestHandler]:
    answers = {"/metrics": text, "/api/v1/node": node}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in answers else 404)
            self.end_headers()
            self.wfile.write(answers.get(self.path, "").encode())

        def log_message(self, *_: object) -> None:
            pass

    return Handler


# On a node


def test_a_node_that_is_well_is_left_and_the_exit_code_tells(advise: Advise) -> None:
    with served(serving(WELL)) as port:
        at = f"--url=http://127.0.0.1:{port}"
        assert advise(at, "--format=slurm-reason") == (0, "", "")
        ended = advise(at, "--web.node-name=n-7")
    found = json.loads(ended.out)
    assert (ended.code, found["node"], found["action"]) == (0, "n-7", "leave")


def test_a_node_that_is_unfit_has_a_reason_and_the_exit_code_tells(advise: Advise) -> None:
    with served(serving(BROKEN)) as port:
        at = (f"--url=http://127.0.0.1:{port}", f"--at={NOW}")
        assert advise(*at, "--format=slurm-reason") == (1, REASON, "")
        ended = advise(*at, "--format=node-condition")
    (condition,) = json.loads(ended.out)["status"]["conditions"]
    assert (ended.code, condition["reason"]) == (1, "GpuNeedsReset")


def test_a_node_is_called_what_its_daemon_calls_it(advise: Advise) -> None:
    with served(serving(BROKEN, '{"node": "gpu-17"}')) as port:
        at = (f"--url=http://127.0.0.1:{port}", f"--at={NOW}")
        assert json.loads(advise(*at).out)["node"] == "gpu-17"
        condition = json.loads(advise(*at, "--format=node-condition").out)
        assert condition["metadata"]["name"] == "gpu-17"
        (event,) = json.loads(advise(*at, "--format=health-event").out)["events"]
        assert event["nodeName"] == "gpu-17"
        assert json.loads(advise(*at, "--web.node-name=n-7").out)["node"] == "n-7"


@pytest.mark.parametrize(
    ("host", "node", "named"),
    [
        ("127.0.0.1", '{"node": ""}', True),
        ("localhost", "of another version", True),
        ("127.0.0.1", '{"node": "", "playing": {"title": "A tape"}}', False),
        ("0.0.0.0", '{"node": ""}', False),
    ],
)
def test_only_a_daemon_without_a_name_on_this_machine_has_its_hostname(
    advise: Advise, host: str, node: str, named: bool
) -> None:
    with served(serving(WELL, node)) as port:
        ended = advise(f"--url=http://{host}:{port}")
    if named:
        assert json.loads(ended.out)["node"] == socket.gethostname()
    else:
        assert (ended.code, ended.out) == (2, "")
        assert "--web.node-name" in ended.err


def test_a_file_needs_a_name_where_the_format_says_it(advise: Advise, tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text(WELL)
    ended = advise(f"--file={tmp_path / 'metrics'}")
    assert (ended.code, ended.out) == (2, "")
    assert "--web.node-name" in ended.err
    named = advise(f"--file={tmp_path / 'metrics'}", "--web.node-name=n-7")
    assert json.loads(named.out)["node"] == "n-7"


def test_a_saved_exposition_is_read(
    advise: Advise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics").write_text(BROKEN)
    at = ("--format=slurm-reason", f"--at={NOW}")
    assert advise(f"--file={tmp_path / 'metrics'}", *at) == (1, REASON, "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BROKEN.encode())))
    assert advise("--file=-", *at) == (1, REASON, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--url=http://127.0.0.1:9"], "no daemon answers"),
        (["--file={folder}/nothing"], "No such file"),
        (["--file={folder}/tape"], "looks like a tape; give what it comes to: `gpunode replay"),
        (["--file={folder}/binary"], "no /metrics"),
        (["--file={folder}/page"], "no /metrics"),
        (["--file={folder}/empty"], "no series of gpunode"),
        (["--file={folder}/other"], "no series of gpunode"),
        (["--file={folder}/page", "--fleet"], "leave out fleet"),
        (["--nodes=n-1"], "add --fleet"),
        (["--cluster=c"], "add --fleet"),
        (["--format=yaml"], "format"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    advise: Advise, tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "tape").write_bytes(gzip.compress(b"{}"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "page").write_text("<html>a login page</html>")
    (tmp_path / "empty").touch()
    (tmp_path / "other").write_text("node_load1 1\n")
    ended = advise(*(one.format(folder=tmp_path) for one in options))
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert said in ended.err


# Of a fleet

OWNER = ",".join(
    f'{label}="{ {"owner_namespace": "ml", "owner_pod": "llama-0"}.get(label, "") }"'
    for label in OWNER_LABELS
)
BROKE = "gpunode_fault_start_timestamp_seconds"
LOST_DATA = 'part="gpu",name="",reason="memory_lost_data",severity="page"'
MISSING = 'part="gpu",name="",reason="missing",severity="page"'
NODES = (("c", "n-1"), ("c", "n-2"), ("c", "n-3"), ("w", "n-1"))
FOR_AN_HOUR = (
    *(f'up{{cluster="{c}",instance="{n}",job="gpunode"}} 1' for c, n in NODES),
    'gpunode_gpu_info{cluster="c",instance="n-1",gpu="3",uuid="GPU-3",parent="",'
    'compute_capability="9.0"} 1',
    'gpunode_gpu_info{cluster="c",instance="n-2",gpu="0",uuid="GPU-0",parent=""} 1',
    'gpunode_gpu_info{cluster="c",instance="n-3",gpu="0",uuid="GPU-9",parent=""} 1',
    f'gpunode_gpu_owner_info{{cluster="c",instance="n-1",gpu="3",uuid="GPU-3",{OWNER}}} 1',
    f'{BROKE}{{cluster="c",instance="n-1",gpu="3",uuid="GPU-3",{LOST_DATA}}} {NOW - 9000}',
    f'{BROKE}{{cluster="c",instance="n-3",gpu="7",uuid="GPU-8",{MISSING}}} {NOW - 9000}',
    'ALERTS{cluster="c",fault="gpu_missing",alertname="FleetFault",alertstate="firing",'
    'severity="page"} 1',
    'gpunode_gpu_info{cluster="w",instance="n-1",gpu="0",uuid="GPU-7",parent=""} 1',
    f'{BROKE}{{cluster="w",instance="n-1",gpu="0",uuid="GPU-7",{LOST_DATA}}} {NOW - 9000}',
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with an hour of three nodes, and of one in another cluster."""
    need("prometheus")
    need("promtool")
    lines = [f"{one} {at}" for one in FOR_AN_HOUR for at in range(NOW - 3600, NOW + 1, 60)]
    past = "\n".join([*lines, "# EOF", ""])
    with remembering(past, tmp_path_factory.mktemp("fleet")) as found:
        yield found


@pytest.mark.integration
def test_an_operator_asks_about_a_fleet(advise: Advise, url: str) -> None:
    fleet = ("--fleet", f"--prometheus.url={url}", f"--at={NOW}", "--cluster=c")
    ended = advise(*fleet)
    found: dict[str, Any] = {one["node"]: one for one in json.loads(ended.out)}
    assert ended.code == 1
    assert {node: one["action"] for node, one in found.items()} == {"n-1": "reset", "n-3": "leave"}
    (harmed,) = found["n-1"]["harmed_if_done_now"]
    assert (harmed["pod"], harmed["since"]) == ("llama-0", "2027-01-15T07:00:00Z")
    assert "many nodes have at once" in found["n-3"]["says"]
    assert advise(*fleet, "--format=slurm-reason").out == (
        "n-1 gpunode reset GPU 3, its memory lost data, harms ml/llama-0\n"
    )


@pytest.mark.integration
def test_an_operator_asks_about_some_nodes(advise: Advise, url: str) -> None:
    fleet = ["--fleet", f"--prometheus.url={url}", f"--at={NOW}", "--cluster=c"]
    fleet.append("--format=slurm-reason")
    assert advise(*fleet, "--nodes=n-2").code == 0
    assert advise(*fleet, "--nodes=n-[12]").code == 1


@pytest.mark.integration
def test_no_node_is_taken_for_that_of_another_cluster(advise: Advise, url: str) -> None:
    fleet = ("--fleet", f"--prometheus.url={url}", f"--at={NOW}", "--nodes=n-1")
    found = json.loads(advise(*fleet).out)
    assert [(one["cluster"], one["node"]) for one in found] == [("c", "n-1"), ("w", "n-1")]
    ended = advise(*fleet, "--format=slurm-reason")
    assert (ended.code, ended.out) == (2, "")
    assert "c and w: choose one with --cluster" in ended.err


@pytest.mark.integration
def test_a_prometheus_that_scrapes_no_daemon_is_told(advise: Advise, url: str) -> None:
    ended = advise("--fleet", f"--prometheus.url={url}", f"--at={NOW - 86400}")
    assert ended.code == 2
    assert "it scrapes no such node" in ended.err
