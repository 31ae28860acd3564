"""``gpunode doctor`` says what each source gives, and what the others take."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from gpunode.cli import doctor
from gpunode.cli.doctor import SourceHealth, examine
from gpunode.cli.doctor_table import doctor_table, unread_table
from gpunode.cli.main import main
from gpunode.cli.settings.doctor import DoctorSettings
from gpunode.config.daemon import KubeletSettings, Settings
from gpunode.config.web import ListenSettings
from gpunode.driver.driver import Process
from gpunode.helper.capability import ALL
from gpunode.host.own_process import OwnProcess
from gpunode.jobs.steps import LAST_STEP
from gpunode.node.local import LocalNode
from gpunode.sources import GPU_SOURCES, HOLDERS_SOURCES, KINDS, NODE_SOURCES, finders
from gpunode.unread import Unknown
from tests.cli.test_platforms import NODES, SETS, laid_out
from tests.cli.test_top import OSC52, node_answer
from tests.conftest import until
from tests.daemon import TIMEOUT, daemon, free_port
from tests.export.page import scenes
from tests.export.page.serve import served
from tests.fakes.nvml import FakeDriver
from tests.machine import MachineDriver, MachineGpu
from tests.nccl.ras import RasNode, ras_server
from tests.needs import as_root, need
from tests.prometheus.programs import exporter

LINE = Unknown("line", "a line of unknown form")
COMMAND = (sys.executable, "-m", "gpunode", "doctor")
KINDS_OF_ALL = {kind for finder, kinds in KINDS.items() for kind in (finder, *kinds)}


def run(
    *options: str, before: tuple[str, ...] = (), environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What the command prints as JSON; it ends with 0 whatever it finds."""
    done = subprocess.run(
        [*before, *COMMAND, "--json", *options],
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        timeout=TIMEOUT,
        check=True,
    )
    assert done.stderr == ""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def rows(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["source"]: row for row in answer["sources"]}


def rendered(findings: tuple[SourceHealth, ...], width: int = 200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(doctor_table(findings, width))
    return console.export_text()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One read of each source is enough."""
    monkeypatch.setattr(doctor, "SECOND_READ_AFTER", 0.0)


def findings(node: LocalNode, **settings: Any) -> dict[str, SourceHealth]:
    settings.setdefault("web", ListenSettings(listen_address=f"127.0.0.1:{free_port()}"))
    return {each.source: each for each in examine(node, DoctorSettings(**settings)).sources}


def test_every_source_says_what_it_takes() -> None:
    assert {*GPU_SOURCES, *HOLDERS_SOURCES, *NODE_SOURCES} <= KINDS_OF_ALL
    for kind in KINDS_OF_ALL:
        assert kind.needs.isprintable()
        assert kind.needs.strip(". ") == kind.needs != ""


def test_every_finder_of_the_daemon_has_its_sources() -> None:
    names = {finder.name for finder in finders(LocalNode(Path("/")), Settings())}
    assert {kind.name for kind in KINDS} == names - {OwnProcess.name}


@pytest.mark.usefixtures("quick", "no_driver")
def test_without_a_gpu_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    main(["doctor", f"--web.listen-address=127.0.0.1:{free_port()}"])
    said = capfd.readouterr().out
    assert said.count("nvmlInit") == 1
    assert said.count("gpu_activity") == 1
    assert "\ngpu_" not in said
    assert "no daemon answers at http://127.0.0.1:" in said
    assert "NVIDIA_VISIBLE_DEVICES=all" in said


@pytest.mark.usefixtures("quick")
def test_where_no_proc_is_mounted_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    host = findings(LocalNode(tmp_path))["host"]
    assert (host.status, host.series) == ("failed", 0)
    assert host.why.startswith("no /proc/stat")


def test_a_container_without_the_root_of_the_node_is_told_to_mount_it(tmp_path: Path) -> None:
    sources = findings(LocalNode(tmp_path))
    assert sources["host"].status == "failed"
    assert "check path.rootfs" in sources["host"].why
    assert set(sources["host"].also) >= {"cpu", "lustre", "filesystem"}
    assert "cpu" not in sources
    assert rendered(tuple(sources.values())).count("path.rootfs") == 2  # why, and what it takes


@pytest.mark.parametrize(("why", "said"), [("", "there is"), ("lost", "lost; so there is")])
def test_what_there_is_not_is_a_sentence(why: str, said: str) -> None:
    """Of a driver that lists no GPU, nothing more is known."""
    gone = SourceHealth("gpu", "nothing", 0, 0, 0, 0, 1, why, ("a",), "", also=("gpu_health",))
    line = next(line for line in rendered((gone,)).splitlines() if "gpu_health" in line)
    assert line.split("0 of 1")[1].strip() == f"{said} no gpu_health"


def test_a_narrow_terminal_breaks_no_word(tmp_path: Path) -> None:
    text = rendered(tuple(findings(LocalNode(tmp_path)).values()), 40)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 40
    assert "host failed 0 of " in text
    words = set(text.split())
    assert {"path.rootfs", "NVIDIA_VISIBLE_DEVICES=all"} <= {word.strip(":;,") for word in words}


@as_root
def test_a_capability_that_is_missing_is_named(fake: FakeDriver) -> None:
    if not shutil.which("setpriv"):
        pytest.skip("takes setpriv")
    with subprocess.Popen(["sleep", "infinity"], user=65534, group=65534) as job:
        try:
            fake.write(f"gpus 1\ngpu 0 process {job.pid} 1000000000\n")
            without = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
            free = run(environment=fake.environment())
            bare = run(environment=fake.environment(), before=without)
        finally:
            job.kill()
    assert "SYS_PTRACE" in free["process"]
    assert "with no capability" in bare["process"]
    may, may_not = rows(free)["job_processes"], rows(bare)["job_processes"]
    assert "gpunode_job_io_bytes_total" not in may["missing"]
    assert (may["status"], may["needs"]) == ("data", "")
    assert "gpunode_job_io_bytes_total" in may_not["missing"]
    assert "SYS_PTRACE" in may_not["needs"]
    assert rows(free)["gpu_activity"]["status"] == "data"


@pytest.mark.usefixtures("quick")
def test_a_source_that_fails_says_why_and_what_it_takes() -> None:
    with ras_server() as server:
        server.answer = "garbage"
        ras = findings(RasNode(server.port))["nccl_ras"]
    assert ras.status == "failed"
    assert "not an answer of NCCL RAS" in ras.why
    assert "NCCL 2.24" in ras.needs


@pytest.mark.usefixtures("quick")
def test_where_nothing_listens_a_source_has_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    ras = findings(RasNode(port))["nccl_ras"]
    assert (ras.status, ras.why, ras.series) == ("nothing", "", 0)
    assert "NCCL 2.24" in ras.needs


@pytest.mark.usefixtures("quick")
def test_a_kubelet_whose_socket_is_not_here_is_told(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu0 1 0 1 1 0 0 0 0 0 0\n")
    (tmp_path / "var/lib/kubelet").mkdir(parents=True)
    pods = findings(LocalNode(tmp_path))["pods"]
    assert pods.status == "failed"
    assert "no /var/lib/kubelet/pod-resources/kubelet.sock" in pods.why
    switched_off = KubeletSettings(pod_resources_socket="")
    assert findings(LocalNode(tmp_path), kubernetes=switched_off)["pods"].status == "nothing"


class Hanging(MachineGpu):
    """A GPU whose driver does not say which processes it has, until the test is over."""

    over = threading.Event()

    def processes(self) -> list[Process]:
        self.over.wait()
        return []


@pytest.mark.attack
@pytest.mark.usefixtures("quick")
def test_what_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EXAMINATION_TIMEOUT", 1.0)
    gpus = [Hanging(0, "GPU-a", "0000:01:00.0"), MachineGpu(1, "GPU-b", "0000:02:00.0")]
    try:
        sources = findings(LocalNode(Path("/"), [MachineDriver(gpus)]))
    finally:
        Hanging.over.set()
    owners = sources["gpu_owners"]
    assert (owners.status, owners.places, owners.failed) == ("failed", 2, 1)
    assert owners.why == doctor.NO_ANSWER
    assert sources["memory"].status == "data"


@pytest.mark.usefixtures("quick")
def test_a_daemon_that_runs_is_told_and_keeps_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    client = tmp_path / "folder/client.sock"
    client.parent.mkdir(mode=0o755)
    with daemon(f"--client.socket={client}") as running:
        address = f"--web.listen-address=0.0.0.0:{running.port}"
        monkeypatch.setenv("GPUNODE_CLIENT__SOCKET", str(client))
        main(["doctor", "--json", address])
        answer = json.loads(capfd.readouterr().out)
        assert answer["daemon"] == f"a daemon answers at http://127.0.0.1:{running.port}"
        assert rows(answer)["training_steps"]["status"] == "untried"
        assert 'up{gpu="",mountpoint="",source="training_steps",uuid=""} 1.0' in (
            running.get("/metrics").decode()
        )
        assert client.exists()


def test_another_program_at_the_port_is_no_daemon() -> None:
    with ras_server() as server:
        server.answer = "SERVER PROTOCOL 2\n"
        said, _, _ = doctor.daemon(ListenSettings(listen_address=f"[::]:{server.port}"))
        assert said.startswith("no daemon answers at http://[::1]:")
        said, met, reporting = doctor.daemon(ListenSettings(listen_address=f":{server.port}"))
        assert said.startswith(
            "another program, or a daemon with TLS, answers at http://127.0.0.1:"
        )
        assert (met, reporting) == ([], ())


def test_a_server_that_redirects_or_answers_without_end_is_no_daemon() -> None:
    def answer_of(text: bytes) -> str:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def serve() -> None:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.recv(1 << 16)
                    connection.sendall(text)

            thread = threading.Thread(target=serve)
            thread.start()
            port = listener.getsockname()[1]
            said, _, _ = doctor.daemon(ListenSettings(listen_address=f"127.0.0.1:{port}"))
            thread.join()
            return said.replace(str(port), "PORT")

    no_daemon = "another program, or a daemon with TLS, answers at http://127.0.0.1:PORT"
    elsewhere = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    assert answer_of(elsewhere) == no_daemon
    without_end = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (doctor.MAX_ANSWER_BYTES + 1)
    assert "the answer has more than 1 MiB" in answer_of(without_end)


def test_what_a_daemon_met_is_shown_with_its_examples() -> None:
    scene = scenes.at_work()
    scene.host.unread = (LINE.seen("NVRM: GPU0 forgets its name"),)
    address = served(scene.play(30).stage.loop).removeprefix("http://").rstrip("/")
    _, met, _ = doctor.daemon(ListenSettings(listen_address=address))
    (line,) = met
    assert (line.source, line.what) == ("host", "line")
    assert line.times >= 3
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(unread_table(met))
    said = console.export_text()
    assert "a line of unknown form" in said
    assert "NVRM: GPU0 forgets its name" in said


def test_who_takes_the_place_of_a_daemon_controls_no_terminal() -> None:
    """Any user can listen at its port while it is away, and root looks why."""
    words = ("source", "what", "meaning")
    met = {**dict.fromkeys(words, OSC52), "times": 1, "last": 0.0, "examples": [OSC52]}
    pages = {
        "/healthz": b"ok\n",
        "/api/v1/unread": json.dumps([met, {**met, "bound": True, "what": "other"}]).encode(),
        "/api/v1/node": node_answer({}, {"label": OSC52, "pids": ["1"], "last_step": 1.0}),
    }
    with exporter(pages.get) as port:
        _, found, reporting = doctor.daemon(ListenSettings(listen_address=f"127.0.0.1:{port}"))
    assert len(found) == 2
    assert "last step" in reporting[0]
    console = Console(width=200, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(unread_table(found), *reporting, markup=False)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert not re.search(r"\x1b(?!\[[0-9;]*m)|\x07", said), said


def test_it_tells_who_reports_training_to_the_daemon() -> None:
    scene = scenes.at_work(2).play(30)
    named = scene.actors[1]
    named.gauges[LAST_STEP] = scene.stage.clock.time() - 2
    for reports in (True, False):
        if not reports:
            del named.gauges[LAST_STEP]
        address = served(scene.play(11).stage.loop).removeprefix("http://").rstrip("/")
        _, _, reporting = doctor.daemon(ListenSettings(listen_address=address))
        assert reporting == (
            ("GPU 1: rank 1 of research/llama-70b-worker-0, last step 13 s ago",)
            if reports
            else ("no process on a GPU reports its steps by gpunode.client",)
        )


def test_it_tells_that_a_daemon_hears_processes_without_a_gpu(tmp_path: Path) -> None:
    sends = "import gpunode.client as c\nfor _ in range(3): c.step(); c.flush()\ninput()"
    path = tmp_path / "client.sock"
    environment = {**os.environ, "GPUNODE_CLIENT_SOCKET": str(path)}
    command = [sys.executable, "-c", sends]
    with daemon(f"--client.socket={path}") as running:
        until(path.exists)
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as child:
            until(lambda: heard(running.get("/metrics")))
            address = ListenSettings(listen_address=f"127.0.0.1:{running.port}")
            _, _, (line,) = doctor.daemon(address)
            child.kill()
    assert line.endswith(" messages came from processes without a GPU")
    assert int(line.split()[0]) >= 3


def heard(page: bytes) -> bool:
    """Whether three messages of processes without a GPU were counted."""
    found = doctor.GPULESS_MESSAGES.search(page)
    return found is not None and int(found[1]) >= 3


def test_it_says_that_everything_was_understood() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(unread_table(()))
    assert console.export_text() == "Everything that was read was understood.\n"


def test_capabilities_are_named_as_sources_name_them() -> None:
    named = {name for kind in KINDS_OF_ALL for name in doctor.CAPABILITY.findall(kind.needs)}
    assert named <= set(ALL)
    assert named >= {"SYS_PTRACE", "DAC_READ_SEARCH", "SYS_ADMIN", "SYSLOG"}


@as_root
@pytest.mark.integration
def test_a_container_that_shows_itself_as_the_node_is_told() -> None:
    if doctor._namespace() != doctor.NODES_PROCESSES:
        pytest.skip("these tests run in a container")
    here = "from gpunode.cli.doctor import process; from gpunode.config.path import PathSettings;"
    command = [sys.executable, "-c", f"{here} print(process(PathSettings()))"]
    outside = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    inside = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *command], capture_output=True, text=True
    )
    if inside.returncode:
        pytest.skip(f"not allowed here: {inside.stderr.strip()}")
    assert "container" not in outside
    assert "mount the node's root and set path.rootfs" in inside.stdout


NEEDS = "The Helm chart needs these values on this node:\n\n"


def chart_needs(node: Path, *before: str) -> str:
    """What the command prints of the Helm chart for a node."""
    command = [*before, *COMMAND, f"--path.rootfs={node}", "--web.listen-address=127.0.0.1:1"]
    printed = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, check=True
    ).stdout
    return printed.partition(NEEDS)[2]


@pytest.mark.usefixtures("quick")
def test_the_values_of_the_chart_are_printed_with_what_it_cannot_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node = laid_out({**NODES["gke"], "proc/mounts": ""}, tmp_path)
    main(["doctor", f"--path.rootfs={node.rootfs}", "--web.listen-address=127.0.0.1:1"])
    needs = capfd.readouterr().out.partition(NEEDS)[2]
    values, _, limits = needs.partition("\n\n")
    assert values == f"    platform: gke\n    driver.library: {SETS['gke']['driver.library']}"
    assert limits.startswith("On gke, the container gets the devices by being privileged")


@as_root
def test_a_kubelet_is_found_by_a_user_that_may_not_look_into_its_folder(tmp_path: Path) -> None:
    """Without the right of root to look into the folders of others."""
    as_user = (need("setpriv"), "--inh-caps=-all", "--bounding-set=-all")
    laid_out({"var/lib/k0s/kubelet/pod-resources/kubelet.sock": ""}, tmp_path)
    shut(tmp_path / "var/lib/k0s/kubelet")
    needs = chart_needs(tmp_path, *as_user)
    assert needs == "    kubeletPath: /var/lib/k0s/kubelet/pod-resources\n"


@as_root
def test_where_nothing_tells_which_kubelet_it_is_that_is_said(tmp_path: Path) -> None:
    as_user = (need("setpriv"), "--inh-caps=-all", "--bounding-set=-all")
    laid_out({**NODES["eks"], "var/lib/k0s/kubelet/a": "", "var/lib/kubelet/a": ""}, tmp_path)
    for folder in ("var/lib/k0s/kubelet", "var/lib/kubelet"):
        shut(tmp_path / folder)
    needs = chart_needs(tmp_path, *as_user)
    assert "kubeletPath:" not in needs
    assert "kubeletPath is not known: this user may look into none of /var/lib/kubelet, " in needs


def shut(folder: Path) -> None:
    """Make a folder that of another user, which nobody else may look into, as the kubelet does.

    https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/kubelet.go (setupDataDirs)
    """
    os.chown(folder, 1, 1)
    folder.chmod(0o750)
