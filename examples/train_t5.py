"""T5 on retrograd's attention: its relative position bias is a bias of the scores, with a reproducible gradient.

python examples/train_t5.py --steps 60
"""

from __future__ import annotations

import argparse

import torch
from transformers import T5Config, T5ForConditionalGeneration

from retrograd.compat import report
from retrograd.compat.transformers import patch, register


def main() -> None:
    """Train a small model to write a row of tokens backwards, and print the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=32, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0,
        attn_implementation=register(),
    )  # fmt: skip
    model = patch(T5ForConditionalGeneration(config)).train()  # patch: its norms as well
    print(report(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows = torch.randint(2, 32, (32, 6))
        loss = model(input_ids=rows, labels=rows.flip(1)).loss
        loss.backward()
        bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
        norm = bias.grad.norm()
        optimizer.step()
        optimizer.zero_grad()
        if step % (steps // 3) == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss:.3f}  gradient of the position bias {norm:.4f}")


if __name__ == "__main__":
    main()
