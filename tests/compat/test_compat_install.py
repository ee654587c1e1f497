"""What `install` replaces and leaves unchanged, and that `uninstall` restores everything."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

import retrograd.compat

PACKAGES = ("causal_conv1d", "fla", "mamba_ssm")

# Module -> the names that others import from it.
PLACES = {
    "causal_conv1d": "causal_conv1d_fn causal_conv1d_update",
    "causal_conv1d.causal_conv1d_interface": "causal_conv1d_fn causal_conv1d_update causal_conv1d_ref "
    "causal_conv1d_update_ref",
    "causal_conv1d.causal_conv1d_varlen": "causal_conv1d_varlen_states causal_conv1d_varlen_states_ref",
    "fla.ops.gated_delta_rule": "chunk_gated_delta_rule chunk_gdn fused_recurrent_gated_delta_rule fused_recurrent_gdn",
    "fla.ops.kda": "chunk_kda fused_recurrent_kda",
    "mamba_ssm": "selective_scan_fn mamba_inner_fn Mamba Mamba2 MambaLMHeadModel",
    "mamba_ssm.models.config_mamba": "MambaConfig",
    "mamba_ssm.models.mixer_seq_simple": "MambaLMHeadModel",
    "mamba_ssm.modules.mamba_simple": "Mamba",
    "mamba_ssm.modules.mamba2": "Mamba2",
    "mamba_ssm.ops.selective_scan_interface": "selective_scan_fn mamba_inner_fn selective_scan_ref mamba_inner_ref",
    "mamba_ssm.ops.triton.selective_state_update": "selective_state_update selective_state_update_ref",
    "mamba_ssm.ops.triton.ssd_combined": "mamba_chunk_scan_combined mamba_split_conv1d_scan_combined mamba_chunk_scan "
    "ssd_chunk_scan_combined_ref",
    "mamba_ssm.ops.triton.layer_norm": "RMSNorm rms_norm_fn layer_norm_fn rms_norm_ref",
    "mamba_ssm.ops.triton.layernorm": "RMSNorm rms_norm_fn layer_norm_fn",
    "mamba_ssm.ops.triton.layernorm_gated": "RMSNorm rmsnorm_fn layernorm_fn rms_norm_ref",
    "mamba_ssm.utils.generation": "InferenceParams GenerationMixin",
}


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Remove the stand-ins and fake packages after every test."""
    yield
    retrograd.compat.uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def really_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path with another package named mamba_ssm."""
    inner = tmp_path / "mamba_ssm" / "ops"
    inner.mkdir(parents=True)
    (tmp_path / "mamba_ssm" / "__init__.py").write_text("__version__ = '9'\nfrom mamba_ssm import ops\n")
    (inner / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def present() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.split(".")[0] in PACKAGES}


@pytest.mark.parametrize("name", PLACES)
def test_every_function_is_where_others_look_for_it(name: str) -> None:
    retrograd.compat.install()
    module = importlib.import_module(name)
    assert importlib.util.find_spec(name) is not None
    for function in PLACES[name].split():
        assert callable(getattr(module, function))
    top = importlib.import_module(name.split(".")[0])
    for part in name.split(".")[1:]:  # as an attribute too
        top = getattr(top, part)
    assert top is module


def test_what_is_not_there_is_an_import_error() -> None:
    retrograd.compat.install()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mamba_ssm.ops.triton.ssd_bmm")
    with pytest.raises(ImportError):
        from mamba_ssm import Mamba3  # type: ignore[import-not-found]  # noqa: F401


def test_the_version_is_one_that_has_the_functions_of_mamba_2() -> None:
    retrograd.compat.install()
    assert Version(importlib.import_module("mamba_ssm").__version__) >= Version("2.2")
    assert Version(importlib.import_module("causal_conv1d").__version__) >= Version("1.4")


def test_install_tells_what_it_stands_in_for_and_may_be_called_again() -> None:
    assert retrograd.compat.install() == PACKAGES
    modules = present()
    assert retrograd.compat.install() == PACKAGES
    assert present() == modules


def test_install_puts_back_what_somebody_else_took_out() -> None:
    retrograd.compat.install()
    modules = present()
    for name in modules:
        del sys.modules[name]
    assert retrograd.compat.install() == PACKAGES
    assert present() == modules
    retrograd.compat.uninstall()
    assert present() == {}


def test_uninstall_leaves_nothing_and_may_be_called_again() -> None:
    retrograd.compat.install()
    retrograd.compat.uninstall()
    retrograd.compat.uninstall()
    assert present() == {}
    assert importlib.util.find_spec("mamba_ssm") is None


@pytest.mark.usefixtures("really_installed")
@pytest.mark.parametrize("imported", [False, True])
def test_a_package_that_is_installed_is_left_alone(imported: bool) -> None:
    if imported:
        importlib.import_module("mamba_ssm")
    before = present()
    assert retrograd.compat.install() == ("causal_conv1d", "fla")
    assert importlib.import_module("mamba_ssm").ops.real
    retrograd.compat.uninstall()
    if imported:
        assert present() == before


@pytest.mark.usefixtures("really_installed")
@pytest.mark.parametrize("imported", [False, True])
def test_force_stands_in_for_it_and_uninstall_gives_it_back(imported: bool) -> None:
    if imported:
        importlib.import_module("mamba_ssm.ops")
    before = present()
    retrograd.compat.install()  # first without
    assert retrograd.compat.install(force=True) == PACKAGES
    assert importlib.import_module("mamba_ssm") is retrograd.compat.mamba_ssm  # type: ignore[attr-defined]
    retrograd.compat.uninstall()
    assert present() == before
    assert importlib.import_module("mamba_ssm").ops.real


def test_a_package_whose_import_is_blocked_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    assert "mamba_ssm" in retrograd.compat.install()
    retrograd.compat.uninstall()
    assert sys.modules["mamba_ssm"] is None


def test_a_mere_directory_of_its_name_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mamba_ssm").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("mamba_ssm") is not None
    assert retrograd.compat.install() == PACKAGES


def test_a_function_is_pickled_by_its_own_name_and_a_module_is_reloaded() -> None:
    retrograd.compat.install()
    module = importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    stored = pickle.dumps(module.selective_scan_fn)
    retrograd.compat.uninstall()
    assert pickle.loads(stored) is module.selective_scan_fn
    retrograd.compat.install()
    assert importlib.reload(module) is sys.modules["mamba_ssm.ops.selective_scan_interface"]


def test_a_model_that_was_imported_before_is_named_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    late = ModuleType("transformers.models.mamba.modeling_mamba")
    late.causal_conv1d_fn = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, late.__name__, late)
    with pytest.warns(RuntimeWarning, match=r"transformers\.models\.mamba\.modeling_mamba") as caught:
        retrograd.compat.install()
    assert caught[0].filename == __file__


def test_a_model_whose_import_is_blocked_is_no_hindrance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.models.mamba.modeling_mamba", None)
    assert retrograd.compat.install() == PACKAGES


def test_install_imports_neither_transformers_nor_triton_nor_layers() -> None:
    """`retrograd.nn` imports TorchDynamo, which takes seconds."""
    script = "import retrograd.compat, sys; retrograd.compat.install(); print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "triton", "jax", "retrograd.nn", "torch._dynamo"} & set(names)
