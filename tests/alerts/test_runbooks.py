"""The commands of every runbook, run by a real bash in a cluster whose names resemble each other.

What reaches a cluster, such as ``kubectl`` and ``ssh``, is a fake that notes how it is called. The
pods of a job come from a real Prometheus with the shipped records.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from textwrap import dedent
from urllib.parse import parse_qs, urlparse

import pytest

from alerts.document import RULES, RUNBOOKS
from gpunode.explain.rule_files import read_rules
from tests.alerts.fake_cluster import CLUSTER, Pod
from tests.daemon import free_port
from tests.needs import need
from tests.prometheus.incidents import prometheus_command, shortened
from tests.prometheus.programs import exporter, program

COMMANDS = re.compile(r"^ *```bash\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PATHS = sorted(path.name for path in RUNBOOKS.glob("*.md"))
"""Those in English: the commands are the same in each language."""

PAGES = sorted({rule.name for rule in read_rules(RULES) if rule.severity == "page"})

FAKE = Path(__file__).with_name("fake_cluster.py")

LOCAL = (
    *("awk", "bash", "cat", "curl", "cut", "grep", "head", "jq", "paste", "sed", "sort", "tail"),
    *("tee", "tr", "uniq", "wc", "xargs"),
)
"""What the commands of runbooks may run for real; the rest is a fake, or not found."""

FAKES = (
    *("helm", "ibstat", "ipmitool", "kubectl", "nvidia-smi", "ping", "scontrol", "sacct", "sinfo"),
    *("gpunode", "sleep", "squeue", "srun", "ssh", "sudo", "systemctl"),
)

DESTROYS = re.compile(
    r"kubectl( -n \S+)? (delete|drain|evict|taint|patch|scale|rollout (undo|restart))\b"
    r"|kubectl cordon \S+ \S"
    r"|scontrol (requeue\w*|update .*State=DOWN)|scancel"
    r"|\b(reboot|rollback|fuser -k|kill -9)\b|power (cycle|off)|-delete\b|nvidia-smi -r\b"
    r"|restart nvidia"
)
"""Calls that end or move somebody's work, or lose data."""


def blocks(path: str) -> list[str]:
    return [dedent(block) for block in COMMANDS.findall((RUNBOOKS / path).read_text())]


# Prometheus


def _exposition(path: str) -> bytes:
    (node,) = parse_qs(urlparse(path).query)["node"]
    lines = [
        f'gpunode_gpu_owner_info{{gpu="{n}",uuid="GPU-{node}-{n}",owner_namespace="{pod.namespace}",'
        f'owner_pod="{pod.name}",owner_container="main",slurm_job="{pod.slurm}",user="",'
        f'via="process",workload="{pod.job}",replica="{pod.replica}"}} 1\n'
        for n, pod in enumerate(pod for pod in CLUSTER if f"{pod.cluster}/{pod.node}" == node)
    ]
    return "".join(lines).encode()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has recorded who holds which GPU."""
    need("prometheus")
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    rules = (RULES / "records.yaml").read_text()
    (folder / "records.yaml").write_text(shortened(rules).replace("interval: 2s", "interval: 1s"))
    with exporter(_exposition) as nodes:
        targets = [
            {
                "targets": [f"127.0.0.1:{nodes}"],
                "labels": {
                    "__param_node": f"{cluster}/{node}",
                    "instance": node,
                    "cluster": cluster,
                },
            }
            for cluster, node in sorted({(pod.cluster, pod.node) for pod in CLUSTER})
        ]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "scrape_configs": [{"job_name": "gpunode", "static_configs": targets}],
            "rule_files": ["records.yaml"],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        address = f"http://127.0.0.1:{port}"
        with program(prometheus_command(folder, port), folder / "log"):
            _await_pods(address, folder / "log")
            yield address


def _await_pods(address: str, log: Path) -> None:
    query = urllib.parse.urlencode({"query": "count(gpu:gpunode_owner:info)"})
    found: list[dict[str, list[str]]] = []
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{address}/api/v1/query?{query}") as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            pass
        if found and int(found[0]["value"][1]) == len(CLUSTER):
            return
        time.sleep(0.1)
    raise AssertionError(f"not all pods are recorded: {found}\n{log.read_text()[-2000:]}")


# A shell


@dataclass(slots=True)
class Session:
    """What somebody sees who pastes a runbook, and what was called."""

    shown: str = ""
    calls: list[str] = field(default_factory=list)

    @property
    def destroyed(self) -> list[str]:
        return [call for call in self.calls if DESTROYS.search(call)]


KINDS = {pod.kind for pod in CLUSTER} | {"", "research", "7"}
"""What is no name of anything."""

GIVEN = {
    "part": "gpu",
    "name": "scratch",
    "mountpoint": "/",
    "filesystem": "scratch",
    "instance": "n-1",
    "gpu": "0",
    "uuid": "GPU-n-1-0",
}
LLAMA = {"cluster": "eu-1", "namespace": "research", "job": "llama", "replica": "", "user": ""}
CHAT = {**LLAMA, "job": "chat"}


def pasted(
    folder: Path, prometheus: str, path: str, given: Mapping[str, str], answer: str
) -> Session:
    """Paste every block of a runbook, in order, and give one answer to all questions.

    The variables are those of an alert instead of those in the runbook's first block.
    """
    script = "\n".join(
        block
        for number, block in enumerate(blocks(path))
        if number or not re.match(r"(\w+='[^']*' ?)+$", block.strip())
    )
    programs = folder / "bin"
    programs.mkdir()
    for name in (*LOCAL, "promtool"):
        (programs / name).symlink_to(need(name))
    for name in FAKES:
        (programs / name).write_text(
            f'#!{programs}/bash\nexec {sys.executable} -S {FAKE} {name} "$@"\n'
        )
        (programs / name).chmod(0o755)
    (folder / "script").write_text(script)
    environment = {
        **GIVEN,
        **given,
        "PATH": str(programs),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PROMETHEUS": prometheus,
        "CALLS": str(folder / "calls"),
        "no_proxy": "*",
    }
    shown = _on_a_terminal([str(programs / "bash"), "script"], environment, folder, answer)
    calls = folder / "calls"
    return Session(shown, calls.read_text().splitlines() if calls.exists() else [])


def _on_a_terminal(
    command: list[str], environment: dict[str, str], folder: Path, answer: str
) -> str:
    """Run a command whose terminal answers every question; what it shows."""
    terminal, its = pty.openpty()
    own = [need("setsid"), "--ctty"]  # a fork of a process with threads, as pty.fork is, may hang
    child = subprocess.Popen(
        [*own, *command], cwd=folder, env=environment, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    shown = b""
    deadline = time.monotonic() + 300.0
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            try:
                read = os.read(terminal, 65536)
            except OSError:  # what ran has ended
                break
            if not read:
                break
            shown += read
            if shown.endswith(b"?..."):
                os.write(terminal, f"{answer}\n".encode())
        else:
            child.kill()
    finally:
        os.close(terminal)
        child.wait()
    return shown.decode(errors="replace")


def foreign_names(own: Collection[Pod]) -> set[str]:
    """The names that none of a job's pods has: of pods, what owns them, nodes, clusters."""
    mine = {name for pod in own for name in pod}
    return {name for pod in CLUSTER for name in pod if pod not in own} - mine - KINDS


def named(text: str, names: set[str]) -> set[str]:
    """Those of some names that a text has as words."""
    return {name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text)}


def pods_of(job: Mapping[str, str], replicas: bool = False) -> list[Pod]:
    """The pods of a job, or of all replicas of a service."""
    return [
        pod
        for pod in CLUSTER
        if (pod.cluster, pod.namespace, pod.job) == (job["cluster"], job["namespace"], job["job"])
        and (replicas or pod.replica == job["replica"])
    ]


def alert_job(path: str) -> tuple[dict[str, str], bool]:
    """The job of an alert, and whether all replicas are meant."""
    return (CHAT, True) if path.startswith("Serving") else (LLAMA, False)


Paste = Callable[[str, Mapping[str, str], str], Session]


@pytest.fixture(scope="module")
def paste(prometheus: str, tmp_path_factory: pytest.TempPathFactory) -> Paste:
    """Pastes a runbook with some variables and one answer to all questions; the same only once."""

    @cache
    def once(path: str, given: frozenset[tuple[str, str]], answer: str) -> Session:
        return pasted(tmp_path_factory.mktemp("pasted"), prometheus, path, dict(given), answer)

    return lambda path, given, answer: once(path, frozenset(given.items()), answer)


@pytest.mark.integration
@pytest.mark.parametrize("path", PATHS)
def test_a_runbook_touches_nothing_of_others(path: str, paste: Paste) -> None:
    """Neither of other nodes nor, if it is of a job, of other jobs, of which it shows nothing."""
    given, replicas = alert_job(path)
    found = paste(path, given, "y")
    assert named("\n".join(found.calls), {"n-10"}) == set()
    if path.startswith(("Job", "Loss", "Serving")):
        everything = "\n".join([*found.calls, found.shown])
        assert named(everything, foreign_names(pods_of(given, replicas))) == set()


@pytest.mark.integration
@pytest.mark.parametrize("path", PATHS)
def test_a_runbook_asks_before_it_destroys(path: str, paste: Paste) -> None:
    given, _ = alert_job(path)
    found = paste(path, given, "n")
    assert found.destroyed == []


def test_nothing_follows_a_question_in_its_block() -> None:
    """A terminal without bracketed paste would take the next line for the answer."""
    for path in PATHS:
        for block in blocks(path):
            *before, last = re.sub(r"(\\|\|)\n", "", block).strip().splitlines()
            assert not any(re.search(r"xargs[^|]* -p ", line) for line in before), last


def sections(path: str) -> list[str]:
    return re.findall(r"^## (.*)$", (RUNBOOKS / path).read_text(), re.MULTILINE)


PROSE = {
    "": ["Meaning", "Impact", "Diagnosis", "Mitigation"],
    "ko/": ["의미", "영향", "진단", "조치"],
}
IS_IT_TRUE = {"": "Is it true?", "ko/": "사실인가"}


def test_a_runbook_says_what_on_call_needs() -> None:
    for found in sorted(RUNBOOKS.rglob("*.md")):
        path = str(found.relative_to(RUNBOOKS))
        language = "ko/" if path.startswith("ko/") else ""
        first = [IS_IT_TRUE[language]] if found.stem in PAGES else []
        assert sections(path) == first + PROSE[language], path
        assert found.read_text().startswith(f"# {found.stem}\n"), path


@pytest.mark.parametrize("alert", PAGES)
def test_the_runbook_of_a_page_can_be_pasted(alert: str) -> None:
    """It begins with the alert's labels and what explains it; nothing is named before it is set."""
    given, explained, *others = blocks(f"{alert}.md")
    assert blocks(f"ko/{alert}.md") == [given, explained, *others]
    assert explained.startswith(f"gpunode rules explain {alert} ")
    known = set(re.findall(r"(\w+)=", given))
    for block in (explained, *others):
        checked = subprocess.run(
            ["bash", "-n"], input=block, capture_output=True, text=True, check=False
        )
        assert not checked.returncode, checked.stderr + block
        known |= set(re.findall(r"(?:^| )([a-z]+)=", block, re.MULTILINE))
        known |= {name for pair in NAMED_BY_LOOPS.findall(block) for name in pair}
        assert set(re.findall(r"\$\{?([a-z]+)", block)) <= known, block


NAMED_BY_LOOPS = re.compile(r"\bfor ([a-z]+) in\b|\bread -r ([a-z]+)")


RESTARTS = ("JobStalled.md", "JobIdle.md")


@pytest.mark.integration
@pytest.mark.parametrize("path", RESTARTS)
def test_a_restart_deletes_the_pods_of_the_job(path: str, paste: Paste) -> None:
    found = paste(path, LLAMA, "y")
    (deleted,) = (call for call in found.destroyed if " delete " in call)
    names = deleted.removeprefix("kubectl -n research delete pod --ignore-not-found ").split()
    assert sorted(names) == sorted(pod.name for pod in pods_of(LLAMA))
    assert f"{deleted}?..." in found.shown, "it is shown before it runs"


@pytest.mark.integration
@pytest.mark.parametrize("path", RESTARTS)
def test_a_restart_of_a_replica_leaves_the_others(path: str, paste: Paste) -> None:
    (pod, *_) = pods_of(CHAT, replicas=True)
    found = paste(path, {**CHAT, "replica": pod.replica}, "y")
    (deleted,) = (call for call in found.destroyed if " delete " in call)
    assert deleted.split()[6:] == [pod.name]


@pytest.mark.integration
@pytest.mark.parametrize("path", RESTARTS)
@pytest.mark.parametrize("job", ["slurm-7", "nobodys", "kim@n-1"])
def test_a_job_without_pods_of_its_own_deletes_none(path: str, job: str, paste: Paste) -> None:
    """A job of Slurm in a pod of slurmd holds the pod's GPUs, and so may others."""
    namespace = "slurm" if job == "slurm-7" else "research"
    given = {**LLAMA, "namespace": namespace, "job": job}
    found = paste(path, given, "y")
    assert not [call for call in found.calls if re.search(r"kubectl .*\b(delete|get pod)\b", call)]


@pytest.mark.integration
def test_a_rollback_is_of_the_deployment_of_the_pods(paste: Paste) -> None:
    found = paste("ServingStopped.md", CHAT, "y")
    assert [call for call in found.destroyed if "rollout" in call] == [
        "kubectl -n research rollout undo deployment chat",
        "kubectl -n research rollout restart deployment chat",
    ]


@pytest.mark.integration
@pytest.mark.parametrize("path", ["JobCrashLoops.md", "LossDiverges.md"])
def test_what_is_suspended_owns_the_pods(path: str, paste: Paste) -> None:
    found = paste(path, LLAMA, "y")
    suspended = [call.split()[-1] for call in found.destroyed if " patch " in call]
    assert sorted(suspended) == ["job/llama", "pytorchjob/llama"]
