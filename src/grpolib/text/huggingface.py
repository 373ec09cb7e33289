"""Hugging Face's causal language models, read so that no prompt is encoded twice.

Nothing of `transformers` is imported: a model is known by what it offers.
"""

import copy
import inspect
import math
import warnings
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grpolib.text.inputs import TokenInputs
from grpolib.text.joined import joined
from grpolib.text.models import Decoding, RereadDecoding
from grpolib.text.scoring import token_log_probs

Layout: TypeAlias = Literal["shared", "joined", "logits"]
"""Prompts once and their cache shared; one sequence each; one sequence each and the model's own logits."""


def is_huggingface(model: nn.Module) -> bool:
    """Whether a module has the interface of Hugging Face's language models."""
    return hasattr(model, "get_output_embeddings") or hasattr(model, "get_base_model")


def number_of_embeddings(model: Any) -> int | float:
    """Tokens that a model can read; infinity where it does not say."""
    embeddings = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    return getattr(embeddings, "num_embeddings", math.inf)


def without_peft(model: Any) -> Any:
    """The model inside PEFT's wrapper, adapters and all."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class HuggingFaceModel:
    """A causal language model of Hugging Face, with or without adapters.

    On first use a few tokens are scored both ways: where sharing a prompt's cache, or applying the output embedding
    alone, does not give the logits of the model's own forward, it is left out, and said once.

    Args:
        model: The model; read, never changed.
        checkpoints_layers: Compute each layer again going back instead of keeping what it computed; each
            completion then reads its prompt.
    """

    def __init__(self, model: nn.Module, *, checkpoints_layers: bool = False) -> None:
        self._causal = without_peft(model)
        self._base: Any = self._causal.base_model
        accepted = inspect.signature(self._base.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._takes_positions = "position_ids" in accepted
        self._checkpoints_layers = checkpoints_layers
        self._layout: Layout | None = None

    @property
    def layout(self) -> Layout:
        """How prompts and completions are read."""
        if self._layout is None:
            self._layout = self._found_layout()
        return self._layout

    def states(self, inputs: TokenInputs) -> Float[Tensor, "S D"]:
        """Hidden states that predict each completion token; the logits themselves where only they are right."""
        layout = self.layout
        if layout == "shared" and not (self._checkpoints_layers and torch.is_grad_enabled()):
            return self._shared_states(inputs)
        return self._joined_logits(inputs) if layout == "logits" else self._joined_states(inputs)

    def head(self, states: Float[Tensor, "s D"]) -> Float[Tensor, "s V"]:
        """The output embedding."""
        return states if self.layout == "logits" else self._embed(states)

    def vocabulary_size(self, states: Float[Tensor, "S D"]) -> int:
        """V."""
        return states.shape[-1] if self.layout == "logits" else len(self._causal.get_output_embeddings().weight)

    def decoding(self, prompts: TokenInputs) -> Decoding:
        """Each prompt is read once, and its cache copied to its completions."""
        return CachedDecoding(self, prompts) if self.layout == "shared" else RereadDecoding(self._own_logits, prompts)

    def read(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Hidden states [n, t, D] and cache after `ids` [n, t], whose mask covers what the cache holds too."""
        arguments: dict[str, Any] = {"attention_mask": mask.long(), self._cache_name: cache}
        if self._takes_positions:
            arguments["position_ids"] = positions
        output = self._base(input_ids=ids, use_cache=True, **arguments)
        return output.last_hidden_state, getattr(output, self._cache_name)

    def read_prompts(self, inputs: TokenInputs) -> tuple[Tensor, Any]:
        """Hidden states [P, Tp, D] and cache of the prompts, each read once."""
        positions = (inputs.prompt_mask.cumsum(1) - 1).clamp(min=0)
        return self.read(inputs.prompts, inputs.prompt_mask, positions)

    def _shared_states(self, inputs: TokenInputs) -> Tensor:
        hidden, cache = self.read_prompts(inputs)
        states = hidden[inputs.prompt_index, -1:]
        if inputs.completions.shape[1] > 1:
            ids, mask = inputs.completions[:, :-1], inputs.completion_mask[:, :-1]
            starts = inputs.prompt_lengths[inputs.prompt_index].unsqueeze(1)
            positions = starts + torch.arange(ids.shape[1], device=ids.device)
            mask = torch.cat([inputs.prompt_mask[inputs.prompt_index], mask], 1)
            later, _ = self.read(ids, mask, positions, selected(cache, inputs.prompt_index))
            states = torch.cat([states, later], 1)
        return states[inputs.completion_mask]

    def _joined_states(self, inputs: TokenInputs) -> Tensor:
        sequences = joined(inputs)
        with self._layer_checkpoints():
            output = self._base(input_ids=sequences.ids, attention_mask=sequences.mask.long(), use_cache=False)
        states: Tensor = output.last_hidden_state[sequences.predicts]
        return states

    def _joined_logits(self, inputs: TokenInputs) -> Tensor:
        sequences = joined(inputs)
        with self._layer_checkpoints():
            return self._own_logits(sequences.ids, sequences.mask)[sequences.predicts]

    def _own_logits(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self._causal(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits
        return logits

    def _embed(self, states: Tensor) -> Tensor:
        logits: Tensor = self._causal.get_output_embeddings()(states)
        return logits

    def _layer_checkpoints(self) -> AbstractContextManager[None]:
        if not (self._checkpoints_layers and torch.is_grad_enabled()):
            return nullcontext()
        return checkpointed(
            layer for part in self._base.children() if isinstance(part, nn.ModuleList) for layer in part
        )

    @torch.no_grad()
    def _found_layout(self) -> Layout:
        inputs = _probe().to(next(self._causal.parameters()).device)
        expected = self._joined_logits(inputs)
        if not _agree(lambda: self._embed(self._joined_states(inputs)), expected, inputs):
            self._say("its logits are not its output embedding of its last hidden states, so all of them are computed")
            return "logits"
        if not _agree(lambda: self._embed(self._shared_states(inputs)), expected, inputs):
            self._say("its cache cannot be shared, so each completion reads its prompt again")
            return "joined"
        return "shared"

    def _say(self, reason: str) -> None:
        warnings.warn(f"{type(self._causal).__name__}: {reason}", stacklevel=2)


@contextmanager
def checkpointed(layers: Iterable[nn.Module]) -> Generator[None, None, None]:
    """Layers whose insides are not kept for the gradient but computed again.

    Hugging Face's own switch works in training mode alone, where dropout is on.
    """
    changed = list(layers)
    for layer in changed:
        # nothing random is left to draw again
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer in changed:
            del layer.forward


class CachedDecoding:
    """Writes with a cache that starts as the prompts' and follows the rows that are still written."""

    def __init__(self, model: HuggingFaceModel, prompts: TokenInputs) -> None:
        self._model = model
        hidden, cache = model.read_prompts(prompts)
        self._cache = selected(cache, prompts.prompt_index)
        self._mask: Bool[Tensor, "n T"] = prompts.prompt_mask[prompts.prompt_index]
        self._positions: Int[Tensor, " n"] = prompts.prompt_lengths[prompts.prompt_index]
        self.logits = model.head(hidden[:, -1])[prompts.prompt_index]

    def advance(self, tokens: Int[Tensor, " n"], rows: Int[Tensor, " n"]) -> None:
        """See `Decoding.advance`."""
        if len(rows) < len(self._mask):
            self._cache = selected(self._cache, rows)
            self._positions = self._positions[rows]
        self._mask = nn.functional.pad(self._mask[rows], (0, 1), value=True)
        hidden, self._cache = self._model.read(
            tokens.unsqueeze(1), self._mask, self._positions.unsqueeze(1), self._cache
        )
        self._positions = self._positions + 1
        self.logits = self._model.head(hidden[:, -1])


def selected(cache: Any, rows: Int[Tensor, " n"]) -> Any:
    """A cache whose row i is row rows[i] of `cache`, which stays as it is; gradients flow.

    Raises:
        TypeError: A layer keeps more than the keys and values of all tokens.
    """
    result = copy.copy(cache)
    result.layers = []
    for layer in cache.layers:
        if type(layer).__name__ != "DynamicLayer":
            raise TypeError(f"a cache layer is a {type(layer).__name__}: only full attention can be shared")
        of_rows = copy.copy(layer)
        of_rows.keys, of_rows.values = layer.keys[rows], layer.values[rows]
        result.layers.append(of_rows)
    return result


def _probe() -> TokenInputs:
    return TokenInputs.of([[1, 2, 0], [1]], [[2, 1], [0], [1, 0, 2]], [0, 0, 1])


def _agree(logits: Any, expected: Tensor, inputs: TokenInputs) -> bool:
    """Whether `logits()` works and predicts the same; whatever a model may raise, the plain way is right."""
    try:
        actual = logits()
    except Exception:
        return False
    tolerance = 1e-3 if expected.dtype in (torch.float32, torch.float64) else 0.1
    log_probs, expected_log_probs = (token_log_probs(logits, inputs.tokens, 1.0) for logits in (actual, expected))
    return torch.allclose(log_probs, expected_log_probs, atol=tolerance, rtol=0)
