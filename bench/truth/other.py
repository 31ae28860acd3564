"""Programs that are not PyTorch's; ``torch`` only traces them."""

from __future__ import annotations

import os

from bench.truth.rank import Rank, Step


def jax_training(rank: Rank) -> Step:
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for _ in range(8):
                y = linen.LayerNorm(dtype=jnp.bfloat16)(x)
                x = x + linen.SelfAttention(num_heads=16, dtype=jnp.bfloat16)(y)
                y = linen.LayerNorm(dtype=jnp.bfloat16)(x)
                y = linen.gelu(linen.Dense(4096, dtype=jnp.bfloat16)(y))
                x = x + linen.Dense(1024, dtype=jnp.bfloat16)(y)
            return x

    device = jax.devices()[rank.device.index]
    with jax.default_device(device):
        model = Model()
        x = jax.random.normal(jax.random.key(0), (8, 512, 1024), jnp.bfloat16)
        weights = model.init(jax.random.key(1), x)
        optimizer = optax.adam(1e-4)
        state = optimizer.init(weights)

    @jax.jit
    def update(weights: object, state: object, x: jax.Array) -> tuple[object, object, jax.Array]:
        loss, gradients = jax.value_and_grad(lambda w: jnp.square(model.apply(w, x)).mean())(
            weights
        )
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, updates), state, loss

    kept = [weights, state]

    def step() -> None:
        kept[0], kept[1], loss = update(kept[0], kept[1], x)
        float(loss)

    return step


def cupy_spectra(rank: Rank) -> Step:
    """Spectra of long signals, and their statistics."""
    import cupy

    cupy.cuda.Device(rank.device.index).use()
    signals = cupy.random.standard_normal((512, 1 << 16), dtype=cupy.float32)

    def step() -> None:
        spectrum = cupy.abs(cupy.fft.rfft(signals, axis=1))
        float((spectrum / spectrum.max(axis=1, keepdims=True)).mean())

    return step
