"""`torch.export` exports a model with a dynamic length."""

from __future__ import annotations

import torch

from retrograd.nn import LanguageModel, MambaConfig


def test_a_language_model_is_exported_for_every_length() -> None:
    model = LanguageModel(MambaConfig(d_model=16, n_layer=1, vocab_size=32)).eval()
    length = torch.export.Dim("length", min=2, max=4096)
    exported = torch.export.export(model, (torch.randint(32, (2, 32)),), dynamic_shapes=({1: length},)).module()
    for steps in (2, 31, 33, 300):
        tokens = torch.randint(32, (2, steps))
        torch.testing.assert_close(exported(tokens), model(tokens), rtol=0, atol=0)
