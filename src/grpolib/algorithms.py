"""Named trainers: a recipe, and where groups come from."""

import os
from collections.abc import Sequence

from torch import nn
from typing_extensions import Unpack

from grpolib import recipes
from grpolib.callbacks import Callback
from grpolib.policies import Policy
from grpolib.recipes import Pieces, Recipe, check_pieces
from grpolib.sampling import GroupSampler, Sampler
from grpolib.sampling.environments import EnvSource
from grpolib.trainer import Trainer


class GRPOTrainer(Trainer):
    """A `Trainer` by recipe; any single piece can be replaced by keyword.

    Args:
        policy: A `Policy`, or any `nn.Module` from observations to logits, Gaussian parameters or a
            `Distribution`; trained in place.
        source: An environment (an id, a factory, or one factory per group member), or a ready `Sampler`, which
            owns its group size.
        recipe: `recipes.grpo()`, the published defaults, if None.
        seed: >= 0.
        run_folder: Where the run's files go; None writes nothing.
        callbacks: See `Trainer`.
        pieces: Fields of `Recipe` that replace the recipe's.

    Raises:
        TypeError: A keyword that is no piece, or a recipe that is no `Recipe`.
        ValueError: `group_size` beside a ready sampler, or pieces that do not fit together.
    """

    def __init__(
        self,
        policy: Policy | nn.Module,
        source: EnvSource | Sampler,
        *,
        recipe: Recipe | None = None,
        seed: int = 0,
        run_folder: str | os.PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
        **pieces: Unpack[Pieces],
    ) -> None:
        check_pieces(pieces)
        if not isinstance(recipe, Recipe | None):
            raise TypeError(f"recipe is {recipe!r}: give a Recipe, for instance recipes.critic_free()")
        recipe = (recipe or recipes.grpo()).replaced(**pieces)
        if isinstance(source, Sampler):
            if "group_size" in pieces:
                raise ValueError(f"group_size={pieces['group_size']} beside a ready sampler, which owns its group size")
            sampler = source
        else:
            sampler = GroupSampler(source, recipe.group_size)
        super().__init__(policy, sampler, seed=seed, run_folder=run_folder, callbacks=callbacks, **recipe.pieces())
