"""Networks with a memory."""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from grpolib.functional import episode_ids, timesteps
from grpolib.functional.segments import longest
from grpolib.trees import Tree, num_rows, tree_map


class Recurrent(nn.Module):
    """An encoder, a GRU or LSTM, and a head: `as_policy` makes a policy with a state of it.

    Args:
        encoder: From observations to [n, F].
        memory: `nn.GRU(F, H, batch_first=True)` or `nn.LSTM(...)`, of any number of layers, in one direction.
        head: From [n, H] to what `as_distribution` takes.

    Raises:
        TypeError: Another kind of memory.
        ValueError: One that reads backwards, or not `batch_first`.
    """

    def __init__(self, encoder: nn.Module, memory: nn.GRU | nn.LSTM, head: nn.Module) -> None:
        super().__init__()
        if not isinstance(memory, nn.GRU | nn.LSTM):
            raise TypeError(f"memory is a {type(memory).__name__}: give a torch.nn.GRU or LSTM")
        if memory.bidirectional or not memory.batch_first:
            raise ValueError(f"{memory}: make it with batch_first=True and bidirectional=False")
        self.encoder, self.memory, self.head = encoder, memory, head

    def initial_state(self, count: int) -> Tree:
        """Zeros for `count` episodes: [count, layers, H]; of an LSTM a pair of them."""
        memory = self.memory
        weight = cast(Tensor, memory.weight_hh_l0)
        hidden = weight.new_zeros(count, memory.num_layers, memory.proj_size or memory.hidden_size)
        if isinstance(memory, nn.GRU):
            return hidden
        return hidden, weight.new_zeros(count, memory.num_layers, memory.hidden_size)

    def forward(self, observations: Tree, lengths: Int[Tensor, " N"] | None, states: Tree) -> tuple[Any, Tree]:
        """The head's outputs for whole episodes, and the states behind the last step where all are of one length.

        Args:
            observations: S rows, one episode after the other.
            lengths: Steps per episode; None for one step each.
            states: Before each episode's first step, N rows.
        """
        if lengths is None:
            lengths = torch.ones(num_rows(observations), dtype=torch.long)
        features: Tensor = self.encoder(observations)
        rows, after = self._remembered(features, lengths.to(features.device), states)
        return self.head(rows), after

    def _remembered(
        self, features: Float[Tensor, "S F"], lengths: Int[Tensor, " N"], states: Tree
    ) -> tuple[Float[Tensor, "S H"], Tree]:
        """What the memory gives for each step; the padding comes after all that is read of an episode."""
        places = (episode_ids(lengths), timesteps(lengths))
        padded = features.new_zeros(len(lengths), longest(lengths), features.shape[1]).index_put(places, features)
        before = tree_map(lambda state: state.transpose(0, 1).contiguous(), states)
        hidden, after = self.memory(padded, before)
        return hidden[places], tree_map(lambda state: state.transpose(0, 1), after)


def check_memoryless(module: nn.Module, wrapper: str, instead: str) -> None:
    """Raise for what has a state, which a wrapper of single steps would lose."""
    if isinstance(module, Recurrent):
        raise TypeError(f"{wrapper} around a Recurrent loses its state: {instead}")
