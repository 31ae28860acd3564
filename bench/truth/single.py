"""Programs of one process: training, inference, and what holds either up."""

from __future__ import annotations

import http.server
import os
import random
import threading
import time
import urllib.request

import torch
import torchvision
from torch import nn
from torch.nn import functional

from bench.truth.data import batches, sentences
from bench.truth.parallel import WORDS, gpt, image_training, train, update
from bench.truth.rank import Rank, Step, say


def resnet(rank: Rank) -> Step:
    return image_training(rank, workers=4)


def vision(rank: Rank) -> Step:
    """A vision transformer, twice on the same GPU, each with a CPU that is fast enough."""
    model = torchvision.models.vit_b_16().to(rank.device)
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.randn(64, 3, 224, 224, device=rank.device)
    labels = torch.randint(0, 1000, (64,), device=rank.device)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        update(optimizer, loss)

    return step


def tokenise(rank: Rank) -> Step:
    """Each batch is tokenised before its step, by the same thread."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    text = sentences(256)
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(text[:64], trainers.BpeTrainer(vocab_size=3000))
    model = gpt(12, 768, 12).to(rank.device)
    optimizer = torch.optim.AdamW(model.parameters())
    chance = random.Random(0)

    def step() -> None:
        chosen = [" ".join(chance.sample(text, 3)) for _ in range(32)]
        tokens = batches([tokenizer.encode(one).ids for one in chosen], 512).to(rank.device)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        update(optimizer, loss)

    return step


def pageable(rank: Rank) -> Step:
    """Large batches are copied from memory that is not pinned."""
    host = torch.randn(192, 3, 512, 512)
    filters = nn.Conv2d(3, 64, 7, stride=4).to(rank.device, torch.bfloat16)

    @torch.inference_mode()
    def step() -> None:
        filters(host.to(rank.device).bfloat16()).mean().item()

    return step


def prefetch(rank: Rank) -> Step:
    """The next batch is copied from pinned memory while this one is computed."""
    host = torch.randn(256, 3, 224, 224).pin_memory()
    model = torchvision.models.resnet50().to(rank.device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.randint(0, 1000, (256,), device=rank.device)
    side = torch.cuda.Stream()
    ahead = [host.to(rank.device)]

    def step() -> None:
        torch.cuda.current_stream().wait_stream(side)
        images = ahead.pop()
        with torch.cuda.stream(side):
            ahead.append(host.to(rank.device, non_blocking=True))
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        update(optimizer, loss)

    return step


def offload(rank: Rank) -> Step:
    """Gradients go to the CPU, whose optimizer sends the weights back."""
    torch.set_num_threads(8)
    model = gpt(6, 1024, 16).to(rank.device)
    masters = [p.detach().cpu().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-4)
    tokens = torch.randint(0, WORDS, (8, 1024), device=rank.device)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.cpu()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)
        model.zero_grad()

    return step


def compiling(rank: Rank) -> Step:
    """A model that is compiled anew for every shape."""
    import torch._inductor.config as inductor

    inductor.force_disable_caches = True
    widths = iter(range(256, 1 << 20, 64))

    def step() -> None:
        if rank.running_for < 0:
            return
        say("starved")
        torch._dynamo.reset()
        width = next(widths)
        layer = nn.TransformerEncoderLayer(width, 8, batch_first=True, norm_first=True)
        model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).to(rank.device)
        compiled = torch.compile(model, dynamic=False)
        x = torch.randn(8, 512, width, device=rank.device)
        with torch.autocast("cuda", torch.bfloat16):
            compiled(x).mean().backward()
        torch.cuda.synchronize()

    return step


def _decoder(rank: Rank) -> nn.Module:
    return gpt(24, 2048, 16).to(rank.device, torch.bfloat16).eval()


def decode(rank: Rank) -> Step:
    """Text is generated a token at a time."""
    model = _decoder(rank)
    prompt = torch.randint(0, WORDS, (4, 64), device=rank.device)

    @torch.inference_mode()
    def step() -> None:
        model.generate(prompt, max_new_tokens=64, do_sample=False, use_cache=True, pad_token_id=0)

    return step


def decode_graph(rank: Rank) -> Step:
    """Every token is one launch of a recorded graph."""
    model = _decoder(rank)
    token = torch.randint(0, WORDS, (8, 1), device=rank.device)
    side = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(side):
        for _ in range(3):
            model(input_ids=token, use_cache=False)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        model(input_ids=token, use_cache=False)

    def step() -> None:
        for _ in range(64):
            graph.replay()
        torch.cuda.synchronize()

    return step


def serve(rank: Rank) -> Step:
    """A server of a small model that is asked at random, twice a second."""
    model = gpt(12, 1024, 16).to(rank.device, torch.bfloat16).eval()
    prompt = torch.randint(0, WORDS, (4, 128), device=rank.device)

    @torch.inference_mode()
    def answer() -> None:
        model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    chance = random.Random(0)

    def step() -> None:
        time.sleep(min(2.0, chance.expovariate(2.0)))
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}").read()

    return step


def fp32(rank: Rank) -> Step:
    """Training without autocast, and without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    model = gpt(12, 1024, 16).to(rank.device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, WORDS, (8, 512), device=rank.device)

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def lstm(rank: Rank) -> Step:
    model = nn.LSTM(512, 512, num_layers=2, batch_first=True).to(rank.device)
    x = torch.randn(32, 256, 512, device=rank.device)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x)[0].square().mean()
        update(optimizer, loss)

    return step


def embedding(rank: Rank) -> Step:
    """A recommender: most of its work is gathering rows."""
    table = nn.EmbeddingBag(20_000_000, 128, mode="sum", sparse=True, device=rank.device)
    top = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1)).to(rank.device)
    rows = torch.randint(0, 20_000_000, (16384, 64), device=rank.device)
    optimizer = torch.optim.SGD([*table.parameters(), *top.parameters()], lr=0.1)

    def step() -> None:
        loss = top(table(rows)).square().mean()
        update(optimizer, loss)

    return step


def gil(rank: Rank) -> Step:
    """Four threads of Python prepare the batches, one at a time."""
    inner = train(gpt(12, 768, 12).to(rank.device), rank, batch=8, length=512)

    def step() -> None:
        threads = [threading.Thread(target=burn_work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        inner()

    return step


def burn_work() -> None:
    """About 20 ms of Python."""
    total = 0
    for number in range(300_000):
        total += number
