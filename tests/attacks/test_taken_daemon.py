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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.helper import serve
from tests.attacks.test_helpers import ENTER, limited
from tests.conftest import until
from tests.helper.helper import as_user, asked, helper
from tests.needs import ROOT, as_root, need
from tests.tenant import SECRET, USER, tenant

pytestmark = as_root

NOBODY = 65534
VICTIM = 1234

VERBS = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \|", re.MULTILINE)

TAKEN = """
import json
for work, verb, *arguments in json.loads(sys.argv[3]):
    try:
        print(Helper(f"{sys.argv[2]}/{work}.sock").ask(verb, *arguments))
    except OSError as error:
        print(error.strerror)
"""


def test_the_table_has_every_request_that_a_helper_answers() -> None:
    text = (ROOT / "docs/security.md").read_text()
    table = text.partition("### What helpers open")[2].partition("\n### ")[0]
    told = {verb for row in VERBS.findall(table) for verb in re.findall(r"\w+", row)}
    works = [serve.work_of(work, "", "/k", "/c") for work in serve.WORKS]
    assert told == {verb for work in works for verb in work.verbs}


@dataclass(frozen=True, slots=True)
class Scene:
    """A folder of the tenant's, a file of root's and one of another user's, and processes."""

    folder: Path
    secret: Path
    of_victim: Path
    pids: dict[str, int]


@contextmanager
def started(program: Path | str, *arguments: str, **environment: str) -> Iterator[int]:
    """A program that the tenant starts with an environment of his own, and that waits."""
    with subprocess.Popen(
        [str(program), *arguments],
        user=USER,
        group=USER,
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


BECOMES_ROOT = "import os, sys; os.setresgid(0, 0, 0); os.setresuid(0, 0, 0); sys.stdin.read()"


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
        python = folder / "python"
        shutil.copy(os.path.realpath("/usr/bin/python3"), python)
        python.chmod(0o4755)
        names = {"NCCL_DEBUG_FILE": str(secret)}
        root = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        of_root = running.enter_context(
            subprocess.Popen(root, stdin=subprocess.PIPE, env={**names, "TOKEN": SECRET})
        )
        running.callback(of_root.kill)
        begin = running.enter_context
        pids = {
            "init": 1,
            "root": of_root.pid,
            "su": begin(started(need("su"), **names)),
            "setuid": begin(started(setuid, "1000", **names)),
            "became": begin(started(python, "-I", "-S", "-c", BECOMES_ROOT, **names)),
            "tenant": begin(tenant(None, NCCL_DEBUG_FILE=str(secret), TOKEN=SECRET)),
            "link": begin(tenant(None, NCCL_DEBUG_FILE=f"{mine}/log")),
            "folder": begin(tenant(None, NCCL_INSPECTOR_DUMP_DIR=f"{mine}/folder")),
            "pipe": begin(tenant(None, NCCL_DEBUG_FILE=f"{mine}/pipe")),
            "victim": begin(tenant(None, VICTIM, NCCL_DEBUG_FILE=f"{mine}/log.%p")),
        }
        (folder / "x-pid1.log").write_text(SECRET)
        (folder / "x-pid1.log").chmod(0o600)
        yield Scene(folder, secret, of_victim, pids)


def tries(scene: Scene) -> list[list[str]]:
    """What a taken daemon asks for: the helper, the request and its arguments."""
    mine, secret, pids = scene.folder / "mine", scene.secret, scene.pids
    parts = [
        *(("part", f"/proc/{pid}/root{secret}", "0") for pid in pids.values()),
        *(("part", f"/proc/{pid}/root{mine}/torch/version.py", "0") for pid in pids.values()),
        *(("part", f"/proc/{pid}/root{mine}/include/nccl.h", "0") for pid in pids.values()),
        ("part", f"/proc/{pids['link']}/root{mine}/log", "0"),
        ("part", f"/proc/{pids['folder']}/root{mine}/folder/x-pid1.log", "0"),
        ("part", f"/proc/{pids['pipe']}/root{mine}/pipe", "0"),
        ("part", f"/proc/{pids['victim']}/root{mine}/log.99", "0"),
        ("part", f"/proc/{pids['victim']}/root{scene.of_victim}", "0"),
        ("part", f"/proc/{pids['victim']}/root/proc/1/environ", "0"),
        ("part", "/proc/1/root/../etc/shadow", "0"),
        ("part", "/proc/self/root/etc/shadow", "0"),
        ("part", "/proc/thread-self/root/etc/shadow", "0"),
    ]
    others = [
        *(
            ("text", f"/proc/{pids['root']}/{name}")
            for name in ("environ", "maps", "mem", "cmdline")
        ),
        ("text", f"/proc/1/root{secret}"),
        ("text", "/etc/shadow"),
        ("text", f"/sys/kernel/debug/lustre/../../../..{secret}"),
        ("names", str(mine / "pod-resources")),
        ("names", str(scene.folder)),
        ("names", "/root"),
        ("link", f"/proc/{pids['root']}/cwd"),
        ("link", f"/proc/{pids['root']}/exe"),
        ("link", f"/proc/{pids['root']}/fd/0"),
        ("environment", str(pids["root"])),
        ("environment", f"{pids['root']}/../1"),
        ("space", f"/proc/1/root{secret}"),
        ("space", f"/proc/1/root{mine}/dev/shm"),
        ("space", f"/proc/{pids['root']}/root/etc/shadow"),
        ("space", f"/proc/{pids['root']}/cwd/dev/shm"),
        ("image", str(secret)),
        ("image", f"/var/lib/docker/containers/{'a' * 64}/../../../../..{secret}"),
        ("maps", f"{pids['root']}/../1"),
    ]
    return [["files", *one] for one in (*parts, *others)] + [
        ["stacks", "python", f"{pids['root']} --locals"],
        ["stacks", "python", "self"],
        ["stacks", "part", f"/proc/1/root{secret}", "0"],
        ["network", "in_network", "self", "2"],
        ["network", "in_network", f"{pids['root']}/../1", "2"],
    ]


def test_whoever_takes_the_daemon_over_gets_what_the_table_has_and_nothing_else(
    scene: Scene,
) -> None:
    asks = tries(scene)
    assert len(asks) >= 40
    with tempfile.TemporaryDirectory(prefix="gpunode-") as name, ExitStack() as running:
        folder = Path(name)
        folder.chmod(0o755)
        for work in ("files", "network", "stacks"):
            running.enter_context(helper(work, folder, f"--user={NOBODY}"))
        said = as_user(NOBODY, TAKEN, name, json.dumps(asks)).splitlines()
        told = [(ask, one) for ask, one in zip(asks, said, strict=True) if one.startswith("(")]
        assert SECRET not in "".join(said)
        # The listed variables of any process are all that is told of these.
        assert [ask[1] for ask, _ in told] == ["environment"], told
        # Whether a file is there does not change what is said of it.
        space = ["files", "space", f"/proc/1/root{scene.secret}"]
        gone = ["files", "space", f"/proc/1/root{scene.secret}.gone"]
        assert len(set(as_user(NOBODY, TAKEN, name, json.dumps([space, gone])).splitlines())) == 1


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
    own = re.search(r"^(?:0:|\d+:name=systemd):(/.*)$", serve.content("/proc/self/cgroup"), re.M)
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
                    asked(Path(name), "stacks", "python", str(deep.pid))
            assert child.poll() is None
        deep.kill()
