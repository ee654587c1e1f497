"""What the stand-ins of `fla.ops` share: its arguments as those of `retrograd.gated_delta_rule`."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import retrograd
from retrograd.core.errors import bad_value
from retrograd.core.torch.arguments import check_tensors
from retrograd.core.torch.autocast import no_autocast

from .checks import errors_of, expect, expect_dims, expect_if_given, flag
from .dtypes import arithmetic, beside

DENSE = torch.contiguous_format


class Gate(NamedTuple):
    """How log decays come of g.

    Attributes:
        in_kernel: whether they do; else g has them.
        A_log: (HV,), perhaps with axes of one element beside, logs of rates; None for rates of 1, with a bound alone.
        dt_bias: (HV,), or (HV K,) with a decay for each channel; None for zeros.
        lower_bound: of log decays; None without.
    """

    in_kernel: bool = False
    A_log: Tensor | None = None
    dt_bias: Tensor | None = None
    lower_bound: float | None = None


class Flags(NamedTuple):
    """The options of fla that are on or off, as given."""

    output_final_state: bool
    use_qk_l2norm_in_kernel: bool
    use_beta_sigmoid_in_kernel: bool
    allow_neg_eigval: bool
    state_v_first: bool


def flags_of(
    me: str,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    state_v_first: bool,
    transpose_state_layout: bool | None,
) -> Flags:
    """The options, of which the last has two names; the older one is None where it is not given."""
    if transpose_state_layout is not None:
        if flag(me, "state_v_first", state_v_first):
            raise bad_value(me, "transpose_state_layout", transpose_state_layout, "None beside state_v_first")
        message = f"{me}: transpose_state_layout is the older name of state_v_first"
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        state_v_first = flag(me, "transpose_state_layout", transpose_state_layout)
    return Flags(
        output_final_state, use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first
    )


def delta_rule(
    me: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    gate: Gate,
    flags: Flags,
    channels: bool,
    recurrent: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The results (B, T, HV, V), and the final states (N, HV, K, V) in float32 if asked for.

    Args:
        me: the function's name, for errors.
        q, k: (B, T, H, K), where H divides HV.
        v: (B, T, HV, V).
        g: (B, T, HV) log decays, or (B, T, HV, K); see `gate`.
        beta: (B, T, HV).
        scale: of the results; 1 / sqrt(K) by default.
        initial_state: (N, HV, K, V).
        cu_seqlens: (N + 1,), for B = 1.
        gate: how log decays come of g.
        flags: `state_v_first`: states are (N, HV, V, K).
        channels: whether g has K decays a head.
        recurrent: whether a single step is the plain recurrence, one kernel, in place of a block's products.
    """
    final, unit, sigmoid, negative, v_first = (flag(me, n, x) for n, x in zip(Flags._fields, flags, strict=True))
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state, "cu_seqlens": cu_seqlens}
    check_tensors(me, {**tensors, "A_log": gate.A_log, "dt_bias": gate.dt_bias}, required=5)
    expect_dims(me, "q", q, "(B, T, H, K)")
    expect_dims(me, "v", v, "(B, T, HV, V)")
    if cu_seqlens is not None:
        expect_dims(me, "cu_seqlens", cu_seqlens, "(N + 1,)")
    heads, K, V = v.shape[2], q.shape[3], v.shape[3]
    if channels:
        expect(me, "g", g, (*v.shape[:3], K), "(B, T, HV, K)")
    else:
        expect(me, "g", g, v.shape[:3], "(B, T, HV)")
    if initial_state is not None:
        sequences = v.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        sizes, dims = ((V, K), "V, K") if v_first else ((K, V), "K, V")
        expect(me, "initial_state", initial_state, (sequences, heads, *sizes), f"(N, HV, {dims})")
        initial_state = initial_state.to(arithmetic(v))
        initial_state = initial_state if v_first else initial_state.transpose(2, 3)
    given = v.dtype
    common = torch.promote_types(torch.promote_types(q.dtype, k.dtype), given)
    q, k, v = q.to(common), k.to(common), v.to(common)
    with no_autocast(v.device.type), errors_of("gated_delta_rule", me):
        log_decays = beside(q, _log_decays(me, g, gate, channels))
        rates = beside(q, beta.to(arithmetic(v)).sigmoid() * (2 if negative else 1) if sigmoid else beta)
        arrays = (q, k, v, log_decays, rates)
        same = k.shape == q.shape and beta.shape == v.shape[:3]  # else the op itself says what is wrong
        if recurrent and v.shape[1] == 1 and cu_seqlens is None and same:
            o, state = _one_step(arrays, initial_state, scale, unit)
        else:
            o, state = retrograd.gated_delta_rule(
                *arrays,
                scale=scale,
                initial_state=initial_state,
                cu_seqlens=cu_seqlens,
                normalize_qk=unit,
                return_final_state=True,
            )
    o = o.to(given)
    if not final:
        return o, None
    return o, state if v_first else state.transpose(2, 3).contiguous()


def _one_step(
    arrays: tuple[Tensor, ...], initial_state: Tensor | None, scale: float | None, unit: bool
) -> tuple[Tensor, Tensor]:
    """The result (B, 1, HV, V) and the state (B, HV, V, K) after it; the given state is not modified."""
    q, k, v, g, beta = (x[:, 0] for x in arrays)
    if initial_state is None:
        state = v.new_zeros((*v.shape, q.shape[2]), dtype=arithmetic(v))
    else:
        state = initial_state.clone(memory_format=DENSE)
    o, state = retrograd.gated_delta_rule_update_(state, q, k, v, g, beta, scale=scale, normalize_qk=unit)
    return o[:, None], state


def _log_decays(me: str, g: Tensor, gate: Gate, channels: bool) -> Tensor:
    """Log decays, from g."""
    if not flag(me, "use_gate_in_kernel", gate.in_kernel):
        return g
    heads = g.shape[2]
    A_log = gate.A_log
    if A_log is not None and A_log.numel() == heads:
        A_log = A_log.flatten()  # Kimi Linear's has axes of one element beside that of heads
    expect_if_given(me, "A_log", A_log, (heads,), "(HV,)")
    size, dims = (heads * g.shape[3], "(HV K,)") if channels else (heads, "(HV,)")
    expect_if_given(me, "dt_bias", gate.dt_bias, (size,), dims)
    wide = g.to(arithmetic(g))
    if gate.dt_bias is not None:
        wide = wide + gate.dt_bias.to(wide.dtype).view(g.shape[2:])
    if A_log is None and gate.lower_bound is None:
        raise bad_value(me, "A_log", None, "a tensor, since use_gate_in_kernel is True")
    if A_log is None:
        return gate.lower_bound * wide.sigmoid()  # type: ignore[operator]
    rates = A_log.to(wide.dtype).exp()
    rates = rates[:, None] if channels else rates
    return -rates * F.softplus(wide) if gate.lower_bound is None else gate.lower_bound * (rates * wide).sigmoid()
