"""Training code tells the daemon: real sockets, real processes, real PyTorch where there is one."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode import __version__, client
from gpunode.client import Session, profiler
from gpunode.client.garbage import Garbage
from gpunode.client.protocol import BEST_OF, FRAMES, PHASES, VERSION
from gpunode.client.sender import Account, compiled_graphs, gpus_of_this_process, where
from gpunode.config.daemon import ClientSettings, Settings
from gpunode.driver.driver import DriverError, Gpu, Process
from gpunode.holders.census import Census
from gpunode.jobs.steps import (
    BACKLOG,
    ClientReports,
    Progress,
    ReportedPosition,
    TrainingSteps,
    parse,
)
from gpunode.node.datagram_socket import Datagram, start_of
from gpunode.source import Absent
from gpunode.unread import Unread
from tests import conftest
from tests.conftest import Series, until
from tests.daemon import TIMEOUT, Daemon
from tests.fakes.nvml import FakeDriver
from tests.machine import MachineGpu, OneGpu, exported, read_source
from tests.needs import need_library

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path() -> Iterator[str]:
    """A socket's path: 108 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="g", dir="/tmp") as folder:
        yield f"{folder}/client.sock"


def settings(path: str) -> Settings:
    return Settings(client=ClientSettings(socket=path))


def listening(node: OneGpu, path: str) -> TrainingSteps:
    source = TrainingSteps(Census(node), settings(path))
    assert [found for _, found in source.find()] == [source]
    return source


def values(source: TrainingSteps) -> dict[str, float]:
    """What is exported, without the labels of the GPU."""
    lines = (line.rpartition(" ") for line in exported(read_source(source)).splitlines())
    return {
        name.replace('gpu="0",', "")
        .replace(',uuid="GPU-aa"', "")
        .replace('{uuid="GPU-aa"}', ""): float(value)
        for name, _, value in lines
    }


def wait_for(source: TrainingSteps, name: str, at_least: float) -> dict[str, float]:
    """Read until a value has arrived; the receiver has a thread of its own."""
    deadline = time.monotonic() + TIMEOUT
    while (found := values(source)).get(name, 0.0) < at_least:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def send(path: str, *messages: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        for message in messages:
            client.sendto(message, path)


ACCEPTED = 'gpunode_client_messages_total{result="accepted"}'


def test_what_a_client_tells_is_exported(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", path)
    source = listening(OneGpu(os.getpid()), path)
    session = Session()
    session.configure(flops_per_token=6e9)
    for batch in session.watch([1, 2, 3]):
        session.step(tokens=1000, samples=batch, loss=0.5)
    with session.phase("evaluation"):
        pass
    session.step(loss=float("nan"))
    session.flush()
    found = wait_for(source, ACCEPTED, 1)
    assert found["gpunode_training_tokens_total"] == 3000
    assert found["gpunode_training_samples_total"] == 6
    assert found["gpunode_training_flops_total"] == 3000 * 6e9
    assert found["gpunode_training_step_seconds_count"] == 3
    assert found["gpunode_training_loss_finite"] == 0
    assert found["gpunode_training_loss"] == 0.5
    assert "gpunode_training_loss_best" not in found
    assert found["gpunode_training_nonfinite_losses_total"] == 1
    assert {f'gpunode_training_seconds_total{{phase="{phase}"}}' for phase in PHASES} <= {
        name.replace(',uuid="GPU-aa"', "") for name in found
    }


def test_a_loss_that_turns_nan_while_a_message_is_sent_is_in_the_next(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender clears what it has sent; what came meanwhile is not part of that."""
    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", path)
    source = listening(OneGpu(os.getpid()), path)
    session = Session()
    session.step(loss=0.5)
    assert session._sender is not None
    socket_of_sender = session._sender._socket

    class Meanwhile:
        """Sends, and has the training go on in between."""

        def sendto(self, message: bytes, address: str) -> None:
            socket_of_sender.sendto(message, address)
            session._sender._socket = socket_of_sender  # type: ignore[union-attr]
            session.step(loss=math.nan)

    session._sender._socket = Meanwhile()  # type: ignore[assignment]
    session.flush()
    session.flush()
    found = wait_for(source, "gpunode_training_nonfinite_losses_total", 1)
    assert found["gpunode_training_loss_finite"] == 0


def test_a_loss_that_diverges_is_told_beside_the_best_that_the_process_had(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", path)
    node = OneGpu(os.getpid())
    source = listening(node, path)
    session = Session()
    for loss in (*(9.0,) * BEST_OF, *(1.0, 3.0, math.nan) * BEST_OF, *(1e300,) * BEST_OF):
        session.step(loss=loss)
    session.flush()
    found = wait_for(source, ACCEPTED, 1)
    assert found["gpunode_training_loss"] == 1e300
    assert found["gpunode_training_loss_best"] == 2.0
    assert found["gpunode_training_loss_finite"] == 1
    node.pids = ()
    node.stepped.now += 60
    assert not any(name.startswith("gpunode_training_loss") for name in values(source))


@given(st.lists(st.floats(), max_size=4 * BEST_OF))
def test_whatever_the_losses_are_the_daemon_reads_the_message(losses: list[float]) -> None:
    account = Account()
    for loss in losses:
        account.loss(loss)
    message = parse(account.message().decode())
    finite = [loss for loss in losses if math.isfinite(loss)]
    assert message.loss == (finite[-1] if finite else None)
    assert message.nonfinite_losses == len(losses) - len(finite)
    if len(finite) < BEST_OF:
        assert message.loss_best is None
    else:
        assert message.loss_best is not None
        assert min(finite) <= message.loss_best <= max(finite) or math.isclose(
            message.loss_best, finite[0], rel_tol=1e-9, abs_tol=1e-300
        )


def test_a_client_and_a_daemon_of_another_age_understand_each_other(path: str) -> None:
    source = listening(OneGpu(os.getpid()), path)
    before_losses_were_told = {"v": VERSION, "loss_finite": True, "nonfinite_losses": 0}
    send(path, json.dumps(before_losses_were_told).encode())
    found = wait_for(source, ACCEPTED, 1)
    assert found["gpunode_training_loss_finite"] == 1
    assert "gpunode_training_loss" not in found
    of_a_later_client = {"v": VERSION, "loss": 2.5, "perplexity": {"of": [12.2]}}
    send(path, json.dumps(of_a_later_client).encode())
    assert wait_for(source, ACCEPTED, 2)["gpunode_training_loss"] == 2.5


def test_the_baseline_is_the_best_pace_that_a_process_has_kept(path: str) -> None:
    source = listening(OneGpu(os.getpid()), path)

    def tell(steps: int, median: float) -> dict[str, float]:
        before = values(source)[ACCEPTED]
        counted = {"counts": [steps], "sum": steps * median}
        send(path, json.dumps({"v": VERSION, "steps": counted, "median": median}).encode())
        return wait_for(source, ACCEPTED, before + 1)

    baseline = "gpunode_training_step_baseline_seconds"
    assert baseline not in tell(20, 0.1), "too few to tell"
    assert tell(44, 1.0)[baseline] == 1.0
    assert tell(10, 0.9)[baseline] == 0.9
    found = tell(10, 3.0)
    assert found[baseline] == 0.9
    assert found["gpunode_training_step_median_seconds"] == 3.0


def test_what_two_processes_on_a_gpu_count_is_counted_once(path: str) -> None:
    memory = {"reserved": 5, "allocated": 4, "retries": 2, "ooms": 1}
    text = json.dumps({"v": VERSION, "memory": memory})

    class TwoSenders(OneGpu):
        def datagrams(self, *_: object) -> list[Datagram]:
            return [Datagram(pid, text, start_of(pid)) for pid in self.pids]

    source = TrainingSteps(Census(TwoSenders(os.getpid(), 1)), settings(path))
    for _ in range(5):
        found = values(source)
    assert found["gpunode_torch_ooms_total"] == 2
    assert found["gpunode_torch_alloc_retries_total"] == 4


def test_two_processes_on_a_gpu_each_have_their_own_pace(path: str) -> None:
    def step(median: float) -> str:
        steps = {"counts": [5], "sum": 5 * median}
        return json.dumps({"v": VERSION, "steps": steps, "median": median, "phase": "step"})

    class TwoSenders(OneGpu):
        def datagrams(self, *_: object) -> list[Datagram]:
            return [
                Datagram(pid, step(median), start_of(pid))
                for pid, median in ((1, 0.1), (os.getpid(), 0.9))
            ]

    source = TrainingSteps(Census(TwoSenders(os.getpid(), 1)), settings(path))
    for _ in range(20):
        found = values(source)
    assert found["gpunode_training_step_median_seconds"] == 0.9
    assert found["gpunode_training_step_baseline_seconds"] == 0.9


def test_what_a_process_counted_outlives_it_for_a_while(path: str) -> None:
    node = OneGpu(os.getpid())
    source = listening(node, path)
    memory = {"reserved": 5, "allocated": 4, "retries": 0, "ooms": 0}
    told = {"v": VERSION, "steps": {"counts": [3], "sum": 3.0}, "median": 1.0, "memory": memory}
    send(path, json.dumps(told).encode())
    assert "gpunode_torch_memory_reserved_bytes" in wait_for(source, ACCEPTED, 1)
    node.pids = ()
    send(path, json.dumps({**told, "memory": {**memory, "ooms": 1}}).encode())
    found = wait_for(source, ACCEPTED, 2)
    assert found["gpunode_torch_ooms_total"] == 1
    node.stepped.now += 60
    found = values(source)
    assert found["gpunode_torch_ooms_total"] == 1
    assert found["gpunode_training_step_seconds_count"] == 6
    assert "gpunode_torch_memory_reserved_bytes" not in found
    assert "gpunode_training_step_median_seconds" not in found
    node.stepped.now += 600
    assert "gpunode_torch_ooms_total" not in values(source)


def test_graphs_that_are_compiled_again_are_counted(path: str) -> None:
    source = listening(OneGpu(os.getpid()), path)
    told = {"v": VERSION, "steps": {"counts": [3], "sum": 3.0}}
    send(path, json.dumps({**told, "graphs": None}).encode())
    assert "gpunode_torch_compiled_graphs_total" not in wait_for(source, ACCEPTED, 1)
    send(path, json.dumps({**told, "graphs": 2}).encode())
    send(path, json.dumps({**told, "graphs": 5}).encode())
    assert wait_for(source, ACCEPTED, 3)["gpunode_torch_compiled_graphs_total"] == 5


def test_the_client_tells_how_many_graphs_torch_has_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compiled_graphs() is None
    counters: dict[str, Counter[str]] = defaultdict(Counter)
    utils = SimpleNamespace(counters=counters)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utils)
    assert compiled_graphs() is None
    assert not counters  # it is only looked at
    counters["stats"]["unique_graphs"] += 3
    assert compiled_graphs() == 3


def test_every_second_of_a_process_goes_to_one_phase() -> None:
    account = Account()
    for time_, phase in ((0.0, "data"), (1.0, "step"), (4.0, "checkpoint"), (9.0, "other")):
        account.add(time_, phase, 0, 0, 0)
    account.pass_time(10.0)
    assert account.phases == {
        "data": 1.0,
        "step": 3.0,
        "checkpoint": 5.0,
        "other": 1.0,
        "evaluation": 0,
        "compile": 0,
    }


def test_a_checkpoint_is_no_part_of_the_step_around_it() -> None:
    account = Account()
    account.add(0.0, "step", 1, 0, 0)
    account.add(1.0, "checkpoint", 0, 0, 0)
    account.add(61.0, "data", 0, 0, 0)
    account.add(62.0, "step", 1, 0, 0)
    assert account.steps.sum == 2.0


def test_an_iteration_without_a_call_of_step_is_a_step() -> None:
    session = Session()
    seen = list(session.watch(iter("abcd")))
    assert seen == list("abcd")
    assert sum(event.steps for event in session._events) == 4


def test_a_watched_loader_is_what_it_was() -> None:
    watched = Session().watch([1, 2, 3])
    assert len(watched) == 3
    assert watched.index(2) == 1


def test_a_tensor_on_a_gpu_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    class Tensor:
        is_cuda = True

        def __float__(self) -> float:
            raise AssertionError("training would wait")

    session = Session()
    session.step(tokens=Tensor(), loss=Tensor())  # type: ignore[arg-type]
    assert b'"tokens":0.0' in session._drain().message()
    assert "loss is on a GPU and is left out; pass loss.item()" in caplog.text


@pytest.mark.parametrize("loss", [10**400, "0.5", None, object()])
def test_a_loss_that_is_no_number_is_left_out_with_a_warning(
    loss: Any, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session()
    session.loss(loss)
    session.loss(loss)
    assert not session._drain().nonfinite_losses
    assert caplog.text.count(f"loss is a {type(loss).__name__}, no number") == 1


def test_a_loss_that_refuses_to_be_a_number_is_ignored() -> None:
    class Pair:
        """Like a tensor of two elements."""

        def __float__(self) -> float:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    Session().loss(Pair())  # type: ignore[arg-type]


def test_a_process_that_falls_silent_has_no_mfu(path: str) -> None:
    node = OneGpu(os.getpid())
    source = listening(node, path)
    message = {"v": 1, "flops": 989e12 * 2.0, "tokens": 1, "phases": {"step": 5.0}}
    send(path, json.dumps(message).encode())
    assert "gpunode_training_mfu_ratio" in wait_for(source, ACCEPTED, 1)
    node.stepped.now += 11
    assert "gpunode_training_mfu_ratio" not in values(source)


@pytest.mark.parametrize("pause", [5.0, 30.0], ids=["steady", "after a pause"])
def test_mfu_is_the_share_of_the_peak(path: str, pause: float) -> None:
    """However late messages arrive: each has the FLOPs of the time that it accounts for."""
    node = OneGpu(os.getpid())
    source = listening(node, path)
    message = json.dumps({"v": 1, "flops": 989e12 * 2.0, "tokens": 1, "phases": {"step": 5.0}})
    for count in range(1, 12):
        node.stepped.now += pause if count == 6 else 4.0 + count % 3
        send(path, message.encode())
        found = wait_for(source, ACCEPTED, count)
    assert found["gpunode_training_mfu_ratio"] == pytest.approx(0.4)


def test_processes_that_share_a_gpu_add_up_to_its_mfu(path: str) -> None:
    text = json.dumps({"v": 1, "flops": 989e12, "tokens": 1, "phases": {"step": 5.0}})

    class TwoSenders(OneGpu):
        def datagrams(self, *_: object) -> list[Datagram]:
            return [Datagram(pid, text, start_of(pid)) for pid in self.pids]

    source = TrainingSteps(Census(TwoSenders(os.getpid(), 1)), settings(path))
    assert values(source)["gpunode_training_mfu_ratio"] == pytest.approx(0.4)


def test_the_last_step_stays_where_it_was_while_nothing_is_told(path: str) -> None:
    last_step = "gpunode_training_last_step_timestamp_seconds"
    node = OneGpu(os.getpid())
    source = listening(node, path)
    send(path, b'{"v":1,"since_step":3.0,"phase":"step"}')
    wait_for(source, ACCEPTED, 1)
    node.stepped.now += 40
    assert values(source)[last_step] == -3.0
    send(path, b'{"v":1,"since_step":41.0,"phase":"step"}')
    assert wait_for(source, ACCEPTED, 2)[last_step] == -3.0, "a message that came late"
    send(path, b'{"v":1,"since_step":1.0,"steps":{"counts":[1]},"phase":"step"}')
    assert wait_for(source, ACCEPTED, 3)[last_step] == 39.0
    send(path, b'{"v":1,"since_step":3.0,"phase":"evaluation"}')
    assert last_step not in wait_for(source, ACCEPTED, 4)


def test_a_gpu_that_is_lost_takes_no_other_trainings_with_it(path: str) -> None:
    class Lost(MachineGpu):
        def processes(self) -> list[Process]:
            raise DriverError("nvmlDeviceGetComputeRunningProcesses_v3: GPU is lost")

    class TwoGpus(OneGpu):
        def gpus(self) -> list[Gpu]:
            return [Lost(1, "GPU-bb", "1"), *super().gpus()]

    source = listening(TwoGpus(os.getpid()), path)
    send(path, b'{"v":1,"tokens":5}')
    assert "gpunode_training_tokens_total" in wait_for(source, ACCEPTED, 1)


def test_a_process_without_a_gpu_is_not_believed(path: str) -> None:
    source = listening(OneGpu(1), path)
    send(path, b'{"v":1,"tokens":5,"pid":1}')
    found = wait_for(source, 'gpunode_client_messages_total{result="no_gpu"}', 1)
    assert "gpunode_training_tokens_total" not in found


MALFORMED = (
    b"",
    b"\xff\xfe",
    b"[1]",
    b'{"v":2}',
    b'{"v":1,"tokens":-1}',
    b'{"v":1,"tokens":NaN}',
    b'{"v":1,"loss":NaN}',
    b'{"v":1,"loss":1e999}',
    b'{"v":1,"loss_best":-Infinity}',
    b'{"v":1,"loss":"low"}',
    b'{"v":1,"phase":"lunch"}',
    b'{"v":1,"step":-1}',
    b'{"v":1,"step":1e300}',
    b'{"v":1,"collected":-1}',
    b'{"v":1,"collected":1e300}',
    b'{"v":1,"collecting":NaN}',
    b'{"v":1,"collecting":null}',
    b'{"v":1,"phases":{"lunch":3}}',
    b'{"v":1,"phases":{"step":1e99}}',
    b'{"v":1,"steps":{"counts":[' + b"1," * 40 + b"1]}}",
    b'{"v":1,"kernels":{' + b",".join(b'"k%d":1' % n for n in range(30)) + b"}}",
    b'{"v":1,"memory":{"reserved":-5}}',
    b'{"v":1,"kernels":{"\\ud800":1}}',  # is not UTF-8, as an exposition must be
    b"[" * 8000,
    b'{"v":1,' + b" " * 20_000 + b"}",
)


def test_a_malformed_message_is_counted_and_ignored(path: str) -> None:
    source = listening(OneGpu(os.getpid()), path)
    for count, message in enumerate(MALFORMED, 1):
        send(path, message)
        found = wait_for(source, 'gpunode_client_messages_total{result="malformed"}', count)
        assert not any(name.startswith("gpunode_training") for name in found), message


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("v", "step", "steps", "phases", "memory", "kernels", "tokens"),
                *("loss", "loss_best", "collected", "collecting"),
            ]
        ),
        st.integers() | st.text() | st.dictionaries(st.text(), st.floats()),
    )
)
def test_a_message_may_hold_anything(fields: dict[str, object]) -> None:
    with contextlib.suppress(ValueError):
        parse(json.dumps({"v": 1, **fields}))


def test_the_socket_of_a_live_daemon_is_not_taken(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        with pytest.raises(
            Absent, match=r"Address already in use; training metrics are not available"
        ):
            listening(OneGpu(), path)


def test_the_socket_of_a_dead_daemon_is_taken(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(path)
    listening(OneGpu(), path)


def test_a_daemon_that_may_not_listen_says_so() -> None:
    with pytest.raises(Absent, match=r"cannot listen at /proc/nowhere/client.sock"):
        listening(OneGpu(), "/proc/nowhere/client.sock")


def test_without_a_daemon_nothing_happens(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", path)
    session = Session()
    for _ in session.watch(range(10)):
        session.step()
    session.flush()
    assert session._drain().steps.sum == 0.0


def test_a_forked_child_tells_nothing() -> None:
    program = textwrap.dedent("""
        import gc, os
        from gpunode.client import Session
        session = Session()
        session.step()
        child = os.fork()
        if child == 0:
            garbage = (session._garbage is not None) + len(gc.callbacks)
            os._exit(len(session._events) + (session._sender is not None) + garbage)
        raise SystemExit(os.waitpid(child, 0)[1])
    """)
    # A process of tests has threads of others: a fork of it may wait for locks that they hold.
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT)


def test_nothing_is_raised_into_training(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", path)
    monkeypatch.setattr("gpunode.client.sender.torch_memory", fail)
    session = Session()
    session.profile(every=2)  # without torch
    for _ in session.watch(range(10)):
        session.step(loss="not a number")  # type: ignore[arg-type]
    session.flush()


class Profile:
    """A profile of torch.profiler."""

    started = 0

    def __init__(self, **_: object) -> None:
        pass

    def start(self) -> None:
        Profile.started += 1

    def stop(self) -> None:
        pass

    def key_averages(self) -> list[object]:
        return []


@pytest.mark.parametrize(("after", "profiles"), [(0.0466, 1), (0.0362, 4)])
def test_a_job_that_a_profile_leaves_slower_is_profiled_once(
    after: float, profiles: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch = ModuleType("torch")
    torch.profiler = SimpleNamespace(profile=Profile)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(Profile, "started", 0)
    now = 0.0
    monkeypatch.setattr(profiler, "perf_counter", lambda: now)
    step = profiler.StepProfiler(100, lambda _: None)
    for number in range(450):
        varies = 0.0001 * (number % 7)
        now += varies + (0.9 if Profile.started and number % 100 == 0 else 0.0)
        now += after if Profile.started else 0.0359
        step()
    assert Profile.started == profiles
    said = "a step takes 46.9 ms since the first profile, and took 36.2 ms before it"
    assert (said in caplog.text) == (profiles == 1)


STUCK = """
import threading, time, types
from gpunode import client
client.step()
client._session._sender._socket = types.SimpleNamespace(sendto=lambda *_: threading.Event().wait())
time.sleep(1.5)
"""


def test_a_process_ends_although_its_sender_never_comes_back() -> None:
    """As from a socket whose folder is on a dead mount."""
    subprocess.run([sys.executable, "-c", STUCK], timeout=20, check=True)


def test_importing_the_client_takes_the_standard_library_alone() -> None:
    code = "import sys; from gpunode import client; print([m for m in sys.modules if '.' not in m])"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, 'exporter'); {code}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {name for name in eval(ran.stdout) if not name.startswith("_")}
    assert loaded - set(sys.stdlib_module_names) <= {"gpunode"}


@pytest.mark.parametrize(
    ("option", "status", "said"),
    [("--version", 0, f"gpunode {__version__}\n"), ("run", 2, "gpunode: run: ")],
)
def test_without_its_libraries_the_command_says_what_to_install(
    option: str, status: int, said: str
) -> None:
    code = f"import sys; sys.path.insert(0, 'exporter'); sys.argv = ['gpunode', {option!r}]"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{code}; from gpunode.__main__ import main; main()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == status
    told = ran.stdout + ran.stderr
    assert told.startswith(said)
    assert "pip install 'gpunode[exporter]'" in told


# Real PyTorch, in the Python that has it.


@pytest.fixture
def torch_python() -> str:
    return need_library("torch")


@contextlib.contextmanager
def training(python: str, path: str, steps: int, pause: float) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "exporter"),
        "GPUNODE_CLIENT_SOCKET": path,
    }
    with subprocess.Popen(
        [python, "-W", "ignore", str(ROOT / "tests/client/trainer.py"), str(steps), str(pause)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def watching(fake: FakeDriver, path: str) -> AbstractContextManager[Daemon]:
    """A daemon with one GPU that listens at a path."""
    fake.write("gpus 1\n")
    return conftest.watching(fake, f"--client.socket={path}", "--client.interval=1")


def total(series: Series, name: str, **labels: str) -> float:
    return sum(conftest.values(series, name, **labels))


def complete(series: Series) -> Series | None:
    """The series, once they hold what the trainer tells last."""
    return series if total(series, "gpunode_serving_inputs_total") >= 4 else None


@pytest.mark.integration
def test_pytorch_tells_a_daemon_how_its_training_goes(
    torch_python: str, path: str, fake: FakeDriver
) -> None:
    with (
        watching(fake, path) as running,
        training(torch_python, path, 30, 0.05) as process,
    ):
        fake.write(f"gpus 1\ngpu 0 process {process.pid} 1000000\n")
        out, err = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, err
        found = conftest.until(lambda: complete(conftest.scrape(running)))
    assert float(out) > 0
    assert total(found, "gpunode_training_tokens_total") == 30 * 8 * 64
    assert total(found, "gpunode_training_step_seconds_count") == 30
    median = total(found, "gpunode_training_step_median_seconds")
    assert 0.05 <= median <= total(found, "gpunode_training_step_seconds_sum")
    assert total(found, "gpunode_training_seconds_total", phase="checkpoint") >= 0.2
    assert total(found, "gpunode_training_kernel_seconds") > 0
    assert total(found, "gpunode_training_loss_finite") == 1


@pytest.mark.integration
def test_training_goes_on_when_the_daemon_is_killed(
    torch_python: str, path: str, fake: FakeDriver
) -> None:
    with training(torch_python, path, 20, 0.1) as process:
        with contextlib.suppress(RuntimeError), watching(fake, path) as running:
            fake.write(f"gpus 1\ngpu 0 process {process.pid} 1000000\n")
            running.process.send_signal(signal.SIGKILL)
        out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    assert err.startswith("gpunode: ")
    assert err.count("\n") == 1, "the status alone"
    with training(torch_python, path, 20, 0.0) as alone:
        assert alone.communicate(timeout=TIMEOUT)[0] == out


FLOOD = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.setblocking(False)
sent = dropped = 0
end = time.monotonic() + 0.5
while time.monotonic() < end:
    try: s.sendto(b'{"v":1,"tokens":1}', sys.argv[1]); sent += 1
    except BlockingIOError: dropped += 1
print(sent, dropped)
"""


@pytest.mark.attack
def test_a_flood_is_absorbed_or_dropped_without_harm(path: str) -> None:
    """10,000 datagrams a second and more: the sender drops what is too much, the daemon lives."""
    source = listening(OneGpu(os.getpid()), path)
    ran = subprocess.run(
        [sys.executable, "-c", FLOOD, path], capture_output=True, text=True, check=True
    )
    sent, dropped = map(int, ran.stdout.split())
    assert sent + dropped >= 5_000
    assert sent < 10_000
    found = values(source)
    taken = sum(v for name, v in found.items() if name.startswith("gpunode_client_messages"))
    assert taken <= 2048
    send_and_wait = wait_for_own(source, path)
    assert send_and_wait["gpunode_training_tokens_total"] >= 7


def wait_for_own(source: TrainingSteps, path: str) -> dict[str, float]:
    deadline = time.monotonic() + TIMEOUT
    while True:
        with (
            contextlib.suppress(BlockingIOError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client,
        ):
            client.setblocking(False)
            client.sendto(b'{"v":1,"tokens":7}', path)
        found = values(source)
        if found.get(ACCEPTED, 0) >= 1:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_status_says_whether_a_daemon_takes_what_is_reported(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", path)
    session = Session()
    assert session.status() == "gpunode: nothing has been sent yet"
    session.step()
    session.flush()
    missing_daemon = f"gpunode: no daemon at {path}: No such file or directory"
    assert session.status() == missing_daemon
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        session.step()
        session.flush()
        counts = "which counts once this process has a GPU"
        assert session.status() == f"gpunode: reporting to {path}, {counts}"
    assert capsys.readouterr().err.splitlines() == [missing_daemon], "once"


def test_only_rank_0_writes_the_status(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUNODE_CLIENT_SOCKET", path)
    monkeypatch.setenv("RANK", "3")
    session = Session()
    session.step()
    session.flush()
    assert "no daemon" in session.status()
    assert capsys.readouterr().err == ""


def test_the_status_names_the_only_gpu_that_the_process_has_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = {"3": "/dev/nvidia3", "4": "/dev/nvidiactl", "5": "/dev/nvidia-uvm", "6": "/x/4"}
    monkeypatch.setattr(os, "listdir", lambda _: [*opened, "9"])
    monkeypatch.setattr(os, "readlink", lambda link: opened[link.rpartition("/")[2]])
    opened["9"] = "/dev/nvidia3"
    assert gpus_of_this_process() == {"3"}
    opened["9"] = "/dev/nvidia4"
    assert gpus_of_this_process() == {"3", "4"}


@pytest.mark.parametrize("what", [None, 3, object()])
def test_what_is_no_optimizer_is_followed_without_raising(
    what: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert Session().follow(what) is what
    assert "no optimizer" in caplog.text


class Tensor:
    """Of a shape, as PyTorch's."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def numel(self) -> int:
        return math.prod(self.shape)


@pytest.mark.parametrize(
    ("batch", "tokens", "samples"),
    [
        ({"input_ids": Tensor(8, 512), "labels": Tensor(8, 512)}, 4096, 8),
        ((Tensor(32, 3, 224, 224), Tensor(32)), 0, 32),
        (Tensor(16, 10), 0, 16),
        (["a", "text"], 0, 0),
        (None, 0, 0),
    ],
)
def test_lightning_reports_loss_tokens_and_samples_and_data_is_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, batch: object, tokens: int, samples: int
) -> None:
    callbacks = SimpleNamespace(Callback=object)
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "lightning.pytorch.callbacks", callbacks)
    monkeypatch.delitem(sys.modules, "gpunode.client.lightning", raising=False)
    from gpunode.client.lightning import GpunodeCallback

    session = Session()
    saved: list[str] = []
    trainer = SimpleNamespace(save_checkpoint=saved.append, log_every_n_steps=50, global_step=1)
    callback = GpunodeCallback(session)
    callback.on_fit_start(trainer)
    callback.on_train_start(trainer)
    callback.on_train_batch_start(trainer)
    callback.on_train_batch_end(trainer, None, {"loss": 1.5}, batch, 0)
    trainer.save_checkpoint("last.ckpt")
    assert saved == ["last.ckpt"]
    assert session._phase == "data", "not the checkpoint, while the next batch is waited for"
    account = session._drain()
    assert (account.tokens, account.samples, account.last_loss) == (tokens, samples, 1.5)


def test_no_process_trains_for_longer_than_time_has_passed(path: str) -> None:
    """A process that holds a GPU says what it likes; its sums stay within wall-clock time."""
    node = OneGpu(os.getpid())
    source = listening(node, path)
    told = {"v": VERSION, "phases": {"step": 1e6}, "steps": {"counts": [1], "sum": 1e6}}
    message = json.dumps({**told, "tokens": 1e12}).encode()
    begin = node.stepped.now
    for sent in range(1, 6):
        send(path, *[message] * 8)
        found = wait_for(source, ACCEPTED, 8 * sent)
        passed = node.stepped.now - begin + BACKLOG
        assert found['gpunode_training_seconds_total{phase="step"}'] == pytest.approx(passed)
        assert found["gpunode_training_step_seconds_sum"] == pytest.approx(passed)
        assert found["gpunode_training_tokens_total"] == pytest.approx(passed * 1e6)
        node.stepped.now += 1.0


def test_what_cannot_be_true_is_counted(path: str) -> None:
    source = listening(OneGpu(os.getpid()), path)
    send(path, b'{"v": %d, "phases": {"step": 16.0}}' % VERSION)
    cut: list[Unread] = []

    def told_of() -> bool:
        cut.extend(source.read().unread)
        return bool(cut)

    until(told_of)
    assert [(one.kind.what, one.times) for one in cut] == [("training_seconds", 1)]
    assert {one.kind for one in cut} <= set(source.unknowns)


class NoNumber:
    """What is given by mistake; whatever is done with it fails."""

    def __float__(self) -> float:
        raise RuntimeError("CUDA error")

    __int__ = __index__ = __bool__ = __len__ = __float__


ANYTHING: st.SearchStrategy[object] = st.sampled_from(
    [None, "x", math.nan, [], -1, 0, 3, NoNumber()]
)
NAMES = st.sampled_from(
    ["tokens", "smaples", "name", "loader", "optimizer", "every", "self", "session"]
)


@pytest.mark.parametrize("given", [None, "x", math.nan, [], -1, 0, NoNumber()])
def test_no_call_raises(given: Any, caplog: pytest.LogCaptureFixture) -> None:
    session: Any = Session()
    session.configure(flops_per_token=given, flops=given)
    session.configure(given)
    session.step(given, given, given)
    session.step(tokens=given, smaples=given)
    session.step(tokens=3, smaples=given)
    session.mark(given)
    session.loss(given)
    session.request(given, given)
    session.request(second=1.0)
    session.follow(given)
    with session.phase(given):
        pass
    session.profile(given, evry=3)
    session.step()
    account = session._drain()
    account.message()
    assert account.tokens >= 2
    session.flush()
    session.status()
    told = [message for message in caplog.messages if "has no place" in message]
    assert [one.split("'")[1] for one in told] == ["flops", "smaples", "second", "evry"]
    counted = given is None or (isinstance(given, int) and given >= 0)
    wrong = {one for one in caplog.messages if "counts as 0" in one}
    assert len(wrong) == (0 if counted else 6), "each once"
    assert any("none of step, data, checkpoint" in one for one in caplog.messages)


CALLS = [name for name in client.__all__ if not isinstance(getattr(client, name), type)]


@hypothesis.settings(max_examples=30)
@given(st.lists(ANYTHING, max_size=5), st.dictionaries(NAMES, ANYTHING, max_size=3))
def test_no_call_raises_whatever_its_arguments_are_called(
    arguments: list[object], named: dict[str, object]
) -> None:
    session = Session()
    session._started = True
    for call in CALLS:
        getattr(session, call)(*arguments, **named)


def test_what_training_needs_back_is_taken_under_another_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session: Any = Session()
    optimizer = SimpleNamespace(step=lambda: 7)
    assert list(session.watch(loadr=[1, 2])) == [1, 2]
    assert session.follow(model=optimizer) is optimizer
    session.step(5, tokens=3)
    assert session._drain().tokens == 5
    assert caplog.messages == [
        "gpunode.client.watch has no place for 'loadr'",
        "gpunode.client.follow has no place for 'model'",
        "gpunode.client.step has no place for 'tokens'",
    ]


@pytest.mark.parametrize(
    ("option", "counts"), [(True, True), ("all", True), (False, False), ("no", False)]
)
def test_hugging_face_says_which_option_fills_the_tokens(
    option: bool | str,
    counts: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))
    monkeypatch.delitem(sys.modules, "gpunode.client.hugging_face", raising=False)
    from gpunode.client.hugging_face import GpunodeCallback

    session = Session()
    callback = GpunodeCallback(session)
    arguments = SimpleNamespace(
        include_num_input_tokens_seen=option,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        world_size=8,
    )
    before = 70_000 if counts else 0
    callback.on_train_begin(arguments, SimpleNamespace(num_input_tokens_seen=before), None)
    state = SimpleNamespace(num_input_tokens_seen=before + (8 * 512 if counts else 0))
    control = SimpleNamespace(should_evaluate=False, should_save=False)
    callback.on_step_end(arguments, state, control)
    account = session._drain()
    assert (account.tokens, account.samples) == (512 if counts else 0, 8)
    assert ("include_num_input_tokens_seen=True" in caplog.text) == (not counts)


def test_who_reports_no_step_for_a_while_tells_where_its_main_thread_stands() -> None:
    account = Account()
    account.add(100.0, "step", 1, 0.0, 0.0)
    account.pass_time(104.0)
    assert "where" not in json.loads(account.message())
    account.pass_time(106.0)
    frames = json.loads(account.message())["where"]
    assert len(frames) <= FRAMES
    functions = [function.rpartition(".")[2] for function, _, _ in frames]
    assert functions[1:4] == [where.__name__, "message", sys._getframe().f_code.co_name]
    assert frames[3][1].endswith("tests/client/test_client.py")
    account.add(107.0, "step", 1, 0.0, 0.0)
    assert "where" not in json.loads(account.message())


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python collects no garbage meanwhile")
def test_no_garbage_is_collected_while_frames_are_listed() -> None:
    """A finalizer would run with a lock of the interpreter held, and could hang the job."""
    within: list[str] = []

    def collects(_: str, __: object) -> None:
        frame = sys._getframe().f_back
        within.append(frame.f_code.co_name if frame else "")

    threshold = gc.get_threshold()
    gc.callbacks.append(collects)
    try:
        gc.set_threshold(1)
        for _ in range(50):
            where()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collects)
    assert within
    assert "_main_frame" not in within


@pytest.mark.parametrize("collects", [False, True])
def test_garbage_is_collected_as_before_once_it_was_told_where_a_process_stands(
    collects: bool,
) -> None:
    try:
        (gc.enable if collects else gc.disable)()
        assert where()
        assert gc.isenabled() is collects
    finally:
        gc.enable()


def test_where_a_process_stands_by_its_own_word_is_kept_while_it_reports(path: str) -> None:
    source = listening(OneGpu(os.getpid()), path)
    frames = [["step", "/home/a/train.py\n\x1b[31m", 88], ["<module>", "/home/a/train.py", 99]]
    send(path, json.dumps({"v": VERSION, "where": frames}).encode())
    wait_for(source, ACCEPTED, 1)
    (one,) = said_by_clients(source)
    assert one.pid == os.getpid()
    assert [(frame.function, frame.line) for frame in one.frames] == [
        ("step", 88),
        ("<module>", 99),
    ]
    assert one.frames[0].file.isprintable()
    send(path, json.dumps({"v": VERSION}).encode())
    wait_for(source, ACCEPTED, 2)
    assert said_by_clients(source)[0].frames == ()
    send(path, json.dumps({"v": VERSION, "where": [["f", "a.py", 1]] * 99}).encode())
    wait_for(source, 'gpunode_client_messages_total{result="malformed"}', 1)


def test_phase_and_step_are_told_and_for_how_long_nothing_was(path: str) -> None:
    node = OneGpu(os.getpid())
    source = listening(node, path)
    told = {"v": VERSION, "where": [["f", "a.py", 1]], "phase": "checkpoint", "step": 1042}
    send(path, json.dumps(told).encode())
    wait_for(source, ACCEPTED, 1)
    (one,) = said_by_clients(source)
    assert one.frames
    assert one.progress == Progress("checkpoint", 1042, 0.0, 0.0)
    node.stepped.now += 14.0
    (one,) = said_by_clients(source)
    assert one.frames == (), "where it stood 14 s ago"
    assert one.progress == Progress("checkpoint", 1042, 0.0, 14.0)
    send(path, json.dumps({"v": VERSION, "phase": "data"}).encode())
    wait_for(source, ACCEPTED, 2)
    assert said_by_clients(source)[0].progress.step is None, "an older client"


def test_the_first_step_counts_too() -> None:
    account = Account()
    assert json.loads(account.message())["step"] == 0
    for end in (1.0, 2.0, 3.0):
        account.add(end, "step", 1, 0.0, 0.0)
    account.add(4.0, "checkpoint", 0, 0.0, 0.0)
    account.clear()
    told = json.loads(account.message())
    assert (told["phase"], told["step"]) == ("checkpoint", 3)


GARBAGE = "gpunode_training_garbage_collection_seconds_total"

COLLECTS = """
import ctypes, gc, time
from gpunode import client
class Buffer:
    def __init__(self):
        self.itself = self
    def __del__(self):
        {finalizer}
client.step()
gc.disable()
time.sleep({before})
Buffer()
gc.collect()
time.sleep(1000)
"""


@contextlib.contextmanager
def collecting(path: str, finalizer: str, before: float = 0.0) -> Iterator[TrainingSteps]:
    """A daemon that hears of a process on its GPU, which collects garbage with a finalizer."""
    node = OneGpu()
    source = listening(node, path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter")}
    environment["GPUNODE_CLIENT_SOCKET"] = path
    program = COLLECTS.format(finalizer=finalizer, before=before)
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as process:
        node.pids = (process.pid,)
        try:
            yield source
        finally:
            process.kill()


def test_a_finalizer_that_hangs_is_told_while_it_does(path: str) -> None:
    with collecting(path, "time.sleep(1000)") as source:
        wait_for(source, GARBAGE, 1.0)
        (one,) = said_by_clients(source)
    assert one.progress.collecting >= 1.0


def test_a_collection_that_keeps_the_lock_of_python_is_told_once_it_has_ended(path: str) -> None:
    with collecting(path, "ctypes.PyDLL(None).usleep(300_000)", before=1.5) as source:
        assert GARBAGE in wait_for(source, ACCEPTED, 1), "0, before the first"
        assert wait_for(source, GARBAGE, 0.3)[GARBAGE] < TIMEOUT
        (one,) = said_by_clients(source)
    assert one.progress.collecting == 0.0


INTERRUPTED = """
import _thread, gc, sys
from gpunode import client
class Buffer:
    __del__ = staticmethod(_thread.interrupt_main)  # in C, which handles no signal
    def __init__(self):
        self.itself = self
client.step()
gc.disable()
Buffer()
try:
    gc.collect()
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    sys.exit(0)
sys.exit("the interrupt is lost")
"""


def test_a_signal_that_comes_during_a_collection_is_not_lost() -> None:
    """What a handler raises in a callback of ``gc`` in Python never reaches the program."""
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "PYTHONPATH": str(ROOT / "exporter")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Exception ignored" not in ran.stderr


def test_collections_are_noted_until_somebody_takes_the_callback_away() -> None:
    noted = Garbage()
    try:
        gc.collect()
        before = noted.look()
        assert before is not None
        gc.collect()
        after = noted.look()
        assert after is not None
        assert after[0] > before[0] > 0.0
        assert after[1] == 0.0
    finally:
        noted.forget()
    assert noted.look() is None
    noted.forget()


def test_a_collection_that_was_under_way_is_noted_from_then_on() -> None:
    """As when a finalizer lets a thread run that reports its first step."""
    noted: list[Garbage] = []

    def begins(phase: str, _: object) -> None:
        if phase == "start" and not noted:
            noted.append(Garbage())
            gc.callbacks.remove(noted[0]._note)

    gc.callbacks.append(begins)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(begins)
    (one,) = noted
    one._note("stop", {})
    gc.callbacks.append(one._note)
    try:
        found = one.look()
        assert found is not None
        assert found[0] > 0.0
        gc.collect()
        after = one.look()
        assert after is not None
        assert after[0] > found[0]
        assert after[1] == 0.0
    finally:
        one.forget()


def test_what_was_collected_is_told_once_and_nothing_where_nobody_notes_it() -> None:
    account = Account()
    assert json.loads(account.message())["collected"] is None
    account.collect(3.0, 2.0)
    account.collect(2.5, 0.0)  # the clock was read twice around the end of one
    account.collect(3.5, 0.25)
    told = json.loads(account.message())
    assert (told["collected"], told["collecting"]) == (3.5, 0.25)
    account.clear()
    told = json.loads(account.message())
    assert (told["collected"], told["collecting"]) == (None, 0.0)


def test_no_process_collects_for_longer_than_time_has_passed(path: str) -> None:
    node = OneGpu(os.getpid())
    source = listening(node, path)
    send(path, json.dumps({"v": VERSION}).encode())
    assert GARBAGE not in wait_for(source, ACCEPTED, 1), "an older client"
    send(path, *[json.dumps({"v": VERSION, "collected": 1e6, "collecting": 1e6}).encode()] * 3)
    assert wait_for(source, ACCEPTED, 4)[GARBAGE] == pytest.approx(BACKLOG)


def said_by_clients(source: TrainingSteps) -> tuple[ReportedPosition, ...]:
    detail = source.read().detail
    assert isinstance(detail, ClientReports)
    return detail.processes
