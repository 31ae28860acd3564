"""What the daemon sees under each profile of the chart: it runs as the rendered pod says it may.

Bubblewrap makes the container's mounts and namespaces; it gets the user and capabilities as from a
container runtime, and the seccomp profile is the project's. The node is this machine, whose driver,
kubelet and job are fakes. In the container are this machine's programs; test_image.py has
those of the image there. The helper that runs a program makes calls that only the runtime's own
profile allows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpunode.helper.serve import work_of
from gpunode.helper.stacks import RUNS
from helm.generate import CHART
from tests.attacks.seccomp import NUMBERS
from tests.conftest import until
from tests.daemon import free_port
from tests.docker.container import DRIVER, Image
from tests.fakes.kubelet import kubelet
from tests.fakes.nvml import FakeDriver, build
from tests.helm.test_chart import PROFILES, daemon_of, render
from tests.needs import ROOT, as_root, need

UUID = "GPU-5a1c2c1e-0000-4000-8000-000000000000"
FAMILY = re.compile(r"^(gpunode_\w+?)(?:_bucket|_sum|_count)?(?:\{| )", re.MULTILINE)
TENANT = 1000
PYTHON = Path(sys.executable).resolve()
CONFINE, SECCOMP = "/confine", "/seccomp"
HELPERS = "/run/gpunode-helpers"
HEADER = Path("/usr/include/linux/capability.h")
CAPABILITY = re.compile(r"^#define CAP_(\w+)\s+(\d+)$", re.MULTILINE)

pytestmark = [pytest.mark.integration, as_root]


@contextmanager
def opened_folder() -> Iterator[Path]:
    """A folder that every user may look into."""
    with tempfile.TemporaryDirectory(prefix="gpunode-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def machine(folder: Path, host_pid: bool) -> Iterator[None]:
    """A node: a driver with one GPU, a process of a tenant on it, and the pod that has the GPU.

    A driver tells a process of others only if it can see them.
    """
    job = {"RANK": "3", "WORLD_SIZE": "8", "PATH": os.environ["PATH"]}
    as_tenant = [need("setpriv"), f"--reuid={TENANT}", f"--regid={TENANT}", "--clear-groups"]
    socket = folder / "kubelet" / "kubelet.sock"
    with kubelet(socket) as fake, subprocess.Popen([*as_tenant, "sleep", "600"], env=job) as child:
        socket.chmod(0o755)  # as the kubelet's, which it makes with the umask 022
        socket.parent.chmod(0o750)
        fake.pods = {("research", "llama-0", "train"): [("nvidia.com/gpu", UUID)]}
        driver = FakeDriver(build(folder / "driver").parent)
        process = f"gpu 0 process {child.pid} 1000000\n" if host_pid else ""
        driver.write(f"gpus 1\ngpu 0 uuid {UUID}\n{process}")
        try:
            yield
        finally:
            child.kill()


@dataclass(frozen=True, slots=True)
class Programs:
    """What is in a container: the options of bubblewrap that put it there, and how it is run."""

    root: tuple[str, ...]
    driver: str
    """The folder in which the driver's library is looked for."""

    python: str
    environment: Mapping[str, str]


def own_programs() -> Programs:
    """This machine's, for an image."""
    placed = {
        **{name: Path(name) for name in ("/usr", "/etc")},
        "/python": PYTHON.parents[1],
        "/site": Path(sysconfig.get_path("purelib")),
        "/app/gpunode": ROOT / "exporter/gpunode",
        "/app/bin": Path(sysconfig.get_path("scripts")),
    }
    root = ["--perms", "0755", "--dir", "/app"]
    root += [word for place, path in placed.items() for word in ("--ro-bind", str(path), place)]
    for name in ("bin", "lib", "lib64", "sbin"):
        root += ["--symlink", f"usr/{name}", f"/{name}"]
    environment = {
        "PATH": "/usr/sbin:/usr/bin",
        "PYTHONPATH": "/app:/site",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": "/driver:/python/lib",
    }
    return Programs(tuple(root), "/driver", f"/python/bin/{PYTHON.name}", environment)


def programs_of(image: Image) -> Programs:
    """Those of the image, in a root to which a runtime adds what it mounts."""
    mounted = ("/host", "/run/gpunode", HELPERS)
    for place in (DRIVER, CONFINE, SECCOMP, NUMBERS.parent, *mounted):
        (image.root / str(place)[1:]).mkdir(parents=True, exist_ok=True)
    added = ("--ro-bind", str(NUMBERS.parent), str(NUMBERS.parent))
    python, *_ = image.config["Entrypoint"]
    root = "--bind", str(image.root), "/", *added
    return Programs(root, DRIVER, python, image.environment)


def sandbox(
    pod: dict[str, Any], container: dict[str, Any], node: Path, programs: Programs
) -> list[str]:
    """What makes the container of a pod."""
    command = [need("bwrap"), "--die-with-parent", "--cap-add", "ALL"]
    command += ["--unshare-ipc", "--unshare-uts", "--hostname", "gpunode-x7kq2"]
    command += [] if pod.get("hostPID") or pod.get("shareProcessNamespace") else ["--unshare-pid"]
    command += [] if pod.get("hostNetwork") else ["--unshare-net"]
    command += programs.root
    for place, path in ((CONFINE, "tests/attacks"), (SECCOMP, "docker")):
        command += ["--ro-bind", str(ROOT / path), place]
    command += ["--ro-bind", str(node / "driver"), programs.driver]
    command += ["--dir", "/host", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"]
    of_node = {
        "/var/lib/kubelet/pod-resources": node / "kubelet",
        "/var/log/pods": node / "logs",
        "/var/log/containers": node / "logs",
        "/run/gpunode": node / "client",
    }
    paths = {
        one["name"]: of_node.get(path := one["hostPath"]["path"], path)
        if "hostPath" in one
        else node / one["name"]
        for one in pod["volumes"] or ()
    }
    for mount in container["volumeMounts"] or ():
        target = Path(mount["mountPath"])
        for folder in list(target.parents)[-2::-1]:  # as a runtime makes them, for all to enter
            command += ["--perms", "0755", "--dir", str(folder)]
        # Bubblewrap closes what is mounted below as well, Kubernetes only if that is asked for.
        how = "--ro-bind" if mount.get("recursiveReadOnly") else "--bind"
        command += [how, str(paths[mount["name"]]), str(target)]
        command += ["--remount-ro", str(target)] if mount.get("readOnly") else []
    assert container["securityContext"]["readOnlyRootFilesystem"]
    return [*command, "--remount-ro", "/"]


def rights(pod: dict[str, Any], container: dict[str, Any], python: str) -> list[str]:
    """What gives a process the user and the capabilities of a container, and no way to others."""
    own = container["securityContext"]
    who = pod["securityContext"] | own
    assert own["capabilities"]["drop"] == ["ALL"]
    assert own["allowPrivilegeEscalation"] is False
    known = dict(CAPABILITY.findall(HEADER.read_text()))
    kept = ",".join(known[name] for name in own["capabilities"].get("add", ()))
    user, group = str(who["runAsUser"]), str(who["runAsGroup"])
    helper = container["name"].startswith("helper-")
    more = ["lchown", "fchownat"] if helper else []  # the runtime's own profile, for its socket
    more += RUNS if container["name"] == "helper-stacks" else ()
    return [
        *(python, f"{CONFINE}/rights.py", user, group, kept),
        *(python, f"{CONFINE}/seccomp.py", f"{SECCOMP}/seccomp.json", f"--allow={','.join(more)}"),
    ]


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    """Skip where even root may not make namespaces, as in a container."""
    tried = [need("bwrap"), "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true"]
    ran = subprocess.run(tried, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"no right to make namespaces: {ran.stderr}")


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that runs: what makes each of its containers, by their names."""

    port: int
    containers: Mapping[str, subprocess.Popen[bytes]]

    def scrape(self) -> str:
        """What the daemon says; empty until it does."""
        return scraped(self.containers["gpunode"], self.port)

    def status(self) -> dict[str, dict[str, str]]:
        """Of each container, what the kernel says of the program in it."""
        return {name: status_of(inside(one)) for name, one in self.containers.items()}

    def execute(self, programs: Programs, *command: str) -> str:
        """What a program of Python says in the daemon's container and as its user."""
        enter = [need("nsenter"), f"--target={inside(self.containers['gpunode'])}", "--mount"]
        enter += ["--pid", "--net", "--setuid=65534", "--setgid=65534"]
        ran = subprocess.run(
            [*enter, programs.python, *command],
            env=dict(programs.environment),
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.stdout + ran.stderr


@contextmanager
def running(profile: str, folder: Path, programs: Programs) -> Iterator[Pod]:
    """The pod that a profile renders, with a container for the daemon and for each helper."""
    port = free_port()  # one profile has the node's
    objects = render(folder, {"profile": profile, "port": port})
    pod, _ = daemon_of(objects)
    with opened_folder() as node, machine(node, bool(pod.get("hostPID"))), ExitStack() as ended:
        for name in ("logs", "client", "helpers"):
            (node / name).mkdir()
        (node / "helpers").chmod(0o777)  # as the kubelet makes an emptyDir
        environment = {**programs.environment, "FAKE_NVML": f"{programs.driver}/nvml.script"}
        containers = {}
        for container in pod["containers"]:
            command = [
                *sandbox(pod, container, node, programs),
                *rights(pod, container, programs.python),
                *(programs.python, "-m", "gpunode", *container["args"]),
            ]
            child = ended.enter_context(subprocess.Popen(command, env=environment))
            ended.callback(stop, child)
            containers[container["name"]] = child
        yield Pod(port, containers)


SCRAPE = """
import sys
from urllib.request import urlopen
print(urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=5).read().decode())
"""


def scraped(child: subprocess.Popen[bytes], port: int) -> str:
    """What the daemon in a sandbox says, asked from inside its network namespace."""
    namespace = f"--net=/proc/{inside(child)}/ns/net"
    command = [need("nsenter"), namespace, sys.executable, "-c", SCRAPE, str(port)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def inside(child: subprocess.Popen[bytes]) -> int:
    """The program in a sandbox, below those that made it; a namespace of processes takes two."""
    assert child.poll() is None, "the container has ended"
    found = psutil.Process(child.pid).children(recursive=True)
    return found[-1].pid if found else child.pid


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a sandbox and the program in it, which by another user outlives what made it."""
    for one in psutil.Process(child.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ends with the one above it
            one.kill()
    child.kill()


def status_of(pid: int) -> dict[str, str]:
    """What the kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


README = (CHART / "README.md").read_text()
ROWS = {
    profile: set(re.findall(r"`(gpunode_\w+)`", adds.partition("Where")[0]))
    for profile, adds in re.findall(
        r"^\| `(\w+)` \|.*\|([^|]*)\|$", README.partition("## Platforms")[0], re.MULTILINE
    )
}
"""What each profile adds, as the chart's README says; without what takes hardware."""


def test_the_readme_tells_of_every_profile() -> None:
    assert tuple(ROWS) == PROFILES


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_shows_what_it_promises_and_no_more(profile: str, tmp_path: Path) -> None:
    shows_what_it_promises(profile, tmp_path, own_programs())


def shows_what_it_promises(profile: str, folder: Path, programs: Programs) -> None:
    """Fails unless the daemon shows what the chart's README says of a profile, and no more."""
    steps = PROFILES.index(profile) + 1
    promised = set[str]().union(*(ROWS[one] for one in PROFILES[:steps]))
    others = set[str]().union(*(ROWS[one] for one in PROFILES[steps:]))
    with running(profile, folder, programs) as pod:
        # Of what is not read yet, some sources are not up yet.
        until(lambda: promised <= families(text := pod.scrape()) and not failing(text))
        assert others & families(pod.scrape()) == set()
        for name, status in pod.status().items():
            held = CAPABILITIES.get(name, set())
            assert status["Uid"].split() == ["65534" if name == "gpunode" else "0"] * 4
            once = {"CHOWN"} if name.startswith("helper-") else set()
            assert capabilities(status["CapPrm"]) == held
            assert capabilities(status["CapBnd"]) == held | once
            lent = held if name == "helper-stacks" else set()
            assert capabilities(status["CapAmb"]) == capabilities(status["CapInh"]) == lent
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


CAPABILITIES = {
    f"helper-{name}": set(work_of(name, "", "", "").capabilities) - {"SYSLOG"}
    for name in ("files", "stacks", "network")
}
"""Of the containers that have any: what their work takes, and the kernel's log is in none."""


def capabilities(mask: str) -> set[str]:
    """The names of the bits of a set, as the kernel writes it."""
    names = {int(number): name for name, number in CAPABILITY.findall(HEADER.read_text())}
    return {names[bit] for bit in range(64) if int(mask, 16) >> bit & 1}


def families(text: str) -> set[str]:
    """The names of the metrics in an exposition."""
    return set(FAMILY.findall(text))


def failing(text: str) -> list[str]:
    """The sources whose reads fail; each would make a ticket for ever."""
    return re.findall(r'^gpunode_source_up{.*source="(\w+)".*} 0', text, re.MULTILINE)


HANGS = """
import threading
lock = threading.Lock()
def waits_for_a_lock():
    lock.acquire()
waits_for_a_lock()
print("waits", flush=True)
waits_for_a_lock()
"""


def test_a_helper_looks_where_a_process_of_a_tenant_stands(tmp_path: Path) -> None:
    looks_where_a_process_stands(tmp_path, own_programs())


def looks_where_a_process_stands(folder: Path, programs: Programs) -> None:
    """Fails unless ``gpunode stacks``, run as by ``kubectl exec``, tells where a job hangs."""
    as_tenant = [need("setpriv"), f"--reuid={TENANT}", f"--regid={TENANT}", "--clear-groups"]
    job = [*as_tenant, str(PYTHON), "-c", HANGS]
    with (
        running("jobs", folder, programs) as pod,
        subprocess.Popen(job, stdout=subprocess.PIPE) as hangs,
    ):
        try:
            assert hangs.stdout
            assert hangs.stdout.readline() == b"waits\n"
            places = ("--path.rootfs=/host", f"--path.helpers={HELPERS}/sockets")
            command = ["-m", "gpunode", "stacks", f"--pid={hangs.pid}", *places]
            until(lambda: "waits_for_a_lock" in pod.execute(programs, *command))
        finally:
            hangs.kill()


TRIES = """
import ctypes, os, socket, sys
from glob import glob
victim, secret, name = int(sys.argv[1]), *sys.argv[2:]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")
def connect(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.connect(path)
def write(*paths):
    for path in (found for one in paths for found in glob(one)):
        os.close(os.open(path, os.O_WRONLY))
        return
    raise PermissionError
def create(folder):
    os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY))
tries = {
    "setting of the kernel": lambda: write("/host/proc/sys/kernel/core_pattern"),
    "cgroup": lambda: write(*(f"/host/sys/fs/cgroup/{at}cgroup.procs" for at in ("", "*/"))),
    "folder of helpers": lambda: create("/run/gpunode-helpers"),
    "socket of a helper": lambda: os.unlink("/run/gpunode-helpers/sockets/files.sock"),
    "folder of clients": lambda: create("/run/gpunode"),
    "own program": lambda: create("/app"),
    "shared memory of the node": lambda: create("/host/dev/shm"),
    "secret of another pod": lambda: open(f"/host{secret}").read(),
    "secret in the root of another pod": lambda: open(f"/host/proc/{victim}/root{secret}").read(),
    "environment": lambda: open(f"/host/proc/{victim}/environ").read(),
    "memory": lambda: open(f"/host/proc/{victim}/mem", "r+b"),
    "files": lambda: os.listdir(f"/host/proc/{victim}/root"),
    "descriptors": lambda: os.listdir(f"/host/proc/{victim}/fd"),
    "signal": lambda: os.kill(victim, 0),
    "ptrace": lambda: call(101, 0x4206, victim, 0, 0),
    "another user": lambda: os.setuid(0),
    "mounts": lambda: call(165, b"none", b"/proc", b"tmpfs", 0, 0),
    "network": lambda: call(308, os.open(f"/host/proc/{victim}/ns/net", os.O_RDONLY), 0),
    "raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "kubelet": lambda: connect("/host/var/lib/kubelet/pod-resources/kubelet.sock"),
    "logs of pods": lambda: os.listdir("/host/var/log/pods"),
}
for what, attempt in tries.items():
    try:
        attempt()
    except OSError:
        continue
    print(what)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="calls by their numbers on x86-64")
@pytest.mark.parametrize(
    ("values", "may"),
    [
        ({}, []),
        ({"hostRoot": True}, ["shared memory of the node"]),
        ({"hostRoot": True, "hostRootPropagation": "None"}, []),
    ],
    ids=["folders", "root", "closed root"],
)
def test_whoever_takes_the_daemon_over_changes_nothing_and_reads_nothing_of_others(
    values: dict[str, Any], may: list[str], tmp_path: Path
) -> None:
    """In the profile that may do most; without the rights of its container, some would succeed.

    What docs/security.md says that it may do with the root of the node, it may.
    """
    pod, container = daemon_of(render(tmp_path, {"profile": "network", **values}))
    programs = own_programs()
    with opened_folder() as node, machine(node, True), subprocess.Popen(["sleep", "60"]) as victim:
        for name in ("logs", "client", "helpers"):
            (node / name).mkdir()
        (node / "helpers").chmod(0o777)
        (node / "helpers/sockets").mkdir()
        (node / "helpers/sockets/files.sock").touch()
        secret = node / "token"
        secret.write_text("secret")
        secret.chmod(0o600)
        mine = Path(f"/dev/shm/{node.name}")

        def succeeds(given: list[str]) -> list[str]:
            command = [*sandbox(pod, container, node, programs), *given, programs.python]
            ran = subprocess.run(
                [*command, "-c", TRIES, str(victim.pid), str(secret), mine.name],
                env=programs.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, ran.stderr
            return ran.stdout.splitlines()

        try:
            assert succeeds(rights(pod, container, programs.python)) == may
            assert len(succeeds([])) >= 5
        finally:
            victim.kill()
            mine.unlink(missing_ok=True)
