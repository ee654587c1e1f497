"""Training a Mamba-2 of transformers on texts packed into rows, with every layer on retrograd's kernels.

python examples/finetune_mamba2.py --steps 60

For real weights, `Mamba2ForCausalLM.from_pretrained(...)` takes the place of the configuration.
"""

from __future__ import annotations

import argparse
import random
import sysconfig
from pathlib import Path

import torch

import retrograd.compat

retrograd.compat.install()  # before the model is imported

from transformers import Mamba2Config, Mamba2ForCausalLM

from retrograd.compat.transformers import patch

ROW, ROWS = 256, 4  # tokens in a row, which are bytes here; rows in a batch


def batch(texts: list[bytes]) -> dict[str, torch.Tensor]:
    """Rows of whole texts one after another, and the number of each token's text in its row."""
    ids = torch.zeros(ROWS, ROW, dtype=torch.long)
    seq_idx = torch.full((ROWS, ROW), -1, dtype=torch.int32)  # negative: padding
    for row in range(ROWS):
        end = number = 0
        while (text := random.choice(texts)) and end + len(text) <= ROW:
            ids[row, end : end + len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
            seq_idx[row, end : end + len(text)] = number
            end, number = end + len(text), number + 1
    first = torch.cat((torch.ones(ROWS, 1, dtype=torch.bool), seq_idx.diff(dim=1) != 0), dim=1)
    labels = ids.masked_fill(first | (seq_idx < 0), -100)  # no text's first token is foretold from another text
    return {"input_ids": ids, "labels": labels, "seq_idx": seq_idx}


def main() -> None:
    """Train on the functions of Python's standard library, and print the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    random.seed(0)
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = b"".join((library / name).read_bytes() for name in ("ast.py", "inspect.py", "typing.py"))
    texts = [text for text in sources.split(b"\n\n") if 16 <= len(text) <= 120]

    config = Mamba2Config(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_heads=8, head_dim=16, n_groups=1, state_size=32,
        pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = patch(Mamba2ForCausalLM(config)).train()  # norms on rms_norm; packed texts apart in every layer
    print(retrograd.compat.report(model))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = model(**batch(texts)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % (steps // 3) == 0 or step == steps - 1:
            print(f"step {step:3d}  loss {loss:.3f}")

    prompt = torch.tensor([list(b"def ")])
    print(bytes(model.eval().generate(prompt, max_new_tokens=40, do_sample=False)[0].tolist()))


if __name__ == "__main__":
    main()
