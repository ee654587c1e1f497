"""Peers of gated_delta_rule in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from retrograd.opinfo.cases import Case

from . import Native, NotApplicableError, Peer, check_takes, load

ARGUMENTS = frozenset({"q", "k", "v", "g", "beta", "cu_seqlens"})


def of(module: str, function: str, *, channels: bool) -> Callable[[Case], Native]:
    """flash-linear-attention's chunks, with a key head for every head, as transformers calls them."""

    def build(case: Case) -> Native:
        check_takes(case, ARGUMENTS, frozenset({"normalize_qk"}))
        if channels != (len(case.inputs["g"].shape) == 4):
            raise NotApplicableError(f"it takes a decay for each {'channel' if channels else 'head'}")
        rule = load(module, function)
        share = case.inputs["v"].shape[2] // case.inputs["q"].shape[2]
        settings = {"use_qk_l2norm_in_kernel": bool(case.options.get("normalize_qk"))}

        def prepared(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            keys = {name: inputs[name].repeat_interleave(share, 2) for name in ("q", "k")}
            return {name: x.long() if name == "cu_seqlens" else keys.get(name, x) for name, x in inputs.items()}

        return Native(lambda inputs: rule(**inputs, **settings)[0], prepared)

    return build


PEERS = (
    Peer("fla", of("fla.ops.gated_delta_rule", "chunk_gated_delta_rule", channels=False), "fla-core"),
    Peer("fla_kda", of("fla.ops.kda", "chunk_kda", channels=True), "fla-core"),
)
