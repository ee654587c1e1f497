"""`retrograd.compat.transformers.patch`: a patched model has the same results and parameters."""

from __future__ import annotations

import copy
import importlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compat_models import JAMBA, MAMBA, MAMBA2, TOKENS, VOCABULARY
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")

from retrograd.compat import report  # noqa: E402
from retrograd.compat.reports import Line  # noqa: E402
from retrograd.compat.transformers import RMSNorm, patch, register_norms, unpatch  # noqa: E402

ATTENTION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
# Model -> its configuration, the class of its norms and their number.
MODELS: dict[str, tuple[dict[str, Any], str, int]] = {
    "Llama": (ATTENTION, "LlamaRMSNorm", 5),
    "Qwen3": (ATTENTION, "Qwen3RMSNorm", 9),
    "Gemma": (ATTENTION, "GemmaRMSNorm", 5),
    "Gemma2": (ATTENTION, "Gemma2RMSNorm", 9),
    "Gemma3": (ATTENTION, "Gemma3RMSNorm", 13),
    "Mamba": (MAMBA, "MambaRMSNorm", 3),
    "FalconMamba": (MAMBA, "FalconMambaRMSNorm", 3),
    "Jamba": (JAMBA, "JambaRMSNorm", 13),
}
TEXT = {"Gemma3": "Gemma3Text"}  # the prefix of its configuration
# Two float32 computations that round at different points differ by some tens of units of 2^-24 in every layer.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{TEXT.get(name, name)}Config")(**TOKENS, **MODELS[name][0])
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:  # weights of 1 would hide errors in their use
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def quietly(model: Any) -> Any:
    """The patched model, without the warnings about skipped norms."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return patch(model)


def norms(model: nn.Module) -> list[str]:
    """The classes of the norms that run on their own code."""
    kinds = [type(module) for module in model.modules() if "RMSNorm" in type(module).__name__]
    return [kind.__name__ for kind in kinds if not issubclass(kind, RMSNorm)]


def patched_norms(model: nn.Module) -> list[str]:
    """The original classes of those that run on retrograd."""
    return [module.original.__name__ for module in model.modules() if isinstance(module, RMSNorm)]


def answer(model: Any, seed: int) -> tuple[Tensor, dict[str, Tensor | None]]:
    ids = torch.randint(2, VOCABULARY, (2, 10), generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    result = model.eval()(ids, labels=ids, use_cache=False)
    result.loss.backward()
    return result.logits.detach(), {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_has_the_same_logits_gradients_and_parameters(name: str, seed: int) -> None:
    model = model_of(name)
    _, original, count = MODELS[name]
    assert norms(model).count(original) == count
    expected, keys, parameters = answer(model, seed), list(model.state_dict()), list(model.parameters())
    assert quietly(model) is model
    assert (norms(model).count(original), patched_norms(model).count(original)) == (0, count)
    assert list(model.state_dict()) == keys
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    torch.testing.assert_close(answer(model, seed), expected, **CLOSE)
    unpatch(model)
    assert norms(model).count(original) == count
    assert torch.equal(answer(model, seed)[0], expected[0])


@pytest.mark.parametrize("name", ["Llama", "Gemma"])
@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16])
def test_results_keep_the_dtypes_and_values_of_the_original(
    name: str, x: torch.dtype, weight: torch.dtype, seed: int
) -> None:
    module = model_of(name).model.norm.to(weight)
    hidden = torch.randn(7, 32, generator=torch.Generator().manual_seed(seed)).to(x)
    expected = module(hidden)
    y = patch(nn.Sequential(module))(hidden)
    assert y.dtype == expected.dtype
    # The original rounds to x's dtype, the weight's 1 + w, and the product: three roundings.
    eps = max(torch.finfo(x).eps, torch.finfo(weight).eps)
    torch.testing.assert_close(y.float(), expected.float(), rtol=3 * eps, atol=0)


class Norm(nn.Module):
    """A standard RMS norm, the base of the variants below."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class WeightsRMSNorm(Norm):
    """Idefics' rule: a weight in half precision determines the dtype of the result, not the wider of the two."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * (x.float().square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return self.weight * (x if self.weight.dtype == torch.float32 else x.to(self.weight.dtype))


class WideRMSNorm(Norm):
    """A norm with float32 results for every input dtype."""

    def forward(self, x: Tensor) -> Tensor:
        return x.float() * (x.float().square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight.float()


@pytest.mark.parametrize("kind", [WeightsRMSNorm, WideRMSNorm])
def test_results_keep_a_dtype_that_is_neither_the_input_s_nor_the_wider_one(kind: type[nn.Module]) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    for weight in dtypes:
        module = kind().to(weight)
        inputs = [torch.randn(3, 8).to(x) for x in dtypes]
        expected = [module(x).dtype for x in inputs]
        patched = patch(nn.Sequential(module))
        assert isinstance(module, RMSNorm)
        assert [patched(x).dtype for x in inputs] == expected


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_default_dtype_changes_nothing(default: torch.dtype) -> None:
    module = transformers.models.llama.modeling_llama.LlamaRMSNorm(8)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        patch(nn.Sequential(module))
    finally:
        torch.set_default_dtype(before)
    assert isinstance(module, RMSNorm)
    assert module(torch.randn(2, 8).bfloat16()).dtype == torch.float32  # of its weight, as before


def test_a_patched_model_is_copied_saved_and_patched_again(seed: int) -> None:
    model = patch(model_of("Llama"))
    assert patch(model) is model
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    expected = answer(model, seed)[0]
    for other in (copy.deepcopy(model), torch.load(stored, weights_only=False)):
        assert torch.equal(answer(other, seed)[0], expected)
        assert "LlamaRMSNorm" in norms(unpatch(other))


def test_hooks_of_a_norm_still_run() -> None:
    model = model_of("Llama")
    called = []
    model.model.norm.register_forward_hook(lambda *_: called.append(True))
    answer(patch(model), 0)
    assert called


def test_what_was_built_on_a_patched_norm_is_not_lost(seed: int) -> None:
    model = patch(model_of("Llama"))
    parametrizations.weight_norm(model.model.norm)
    expected = answer(model, seed)[0]
    with pytest.raises(ValueError, match=r"^unpatch: class of model\.norm is 'ParametrizedLlamaRMSNorm', expected 'Ll"):
        unpatch(model)
    assert len(patched_norms(model)) == 5
    assert torch.equal(answer(model, seed)[0], expected)
    parametrize.remove_parametrizations(model.model.norm, "weight")
    assert norms(unpatch(model)) == ["LlamaRMSNorm"] * 5
    torch.testing.assert_close(answer(model, seed)[0], expected, **CLOSE)


def test_a_patched_norm_is_not_stored_without_its_parametrization() -> None:
    model = patch(model_of("Llama"))
    parametrizations.weight_norm(model.model.norm)
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        torch.save(model, io.BytesIO())


def test_a_patched_norm_that_lost_its_weight_is_named() -> None:
    model = patch(model_of("Llama"))
    del model.model.norm.weight
    with pytest.raises(TypeError, match=r"^LlamaRMSNorm: weight is NoneType, expected a torch\.Tensor"):
        answer(model, 0)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_an_eps_of_none_is_pytorch_s(dtype: torch.dtype, device: str, seed: int) -> None:
    norm = nn.RMSNorm(32, dtype=dtype, device=device)
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    rows = torch.tensor([[0.1 * eps**0.5], [eps**0.5], [1.0]])  # with the dtype's own eps 16 bits would give some 0
    x = (torch.randn(3, 32, generator=torch.Generator().manual_seed(seed)) * rows).to(device, dtype).requires_grad_()
    expected = norm(x)
    gradient = torch.autograd.grad(expected.sum(), x)[0]
    assert isinstance(patch(nn.Sequential(norm))[0], RMSNorm)
    found = norm(x)
    assert found.dtype == expected.dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=2 * unit, atol=0)
    close = 8 * unit * gradient.abs().amax(-1, keepdim=True)  # it is a difference of numbers of this size
    assert ((torch.autograd.grad(found.sum(), x)[0] - gradient).abs() <= close).all()


@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16])
def test_an_eps_of_none_is_pytorch_s_beside_weights_of_another_dtype(
    x: torch.dtype, weight: torch.dtype, seed: int
) -> None:
    norm = nn.RMSNorm(32, dtype=weight)
    rows = torch.tensor([[1e-5], [3e-4], [1.0]])
    hidden = (torch.randn(3, 32, generator=torch.Generator().manual_seed(seed)) * rows).to(x)
    expected = norm(hidden)
    model = patch(nn.Sequential(norm))
    assert report(model).lines == (Line("norm", "RMSNorm", 1, True, "patched"),)
    assert model(hidden).dtype == expected.dtype
    torch.testing.assert_close(model(hidden), expected, rtol=2 * torch.finfo(expected.dtype).eps, atol=0)


@pytest.mark.parametrize("shape", [8, 16, (2, 8)])
def test_a_norm_of_pytorch_s_without_a_weight_is_left_and_reported(shape: Any) -> None:
    left = nn.RMSNorm(shape, elementwise_affine=False)
    why = "a torch.nn.RMSNorm is replaced only if it has a weight"
    with pytest.warns(RuntimeWarning, match=rf"RMSNorm \(0; 1 in all\): {why}"):
        model = patch(nn.Sequential(left, nn.RMSNorm(8)))
    assert type(left) is nn.RMSNorm
    no, yes = sorted(report(model).lines, key=lambda line: line.ours)
    assert (no, yes) == (Line("norm", "RMSNorm", 1, False, why), Line("norm", "RMSNorm", 1, True, "patched"))


class ShiftedRMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 1.001


class MeanRMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(-1, keepdim=True))


class OtherEpsRMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 2 * self.eps).rsqrt() * self.weight


class InputEpsRMSNorm(Norm):
    """A norm whose eps is that of the input's dtype, which PyTorch's documents once said of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = None  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), torch.finfo(x.dtype).eps)


class WeightlessRMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / self.weight


class FailingRMSNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no")


class GateIgnoringRMSNorm(Norm):
    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(x)


class TwiceRMSNorm(Norm):
    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        return super().forward(x)


class BiasedRMSNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(8))


class NamelessRMSNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        del self.eps


class ParentRMSNorm(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()


def replaced() -> nn.Module:
    module: nn.Module = transformers.models.llama.modeling_llama.LlamaRMSNorm(8)
    module.forward = lambda x: x
    return module


def without_eps() -> nn.Module:
    module: nn.Module = transformers.models.llama.modeling_llama.LlamaRMSNorm(8, eps=0.0)
    return module


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (ShiftedRMSNorm(), "computes something else"),
        (MeanRMSNorm(), "computes something else"),
        (OtherEpsRMSNorm(), "computes something else"),
        (InputEpsRMSNorm(), "computes something else"),
        (WeightlessRMSNorm(), "computes something else"),
        (FailingRMSNorm(), "could not be tried out .KeyError"),
        (GateIgnoringRMSNorm(), "computes something else"),
        (TwiceRMSNorm(), "it takes other tensors beside its input and a gate"),
        (BiasedRMSNorm(), "more than a weight of one dimension"),
        (ParentRMSNorm(), "it has modules of its own"),
        (NamelessRMSNorm(), "no number named variance_epsilon or eps"),
        (replaced(), "forward is replaced already, as accelerate's hooks do: patch the model before"),
        (without_eps(), "could not be tried out .ValueError: rms_norm: eps is 0.0"),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, nn.Module) else "",
)
def test_a_norm_that_differs_is_left_with_a_warning_that_says_why(module: nn.Module, why: str) -> None:
    good = transformers.models.llama.modeling_llama.LlamaRMSNorm(8)
    before = type(module)
    with pytest.warns(RuntimeWarning, match=rf"{before.__name__} \(inner; 1 in all\): .*{why}") as caught:
        patch(nn.ModuleDict({"inner": module, "good": good}))
    assert type(module) is before
    assert isinstance(good, RMSNorm)
    assert caught[0].filename == __file__


GATED = {
    "mamba2": ("MambaRMSNormGated", {"group_size": 8}, "silu gate of its input"),
    "bamba": ("BambaRMSNormGated", {"group_size": 32}, "silu gate of its input"),
    "zamba2": ("Zamba2RMSNormGated", {"group_size": 16}, "silu gate of its input"),
    "falcon_h1": ("FalconH1RMSNormGated", {"n_groups": 2, "norm_before_gate": True}, "silu gate of its output"),
    "nemotron_h": ("NemotronHRMSNormGated", {"group_size": 8}, "silu gate of its input"),
    "granitemoehybrid": ("GraniteMoeHybridRMSNormGated", {"group_size": 16}, "silu gate of its input"),
    "qwen3_next": ("Qwen3NextRMSNormGated", {}, "silu gate of its output"),
    "kimi_linear": ("KimiLinearRMSNormGated", {}, "sigmoid gate of its output"),
}


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("x", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight", [torch.float32, torch.bfloat16])
def test_gated_norms_keep_their_values_gradients_and_dtypes(
    name: str, x: torch.dtype, weight: torch.dtype, seed: int
) -> None:
    kind, options, gate = GATED[name]
    module = getattr(importlib.import_module(f"transformers.models.{name}.modeling_{name}"), kind)(32, **options)
    torch.manual_seed(seed)
    with torch.no_grad():
        module.weight.add_(0.3 * torch.randn(32))
    module.to(weight)
    inputs = [torch.randn(2, 5, 32).to(x).requires_grad_() for _ in range(2)]
    expected = module(*inputs)
    gradient = torch.randn(2, 5, 32).to(expected.dtype)
    wanted = torch.autograd.grad(expected, [*inputs, module.weight], gradient)
    patch(nn.Sequential(module))
    assert gate in repr(module)
    found = module(*inputs)
    assert found.dtype == expected.dtype
    # The original rounds to x's dtype before it multiplies by the weight, and the product: two roundings to ours. Two
    # sums of 32 squares in float32 are apart by at most 2^-18, half of that after the root.
    eps = max(torch.finfo(x).eps, torch.finfo(weight).eps)
    torch.testing.assert_close(found.float(), expected.float(), rtol=3 * eps + 2.0**-19, atol=0)
    for a, b in zip(torch.autograd.grad(found, [*inputs, module.weight], gradient), wanted, strict=True):
        assert a.dtype == b.dtype
        assert (a.float() - b.float()).norm() <= (4 * eps + 2.0**-18) * b.float().norm()


def test_a_gated_norm_without_its_gate_is_a_norm() -> None:
    module = transformers.models.bamba.modeling_bamba.BambaRMSNormGated(32, 16)
    hidden = torch.randn(3, 32)
    expected = module(hidden)
    torch.testing.assert_close(patch(nn.Sequential(module))[0](hidden), expected, **CLOSE)


def test_all_norms_of_mamba_2_are_replaced(seed: int) -> None:
    model = transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**TOKENS, **MAMBA2))
    expected = answer(model, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch(model)
    assert (len(norms(model)), len(patched_norms(model))) == (0, 5)
    torch.testing.assert_close(answer(model, seed), expected, **CLOSE)


@pytest.mark.parametrize("name", ["T5", "MT5", "SwitchTransformers", "LongT5"])
def test_the_norms_of_t5_are_called_layernorm_and_replaced(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    config = getattr(transformers, f"{name}Config")(**{**TOKENS, **sizes}, decoder_start_token_id=0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    ids = torch.randint(2, VOCABULARY, (2, 10))
    expected = model(ids, labels=ids).logits
    patch(model)
    assert len(patched_norms(model)) == sum("LayerNorm" in type(module).__name__ for module in model.modules())
    torch.testing.assert_close(model(ids, labels=ids).logits, expected, **CLOSE)


def test_layer_norms_with_a_mean_are_left_without_a_word() -> None:
    model = nn.ModuleDict({"one": nn.LayerNorm(8), "other": transformers.models.llama.modeling_llama.LlamaRMSNorm(8)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch(model)
    assert type(model["one"]) is nn.LayerNorm


@pytest.fixture
def mapping() -> Iterator[None]:
    yield
    importlib.import_module("transformers.monkey_patching").clear_patch_mapping()


@pytest.mark.usefixtures("mapping")
@pytest.mark.parametrize(("model_type", "name"), [("llama", "Llama"), ("gemma2", "Gemma2"), ("mamba2", "Mamba2")])
def test_models_that_transformers_builds_have_their_norms_replaced(
    model_type: str, name: str, tmp_path: Path, seed: int
) -> None:
    config = getattr(transformers, f"{name}Config")(**TOKENS, **(MAMBA2 if name == "Mamba2" else ATTENTION))
    torch.manual_seed(seed)
    plain = transformers.AutoModelForCausalLM.from_config(config)
    assert set(register_norms(model_type)) == set(norms(plain))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert (norms(model), sorted(patched_norms(model))) == ([], sorted(norms(plain)))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    torch.testing.assert_close(answer(model, seed), answer(plain, seed), **CLOSE)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (norms(loaded), len(patched_norms(loaded))) == ([], len(norms(plain)))
    assert torch.equal(answer(loaded, seed)[0], answer(model, seed)[0])


@pytest.mark.usefixtures("mapping")
def test_a_type_of_model_without_norms_is_named() -> None:
    with pytest.raises(ValueError, match=r"^register_norms: model_type is 'lama', expected a model_type of"):
        register_norms("lama")
    with pytest.raises(ValueError, match=r"^register_norms: model_type is 'gpt2', expected one whose model has an RMS"):
        register_norms("gpt2")
    with pytest.raises(ValueError, match=r"^register_norms: model_type is 'data2vec-text', expected one whose model"):
        register_norms("data2vec-text")  # transformers has no file of this name


@pytest.mark.parametrize("given", [["llama"], ("llama",), None, transformers.LlamaForCausalLM])
def test_a_type_of_model_that_is_no_text_is_named(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^register_norms: model_type is \w+, expected a str such as 'llama', each"):
        register_norms(given)


@pytest.mark.parametrize("function", [patch, unpatch, report])
@pytest.mark.parametrize("model", [None, "gpt2", nn.Linear], ids=["None", "name", "class"])
def test_what_is_no_model_is_named(function: Any, model: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{function.__name__}: model is \w+, expected a torch\.nn\.Module"):
        function(model)


def test_a_model_on_the_meta_device_is_recognised_too() -> None:
    with torch.device("meta"):
        model = transformers.models.llama.modeling_llama.LlamaRMSNorm(8)
    assert isinstance(patch(nn.Sequential(model))[0], RMSNorm)


def test_what_has_no_norm_to_replace_is_an_error() -> None:
    with pytest.raises(ValueError, match="model has no RMSNorm"):
        patch(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="computes something else"):
        patch(nn.Sequential(ShiftedRMSNorm()))


def test_a_norm_of_another_dimension_is_left_as_it_is() -> None:
    class ChannelRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.randn(8)), 1e-6

        def forward(self, x: Tensor) -> Tensor:
            rstd = torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps)
            return x * rstd * self.weight.view(-1, *[1] * (x.ndim - 2))

    with pytest.raises(ValueError, match="no RMSNorm that could be replaced"):
        patch(nn.Sequential(ChannelRMSNorm()))


def test_arguments_keep_the_names_that_the_original_gives_them() -> None:
    class RMSNormGated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps, self.norm = nn.Parameter(torch.randn(8)), 1e-6, "a name of its own"

        def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
            x = x if z is None else x * nn.functional.silu(z)
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

    x, z = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    norm = RMSNormGated()
    expected = norm(x, z=z), norm(x=x)
    patch(nn.Sequential(norm))
    torch.testing.assert_close((norm(x, z=z), norm(x=x)), expected)
    assert norm.norm == "a name of its own"
    for call in (lambda: norm(x, gate=z), lambda: norm(x, z, z), lambda: norm(z=z)):
        with pytest.raises(TypeError, match=r"^RMSNormGated: "):
            call()
