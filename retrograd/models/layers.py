"""The configurations of layers, with the names and defaults of state-spaces/mamba, where it has them."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self

from retrograd.core.errors import bad_type, bad_value


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What the configurations of layers share. They are hashable: static arguments of `jax.jit`."""

    # How they are computed, which nobody has to say: read and left out.
    IGNORED: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_dict(cls, given: Any) -> Self:
        """A configuration from a mapping, such as a part of config.json; raises for keys missing or not known."""
        if not isinstance(given, Mapping):
            raise bad_type(cls.__name__, "config", given, "a mapping")
        known = {field.name for field in fields(cls)}
        values = {name: value for name, value in given.items() if name not in cls.IGNORED}
        for name in sorted(values.keys() - known):
            raise ValueError(f"{cls.__name__}: {name!r} is not known, expected {', '.join(sorted(known))}")
        for field in fields(cls):
            if field.default is MISSING and field.name not in values:
                raise ValueError(f"{cls.__name__}: {field.name} is missing")
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`."""
        return asdict(self)

    def _check(self, sizes: str = "", switches: str = "", numbers: str = "") -> None:
        """Raise unless fields are sizes of at least 1, bools, and finite numbers of at least 0."""
        name = type(self).__name__
        for field in sizes.split():
            if not is_size(value := getattr(self, field)):
                raise bad_value(name, field, value, "an integer of at least 1")
        for field in switches.split():
            if not isinstance(value := getattr(self, field), bool):
                raise bad_value(name, field, value, "True or False")
        for field in numbers.split():
            if not is_number(value := getattr(self, field)):
                raise bad_value(name, field, value, "a finite number of at least 0")

    def _check_range(self, field: str, most: Literal["finite", "of at least 0"]) -> None:
        pair = getattr(self, field)
        numbers = isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(x, int | float) for x in pair)
        if not numbers or not 0 <= pair[0] <= pair[1] or (most == "finite" and not 0 < pair[0] <= pair[1] < math.inf):
            raise bad_value(type(self).__name__, field, pair, f"two numbers, {most}, the smaller one first")

    def _check_steps(self) -> None:
        own: Any = self
        if not 0 < own.dt_min <= own.dt_max:
            name = type(self).__name__
            raise ValueError(f"{name}: dt_min is {own.dt_min} and dt_max {own.dt_max}, expected 0 < dt_min <= dt_max")


@dataclass(frozen=True, slots=True)
class Mamba1Config(LayerConfig):
    """A Mamba-1 layer.

    Attributes:
        d_state: states of a channel, N.
        d_conv: width of the convolution, W.
        expand: the layer has expand * d_model channels.
        dt_rank: rank of the projection to dt; ceil(d_model / 16) for "auto".
        dt_min, dt_max: softplus of dt's bias is drawn log-uniformly from this range.
        dt_init: dt's projection is drawn uniformly ("random") or is "constant".
        dt_scale: a factor on the bound of that distribution, or on the constant.
        dt_init_floor: lower bound of what is drawn.
        conv_bias: whether the convolution has a bias.
        bias: whether the input and output projections have a bias.

    Raises:
        ValueError: for sizes below 1, numbers below 0, and values of another type.

    Example:
        >>> from retrograd.nn import Mamba1Config
        >>> config = Mamba1Config()
        >>> config.d_inner(768), config.rank(768)
        (1536, 48)
    """

    d_state: int = 16
    d_conv: int = 4
    expand: int = 2
    dt_rank: int | Literal["auto"] = "auto"
    dt_min: float = 0.001
    dt_max: float = 0.1
    dt_init: Literal["random", "constant"] = "random"
    dt_scale: float = 1.0
    dt_init_floor: float = 1e-4
    conv_bias: bool = True
    bias: bool = False

    layer: ClassVar = "Mamba1"
    IGNORED: ClassVar = ("layer", "use_fast_path")

    def __post_init__(self) -> None:
        self._check("d_state d_conv expand", "conv_bias bias", "dt_min dt_max dt_scale dt_init_floor")
        if self.dt_rank != "auto" and not is_size(self.dt_rank):
            raise bad_value(type(self).__name__, "dt_rank", self.dt_rank, "'auto' or an integer of at least 1")
        if self.dt_init not in ("random", "constant"):
            raise bad_value(type(self).__name__, "dt_init", self.dt_init, "'random' or 'constant'")
        self._check_steps()

    def check(self, d_model: int) -> None:
        """Every d_model is possible."""

    def d_inner(self, d_model: int) -> int:
        """Channels of the layer."""
        return self.expand * d_model

    def rank(self, d_model: int) -> int:
        """dt_rank as a number."""
        return math.ceil(d_model / 16) if self.dt_rank == "auto" else self.dt_rank


@dataclass(frozen=True, slots=True)
class Mamba2Config(LayerConfig):
    """A Mamba-2 layer.

    Attributes:
        d_state: states of a channel, N.
        d_conv: width of the convolution over x, B and C.
        expand: the layer has expand * d_model channels.
        headdim: channels of a head, P.
        d_ssm: channels that go through `ssd`, all by default; the others are those of a gated MLP beside it.
        ngroups: groups of heads that share B and C, G; the norm is over the channels of a group.
        A_init_range: -A is drawn uniformly from this range.
        D_has_hdim: whether D has a number for each channel, instead of one for each head.
        rmsnorm: whether a gated norm follows `ssd`; without it, only the gate.
        norm_before_gate: whether the gate multiplies what is normalised, instead of being normalised with it.
        dt_min, dt_max: softplus of dt_bias is drawn log-uniformly from this range.
        dt_init_floor: lower bound of what is drawn.
        dt_limit: delta is clamped to this range.
        conv_init: the convolution's weight is drawn uniformly from (-conv_init, conv_init); by default as by PyTorch.
        conv_bias: whether the convolution has a bias.
        bias: whether the input and output projections have a bias.

    Raises:
        ValueError: for sizes below 1, numbers below 0, and values of another type.

    Example:
        >>> from retrograd.nn import Mamba2Config
        >>> config = Mamba2Config()
        >>> config.d_inner(768), config.heads(768)
        (1536, 24)
    """

    d_state: int = 128
    d_conv: int = 4
    expand: int = 2
    headdim: int = 64
    d_ssm: int | None = None
    ngroups: int = 1
    A_init_range: tuple[float, float] = (1, 16)
    D_has_hdim: bool = False
    rmsnorm: bool = True
    norm_before_gate: bool = False
    dt_min: float = 0.001
    dt_max: float = 0.1
    dt_init_floor: float = 1e-4
    dt_limit: tuple[float, float] = (0.0, math.inf)
    conv_init: float | None = None
    conv_bias: bool = True
    bias: bool = False

    layer: ClassVar = "Mamba2"
    IGNORED: ClassVar = ("layer", "chunk_size", "use_mem_eff_path")

    def __post_init__(self) -> None:
        switches = "D_has_hdim rmsnorm norm_before_gate conv_bias bias"
        self._check("d_state d_conv expand headdim ngroups", switches, "dt_min dt_max dt_init_floor")
        self._check_steps()
        name = type(self).__name__
        if self.d_ssm is not None and not is_size(self.d_ssm):
            raise bad_value(name, "d_ssm", self.d_ssm, "None or an integer of at least 1")
        if self.conv_init is not None and not is_number(self.conv_init):
            raise bad_value(name, "conv_init", self.conv_init, "None or a finite number of at least 0")
        self._check_range("A_init_range", "finite")
        self._check_range("dt_limit", "of at least 0")

    def check(self, d_model: int) -> None:
        """Raise ValueError unless heads divide the channels, and groups the heads."""
        name, channels, inner = type(self).__name__, self.channels(d_model), self.d_inner(d_model)
        if channels > inner:
            raise bad_value(name, "d_ssm", channels, f"at most the layer's {inner} channels")
        if channels % self.headdim:
            raise bad_value(name, "headdim", self.headdim, f"a divisor of {channels} channels")
        if self.heads(d_model) % self.ngroups:
            raise bad_value(name, "ngroups", self.ngroups, f"a divisor of {self.heads(d_model)} heads")

    def d_inner(self, d_model: int) -> int:
        """Channels of the layer."""
        return self.expand * d_model

    def channels(self, d_model: int) -> int:
        """Channels that go through `ssd`."""
        return self.d_ssm or self.d_inner(d_model)

    def heads(self, d_model: int) -> int:
        """The number of heads, H."""
        return self.channels(d_model) // self.headdim

    def conv_channels(self, d_model: int) -> int:
        """Channels of the convolution: x, B and C."""
        return self.channels(d_model) + 2 * self.ngroups * self.d_state

    def mlp_channels(self, d_model: int) -> int:
        """Channels of the gated MLP beside `ssd`."""
        return self.d_inner(d_model) - self.channels(d_model)


@dataclass(frozen=True, slots=True)
class GatedDeltaNetConfig(LayerConfig):
    """A layer of the gated delta rule, as in Qwen3-Next.

    Attributes:
        num_heads: heads of values, H; each has a state, a decay and a rate.
        num_heads_qk: heads of queries and keys, G, each for as many heads of values; `num_heads` by default.
        head_dim_qk: channels of a head of queries or keys, K.
        head_dim_v: channels of a head of values, V.
        d_conv: width of the convolution over q, k and v.
        negative_eigenvalues: whether beta is between 0 and 2, as in OLMo-Hybrid, instead of 0 and 1.
        A_init_range: A is drawn uniformly from this range.
        dt_min, dt_max: softplus of dt_bias is drawn log-uniformly from this range.
        dt_init_floor: lower bound of what is drawn.
        norm_eps: added to the mean of squares in the norm of a head's results.
        conv_bias: whether the convolution has a bias.
        bias: whether the input and output projections have a bias.

    Raises:
        ValueError: for sizes below 1, numbers below 0, and values of another type.

    Example:
        >>> from retrograd.nn import GatedDeltaNetConfig
        >>> config = GatedDeltaNetConfig(num_heads=32, num_heads_qk=16)  # Qwen3-Next
        >>> config.key_channels, config.value_channels
        (2048, 4096)
    """

    num_heads: int
    num_heads_qk: int | None = None
    head_dim_qk: int = 128
    head_dim_v: int = 128
    d_conv: int = 4
    negative_eigenvalues: bool = False
    A_init_range: tuple[float, float] = (0.01, 16)
    dt_min: float = 0.001
    dt_max: float = 0.1
    dt_init_floor: float = 1e-4
    norm_eps: float = 1e-6
    conv_bias: bool = False
    bias: bool = False

    layer: ClassVar = "GatedDeltaNet"
    IGNORED: ClassVar = ("layer",)

    def __post_init__(self) -> None:
        switches = "negative_eigenvalues conv_bias bias"
        self._check("num_heads head_dim_qk head_dim_v d_conv", switches, "dt_min dt_max dt_init_floor norm_eps")
        self._check_steps()
        self._check_range("A_init_range", "finite")
        name = type(self).__name__
        if self.num_heads_qk is not None and not is_size(self.num_heads_qk):
            raise bad_value(name, "num_heads_qk", self.num_heads_qk, "None or an integer of at least 1")
        if self.num_heads % self.groups:
            raise bad_value(name, "num_heads_qk", self.num_heads_qk, f"a divisor of num_heads={self.num_heads}")

    def check(self, d_model: int) -> None:
        """Every d_model is possible."""

    @property
    def groups(self) -> int:
        """Heads of queries and keys."""
        return self.num_heads_qk or self.num_heads

    @property
    def key_channels(self) -> int:
        """Channels of all keys."""
        return self.groups * self.head_dim_qk

    @property
    def value_channels(self) -> int:
        """Channels of all values."""
        return self.num_heads * self.head_dim_v

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.key_channels + self.value_channels

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """Sizes of what a step is projected to: q, k and v; the gate z; b, of which beta is made; a, of which g is."""
        return self.conv_channels, self.value_channels, self.num_heads, self.num_heads


@dataclass(frozen=True, slots=True)
class AttentionConfig(LayerConfig):
    """A layer of causal attention.

    Attributes:
        num_heads: heads of queries.
        num_heads_kv: heads of keys and values, each for as many heads of queries; `num_heads` by default.
        head_dim: channels of a head; d_model / num_heads by default.
        mlp_dim: channels of a gated MLP beside the attention, rounded up to a multiple of 256; half of them are gates.
        qkv_proj_bias, out_proj_bias: whether the projections have a bias.
        softmax_scale: factor on the products of q and k; head_dim**-0.5 by default.
        causal: True.
        d_conv: width of a causal convolution over q, k and v; 0 for none.
        rotary_emb_dim: channels of a head that are rotated by their position; 0 for none.
        rotary_emb_base: the longest wavelength is about 2 pi times this.
        rotary_emb_interleaved: whether neighbouring channels are rotated together, instead of those of two halves.
        qk_norm: whether heads of q and k are normalised, before they are rotated.
        window: how many keys before its own position a query sees; all by default.

    Raises:
        ValueError: for sizes below 1, numbers below 0, and values of another type.

    Example:
        >>> from retrograd.nn import AttentionConfig
        >>> AttentionConfig(num_heads=32, num_heads_kv=8).size(2048)
        64
    """

    num_heads: int
    num_heads_kv: int | None = None
    head_dim: int | None = None
    mlp_dim: int = 0
    qkv_proj_bias: bool = True
    out_proj_bias: bool = True
    softmax_scale: float | None = None
    causal: bool = True
    d_conv: int = 0
    rotary_emb_dim: int = 0
    rotary_emb_base: float = 10000.0
    rotary_emb_interleaved: bool = False
    qk_norm: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        self._check("num_heads", "qkv_proj_bias out_proj_bias rotary_emb_interleaved qk_norm", "rotary_emb_base")
        name = type(self).__name__
        if self.causal is not True:
            raise bad_value(name, "causal", self.causal, "True")
        for field in ("num_heads_kv", "head_dim", "window"):
            if (value := getattr(self, field)) is not None and not is_size(value):
                raise bad_value(name, field, value, "None or an integer of at least 1")
        for field in ("mlp_dim", "d_conv", "rotary_emb_dim"):
            if not is_size(value := getattr(self, field), 0):
                raise bad_value(name, field, value, "an integer of at least 0")
        if self.softmax_scale is not None and not is_number(self.softmax_scale):
            raise bad_value(name, "softmax_scale", self.softmax_scale, "None or a finite number of at least 0")
        if self.num_heads % (self.num_heads_kv or self.num_heads):
            raise bad_value(name, "num_heads_kv", self.num_heads_kv, f"a divisor of num_heads={self.num_heads}")
        if not self.rotary_emb_base:
            raise bad_value(name, "rotary_emb_base", self.rotary_emb_base, "a finite number above 0")
        if self.rotary_emb_dim % 2:
            raise bad_value(name, "rotary_emb_dim", self.rotary_emb_dim, "an even number")

    def check(self, d_model: int) -> None:
        """Raise ValueError unless heads divide d_model, where they have no size of their own."""
        name = type(self).__name__
        if self.head_dim is None and d_model % self.num_heads:
            raise bad_value(name, "num_heads", self.num_heads, f"a divisor of d_model={d_model}, or a head_dim")
        if self.rotary_emb_dim > self.size(d_model):
            expected = f"at most the {self.size(d_model)} channels of a head"
            raise bad_value(name, "rotary_emb_dim", self.rotary_emb_dim, expected)

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.num_heads_kv or self.num_heads

    def size(self, d_model: int) -> int:
        """Channels of a head."""
        return self.head_dim or d_model // self.num_heads

    def qkv_channels(self, d_model: int) -> int:
        """Channels of q, k and v."""
        return (self.num_heads + 2 * self.groups) * self.size(d_model)

    @property
    def mlp_channels(self) -> int:
        """mlp_dim rounded up."""
        return -(-self.mlp_dim // 256) * 256


def is_size(value: Any, least: int = 1) -> bool:
    """Whether a value is an integer of at least `least`, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any) -> bool:
    """Whether a value is a finite number of at least 0, and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


# Of layers that mix along time with a state of fixed size, and of all that mix along time.
RecurrentConfig = Mamba1Config | Mamba2Config | GatedDeltaNetConfig
MixerConfig = RecurrentConfig | AttentionConfig
