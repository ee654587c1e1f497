"""The kernel for the Hugging Face Hub, built from the sources: where no retrograd is, beside others, and in models."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_calls import ALONE, BUILD, CALLS, ENVIRONMENT, LOADERS, OWN_BITS, VARIANT, run

pytestmark = pytest.mark.packages
pytest.importorskip("kernels")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of the kernel's repository."""
    out = tmp_path_factory.mktemp("hub") / "retrograd"
    subprocess.run([sys.executable, BUILD, out], check=True, env=ENVIRONMENT)
    return out


def imports(source: ast.AST) -> Iterator[tuple[str, bool]]:
    """The packages of absolute imports, and whether each is for a type checker alone."""
    for node in ast.iter_child_nodes(source):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from ((name, True) for name, _ in imports(node))
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], False) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).split(".")[0], False
        yield from imports(node)


def test_the_kernel_imports_itself_python_torch_and_triton_alone(repository: Path) -> None:
    found = {each for path in repository.rglob("*.py") for each in imports(ast.parse(path.read_text()))}
    assert {name for name, checked in found if not checked} <= {*sys.stdlib_module_names, "torch", "triton"}
    assert {name for name, checked in found if checked} <= {"jaxtyping", "triton"}


def test_no_string_names_a_module_or_an_operator_of_retrograd(repository: Path) -> None:
    named = [
        f"{path}:{node.lineno}"
        for path in repository.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and str(node.value).startswith(("retrograd.", "retrograd:"))
    ]
    assert not named


def test_the_variant_has_the_modules_of_these_ops_and_no_more(repository: Path) -> None:
    folder = repository / VARIANT
    assert {path.name for path in (folder / "ops").iterdir() if path.is_dir()} == {
        "rms_norm",
        "linear_scan",
        "causal_conv1d",
        "selective_scan",
        "ssd",
    }
    names = {path.stem for path in folder.rglob("*.py")}
    assert not names & {"jax", "reference", "cases", "info", "jax_functions", "jax_like"}
    assert (repository / "README.md").read_text().startswith("---\nlibrary_name: kernels\n")


def test_the_metadata_are_those_that_the_loader_reads(repository: Path) -> None:
    from kernels._rust import Digest, DigestAlgorithm, Metadata  # type: ignore[import-untyped]

    folder = repository / VARIANT
    metadata = Metadata.read_from_file(folder / "metadata.json")
    assert metadata.id.isidentifier()
    assert str(metadata.name) == "retrograd"
    assert metadata.digest is not None
    metadata.digest.validate(Digest.hash_variant(DigestAlgorithm.SHA256, folder))


def test_a_build_does_not_write_beside_other_files(repository: Path) -> None:
    ran = subprocess.run([sys.executable, BUILD, repository], capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "expected a folder that is new or empty" in ran.stderr


BITS = """
import kernels
kernel = kernels.get_local_kernel(Path(sys.argv[1]))
plain = load(Path(sys.argv[1]) / "build" / "torch-universal", "plain")
torch.save([found(kernel), found(plain)], sys.argv[2])
names = {name.split("::")[0] for name in torch._C._dispatch_get_all_op_names()}
print(sorted(name for name in names if name in ("retrograd", "plain", kernel.__name__)))
print(kernel.__name__)
"""
# Every module can be imported, and another process compiles the kernels.
COMPILES = """
import pkgutil

for module in pkgutil.walk_packages(kernel.__path__, f"{kernel.__name__}."):
    importlib.import_module(module.name)
apart = sys.modules[f"{kernel.__name__}.core.apart"]
apart.LEAST_CORES = 1
run, ended = apart.run, []
apart.run = lambda *given: ended.append(run(*given)) or ended[-1]
x = torch.empty(64, 128, device="meta", requires_grad=True)
kernel.warmup(lambda x: kernel.rms_norm(x, x.detach()[0]).sum().backward(), x, arch="sm_80")
assert ended and all(ended), ended
"""


def test_where_no_retrograd_is_the_ops_have_its_bits_and_the_kernels_compile(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "TRITON_CACHE_DIR", str(tmp_path / "compiled"))
    operators, name = run(ALONE + LOADERS + CALLS + BITS + COMPILES, repository, tmp_path / "kernel").splitlines()
    assert list((tmp_path / "compiled").rglob("*.cubin"))
    assert operators == str(sorted(("plain", name)))
    run(CALLS + OWN_BITS, tmp_path / "own")
    (own,) = torch.load(tmp_path / "own")
    for results in torch.load(tmp_path / "kernel"):
        assert results.keys() == own.keys()
        for op, expected in own.items():
            assert all(torch.equal(got, each) for got, each in zip(results[op], expected, strict=True)), op


TOGETHER = """
import kernels, retrograd, torch
paths = [Path(path) for path in sys.argv[1:]]
copies = [*map(kernels.get_local_kernel, paths), load(paths[0] / "build" / "torch-universal", "a-name"), retrograd]
assert kernels.get_local_kernel(paths[0]) is copies[0]
x, weight = torch.randn(3, 5, 8), torch.randn(8)

def through_operators(module):
    return torch.func.vmap(lambda x: module.rms_norm(x, weight))(x)

first = [through_operators(each) for each in copies]
again = [through_operators(each) for each in reversed(copies)]
assert all(torch.equal(each, retrograd.rms_norm(x, weight)) for each in (*first, *again))
owners = {name.split("::")[0] for name in torch._C._dispatch_get_all_op_names() if name.endswith("::ssd_backward")}
print(*sorted(owners))
"""


def test_copies_and_an_installed_retrograd_are_apart_in_one_process(repository: Path, tmp_path: Path) -> None:
    metadata = json.loads((repository / VARIANT / "metadata.json").read_text())
    shutil.copytree(repository, tmp_path / "other")
    (tmp_path / "other" / VARIANT / "metadata.json").write_text(json.dumps(metadata | {"id": "another_build"}))
    owners = run("import sys" + LOADERS + TOGETHER, repository, tmp_path / "other").split()
    assert owners == sorted([metadata["id"], "another_build", "a_name", "retrograd"])


NORMS = """
import torch, transformers, kernels
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

path = Path(sys.argv[1])
kernel = kernels.get_local_kernel(path)
SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}
for kind, layer, config in (
    (LlamaRMSNorm, "RMSNorm", transformers.LlamaConfig(**SIZES, **HEADS)),
    (GemmaRMSNorm, "RMSNormZeroCentered", transformers.GemmaConfig(**SIZES, **HEADS)),
):
    kernels.replace_kernel_forward_from_hub(kind, layer)  # as transformers decorates it beside a `kernels` it accepts
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    tokens = torch.arange(1, 13).view(2, 6)

    def trained():
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        return [each.grad for each in model.parameters()]

    expected = trained()
    local = kernels.LocalLayerRepository(path, layer_name=layer)
    mode = kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE
    with kernels.use_kernel_mapping({layer: {"cpu": local}}, inherit_mapping=False):
        kernels.kernelize(model, mode=mode, device="cpu", use_fallback=False)
    norm = model.model.norm
    assert norm.forward.__func__ is getattr(kernel.layers, layer).forward
    for got, each in zip(trained(), expected, strict=True):
        torch.testing.assert_close(got, each)
    x = torch.randn(2, 16)
    assert torch.equal(torch.compile(norm, backend="eager", fullgraph=True)(x), norm(x))

for name in ("RMSNorm", "RMSNormZeroCentered"):
    module = torch.nn.Module()
    module.weight, module.eps, module.variance_epsilon = torch.ones(8, dtype=torch.bfloat16), 1e-6, 1e-6
    assert getattr(kernel.layers, name).forward(module, torch.randn(2, 8)).dtype == torch.float32
"""


MAMBA = """
import inspect
from kernels.layer.layer import _create_func_module, _validate_layer
from transformers.models.mamba import modeling_mamba as one
from transformers.models.mamba2 import modeling_mamba2 as two
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

layers = kernel.layers
torch.manual_seed(0)
x, weight, z, grouped = torch.randn(2, 8, 6), torch.randn(8, 4), torch.randn(2, 8, 6), torch.randn(2, 4, 6)
heads, by_group, dt = torch.randn(2, 6, 4, 8), torch.randn(2, 6, 2, 4), torch.rand(2, 6, 4)
A, D = -torch.rand(8, 4), torch.randn(8)
selective = {"D": D, "z": z, "delta_bias": D, "delta_softplus": True, "return_last_state": True}
chunked = {"D": D[:4], "dt_bias": D[:4], "dt_softplus": True, "return_final_states": True, "z": None, "unknown": 1}
step = {"z": z[..., 0], "dt_bias": D, "dt_softplus": True}
state, now = z[..., :4].clone(), (x[..., 0], x[..., 1], A, x[:, :4, 2], x[:, :4, 3], D)
LAYERS = {
    "causal_conv1d_fn": (two.causal_conv1d_fn, (x, weight, D), {"activation": "silu", "unknown": 1}),
    "causal_conv1d_update": (two.causal_conv1d_update, (x[..., :1], state, weight, D, "silu"), {}),
    "selective_scan_fn": (one.mamba_selective_scan, (x, z, A, grouped, grouped), selective),
    "selective_state_update": (one.mamba_selective_state_update, (state, *now), step),
    "mamba_chunk_scan_combined": (two.mamba2_chunk_scan, (heads, dt, A[:4, 0], by_group, by_group, 4), chunked),
    "mamba_inner_fn": (one.mamba_inner_fn, None, {}),  # transformers has no formulas of the last two
    "mamba_split_conv1d_scan_combined": (two.mamba2_split_conv1d_scan_combined, None, {}),
}

def results(function, arguments, options):
    own = tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in arguments)
    found = function(*own, **options)
    return [*(found if isinstance(found, tuple) else (found,)), *own[:2]]  # a state is written in place

for name, (original, arguments, options) in LAYERS.items():
    layer = getattr(layers, name)
    _validate_layer(check_cls=_create_func_module(original), cls=layer, repo=name)
    assert list(inspect.signature(layer.forward).parameters)[1:] == list(inspect.signature(original).parameters)
    if arguments is not None:
        found, expected = (results(each, arguments, options) for each in (layer(), original))
        for got, each in zip(found, expected, strict=True):
            torch.testing.assert_close(got, each, rtol=1e-4, atol=1e-5)

norm = Qwen3NextRMSNormGated(8)
_validate_layer(check_cls=type(norm), cls=layers.RMSNormGated, repo="RMSNormGated")
rows, gate = x.mT, z.mT
torch.testing.assert_close(layers.RMSNormGated.forward(norm, rows, gate), norm(rows, gate))
"""


def test_models_run_on_a_local_kernel_and_its_layers_are_those_that_transformers_looks_for(repository: Path) -> None:
    pytest.importorskip("transformers")
    run(ALONE + LOADERS + NORMS + MAMBA, repository)
