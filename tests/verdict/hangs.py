"""Programs that hang, each in another way; a comment ``# here`` marks the line where.

A path in ``FILES`` stands for a module of a library, so that the frames of one that is not
installed are seen.
"""

from __future__ import annotations

from dataclasses import dataclass

HERE = "# here"


@dataclass(frozen=True, slots=True)
class Hang:
    """A program, the function in which it hangs, and the reason that is told of it."""

    name: str
    function: str
    reason: str
    """A name of ``reasons.REASONS``; empty if the frames and the kernel tell none."""

    says: str
    """Words of the sentence."""

    program: str
    signal: int = 0
    """A signal that it is sent once it runs."""

    own_pid_namespace: bool = False
    before: tuple[int, int] = (4, 0)
    """The first version of Python that lacks what it uses."""


FILES = {
    "torch/__init__.py": "",
    "torch/utils/__init__.py": "",
    "torch/utils/data/__init__.py": "",
    "torch/utils/data/dataloader.py": "def _try_get_data(queue):\n    return queue.get()\n",
    "torch/distributed/__init__.py": "",
    "torch/distributed/distributed_c10d.py": "def all_reduce(wait):\n    wait()\n",
    "torch/serialization.py": "def save(data, file):\n    file.write(data)\n",
}

LOCK = """
import threading
lock = threading.Lock()
def step():
    lock.acquire()
    lock.acquire()  # here
step()
"""
CONDITION = """
import threading
class Buffer:
    def __init__(self):
        self.ready = threading.Condition()
    def take(self):
        with self.ready:
            self.ready.wait()  # here
Buffer().take()
"""
QUEUE = """
import queue, threading, time
shards = queue.Queue()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
def read_shard():
    return shards.get()  # here
read_shard()
"""
JOIN = """
import threading, time
worker = threading.Thread(target=lambda: time.sleep(1000), daemon=True)
worker.start()
def finish():
    worker.join()  # here
finish()
"""
RECEIVE = """
import socket
ours, theirs = socket.socketpair()
def rendezvous():
    return ours.recv(1)  # here
rendezvous()
"""
TCP = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
def accept():
    return listener.accept()  # here
accept()
"""
FIFO = """
import os, tempfile
path = tempfile.mkdtemp() + "/fifo"
os.mkfifo(path)
def read_index():
    with open(path) as file:  # here
        return file.read()
read_index()
"""
PIPE = """
import os
out, into = os.pipe()
def read_tokens():
    return os.read(out, 1)  # here
read_tokens()
"""
SLEEP = """
import time
def back_off():
    time.sleep(1000)  # here
back_off()
"""
DEEP = """
import time
def deeper(levels):
    if levels:
        return deeper(levels - 1)
    time.sleep(1000)  # here
deeper(900)
"""
STOPPED = """
import time
def train():
    time.sleep(1000)  # here
train()
"""
LOADER = """
import multiprocessing, time
from torch.utils.data.dataloader import _try_get_data
def work(queue):
    time.sleep(1000)
def epoch():
    queue = multiprocessing.get_context("fork").Queue()
    multiprocessing.get_context("fork").Process(target=work, args=(queue,), daemon=True).start()
    _try_get_data(queue)  # here
epoch()
"""
DEBUGGER = """
def train():
    loss = 1
    breakpoint()
    return loss  # here
train()
"""
EXCEPTION = """
import threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
raise SystemExit(1)
"""
REPR = """
class Tensor:
    def __repr__(self):
        time.sleep(1000)  # here
def train():
    loss = Tensor()
    raise ValueError(loss is None)
train()
"""
"""Its repr waits for a GPU, as it were, and is asked for by who shows local variables."""

OF_RICH = f"""
import time
from rich.traceback import install
install(show_locals=True)
{REPR}"""
OF_CGITB = f"""
import cgitb, time
cgitb.enable(format="text")
{REPR}"""
MESSAGE = """
import time, traceback
class Lost(Exception):
    def __str__(self):
        time.sleep(1000)  # here
try:
    raise Lost
except Lost:
    traceback.print_exc()
"""
FINALIZER = """
import time, weakref
class Dataset:
    def close():
        time.sleep(1000)  # here
weakref.finalize(Dataset, Dataset.close)
"""
LOG_AT_EXIT = """
import logging, threading, time
handler = logging.StreamHandler()
def write():
    handler.acquire()
    held.set()
    time.sleep(1000)
held = threading.Event()
threading.Thread(target=write, daemon=True).start()
held.wait()
"""
POOL_OF_THREADS = """
import concurrent.futures, time
concurrent.futures.ThreadPoolExecutor(1).submit(time.sleep, 1000)
"""
POOL_OF_PROCESSES = """
import concurrent.futures, time
concurrent.futures.ProcessPoolExecutor(1).submit(time.sleep, 1000)
"""
CHILD_AT_EXIT = """
import multiprocessing, time
multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)).start()
"""
POST_MORTEM = """
import pdb
def train():
    raise ValueError
try:
    train()
except ValueError:
    pdb.post_mortem()  # here
"""
HANDLER = """
import socket
ours, theirs = socket.socketpair()
def train():
    try:
        raise ValueError("loss is NaN")
    except ValueError:
        ours.recv(1)  # here
train()
"""
GIL = """
import ctypes
libc = ctypes.PyDLL(None)
def kernel():
    libc.sleep(1000)  # here
kernel()
"""
GIL_OF_ANOTHER = """
import ctypes, threading
libc = ctypes.PyDLL(None)
decoder = threading.Thread(target=libc.sleep, args=(1000,), name="decoder", daemon=True)
def train():
    decoder.start()  # here
train()
"""
CHILD = """
import subprocess
def build():
    subprocess.run(["sleep", "1000"])  # here
build()
"""
DOWNLOAD = """
import socket, urllib.request
listener = socket.create_server(("127.0.0.1", 0))
def fetch():
    host, port = listener.getsockname()
    urllib.request.urlopen(f"http://{host}:{port}/shard")  # here
fetch()
"""
ASYNC = """
import asyncio
async def serve():
    await asyncio.Event().wait()
def main():
    asyncio.run(serve())  # here
main()
"""
SAVING = """
import os
from torch.serialization import save
out, into = os.pipe()
def checkpoint():
    with open(into, "wb", buffering=0) as file:
        save(bytes(1 << 20), file)  # here
checkpoint()
"""
COLLECTIVE = """
import threading
from torch.distributed.distributed_c10d import all_reduce
def train():
    all_reduce(threading.Event().wait)  # here
train()
"""
SPINNING = """
def train():
    while True: pass  # here
train()
"""

HANGS = (
    Hang("lock", "step", "lock", "waiting in the kernel for another thread or a lock", LOCK),
    Hang("condition", "Buffer.take", "lock", "/threading.py:", CONDITION),
    Hang("queue", "read_shard", "lock", "queue.py:", QUEUE),
    Hang("join", "finish", "lock", "threading.py:", JOIN),
    Hang("receive", "rendezvous", "socket", "waiting in the kernel for a socket", RECEIVE),
    Hang("tcp", "accept", "socket", "waiting in the kernel for a socket", TCP),
    Hang("fifo", "read_index", "another_process", "waiting in the kernel for a pipe", FIFO),
    Hang("pipe", "read_tokens", "another_process", "waiting in the kernel for a pipe", PIPE),
    Hang("sleep", "back_off", "sleeping", "waiting in the kernel for a timer", SLEEP),
    Hang("deep", "deeper", "sleeping", "waiting in the kernel for a timer", DEEP),
    Hang("stopped", "train", "", "is stopped by a signal", STOPPED, signal=19),
    Hang("loader", "epoch", "loader", "data/dataloader.py:2 _try_get_data", LOADER),
    Hang("debugger", "train", "debugger", "main thread in", DEBUGGER),
    Hang("exception", "", "exiting", "main thread in", EXCEPTION),
    Hang("rich", "Tensor.__repr__", "exiting", "rich/traceback.py:", OF_RICH),
    Hang("cgitb", "Tensor.__repr__", "exiting", "/cgitb.py:", OF_CGITB, before=(3, 13)),
    Hang("message", "Lost.__str__", "exiting", "/traceback.py:", MESSAGE),
    Hang("finalizer", "Dataset.close", "exiting", "/weakref.py:", FINALIZER),
    Hang("log_at_exit", "", "exiting", "logging/__init__.py:", LOG_AT_EXIT),
    Hang("pool_of_threads", "", "exiting", "thread.py:", POOL_OF_THREADS),
    Hang("pool_of_processes", "", "exiting", "threading.py:", POOL_OF_PROCESSES),
    Hang("child_at_exit", "", "exiting", "multiprocessing/util.py:", CHILD_AT_EXIT),
    Hang("post_mortem", "<module>", "debugger", "/cmd.py:", POST_MORTEM),
    Hang("handler", "train", "socket", "waiting in the kernel for a socket", HANDLER),
    Hang("gil", "kernel", "sleeping", "waiting in the kernel for a timer", GIL),
    Hang("gil_of_another", "train", "lock", "thread decoder holds the GIL", GIL_OF_ANOTHER),
    Hang("child", "build", "another_process", "a child process to end", CHILD),
    Hang("download", "fetch", "download", "waiting in the kernel for a socket", DOWNLOAD),
    Hang("async", "main", "socket", "an event of a socket", ASYNC),
    Hang("saving", "checkpoint", "checkpointing", "waiting in the kernel for a pipe", SAVING),
    Hang("collective", "train", "collective", "distributed_c10d.py:2 all_reduce", COLLECTIVE),
    Hang("spinning", "train", "", "runs", SPINNING),
    Hang("container", "back_off", "sleeping", "for a timer", SLEEP, own_pid_namespace=True),
)

NOT_PYTHON = """
#include <unistd.h>
#include <sys/types.h>
#include <string>
int main(int argc, char **argv) {
    std::string how = argv[1];
    int ends[2];
    char byte;
    if (how == "pipe") return pipe(ends) || read(ends[0], &byte, 1);
    if (how == "uninterruptible" && vfork() == 0) {
        pause();
        _exit(0);
    }
    return pause();
}
"""
