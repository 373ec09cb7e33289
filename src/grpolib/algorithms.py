"""Named trainers: a recipe, and where groups or steps come from."""

import os
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from torch import nn
from typing_extensions import Unpack

from grpolib import recipes
from grpolib.callbacks import Callback
from grpolib.critic import Critic
from grpolib.policies import Policy, network
from grpolib.ranks import Ranks
from grpolib.recipes import Pieces, Recipe, check_pieces
from grpolib.sampling import GroupSampler, Sampler, StepSampler
from grpolib.sampling.engines import Workers
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
        workers: Where episodes run: 0 here, a number of processes, or "auto" (one per core); with a main guard
            in the script. The results are the same.
        compile: See `Trainer`.
        callbacks: See `Trainer`.
        ranks: See `Trainer`.
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
        workers: Workers = 0,
        compile: bool | Literal["auto"] = False,
        callbacks: Sequence[Callback] = (),
        ranks: Ranks | None = None,
        **pieces: Unpack[Pieces],
    ) -> None:
        chosen = _chosen(recipe, recipes.grpo(), pieces)
        if isinstance(source, Sampler):
            if "group_size" in pieces:
                raise ValueError(f"group_size={pieces['group_size']} beside a ready sampler, which owns its group size")
            if isinstance(source, StepSampler):
                raise TypeError("a StepSampler has no groups: give an environment or a GroupSampler, or use PPOTrainer")
            _check_no_workers(workers)
            sampler = source
        else:
            sampler = GroupSampler(source, chosen.group_size, workers=workers)
        super().__init__(
            policy,
            sampler,
            seed=seed,
            run_folder=run_folder,
            compile=compile,
            callbacks=callbacks,
            ranks=ranks,
            **chosen.pieces(),
        )


class PPOTrainer(Trainer):
    """PPO: a `Trainer` with a critic on a fixed number of steps from each environment.

    Args:
        policy: As in `GRPOTrainer`.
        source: An environment (an id, a factory, or one factory per environment), or a ready `StepSampler`.
        num_envs: Environments, where `source` is no sampler; 16 if None.
        steps: Per environment and iteration, where `source` is no sampler; 1024 if None.
        recipe: `recipes.ppo()` if None.
        seed: >= 0; also of the critic that is made where the recipe has none, `network(observation_space, 1)`.
        run_folder: Where the run's files go; None writes nothing.
        workers: Where episodes run: 0 here, a number of processes, or "auto" (one per core); with a main guard
            in the script. The results are the same.
        compile: See `Trainer`.
        callbacks: See `Trainer`.
        pieces: Fields of `Recipe` that replace the recipe's.

    Raises:
        TypeError: A keyword that is no piece, or a recipe that is no `Recipe`.
        ValueError: Pieces that do not fit together.
    """

    _default_rollout: ClassVar[tuple[int, int]] = (16, 1024)

    def __init__(
        self,
        policy: Policy | nn.Module,
        source: EnvSource | StepSampler,
        *,
        num_envs: int | None = None,
        steps: int | None = None,
        recipe: Recipe | None = None,
        seed: int = 0,
        run_folder: str | os.PathLike[str] | None = None,
        workers: Workers = 0,
        compile: bool | Literal["auto"] = False,
        callbacks: Sequence[Callback] = (),
        **pieces: Unpack[Pieces],
    ) -> None:
        sampler = _step_sampler(source, num_envs, steps, workers, self._default_rollout)
        chosen = _with_critic(_without_groups(recipe, self._default_recipe(), pieces), sampler, seed)
        super().__init__(
            policy,
            sampler,
            seed=seed,
            run_folder=run_folder,
            compile=compile,
            callbacks=callbacks,
            **chosen.pieces(),
        )

    @staticmethod
    def _default_recipe() -> Recipe:
        return recipes.ppo()


class A2CTrainer(PPOTrainer):
    """A2C: short rollouts, one update each; a `PPOTrainer` with 8 environments, 5 steps and `recipes.a2c()`.

    Source: Huang et al., A2C is a special case of PPO (arXiv:2205.09123).
    """

    _default_rollout = (8, 5)

    @staticmethod
    def _default_recipe() -> Recipe:
        return recipes.a2c()


def _step_sampler(
    source: EnvSource | StepSampler,
    num_envs: int | None,
    steps: int | None,
    workers: Workers,
    defaults: tuple[int, int],
) -> StepSampler:
    if not isinstance(source, StepSampler):
        if isinstance(source, Sampler):
            raise TypeError(f"a critic bootstraps from cut episodes: give a StepSampler, not a {type(source).__name__}")
        wanted = (defaults[0] if num_envs is None else num_envs, defaults[1] if steps is None else steps)
        return StepSampler(source, *wanted, workers=workers)
    if num_envs is not None or steps is not None:
        raise ValueError(f"num_envs={num_envs} and steps={steps} beside a ready sampler, which has its own")
    _check_no_workers(workers)
    return source


def _without_groups(recipe: Any, default: Recipe, pieces: Pieces) -> Recipe:
    for name in ("group_size", "groups_per_step"):
        if name in pieces:
            raise ValueError(f"{name} is of groups, and a StepSampler has none: set num_envs and steps")
    return _chosen(recipe, default, pieces)


def _check_no_workers(workers: Workers) -> None:
    if workers != 0:
        raise ValueError(f"workers={workers!r} beside a ready sampler, which owns its workers: give them to it")


def _chosen(recipe: Any, default: Recipe, pieces: Pieces) -> Recipe:
    check_pieces(pieces)
    if not isinstance(recipe, Recipe | None):
        raise TypeError(f"recipe is {recipe!r}: give a Recipe, for instance recipes.critic_free()")
    return (recipe or default).replaced(**pieces)


def _with_critic(recipe: Recipe, sampler: StepSampler, seed: int) -> Recipe:
    """The recipe for this sampler's environments, with a small critic where it has none."""
    recipe = recipe.replaced(groups_per_step=sampler.num_envs)
    if recipe.critic is not None or not recipe.needs_critic:
        return recipe
    return recipe.replaced(critic=Critic(network(sampler.observation_space, 1, seed=seed)))
