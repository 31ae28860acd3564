"""Somebody runs code of their own in the daemon, and asks each helper for what it may not tell.

docs/security.md has a table of what helpers open; each row is played here. A tenant helps: he makes
links, starts programs of root's with an environment of his own, and writes his own files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from gpunode.helper import serve, tcp
from gpunode.helper.inside import content
from tests.attacks.test_helpers import ENTER, limited
from tests.conftest import until
from tests.helm.test_chart import PROFILES
from tests.helm.test_chart_profiles import HELPERS, namespaces, opened_folder, own_programs, running
from tests.helper.helper import as_user, ask, helper
from tests.needs import ROOT, as_root, need
from tests.tenant import SECRET, USER, VICTIM, servers, tenant

pytestmark = as_root

NOBODY = 65534

VERBS = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)

TAKEN = """
import json, sys
from gpunode.node.privileged import PrivilegedReads
doors, missing = PrivilegedReads("", sys.argv[-2]), OSError(2, "there is no such helper")
for work, *request in json.loads(sys.argv[-1]):
    try:
        print(doors._helper(work, missing).ask(*(request or [""])))
    except OSError as error:
        print(error.strerror)
"""


def test_the_table_has_every_request_that_a_helper_answers() -> None:
    text = (ROOT / "docs/security.md").read_text()
    table = text.partition("### What helpers open")[2].partition("\n### ")[0]
    told = {verb for row in VERBS.findall(table) for verb in re.findall(r"\w+", row)}
    works = [serve.work_of(work, "", "/k", "/c") for work in serve.HELPERS]
    assert told == {verb for work in works for verb in work.verbs}


@dataclass(frozen=True, slots=True)
class Scene:
    """A folder of the tenant's, a file of root's and one of another user's, and processes."""

    folder: Path
    secret: Path
    of_victim: Path
    pids: dict[str, int]


@contextmanager
def started(user: int, program: Path | str, *arguments: str, **environment: str) -> Iterator[int]:
    """A program that a user starts with an environment of his own, and that waits."""
    with subprocess.Popen(
        [str(program), *arguments],
        user=user,
        group=user,
        extra_groups=[],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            until(lambda: len(Path(f"/proc/{child.pid}/comm").read_text()) > 1)
            yield child.pid
        finally:
            child.kill()


def is_in(text: str, file: Path) -> bool:
    return text in file.read_text()


WAIT = "import os, sys; sys.stdin.read()"
BECOMES = f"import os; os.setresuid(*[os.geteuid()] * 3); {WAIT}"
OF_BOTH = f"import os; os.setresuid({VICTIM}, {USER}, {USER}); {WAIT}"

LOGGED_IN = f"echo {USER} > /proc/self/loginuid && exec setpriv --reuid={VICTIM} sleep 1000"
"""What a tenant began who may become the victim, with an environment of his own."""


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="gpunode-")))
        folder.chmod(0o755)
        secret, of_victim = folder / "secret", folder / "victim/key"
        secret.write_text(f"{SECRET}\n__version__ = '{SECRET}'\n")
        secret.chmod(0o600)
        of_victim.parent.mkdir()
        of_victim.write_text(SECRET)
        of_victim.chmod(0o600)
        os.chown(of_victim, VICTIM, VICTIM)
        for place in ("proc/1/io", f"var/log/pods/{SECRET}", DOCKER):  # what only looks allowed
            looks = of_victim.parent / place
            looks.parent.mkdir(parents=True)
            looks.write_text(f'"Image": "{SECRET}"')
            looks.chmod(0o600)
        (of_victim.parent / "proc/1/root").symlink_to(SECRET)
        mine = folder / "mine"
        (mine / "torch/lib").mkdir(parents=True)
        (mine / "include").mkdir()
        (mine / "dev").mkdir()
        for link, target in {
            "torch/version.py": secret,
            "include/nccl.h": secret,
            "log": secret,
            "log.99": of_victim,
            "dev/shm": secret.parent,
            "pod-resources": folder,
            "folder": folder,
        }.items():
            (mine / link).symlink_to(target)
        (mine / "pipe").unlink(missing_ok=True)
        os.mkfifo(mine / "pipe")
        setuid = folder / "sleep"
        shutil.copy(need("sleep"), setuid)
        setuid.chmod(0o4755)
        for name, user in (("python", 0), ("python-of-victim", VICTIM)):
            shutil.copy(os.path.realpath("/usr/bin/python3"), folder / name)
            os.chown(folder / name, user, -1)
            (folder / name).chmod(0o4755)
        becomes = ("-I", "-S", "-c", BECOMES)
        names = {"NCCL_DEBUG_FILE": str(secret)}
        serves, beside = running.enter_context(servers())
        theirs = {"NCCL_DEBUG_FILE": str(of_victim)}
        python = (sys.executable, "-c")
        begin = running.enter_context
        pids = {
            "init": 1,
            "root": begin(started(0, *python, WAIT, TOKEN=SECRET, **names)),
            "su": begin(started(USER, need("su"), **names)),
            "setuid": begin(started(USER, setuid, "1000", **names)),
            "became": begin(started(USER, folder / "python", *becomes, **names)),
            "of_victim": begin(started(USER, folder / "python-of-victim", *becomes, **theirs)),
            "logged_in": begin(started(0, "/bin/sh", "-c", LOGGED_IN, **theirs)),
            "of_both": begin(started(0, *python, OF_BOTH, **theirs)),
            "tenant": begin(tenant(None, NCCL_DEBUG_FILE=str(secret), TOKEN=SECRET)),
            "link": begin(tenant(None, NCCL_DEBUG_FILE=f"{mine}/log")),
            "folder": begin(tenant(None, NCCL_INSPECTOR_DUMP_DIR=f"{mine}/folder")),
            "pipe": begin(tenant(None, NCCL_DEBUG_FILE=f"{mine}/pipe")),
            "victim": begin(tenant(None, VICTIM, NCCL_DEBUG_FILE=f"{mine}/log.%p")),
            "serves": serves,
            "beside": beside,
        }
        users = {"became": (0, 0), "of_victim": (VICTIM, VICTIM), "of_both": (VICTIM, USER)}
        for which, (real, effective) in {**users, "logged_in": (VICTIM, VICTIM)}.items():
            who = f"Uid:\t{real}\t{effective}\t"
            until(partial(is_in, who, Path(f"/proc/{pids[which]}/status")))
        (folder / "x-pid1.log").write_text(SECRET)
        (folder / "x-pid1.log").chmod(0o600)
        yield Scene(folder, secret, of_victim, pids)


DOCKER = f"var/lib/docker/containers/{'a' * 64}/config.v2.json"

TRIES = """
files text {victims}/proc/1/io
files link {victims}/proc/1/root
files names {victims}/var/log/pods
files image {victims}/{docker}
files part /proc/{link}/root{mine}/log 0
files part /proc/{folder}/root{mine}/folder/x-pid1.log 0
files part /proc/{pipe}/root{mine}/pipe 0
files part /proc/{victim}/root{mine}/log.99 0
files part /proc/{victim}/root{theirs} 0
files part /proc/{of_victim}/root{theirs} 0
files part /proc/{logged_in}/root{theirs} 0
files part /proc/{of_both}/root{theirs} 0
files part /proc/{victim}/root/proc/1/environ 0
files part /proc/{root}/root/etc/shadow 0
files part /proc/1/root/../etc/shadow 0
files part /proc/self/root/etc/shadow 0
files part /proc/thread-self/root/etc/shadow 0
files part /etc/shadow 0
files part /proc/{root}/cwd/etc/hostname 0
files part /proc/{root}/root/etc/hostname x
files part /proc/{root}/root/etc/hostname
files part /proc/{root}/root/etc/hostname -1000000000000000000000000000000
files text /proc/{root}/environ
files text /proc/{root}/maps
files text /proc/{root}/mem
files text /proc/{root}/cmdline
files text /proc/1/root{secret}
files text /proc/1/io/../environ
files text /proc/1/root/proc/1/io
files text /proc/1/task/1/stack
files text /proc/1/task/../wchan
files text /etc/shadow
files text /sys/kernel/debug/lustre/../../../..{secret}
files text /var/lib/kubelet/plugins/kubernetes.io/csi/a/../../vol_data.json/x
files names {mine}/pod-resources
files names /root
files names /root/../pod-resources
files names /var/log/pods/..
files link /proc/{root}/cwd
files link /proc/{root}/exe
files link /proc/{root}/fd/0
files link /proc/1/ns/../fd/0
files environment self
files environment {root}/../1
files environment
files space /root
files space /proc/1/root{secret}
files space /proc/1/root{mine}/dev/shm
files space /proc/{root}/root/etc/shadow
files space /proc/{root}/cwd/dev/shm
files image {secret}
files image /{docker}/../../../../..{secret}
files image /run/containerd/io.containerd.runtime.v2.task/k8s.io/../config.json
files maps {root}/../1
files maps 1/task/1
files sockets {root}/../1
files count ../1
files python 1
files __class__
files
stacks python {root}--locals
stacks python self
sockets kubelet {secret}
sockets client {secret}
network in_network {serves} 2
"""


def tries(scene: Scene) -> list[list[str]]:
    """What a taken daemon asks for: the helper, the request and its arguments."""
    mine, secret, pids = scene.folder / "mine", scene.secret, scene.pids
    names = {"mine": mine, "secret": secret, "docker": DOCKER, "theirs": scene.of_victim}
    names["victims"] = scene.of_victim.parent
    own = (str(secret), f"{mine}/torch/version.py", f"{mine}/include/nccl.h")
    serves, beside = str(pids["serves"]), str(pids["beside"])
    page, at = tcp.page("/metrics"), "127.0.0.1:8000"
    asks = [
        *((serves, f"{host}:8000", page) for host in STRANGERS),
        *((one, at, page) for one in ("self", beside, "1", f"{beside}/../{serves}")),
        *((serves, "127.0.0.1:8001", asked) for asked in tcp.REQUESTS),
        *((serves, at, asked) for asked in UNUSUAL),
        (serves, at, page, "again"),
    ]
    return [
        *(line.format(**pids, **names).split(" ") for line in TRIES.strip().splitlines()),
        *(["files", "part", f"/proc/{pid}/root{one}", "0"] for pid in pids.values() for one in own),
        *(["network", "ask", *one] for one in asks),
        # What one helper does, another does not.
        *([one, "part", f"/proc/1/root{secret}", "0"] for one in serve.HELPERS[1:]),
        *([one, "ask", serves, at, page] for one in ("files", "sockets", "stacks")),
        *([one, "environment", "1"] for one in serve.HELPERS[1:]),
        *promised(scene).values(),
    ]


STRANGERS = "192.0.2.1", "example.com", "1.1.1.1", "[2606:4700::1111]", "255.255.255.255"
"""Servers that are not of the process's own network, and what is no address."""

UNUSUAL = (
    *("", "GET / HTTP/1.0\r\n\r\n", "SET x y\r\n", tcp.page("/admin"), f"{tcp.RAS}SET x y\n"),
    *(tcp.page("/metrics").replace("GET", "DELETE"), tcp.page("/metrics?x=/../../admin")),
)
"""What nobody has to ask a server."""


def promised(scene: Scene) -> dict[str, list[str]]:
    """What a helper does for whoever has taken the daemon over, as docs/security.md says."""
    serves = str(scene.pids["serves"])
    return {
        "files": ["files", "environment", str(scene.pids["root"])],
        "network": ["network", "ask", serves, "127.0.0.1:8000", tcp.page("/metrics")],
        "stacks": ["stacks", "python", str(scene.pids["tenant"])],
    }


Taken = Callable[..., str]
"""Runs code in place of the daemon; what it prints."""


@contextmanager
def of_chart(profile: str, folder: Path) -> Iterator[tuple[set[str], Taken]]:
    """The pod of a profile, as it is rendered."""
    programs = own_programs()
    with running(profile, folder, programs) as pod:
        works = {name[7:] for name in pod.containers if name.startswith("helper-")}
        sockets = f"{HELPERS}/sockets"
        yield works, lambda *words: pod.execute(programs, "-c", TAKEN, sockets, *words)


@contextmanager
def of_systemd(*_: object) -> Iterator[tuple[set[str], Taken]]:
    """The helpers as their units start them: of the daemon's user, with what they name."""
    own = re.search(r"^(?:0:|\d+:name=systemd):(/.*)$", content("/proc/self/cgroup"), re.M)
    assert own
    with opened_folder() as sockets, ExitStack() as units:
        for unit in (ROOT / "exporter/systemd").glob("gpunode-*.service"):
            text = unit.read_text()
            started = re.search(r"^ExecStart=\S+ helper (\w+) --folder=\S+ --unit=\S+$", text, re.M)
            if not started:
                continue
            kept = re.findall(r"CAP_(\w+)", text.partition("\nAmbientCapabilities=")[2])
            caps = ",".join(("-all", *(f"+{name.lower()}" for name in kept)))
            user = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
            before = (need("setpriv"), *user, f"--inh-caps={caps}", f"--ambient-caps={caps}")
            (sockets / started[1]).mkdir(0o700)
            os.chown(sockets / started[1], NOBODY, NOBODY)
            units.enter_context(
                helper(started[1], sockets / started[1], f"--unit={own[1]}", before=before)
            )
        works = {one.name for one in sockets.iterdir()}
        yield works, lambda *words: as_user(NOBODY, TAKEN, str(sockets), *words)


Place = Callable[[str, Path], AbstractContextManager[tuple[set[str], Taken]]]
PLACES: dict[str, Place] = {**dict.fromkeys(PROFILES, of_chart), "systemd": of_systemd}


@pytest.mark.usefixtures(namespaces.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_whoever_takes_the_daemon_over_gets_what_the_table_has_and_nothing_else(
    place: str, scene: Scene, tmp_path: Path
) -> None:
    asks = tries(scene)
    assert len(asks) >= 100
    with PLACES[place](place, tmp_path) as (works, taken):

        def said(*asks: list[str]) -> list[str]:
            return taken(json.dumps(asks)).splitlines()

        until(lambda: all(one.startswith("(") for one in said(*([one, "cost"] for one in works))))
        answers = said(*asks)
        told = [ask for ask, one in zip(asks, answers, strict=True) if one.startswith("(")]
        assert told == [ask for work, ask in promised(scene).items() if work in works]
        assert SECRET not in "".join(answers)
        assert not [one for one in answers if "what no helper does" in one], "a descriptor"
        if "files" in works:  # whether a file is there does not change what is said of it
            gone = (f"/proc/1/root{scene.secret}{more}" for more in ("", ".gone"))
            assert len(set(said(*(["files", "space", path] for path in gone)))) == 1


STRANGER = """
import os, socket, sys
open(f"{sys.argv[2]}/cgroup.procs", "w").write("0")
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print("ready", flush=True)
def asked():
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        one.connect(sys.argv[1])
        one.send(b"\\0")
        return one.recv(1)
    except OSError:
        return b""
while True:
    print(asked(), flush=True)
"""

ASKS = """
one = Helper(sys.argv[2])
for _ in range(152):
    print(one.ask("environment", sys.argv[3])[0])
"""


def test_no_flood_of_others_of_its_user_is_answered_or_takes_the_daemon_s_place() -> None:
    """They may reach the socket through /proc/DAEMON/root."""
    with (
        limited(256 << 20) as cgroup,
        tempfile.TemporaryDirectory(prefix="gpunode-") as name,
        tenant(None, RANK="3") as pid,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        path = f"{name}/files.sock"
        with helper("files", folder, f"--user={NOBODY}"), ExitStack() as running:
            for _ in range(4):
                stranger = subprocess.Popen(
                    [sys.executable, "-c", STRANGER, path, str(cgroup)], stdout=subprocess.PIPE
                )
                running.enter_context(stranger)
                running.callback(stranger.kill)
                assert stranger.stdout
                assert stranger.stdout.readline() == b"ready\n"
                assert stranger.stdout.readline() == b"b''\n"
                thread = threading.Thread(target=stranger.stdout.read)  # so that it goes on
                running.callback(thread.join)
                running.callback(stranger.kill)
                thread.start()
            assert as_user(NOBODY, ASKS, path, str(pid)) == "b'RANK=3'\n" * 152


DEEP = """
import sys, threading
sys.setrecursionlimit(10_000)
threading.stack_size(64 << 20)
ever = threading.Event()
def down(frames):
    if frames:
        down(frames - 1)
    ever.wait()
threads = [threading.Thread(target=down, args=(4000,), daemon=True) for _ in range(64)]
for one in threads:
    one.start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_an_honest_process_of_very_many_frames_costs_its_look_and_no_helper() -> None:
    """With the memory of the unit; beyond what a look may take, it says so."""
    unit = (ROOT / "exporter/systemd/gpunode-stacks.service").read_text()
    most = re.search(r"^MemoryMax=(\d+)M$", unit, re.MULTILINE)
    own = re.search(r"^(?:0:|\d+:name=systemd):(/.*)$", content("/proc/self/cgroup"), re.M)
    assert most
    assert own
    with (
        limited(int(most[1]) << 20) as cgroup,
        tempfile.TemporaryDirectory(prefix="gpunode-") as name,
        subprocess.Popen(
            [sys.executable, "-c", DEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as deep,
    ):
        assert deep.stdout
        assert deep.stdout.readline() == b"ready\n"
        before = (need("sh"), "-c", ENTER, str(cgroup / "cgroup.procs"))
        with helper("stacks", Path(name), f"--unit={own[1]}", before=before) as child:
            for _ in range(3):
                with pytest.raises(OSError, match=r"prints more than 4 MiB|did not end within"):
                    ask(Path(name), "stacks", "python", str(deep.pid))
            assert child.poll() is None
        deep.kill()
