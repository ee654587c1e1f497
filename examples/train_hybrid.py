"""A language model of Mamba-2 and attention layers, trained on bytes, saved, loaded and asked to write.

python examples/train_hybrid.py --steps 60
"""

from __future__ import annotations

import argparse
import sysconfig
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

from retrograd.nn import AttentionConfig, LanguageModel, Mamba2Config, MambaConfig, generate, load, save


def main() -> None:
    """Train on a module of Python's standard library, and print the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    source = (Path(sysconfig.get_paths()["stdlib"]) / "inspect.py").read_bytes()
    text = torch.frombuffer(bytearray(source), dtype=torch.uint8).long()

    config = MambaConfig(
        d_model=64,
        n_layer=3,
        vocab_size=256,
        ssm_cfg=Mamba2Config(d_state=32, headdim=16),
        attn_layer_idx=(1,),  # the second layer is attention
        attn_cfg=AttentionConfig(4, rotary_emb_dim=16),
    )
    model = LanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        starts = torch.randint(len(text) - 129, (8, 1))
        rows = text[starts + torch.arange(129)]
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % (steps // 3) == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss:.3f}")

    with tempfile.TemporaryDirectory() as folder:
        save(model, folder)
        again = load(folder)
    prompt = torch.tensor([list(b"def ")])
    print(bytes(int(token) for token in generate(again, prompt, 40)))


if __name__ == "__main__":
    main()
