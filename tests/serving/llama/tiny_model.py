"""Writes a language model of random weights that llama.cpp loads: FILE. It takes the package gguf.

It has a token for each byte and speaks gibberish; a server treats it as any other.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import sys

import gguf
import numpy as np

BLOCKS, WIDTH, HEADS, INNER, CONTEXT = 2, 64, 4, 128, 4096


def write(file: str) -> None:
    """Write the model."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)

    special = [b"<unk>", b"<s>", b"</s>"]
    tokens = [*special, *(b"<0x%02X>" % byte for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([*kinds, *([gguf.TokenType.BYTE] * 256)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    chance = np.random.default_rng(1)

    def weights(name: str, *shape: int) -> None:
        writer.add_tensor(name, chance.normal(0, 0.05, shape).astype(np.float32))

    weights("token_embd.weight", len(tokens), WIDTH)
    weights("output.weight", len(tokens), WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for block in range(BLOCKS):
        for part in ("q", "k", "v", "output"):
            weights(f"blk.{block}.attn_{part}.weight", WIDTH, WIDTH)
        for part in ("gate", "up"):
            weights(f"blk.{block}.ffn_{part}.weight", INNER, WIDTH)
        weights(f"blk.{block}.ffn_down.weight", WIDTH, INNER)
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{block}.{norm}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
