"""`retrograd.compat.report` says of each layer of a model whether it runs on retrograd, and why not."""

from __future__ import annotations

import pytest
import torch
from compat_models import ours, slow
from torch.torch_version import TorchVersion

pytest.importorskip("transformers", reason="the package transformers is not installed")

from attention_models import model_of
from transformers.integrations import hub_kernels

from retrograd.compat import report
from retrograd.compat.reports import Line
from retrograd.compat.transformers import patch, register

FUNCTIONS = (
    "causal_conv1d_fn, causal_conv1d_update, mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined, "
    "selective_state_update"
)


def test_a_model_on_its_own_functions_is_told_what_is_missing() -> None:
    model = model_of("Llama", "sdpa")
    assert report(model).lines == (
        Line(
            "attention",
            "LlamaAttention",
            2,
            False,
            "attn_implementation is 'sdpa': see retrograd.compat.transformers.register",
        ),
        Line("norm", "LlamaRMSNorm", 5, False, "see retrograd.compat.transformers.patch"),
    )


def test_what_runs_on_retrograd_is_told() -> None:
    model = patch(model_of("Llama", register()))
    assert report(model).lines == (
        Line("attention", "LlamaAttention", 2, True, "attn_implementation is 'retrograd'"),
        Line("norm", "LlamaRMSNorm", 5, True, "patched"),
    )
    assert str(report(model)).splitlines() == [
        "layer      modules           on retrograd",
        "attention  2 LlamaAttention  yes           attn_implementation is 'retrograd'",
        "norm       5 LlamaRMSNorm    yes           patched",
    ]


@pytest.mark.parametrize("name", ["mamba2", "nemotron_h"])
def test_scans_are_told_by_the_functions_that_their_file_has_found(name: str) -> None:
    missing = f"{FUNCTIONS}: call retrograd.compat.install() before the model is imported"
    for model, is_ours, why in ((ours(name)[0], True, FUNCTIONS), (slow(name), False, missing)):
        (line,) = [line for line in report(model).lines if line.kind == "scan"]
        assert (line.ours, line.why.split(";")[0]) == (is_ours, why)


def test_scans_are_told_to_be_left_out_where_compiled_until_a_model_is_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.11.0"))
    monkeypatch.setattr(hub_kernels, "is_torchdynamo_exporting", hub_kernels.is_torchdynamo_exporting)
    model = ours("mamba2")[0]

    def told() -> str:
        return next(line.why for line in report(model).lines if line.kind == "scan")

    assert told() == f"{FUNCTIONS}; where compiled, see retrograd.compat.transformers.patch"
    patch(model)
    assert told() == FUNCTIONS
    assert not hub_kernels.is_torchdynamo_exporting()
