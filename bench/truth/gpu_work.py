"""Kinds of kernels for generated programs, each prepared from what a seed drew."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.truth.drawn import Parameters
from bench.truth.pieces import (
    DTYPES,
    builds,
    dtype_of,
    make_module,
    random_tensor,
    synchronize,
    took,
)
from bench.truth.rank import Rank, Step


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
    from bench.truth.triton_kernels import gemm, stream

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
    model = make_module(rank, lambda: Perceptron(p["width"], p["layers"])).to(dtype)
    faster = torch.compile(model, dynamic=False)
    batch = min(p["batch"], (1 << 26) // p["width"])
    x = random_tensor(rank, batch, p["width"], dtype=dtype)
    return backward_too(faster, x, p["training"])


@builds("cuda_graph")
def cuda_graph(rank: Rank, p: Parameters) -> Step:
    dtype = dtype_of(p)
    model = make_module(rank, lambda: Perceptron(p["width"], p["layers"])).to(dtype)
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
    model = make_module(rank, lambda: Language(p["width"], p["layers"]))
    tokens = torch.randint(0, WORDS, (p["batch"], p["length"]), device=rank.device)
    step = training(p, model)
    return lambda: step(tokens)


@builds("decoding")
def decoding(rank: Rank, p: Parameters) -> Step:
    """A few tokens at a time against keys and values of earlier ones."""
    dtype = dtype_of(p)
    width, heads = p["width"], p["width"] // 64
    blocks = [make_module(rank, lambda: Block(width)).to(dtype) for _ in range(p["layers"])]
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
