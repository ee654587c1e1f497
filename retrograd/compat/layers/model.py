"""mamba_ssm's language model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

import retrograd.nn
from retrograd.compat.checks import errors_of, expect, expect_integer, refuse
from retrograd.compat.mamba_ssm.models.config_mamba import MambaConfig
from retrograd.compat.mamba_ssm.utils.generation import Choice, GenerationMixin, InferenceParams
from retrograd.compat.sequences import check_bounds, joined, runs_of
from retrograd.core.errors import bad_shape, bad_type, bad_value
from retrograd.core.torch.arguments import check_tensors
from retrograd.nn.files import CONFIG, PICKLED, read_weights
from retrograd.nn.mixer import Start


class CausalLMOutput(NamedTuple):
    """What the model returns.

    Attributes:
        logits: (batch, seqlen, padded vocabulary).
    """

    logits: Tensor


class MambaLMHeadModel(GenerationMixin, retrograd.nn.LanguageModel):
    """Tokens to logits, on `retrograd.nn.LanguageModel`: mamba_ssm's calls and names of parameters.

    Args:
        config: sizes and layers.
        initializer_cfg: refused, unless it is empty.
        device, dtype: of the parameters; A_log, D and dt_bias are float32.

    Raises:
        ValueError, TypeError, NotImplementedError: naming the argument.

    Example:
        >>> import torch
        >>> from retrograd.compat.mamba_ssm.models.config_mamba import MambaConfig
        >>> from retrograd.compat.mamba_ssm import MambaLMHeadModel
        >>> model = MambaLMHeadModel(MambaConfig(d_model=64, n_layer=2, vocab_size=256))
        >>> tokens = torch.randint(256, (2, 10))
        >>> model(tokens).logits.shape
        torch.Size([2, 10, 256])
        >>> model.generate(tokens, max_length=15).shape
        torch.Size([2, 15])
    """

    config: MambaConfig  # type: ignore[assignment]

    def __init__(
        self,
        config: MambaConfig,
        initializer_cfg: dict[str, Any] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(config, MambaConfig):
            raise bad_type("MambaLMHeadModel", "config", config, "a mamba_ssm.models.config_mamba.MambaConfig")
        refuse("MambaLMHeadModel", "", initializer_cfg=initializer_cfg or None)
        super().__init__(retrograd.nn.MambaConfig.from_dict(asdict(config)), device=device, dtype=dtype)
        self.config = config

    def language_model(self) -> retrograd.nn.LanguageModel:
        """The same parameters as the model that the functions of `retrograd.nn` take: `generate`, `score`, `save`."""
        model = retrograd.nn.LanguageModel.__new__(retrograd.nn.LanguageModel)
        torch.nn.Module.__init__(model)
        model.config, model.backbone, model.lm_head = self.backbone.config, self.backbone, self.lm_head
        return model.train(self.training)

    def tie_weights(self) -> None:
        """Let the head share the embedding's weight, if the config says so."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.backbone.embedding.weight

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> dict[int, Any]:
        """The states before the first token, by the layers' numbers; those of `retrograd.nn`."""
        return dict(enumerate(self.initial_state(batch_size, dtype, capacity=max_seqlen)))

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        inference_params: InferenceParams | None = None,
        num_last_tokens: int = 0,
        *,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> CausalLMOutput:
        """Logits of all tokens, or of the last ones.

        Args:
            input_ids: (batch, seqlen), from 0 to below the padded vocabulary.
            position_ids: not read.
            inference_params: where the layers' states are kept: with its `seqlen_offset` 0 the tokens begin sequences,
                else they go on from the states. The caller adds to `seqlen_offset`.
            num_last_tokens: if above 0, only the logits of so many last tokens.
            seq_idx: (batch, seqlen) int32: which sequence a token belongs to, for packed sequences and any layers; a
                run of equal numbers is a sequence. On a GPU the host waits for their number. Not with
                `inference_params`.
            cu_seqlens: (sequences + 1,) int32, for a batch of 1: the bounds of packed sequences. Not with
                `inference_params`.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        me = "MambaLMHeadModel"
        check_tensors(me, {"input_ids": input_ids, "seq_idx": seq_idx, "cu_seqlens": cu_seqlens}, required=1)
        if input_ids.ndim != 2:
            raise bad_shape(me, "input_ids", input_ids.shape, "(batch, seqlen)")
        expect_integer(me, "num_last_tokens", num_last_tokens, least=0)
        if inference_params is not None:
            refuse(me, ", since inference_params is given", seq_idx=seq_idx, cu_seqlens=cu_seqlens)
            features = self._continued(input_ids, inference_params)
        else:
            features = self._features(input_ids, seq_idx, cu_seqlens)
        return CausalLMOutput(self.lm_head(features[:, -num_last_tokens:]))

    def _features(self, input_ids: Tensor, seq_idx: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
        """Features of whole sequences."""
        me, runs = "MambaLMHeadModel", None
        if seq_idx is not None:
            expect(me, "seq_idx", seq_idx, input_ids.shape, "(batch, seqlen)", "int32 or int64")
            runs = runs_of(me, seq_idx)
        if cu_seqlens is not None:
            check_bounds(me, cu_seqlens, runs)
            cu_seqlens = cu_seqlens.int()
        if runs is None:
            return self.backbone(input_ids, cu_seqlens=cu_seqlens)[0]
        features: Tensor = self.backbone(joined(input_ids), cu_seqlens=runs.cu_seqlens)[0]
        return features.view(*input_ids.shape, -1)

    def _continued(self, input_ids: Tensor, inference_params: InferenceParams) -> Tensor:
        """Features of tokens after those whose states are kept."""
        kept, layers = inference_params.key_value_memory_dict, range(len(self.backbone.layers))
        if inference_params.seqlen_offset == 0:
            features, after = self.backbone(input_ids, Start(len(input_ids), inference_params.max_seqlen))
        else:
            if missing := [number for number in layers if number not in kept]:
                expected = f"the states of layers {missing}, since seqlen_offset is {inference_params.seqlen_offset}"
                raise bad_value("MambaLMHeadModel", "inference_params.key_value_memory_dict", sorted(kept), expected)
            before = [kept[number] for number in layers]
            if input_ids.shape[1] == 1:
                features, after = self.backbone.step(input_ids[:, 0], before, in_place=True)
                features = features[:, None]
            else:
                features, after = self.backbone(input_ids, before)
        kept.update(enumerate(after))
        return features

    def _tokens(
        self, input_ids: Tensor, count: int, choice: Choice, eos: int | None, scores: list[Tensor] | None
    ) -> Iterator[Tensor]:
        drawn_together = choice.top_k > 1 and choice.top_p < 1  # the share is one of the likeliest, not of all
        plain = scores is None and choice.penalty == 1 and choice.teacher is None and choice.vocab_size is None
        if not plain or drawn_together:
            yield from super()._tokens(input_ids, count, choice, eos, scores)
            return
        with errors_of("generate", "generate", prompt="input_ids", stop="eos_token_id"):
            tokens = retrograd.nn.generate(
                self.language_model(),
                input_ids,
                count,
                temperature=0.0 if choice.top_k == 1 else choice.temperature,
                top_k=choice.top_k or None,
                top_p=choice.top_p,
                stop=() if eos is None else eos,
            )
        yield from tokens

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name: str | Path,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **kwargs: Any,
    ) -> Self:
        """The model in a folder with config.json and pytorch_model.bin or model.safetensors, or of the hub.

        For a name of the hub the package transformers is needed, which finds the files.
        """
        folder = Path(pretrained_model_name)
        if not folder.is_dir():
            from transformers.utils.hub import cached_file

            folder = Path(str(cached_file(str(pretrained_model_name), CONFIG))).parent
            cached_file(str(pretrained_model_name), PICKLED)
        config = MambaConfig(**json.loads((folder / CONFIG).read_text()))
        model = cls(config, device=device, dtype=dtype, **kwargs)
        model.load_state_dict(read_weights(folder))
        return model

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write config.json and pytorch_model.bin, which mamba_ssm and `from_pretrained` read."""
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), folder / PICKLED)
        (folder / CONFIG).write_text(json.dumps(asdict(self.config), indent=4))
