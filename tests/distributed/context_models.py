"""Models on sequences that are divided over processes, against one process; run by test_context_models.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from processes import refused
from torch import Tensor

from retrograd.distributed import ContextParallel, Layout, Slots, SlotSum
from retrograd.nn import Attention, AttentionConfig, LanguageModel, Mamba, Mamba1Config, Mamba2Config, MambaConfig

ATTENTION = AttentionConfig(4, 2, rotary_emb_dim=8, d_conv=3, qk_norm=True, mlp_dim=10)
CONFIG = MambaConfig(
    d_model=32,
    n_layer=3,
    vocab_size=24,
    d_intermediate=20,
    ssm_cfg=Mamba2Config(d_state=4, headdim=8),
    attn_layer_idx=(1,),
    attn_cfg=ATTENTION,
)
TIME = 600
LAYOUTS = {"rows": None, "packed": (3, 10, 10, 500, 585)}
ROUNDING = 1e-12  # of sums over 600 steps in float64, beside the largest


def model(**options: Any) -> LanguageModel:
    """With Mamba-2, attention, Mamba, and MLPs."""
    torch.manual_seed(0)
    ours = LanguageModel(CONFIG, **options)
    ours.backbone.blocks[2].mixer = Mamba(32, Mamba1Config(d_state=4))
    return ours


def whole(ours: LanguageModel, tokens: Tensor, bounds: tuple[int, ...] | None) -> Tensor:
    """Logits in one process."""
    logits: Tensor = ours(tokens, cu_seqlens=None if bounds is None else torch.tensor(bounds))
    return logits


def differences(rank: int, world: int, device: str) -> list[str]:
    """Layouts with which logits have other bits than in one process, and gradients that are not within rounding."""
    found = []
    for name, bounds in LAYOUTS.items():
        context = ContextParallel(Layout.even(TIME, world, rank, bounds))
        tokens = torch.randint(24, (2 if bounds is None else 1, TIME), generator=torch.Generator().manual_seed(1))
        exact = model(exact=True)  # PyTorch's products may have other bits in another number of rows
        with torch.no_grad():
            logits = exact(context.shard(tokens), context=context)
            if not torch.equal(logits, context.shard(whole(exact, tokens, bounds))):
                found.append(f"{name}: logits")
        found += [f"{name}: {what}" for what in wrong_gradients(context, tokens)]
    return found


def wrong_gradients(context: ContextParallel, tokens: Tensor) -> Iterator[str]:
    """The parameters whose gradients, summed over the processes, are not those of one process."""
    layout = context.layout
    one, divided = model().double(), model().double()
    pull = torch.randn(*tokens.shape, 24, dtype=torch.float64)
    (whole(one, tokens, layout.bounds) * pull).sum().backward()
    total = SlotSum(divided.parameters(), Slots(layout.world, layout.world, layout.rank))
    (divided(context.shard(tokens), context=context) * context.shard(pull)).sum().backward()
    total.take()
    total.finish()
    for (name, parameter), other in zip(one.named_parameters(), divided.parameters(), strict=True):
        assert parameter.grad is not None, name
        assert other.grad is not None, name
        if not (parameter.grad - other.grad).abs().max() <= ROUNDING * parameter.grad.abs().max():
            yield f"{name}: {(parameter.grad - other.grad).abs().max().item()} off"


def refusals(rank: int, world: int, device: str) -> list[str]:
    """The messages of calls that do not fit."""
    context = ContextParallel(Layout.even(512, world, rank))
    ours, tokens = model(), torch.zeros(1, 256, dtype=torch.int64)
    u, bounds = torch.zeros(1, 256, 32), torch.tensor([0, 256])
    blocks = ours.backbone.blocks
    mamba2, attention, mamba = (block.mixer for block in blocks)
    forward: Any = ours
    plain = Attention(32, AttentionConfig(4, 2, rotary_emb_dim=8))
    return refused(
        [
            lambda: forward(tokens, cu_seqlens=bounds, context=context),
            lambda: forward(tokens, ours.initial_state(1, capacity=512), context=context),
            lambda: blocks[0](u, None, mamba2.initial_state(1), context=context),
            *(lambda mixer=mixer: mixer(u, cu_seqlens=bounds, context=context) for mixer in (mamba, mamba2, attention)),
            *(
                lambda mixer=mixer: mixer(u, mixer.initial_state(1, capacity=512), context=context)
                for mixer in (mamba, mamba2, attention)
            ),
            lambda: mamba(u[:, 1:], context=context),
            lambda: plain(u[:, 1:], context=context),
        ]
    )
