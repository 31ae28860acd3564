"""Runs a random program: ``program`` looks up in the environment what a seed drew (``drawn``)."""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from tests.bench.truth import drawn
from tests.bench.truth.drawn import PROGRAM, Parameters
from tests.bench.truth.rank import Rank, Step

MOST = 400
"""The most repetitions of a piece of work in a step."""

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}

BUILD: dict[str, Callable[[Rank, Parameters], Step]] = {}
"""What prepares a piece of work or a family, by its name in ``drawn``."""

Builder = Callable[[Rank, Parameters], Step]

_ENDS: list[Callable[[], object]] = []
"""What ends that which a program has begun beside its steps."""


def clean_up() -> None:
    """End what the last program began beside its steps."""
    while _ENDS:
        _ENDS.pop()()
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


def builds(name: str) -> Callable[[Builder], Builder]:
    def keep(builder: Builder) -> Builder:
        BUILD[name] = builder
        return builder

    return keep


def program(rank: Rank) -> Step:
    """The program that the environment names."""
    family, seed = drawn.split_name(os.environ[PROGRAM])
    drawn_now = drawn.parameters(family, seed)
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if family in drawn.KERNELS:
        return paced(work(rank, {"kind": family, **drawn_now}, drawn_now["seconds"]), drawn_now)
    return BUILD[family](rank, drawn_now)


# Pieces that all programs are made of.


def synchronize() -> None:
    torch.cuda.synchronize()


def dtype_of(p: Parameters) -> torch.dtype:
    """The type of a precision, with TF32 switched as it says."""
    allowed = p["precision"] == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
    return DTYPES[p["precision"]]


def took(step: Step) -> float:
    """Seconds of one step, once it is warm."""
    for _ in range(2):
        step()
    synchronize()
    begin = time.perf_counter()
    step()
    synchronize()
    return max(1e-6, time.perf_counter() - begin)


def repeated(step: Step, seconds: float) -> Step:
    """As many of a step as take about that long."""
    count = max(1, min(MOST, round(seconds / took(step))))
    if count == 1:
        return step

    def steps() -> None:
        for _ in range(count):
            step()

    return steps


def work(rank: Rank, p: Parameters, seconds: float) -> Step:
    """Some work for the GPU that takes about that long."""
    return repeated(BUILD[p["kind"]](rank, p), seconds)


def gap(p: Parameters) -> Step:
    """What the host does meanwhile, for a random time."""
    chance = random.Random(0)
    mean, jitter = p["gap_seconds"], p["jitter"]
    kind = p["gap"]

    def seconds() -> float:
        return float(mean * (1 + jitter * (2 * chance.random() - 1)))

    if kind == "sleep":
        return lambda: time.sleep(seconds())
    if kind == "burn":
        return lambda: burn(seconds())
    if kind == "lock":
        never = threading.Event()
        return lambda: never.wait(seconds())
    return lambda: None


def burn(seconds: float) -> None:
    """Work on one thread in Python."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(200))


def paced(step: Step, p: Parameters) -> Step:
    """A step, then a gap; the host waits for this step or, if it runs ahead, for the one before."""
    wait = gap(p)
    if p["gap"] != "none" or not p["ahead"]:

        def steps() -> None:
            step()
            synchronize()
            wait()

        return steps
    before: list[Any] = []

    def ahead() -> None:
        step()
        done = torch.cuda.Event()
        done.record()
        before.append(done)
        if len(before) > 1:
            before.pop(0).synchronize()

    return ahead


def made(rank: Rank, make: Callable[[], nn.Module]) -> nn.Module:
    """A module whose weights begin on the GPU, where they are drawn sooner."""
    with rank.device:
        return make()


def random_tensor(rank: Rank, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=rank.device).to(dtype)


# Kinds of kernels.


@builds("matmul")
def matmul(rank: Rank, p: Parameters) -> Step:
    dtype = dtype_of(p)
    if p["precision"] == "fp8":
        with suppress(RuntimeError, AttributeError, TypeError, ValueError):
            return fp8_matmul(rank, p)
    batch = p["batch"]
    while batch > 1 and batch * (p["m"] + p["k"]) * (p["n"] + p["k"]) > 1 << 29:
        batch //= 2
    a = random_tensor(rank, batch, p["m"], p["k"], dtype=dtype)
    b = random_tensor(rank, batch, p["k"], p["n"], dtype=dtype)
    if batch == 1:
        a, b = a[0], b[0]
    out = a @ b
    return lambda: torch.matmul(a, b, out=out)


def fp8_matmul(rank: Rank, p: Parameters) -> Step:
    one = torch.ones((), device=rank.device)
    a = random_tensor(rank, p["m"], p["k"]).to(torch.float8_e4m3fn)
    b = random_tensor(rank, p["n"], p["k"]).to(torch.float8_e4m3fn).t()

    def step() -> None:
        torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    step()
    synchronize()
    return step


@builds("convolution")
def convolution(rank: Rank, p: Parameters) -> Step:
    dtype = dtype_of(p)
    dimensions, channels, size = p["dimensions"], p["channels"], p["size"]
    if dimensions == 3:
        size, channels = min(size, 28), min(channels, 64)
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    groups = channels if p["depthwise"] else 1
    layer = kind(channels, channels, p["kernel"], padding=p["kernel"] // 2, groups=groups)
    layer = layer.to(rank.device, dtype)
    length = size * size if dimensions == 1 else size
    batch = p["batch"]
    while batch > 1 and batch * channels * length**dimensions > 1 << 27:
        batch //= 2
    x = random_tensor(rank, batch, channels, *[length] * dimensions, dtype=dtype)
    if p["channels_last"] and dimensions == 2:
        layer, x = (part.to(memory_format=torch.channels_last) for part in (layer, x))
    return backward_too(layer, x, p["backward"])


def backward_too(layer: Callable[..., Tensor], x: Tensor, backward: bool) -> Step:
    """A step through a layer, and back if that is wanted."""
    if not backward:

        def forward() -> None:
            with torch.no_grad():
                layer(x)

        return forward
    x.requires_grad_()

    def both() -> None:
        layer(x).sum().backward()

    return both


@builds("attention")
def attention(rank: Rank, p: Parameters) -> Step:
    dtype = dtype_of(p)
    batch, heads, length = p["batch"], p["heads"], p["length"]
    while batch > 1 and batch * heads * length * length > 1 << 30:
        batch //= 2
    shape = (3, batch, heads, length, p["width"])
    x = random_tensor(rank, *shape, dtype=dtype)

    def attend(x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x[0], x[1], x[2], is_causal=p["causal"])

    return backward_too(attend, x, p["backward"])


@builds("gather")
def gather(rank: Rank, p: Parameters) -> Step:
    rows, width = min(p["rows"], (1 << 29) // p["width"]), p["width"]
    picked = min(p["picked"], (1 << 28) // width)
    table = torch.randn(rows, width, device=rank.device)
    index = torch.randint(0, rows, (picked,), device=rank.device)
    if p["of"] == "embedding":
        return lambda: functional.embedding(index, table)
    if p["of"] == "bag":
        bags = index[: picked // p["bags"] * p["bags"]].view(-1, p["bags"])
        return lambda: functional.embedding_bag(bags, table, mode="sum")
    if p["of"] == "index_select":
        return lambda: table.index_select(0, index)
    values = torch.randn(picked, width, device=rank.device)
    return lambda: table.index_add_(0, index, values)


@builds("pointwise")
def pointwise(rank: Rank, p: Parameters) -> Step:
    dtype = DTYPES[p["precision"]]
    rows = min(p["rows"], (1 << 26) // p["columns"])
    x = random_tensor(rank, rows, p["columns"], dtype=dtype)
    known: dict[str, Callable[[], object]] = {
        "add": lambda: x + x,
        "gelu": lambda: functional.gelu(x),
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, (p["columns"],)),
        "sum": lambda: x.sum(0),
        "sort": lambda: x.sort(-1),
        "cumsum": lambda: x.cumsum(-1),
        "transpose": lambda: x.t().contiguous(),
        "sin": lambda: torch.sin(x).exp(),
    }
    operations = [known[name] for name in p["operations"]]

    def step() -> None:
        for operation in operations:
            operation()

    return step


@builds("triton")
def triton(rank: Rank, p: Parameters) -> Step:
    from tests.bench.truth.triton_kernels import gemm, stream

    size = p["size"]
    a = random_tensor(rank, size, size, dtype=torch.bfloat16)
    b = random_tensor(rank, size, size, dtype=torch.bfloat16)
    c = torch.empty_like(a)
    x = torch.randn(p["numbers"], device=rank.device)
    y = torch.empty_like(x)

    def multiply() -> None:
        gemm(a, b, c)

    def pass_through() -> None:
        stream(x, y, p["arithmetic"])

    if p["matmul"] == 1.0:
        return multiply
    if p["matmul"] == 0.0:
        return pass_through
    each = took(multiply), took(pass_through)
    ratio = p["matmul"] / (1 - p["matmul"]) * each[1] / each[0]
    times = (max(1, min(50, round(ratio))), max(1, min(50, round(1 / ratio))))

    def both() -> None:
        for _ in range(times[0]):
            multiply()
        for _ in range(times[1]):
            pass_through()

    return both


class Perceptron(nn.Module):
    """Layers that are each normed, linear and nonlinear."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = x + functional.gelu(linear(norm(x)))
        return x


@builds("compiled")
def compiled(rank: Rank, p: Parameters) -> Step:
    dtype = dtype_of(p)
    model = made(rank, lambda: Perceptron(p["width"], p["layers"])).to(dtype)
    faster = torch.compile(model, dynamic=False)
    batch = min(p["batch"], (1 << 26) // p["width"])
    x = random_tensor(rank, batch, p["width"], dtype=dtype)
    return backward_too(faster, x, p["training"])


@builds("cuda_graph")
def cuda_graph(rank: Rank, p: Parameters) -> Step:
    dtype = dtype_of(p)
    model = made(rank, lambda: Perceptron(p["width"], p["layers"])).to(dtype)
    batch = max(p["batch"], (1 << 18) // p["width"])  # millions of kernels take minutes to read
    x = random_tensor(rank, batch, p["width"], dtype=dtype)
    side = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(x)
    return graph.replay


@builds("fft")
def fft(rank: Rank, p: Parameters) -> Step:
    dimensions, size = p["dimensions"], p["size"]
    length = size**3 if dimensions == 1 else size if dimensions == 3 else 4 * size
    length = min(length, 1 << 20)
    batch = p["batch"]
    while batch > 1 and batch * length**dimensions > 1 << 26:
        batch //= 2
    x = torch.randn(batch, *[length] * dimensions, device=rank.device)
    if not p["real"]:
        x = x.to(torch.complex64)
    axes = tuple(range(1, dimensions + 1))
    transform = torch.fft.rfftn if p["real"] else torch.fft.fftn

    def step() -> None:
        y = transform(x, dim=axes)
        if p["between"]:
            y = y * y
        torch.fft.ifftn(y, dim=axes)

    return step


@builds("sparse")
def sparse(rank: Rank, p: Parameters) -> Step:
    rows, each = p["rows"], p["each"]
    width = max(1, min(p["width"], (1 << 27) // rows))
    starts = torch.arange(0, rows * each + 1, each, device=rank.device)
    band = rows // each
    columns = torch.randint(0, band, (rows, each), device=rank.device)
    columns = (columns + band * torch.arange(each, device=rank.device)).reshape(-1)
    values = torch.randn(rows * each, device=rank.device)
    matrix = torch.sparse_csr_tensor(starts, columns, values, size=(rows, rows))
    dense = torch.randn(rows, width, device=rank.device)
    return lambda: torch.sparse.mm(matrix, dense)


@builds("recurrent")
def recurrent(rank: Rank, p: Parameters) -> Step:
    dtype = dtype_of(p)
    width, length = p["width"], p["length"]
    x = random_tensor(rank, p["batch"], length, width, dtype=dtype)
    if p["cell"] == "loop":
        cell = nn.LSTMCell(width, width).to(rank.device, dtype)

        def unrolled(x: Tensor) -> Tensor:
            state: Any = None
            for at in range(min(length, 50)):
                state = cell(x[:, at], state)
            return state[0]

        return backward_too(unrolled, x, p["backward"])
    kind = nn.LSTM if p["cell"] == "lstm" else nn.GRU
    model = kind(width, width, num_layers=p["layers"], batch_first=True).to(rank.device, dtype)
    return backward_too(lambda x: model(x)[0], x, p["backward"])


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


WORDS = 8192


class Language(nn.Module):
    """A small language model."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def optimizer_of(kind: str, parameters: Any) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=1e-6, momentum=0.9)
    if kind == "adagrad":
        return torch.optim.Adagrad(parameters, lr=1e-6)
    options: dict[str, Any] = {"fused": True} if kind == "fused" else {"foreach": kind == "adamw"}
    return torch.optim.AdamW(parameters, lr=1e-6, **options)


def training(p: Parameters, model: nn.Module) -> Callable[[Tensor], None]:
    """A step of training of a language model on given tokens."""
    dtype = dtype_of(p)
    optimizer = optimizer_of(p["optimizer"], model.parameters())

    def step(tokens: Tensor) -> None:
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            scores = model(tokens)
            loss = functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@builds("transformer")
def transformer(rank: Rank, p: Parameters) -> Step:
    model = made(rank, lambda: Language(p["width"], p["layers"]))
    tokens = torch.randint(0, WORDS, (p["batch"], p["length"]), device=rank.device)
    step = training(p, model)
    return lambda: step(tokens)


@builds("decoding")
def decoding(rank: Rank, p: Parameters) -> Step:
    """A few tokens at a time against keys and values of earlier ones."""
    dtype = dtype_of(p)
    width, heads = p["width"], p["width"] // 64
    blocks = [made(rank, lambda: Block(width)).to(dtype) for _ in range(p["layers"])]
    batch = p["batch"]
    while batch > 1 and 2 * p["layers"] * batch * p["length"] * width > 1 << 31:
        batch //= 2
    shape = (2, batch, heads, p["length"], 64)
    caches = [torch.randn(*shape, device=rank.device, dtype=dtype) for _ in blocks]
    x = random_tensor(rank, batch, p["tokens"], width, dtype=dtype)

    @torch.inference_mode()
    def step() -> None:
        y = x
        for block, cache in zip(blocks, caches, strict=True):
            parts = block.qkv(block.norms[0](y)).view(batch, -1, 3, heads, 64)
            q = parts[:, :, 0].transpose(1, 2)
            seen = functional.scaled_dot_product_attention(q, cache[0], cache[1])
            y = y + block.out(seen.transpose(1, 2).reshape(batch, -1, width))
            y = y + block.down(functional.gelu(block.up(block.norms[1](y))))

    return step


@builds("optimizer")
def optimizer(rank: Rank, p: Parameters) -> Step:
    numbers = min(p["numbers"], (1 << 28) // p["tensors"])
    weights = [torch.randn(numbers, device=rank.device) for _ in range(p["tensors"])]
    for weight in weights:
        weight.requires_grad_()
        weight.grad = torch.randn_like(weight)
    return optimizer_of(p["kind_of"], weights).step


# Troubles.


@builds("attention_lengths")
def attention_lengths(rank: Rank, p: Parameters) -> Step:
    """Training on sequences of random lengths."""
    model = made(rank, lambda: Language(p["width"], p["layers"]))
    step = training(p, model)
    chance = random.Random(0)

    def steps() -> None:
        length = chance.randint(16, p["longest"])
        step(torch.randint(0, WORDS, (p["batch"], length), device=rank.device))

    return paced(steps, p)


@builds("host_gaps")
def host_gaps(rank: Rank, p: Parameters) -> Step:
    step = work(rank, p["work"], p["seconds"])
    gaps = [paced(step, {**each, "ahead": False}) for each in p["gaps"]]
    turn = itertools.cycle(gaps)
    return lambda: next(turn)()


@builds("streams")
def streams(rank: Rank, p: Parameters) -> Step:
    parts = []
    for each, seconds in zip(p["works"], p["shares"], strict=False):
        parts.append((torch.cuda.Stream(), work(rank, each, seconds)))
    synchronize()

    def step() -> None:
        for stream, part in parts:
            with torch.cuda.stream(stream):
                part()

    return paced(step, {**p, "ahead": False})


def copying(rank: Rank, p: Parameters) -> Step:
    """Copies of what is drawn, on the current stream."""
    piece = max(1024, p["bytes"] // p.get("pieces", 1))
    count = min(p.get("pieces", 1), 16)
    host = torch.empty(piece, dtype=torch.uint8)
    if p["pinned"]:
        host = host.pin_memory()
    device = torch.zeros(piece, dtype=torch.uint8, device=rank.device)

    def step() -> None:
        for _ in range(count):
            if p["direction"] != "out":
                device.copy_(host, non_blocking=True)
            if p["direction"] != "in":
                host.copy_(device, non_blocking=True)

    return step


@builds("copies")
def copies(rank: Rank, p: Parameters) -> Step:
    copy = copying(rank, p)
    busy = work(rank, p["work"], p["seconds"])
    side = torch.cuda.Stream()

    def step() -> None:
        if p["hidden"]:
            busy()
            with torch.cuda.stream(side):
                copy()
        else:
            copy()
            busy()

    return paced(step, {**p, "ahead": p["ahead"] and not p["hidden"]})


@builds("files")
def files(rank: Rank, p: Parameters) -> Step:
    path = rank.folder / f"weights.{os.getpid()}.pt"
    torch.save(torch.randn(p["bytes"] // 4), path)
    busy = work(rank, p["work"], p["seconds"])

    def step() -> None:
        options = {"mmap": True} if p["mapped"] else {}
        torch.load(path, map_location="cpu", **options).to(rank.device)
        busy()

    return paced(step, p)


@builds("allocator")
def allocator(rank: Rank, p: Parameters) -> Step:
    """Memory that is taken from the driver and given back in every step."""
    count = min(p["tensors"], (1 << 33) // p["bytes"])
    busy = work(rank, p["work"], p["seconds"])
    size = max(p["bytes"], 32 << 20)  # smaller ones come out of blocks that the allocator keeps

    def step() -> None:
        held = [torch.empty(size, dtype=torch.uint8, device=rank.device) for _ in range(count)]
        for each in held[:4]:
            each.zero_()
        busy()
        del held
        if p["empty_cache"]:
            torch.cuda.empty_cache()

    return paced(step, p)


class Items(Dataset):
    """What a worker takes a while to make."""

    def __init__(self, p: Parameters) -> None:
        self.seconds = p["item_seconds"] / p["items"]
        self.waits = p["waits"]
        self.size = p["bytes"]

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> Tensor:
        if self.waits:
            time.sleep(self.seconds)
        else:
            burn(self.seconds)
        return torch.full((self.size,), index % 256, dtype=torch.uint8)


@builds("loader")
def loader(rank: Rank, p: Parameters) -> Step:
    busy = work(rank, p["work"], p["seconds"])
    batches = iter(
        DataLoader(Items(p), p["items"], num_workers=p["workers"], pin_memory=p["pinned"])
    )

    def step() -> None:
        next(batches).to(rank.device, non_blocking=True)
        busy()

    return paced(step, p)


def preparing(p: Parameters) -> Callable[[], Tensor]:
    """What the main thread does for a batch."""
    count, chance = p["bytes"], np.random.default_rng(0)
    if p["of"] == "tokenising":
        words = ["".join(chr(97 + c) for c in chance.integers(0, 26, 6)) for _ in range(5000)]
        numbers = {word: number for number, word in enumerate(words)}
        text = " ".join(chance.choice(words, 5000))

        def unit() -> object:
            return [numbers.get(word.lower(), 0) for word in text.split()]

    elif p["of"] == "sampling":
        neighbours = chance.integers(0, 100_000, (100_000, 16))
        features = chance.random((100_000, 64), dtype=np.float32)

        def unit() -> object:
            seeds = chance.integers(0, 100_000, 64)
            for _ in range(2):
                seeds = np.unique(neighbours[seeds].reshape(-1))
            return features[seeds]

    elif p["of"] == "numpy":
        image = chance.random((256, 256, 3), dtype=np.float32)

        def unit() -> object:
            return np.ascontiguousarray(((image - image.mean()) / image.std())[::-1, ::-1])

    else:

        def unit() -> object:
            return sum(number * number for number in range(3000))

    unit()
    begin = time.perf_counter()
    unit()
    times = max(1, round(p["amount"] / (time.perf_counter() - begin)))
    batch = torch.zeros(count, dtype=torch.uint8)

    def prepare() -> Tensor:
        for _ in range(times):
            unit()
        return batch

    return prepare


@builds("preparation")
def preparation(rank: Rank, p: Parameters) -> Step:
    prepare = preparing(p)
    busy = work(rank, p["work"], p["seconds"])

    def step() -> None:
        prepare().to(rank.device)
        busy()

    return paced(step, p)


@builds("threads")
def threads(rank: Rank, p: Parameters) -> Step:
    """Threads that want the GIL all the time or now and then."""
    step = paced(work(rank, p["work"], p["seconds"]), p)

    over = threading.Event()
    _ENDS.append(over.set)

    def fight() -> None:
        while not over.is_set():
            burn(0.01)
            time.sleep(p["rest"])

    for _ in range(p["threads"]):
        fighter = threading.Thread(target=fight, daemon=True)
        fighter.start()
        _ENDS.insert(0, fighter.join)  # after all are told to end
    return step


def keep_to(cores: set[int]) -> None:
    """Every thread of this process, and its children from now on, on some cores."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), cores)


@builds("one_core")
def one_core(rank: Rank, p: Parameters) -> Step:
    """A job that has one core for all its threads and workers."""
    busy = work(rank, p["work"], p["seconds"])
    items = {"items": 1, "waits": False, "bytes": 1 << 16, **p}
    batches = None
    moved: list[bool] = []
    every = os.sched_getaffinity(0)
    core = {sorted(every)[rank.device.index or 0]}
    if p["workers"]:
        os.sched_setaffinity(0, core)
        batches = iter(DataLoader(Items(items), 1, num_workers=p["workers"]))
        os.sched_setaffinity(0, every)

    def step() -> None:
        if rank.running_for > 0 and not moved:
            moved.append(True)
            _ENDS.append(lambda: keep_to(every))
            keep_to(core)
        if batches is not None:
            next(batches).to(rank.device)
        busy()

    return paced(step, p)


@builds("shared_gpu")
@builds("launcher")
@builds("launcher_pair")
def alone(rank: Rank, p: Parameters) -> Step:
    """A process that knows nothing of the other one."""
    return paced(work(rank, p["work"], p["seconds"]), p)


def mixed(rank: Rank, p: Parameters) -> Step:
    parts = [
        work(rank, each, seconds) for each, seconds in zip(p["works"], p["shares"], strict=False)
    ]

    def step() -> None:
        for part in parts:
            part()

    return step


@builds("mixture")
def mixture(rank: Rank, p: Parameters) -> Step:
    return paced(mixed(rank, p), p)


@builds("mixture_host")
def mixture_host(rank: Rank, p: Parameters) -> Step:
    parts, copy = mixed(rank, p), copying(rank, p)

    def step() -> None:
        copy()
        parts()
        if p["empty_cache"]:
            torch.cuda.empty_cache()

    return paced(step, p)


# Several GPUs; ``parallel`` would import what takes seconds.


def exchange(rank: Rank, p: Parameters) -> Step:
    """A collective of the drawn kind and size, in pieces."""
    import torch.distributed as dist

    count = max(rank.ranks, p["bytes"] // 2 // rank.ranks * rank.ranks)
    a = torch.zeros(count, dtype=torch.bfloat16, device=rank.device)
    b = torch.zeros_like(a)
    part = b[: count // rank.ranks]
    kind = p["collective"]
    neighbours = (rank.rank + 1) % rank.ranks, (rank.rank - 1) % rank.ranks

    def send_and_receive() -> None:
        pairs = [
            dist.P2POp(dist.isend, a, neighbours[0]),
            dist.P2POp(dist.irecv, b, neighbours[1]),
        ]
        for each in dist.batch_isend_irecv(pairs):
            each.wait()

    known: dict[str, Step] = {
        "all_reduce": lambda: dist.all_reduce(a),
        "all_gather": lambda: dist.all_gather_into_tensor(a, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, a),
        "all_to_all": lambda: dist.all_to_all_single(b, a),
        "broadcast": lambda: dist.broadcast(a, 0),
        "send_recv": send_and_receive,
    }
    once = known[kind]
    times = max(1, min(p["pieces"], (1 << 29) // p["bytes"]))

    def step() -> None:
        for _ in range(times):
            once()

    return step


def same_on_all(rank: Rank, p: Parameters, seconds: float) -> Step:
    """Work that is repeated as often on every rank."""
    import torch.distributed as dist

    step = BUILD[p["kind"]](rank, p)
    count = torch.tensor(min(MOST, seconds / took(step)), device=rank.device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    times = max(1, round(count.item()))

    def steps() -> None:
        for _ in range(times):
            step()

    return steps


@builds("collectives")
@builds("no_p2p")
def collectives(rank: Rank, p: Parameters) -> Step:
    rank.join()
    busy, send = same_on_all(rank, p["work"], p["seconds"]), exchange(rank, p)

    def step() -> None:
        busy()
        send()

    return paced(step, p)


@builds("overlapped")
def overlapped(rank: Rank, p: Parameters) -> Step:
    rank.join()
    busy, send = same_on_all(rank, p["work"], p["seconds"]), exchange(rank, p)
    side = torch.cuda.Stream()

    def step() -> None:
        with torch.cuda.stream(side):
            send()
        busy()
        torch.cuda.current_stream().wait_stream(side)

    return paced(step, p)


@builds("late_ranks")
def late_ranks(rank: Rank, p: Parameters) -> Step:
    """A rank, or now this and now that one, comes later than the other to the collective."""
    rank.join()
    busy, send = same_on_all(rank, p["work"], p["seconds"]), exchange(rank, p)
    chance, turn = random.Random(1), itertools.count()
    late = p["late_seconds"]

    def step() -> None:
        seconds = late * (1 + p["late_jitter"] * (2 * chance.random() - 1))
        who = next(turn) % 2 if p["late"] < 0 else p["late"]
        busy()
        if who == rank.rank:
            if p["late_by"] == "sleep":
                time.sleep(seconds)
            elif p["late_by"] == "burn":
                burn(seconds)
            else:
                for _ in range(1 + round(min(3.0, seconds / p["seconds"]))):
                    busy()
        send()

    return paced(step, p)


def network(p: Parameters) -> nn.Module:
    """A random model and what it takes."""
    if p["model"] == "transformer":
        return Language(p["width"], p["layers"])
    if p["model"] == "mlp":
        return Perceptron(p["width"], p["layers"])
    channels = p["channels"]
    layers: list[nn.Module] = []
    for _ in range(p["layers"]):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers)


def batch_for(rank: Rank, p: Parameters) -> Tensor:
    if p["model"] == "transformer":
        return torch.randint(0, WORDS, (p["batch"], p["length"]), device=rank.device)
    if p["model"] == "mlp":
        return torch.randn(p["batch"] * p["length"], p["width"], device=rank.device)
    size = 32 if p["length"] < 256 else 64
    return torch.randn(p["batch"], p["channels"], size, size, device=rank.device)


def trained(rank: Rank, p: Parameters, model: Callable[[Tensor], Tensor], weights: Any) -> Step:
    """Steps of training on one batch."""
    x = batch_for(rank, p)
    optimizer = optimizer_of("adamw" if p["optimizer"] == "fused" else p["optimizer"], weights)
    dtype = dtype_of(p)

    def step() -> None:
        with torch.autocast("cuda", dtype):
            model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return paced(step, {**p, "ahead": False})


@builds("ddp")
@builds("ddp_no_p2p")
def ddp(rank: Rank, p: Parameters) -> Step:
    from torch.nn.parallel import DistributedDataParallel

    rank.join()
    model = DistributedDataParallel(
        made(rank, lambda: network(p)),
        device_ids=[rank.device],
        bucket_cap_mb=p["bucket_mb"],
    )
    return trained(rank, p, model, list(model.parameters()))


@builds("fsdp")
def fsdp(rank: Rank, p: Parameters) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank.join()
    mesh = init_device_mesh("cuda", (rank.ranks,))
    model = made(rank, lambda: network(p))
    for block in getattr(model, "blocks", None) or getattr(model, "linears", None) or []:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(rank, {**p, "optimizer": "adamw"}, model, list(model.parameters()))


@builds("objects")
def objects(rank: Rank, p: Parameters) -> Step:
    """Python objects are gathered over gloo between steps; one rank may come late."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    busy = work(rank, p["work"], p["seconds"])
    mine = list(range(p["numbers"]))
    turn = itertools.count()

    def step() -> None:
        busy()
        synchronize()
        who = next(turn) % 2 if p["late"] < 0 else p["late"]
        if who == rank.rank:
            burn(p["late_seconds"])
        found: list[Any] = [None] * rank.ranks
        dist.all_gather_object(found, mine)

    return paced(step, {**p, "ahead": False})
