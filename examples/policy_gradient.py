"""A step of policy gradient on text that the model itself has drawn: the importance ratios are exactly 1.

Text is drawn step by step, and scored by one forward pass with gradients. In most libraries the two disagree, and the
ratio of their probabilities has to be clipped; here it is 1 in every bit, so that the step is on policy.
"""

from __future__ import annotations

import torch

from retrograd.nn import LanguageModel, Mamba2Config, MambaConfig, generate, score

PROMPT, DRAWN, WANTED = 4, 60, ord("e")

torch.manual_seed(0)
config = MambaConfig(d_model=64, n_layer=2, vocab_size=256, ssm_cfg=Mamba2Config(d_state=16, headdim=16))
model = LanguageModel(config, exact=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(10):
    prompt = torch.randint(256, (16, PROMPT))
    draws = zip(*generate(model, prompt, DRAWN, log_probabilities=True), strict=True)
    text, before = (torch.stack(each, dim=1) for each in draws)
    now = score(model, torch.cat((prompt, text), dim=1))[:, PROMPT - 1 :]
    ratio = (now - before).exp()
    reward = (text == WANTED).float().mean(dim=1)
    (-ratio * (reward - reward.mean())[:, None]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: reward {reward.mean():.3f}, ratios from {ratio.min():.9f} to {ratio.max():.9f}")
