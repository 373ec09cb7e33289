"""Language models behind one door: any module from (token ids, mask) to logits."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpolib.text.inputs import TokenInputs
from grpolib.text.joined import joined, last_rows, moved_left


@runtime_checkable
class Decoding(Protocol):
    """Completions that are being written, row by row."""

    logits: Tensor
    """Of each row's next token [n, V]."""

    def advance(self, tokens: Int[Tensor, " n"], rows: Int[Tensor, " n"]) -> None:
        """Leave all rows but `rows`, and append one token to each of these."""
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """How completions are scored and written by one kind of model."""

    def states(self, inputs: TokenInputs) -> Tensor:
        """What `head` makes the logits from that predict each completion token: [S, D]."""
        ...

    def head(self, states: Tensor) -> Tensor:
        """Logits [s, V] of states [s, D]."""
        ...

    def vocabulary_size(self, states: Tensor) -> int:
        """V."""
        ...

    def decoding(self, prompts: TokenInputs) -> Decoding:
        """Start to write one completion for each of `prompts.prompt_index`."""
        ...


@runtime_checkable
class Writer(Protocol):
    """A module that keeps what it has read while it writes: keys and values, or a state."""

    def decoding(self, prompts: TokenInputs) -> Decoding:
        """Start to write one completion for each of `prompts.prompt_index`."""
        ...


class PlainModel:
    """Any module from (token ids [n, T], mask [n, T]) to logits [n, T, V].

    Sequences come without gaps and padded on the right, so that positions count from 0: a causal model may ignore
    the mask. A module that is no `Writer` reads the whole sequence again for each token that it writes.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def states(self, inputs: TokenInputs) -> Float[Tensor, "S V"]:
        """The logits themselves."""
        sequences = joined(inputs)
        return self._logits(sequences.ids, sequences.mask)[sequences.predicts]

    def head(self, states: Float[Tensor, "s V"]) -> Float[Tensor, "s V"]:
        """They are logits already."""
        return states

    def vocabulary_size(self, states: Float[Tensor, "S V"]) -> int:
        """V."""
        return states.shape[-1]

    def decoding(self, prompts: TokenInputs) -> Decoding:
        """The module's own way to write, or the plain one."""
        if isinstance(self.module, Writer):
            return self.module.decoding(prompts)
        return RereadDecoding(self._logits, prompts)

    def _logits(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits = self.module(ids, mask)
        logits = getattr(logits, "logits", logits)
        if not isinstance(logits, Tensor) or logits.shape[:2] != ids.shape or logits.ndim != 3:
            given = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"{type(self.module).__name__} gave {given} for token ids of shape {tuple(ids.shape)}: a language "
                "model is called with (ids, mask) and returns logits [n, T, V]"
            )
        return logits


@runtime_checkable
class LogitsOf(Protocol):
    """From (token ids [n, T], mask [n, T]) to logits [n, T, V]."""

    def __call__(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The logits."""
        ...


class RereadDecoding:
    """Writes by reading the whole sequence for each token: right for every model, and slow for long ones."""

    def __init__(self, logits_of: LogitsOf, prompts: TokenInputs) -> None:
        self._logits_of = logits_of
        self._ids, self._mask = moved_left(prompts.prompts, prompts.prompt_mask)
        of_prompts = self._read()
        self._ids, self._mask = self._ids[prompts.prompt_index], self._mask[prompts.prompt_index]
        self.logits = of_prompts[prompts.prompt_index]

    def advance(self, tokens: Int[Tensor, " n"], rows: Int[Tensor, " n"]) -> None:
        """See `Decoding.advance`."""
        ids, mask = self._ids[rows], self._mask[rows]
        lengths = mask.sum(1, keepdim=True)
        width = int(lengths.max()) + 1
        ids = nn.functional.pad(ids, (0, 1))[:, :width].scatter(1, lengths, tokens.unsqueeze(1))
        self._ids, self._mask = ids, torch.arange(width, device=ids.device) <= lengths
        self.logits = self._read()

    def _read(self) -> Tensor:
        return last_rows(self._logits_of(self._ids, self._mask), self._mask)
