"""What people run with the libraries that are common: one library and model a program.

A library that a machine lacks fails its programs, which are then none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.truth import other
from bench.truth.drawn import Parameters
from bench.truth.pieces import BUILD, builds, paced
from bench.truth.rank import Rank, Step


@builds("libraries")
def libraries(rank: Rank, p: Parameters) -> Step:
    return paced(BUILD[f"library {p['of']}"](rank, p), p)


def _trains(rank: Rank, p: Parameters, model: nn.Module, loss: Callable[[], Any]) -> Step:
    """Steps of training in mixed precision, or of inference."""
    model.to(rank.device)
    optimizer = torch.optim.AdamW((w for w in model.parameters() if w.requires_grad), lr=1e-5)
    dtype = torch.bfloat16 if p["half"] else torch.float32

    def step() -> None:
        with torch.autocast("cuda", dtype, enabled=p["half"]):
            found = loss()
        found.backward()
        optimizer.step()
        optimizer.zero_grad()

    def infer() -> None:
        with torch.inference_mode(), torch.autocast("cuda", dtype, enabled=p["half"]):
            loss()

    return step if p["training"] else infer


def _tokens(rank: Rank, p: Parameters, vocabulary: int) -> torch.Tensor:
    return torch.randint(vocabulary, (p["batch"], p["length"]), device=rank.device)


def _language_model(name: str, **sizes: int) -> None:
    """A causal language model of transformers, with weights drawn at random."""

    @builds(f"library {name}")
    def build(rank: Rank, p: Parameters) -> Step:
        import transformers

        config = getattr(transformers, f"{name}Config")(**sizes)
        with rank.device:
            model = transformers.AutoModelForCausalLM.from_config(config)
        tokens = _tokens(rank, p, config.vocab_size)
        if p["adapters"]:
            import peft

            model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))
        if p["generates"]:
            model.to(rank.device, torch.bfloat16).eval()
            return lambda: model.generate(
                tokens[:, :32], max_new_tokens=16, do_sample=False, pad_token_id=0
            )
        return _trains(rank, p, model, lambda: model(input_ids=tokens, labels=tokens).loss)


_language_model("GPT2", n_layer=12)
_language_model("GPTNeoX", hidden_size=768, num_hidden_layers=8, intermediate_size=3072)
_language_model(
    "Llama",
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
)


@builds("library BERT")
def bert(rank: Rank, p: Parameters) -> Step:
    import transformers

    model = transformers.BertForSequenceClassification(transformers.BertConfig())
    tokens = _tokens(rank, p, 30_000)
    labels = torch.zeros(p["batch"], dtype=torch.long, device=rank.device)
    return _trains(rank, p, model, lambda: model(input_ids=tokens, labels=labels).loss)


def _image_model(name: str) -> None:
    """A model of timm."""

    @builds(f"library {name}")
    def build(rank: Rank, p: Parameters) -> Step:
        import timm

        model = timm.create_model(name)
        images = torch.randn(p["batch"], 3, 224, 224, device=rank.device)
        return _trains(rank, p, model, lambda: model(images).float().square().mean())


for _name in ("resnet50", "convnext_tiny", "vit_small_patch16_224", "efficientnet_b0"):
    _image_model(_name)


@builds("library GAT")
def graph(rank: Rank, p: Parameters) -> Step:
    from torch_geometric.nn import GAT

    nodes = 2000 * p["batch"]
    model = GAT(64, p["length"] // 8 * 8 + 8, num_layers=3, heads=4)
    x = torch.randn(nodes, 64, device=rank.device)
    edges = torch.randint(nodes, (2, 10 * nodes), device=rank.device)
    exact = {**p, "half": False}
    return _trains(rank, exact, model, lambda: model(x, edges).square().mean())


@builds("library GPyTorch")
def gaussian_process(rank: Rank, p: Parameters) -> Step:
    import gpytorch

    points = 100 * p["batch"]
    x = torch.rand(points, 4, device=rank.device)
    y = x.sin().sum(1)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(rank.device)

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Model().to(rank.device)
    likely = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    exact = {**p, "training": True, "half": False}
    return _trains(rank, exact, model, lambda: -likely(model(x), y))


@builds("library e3nn")
def equivariant(rank: Rank, p: Parameters) -> Step:
    from e3nn import o3

    irreps = o3.Irreps("32x0e + 16x1o + 8x2e")
    model = o3.FullyConnectedTensorProduct(irreps, irreps, irreps)
    x = irreps.randn(64 * p["batch"], -1).to(rank.device)
    exact = {**p, "half": False}
    return _trains(rank, exact, model, lambda: model(x, x).square().mean())


@builds("library Numba")
def monte_carlo(rank: Rank, p: Parameters) -> Step:
    """Integers, and no memory."""
    from numba import cuda

    cuda.select_device(rank.device.index)

    @cuda.jit  # type: ignore[untyped-decorator]
    def count(found: Any, rounds: int) -> None:
        own = cuda.grid(1)
        state, inside = own + 1, 0
        for _ in range(rounds):
            state = (1103515245 * state + 12345) % 2147483648
            inside += state % 3 == 0
        found[own] = inside

    found = cuda.device_array(1 << 18, dtype="int64")
    return lambda: count[1 << 10, 1 << 8](found, 64 * p["length"])


@builds("library Diffrax")
def differential_equation(rank: Rank, p: Parameters) -> Step:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import diffrax
    import jax
    import jax.numpy as jnp

    def solve(start: Any) -> Any:
        term = diffrax.ODETerm(lambda _t, y, _args: -jnp.sin(y) * y[::-1])
        steps = diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, 0.01, start)
        return steps.ys[-1]

    solved = jax.jit(jax.vmap(solve))
    with jax.default_device(jax.devices()[rank.device.index]):
        starts = jax.random.normal(jax.random.key(0), (16 * p["batch"], p["length"]))
    return lambda: solved(starts).block_until_ready()


@builds("library JAX")
def jax_training(rank: Rank, _: Parameters) -> Step:
    return other.jax_training(rank)


@builds("library CuPy")
def cupy_spectra(rank: Rank, _: Parameters) -> Step:
    return other.cupy_spectra(rank)
