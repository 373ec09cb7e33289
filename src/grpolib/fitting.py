"""What a trainer is given must fit together; each check names the value and the way out."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import nn

from grpolib.callbacks import Callback
from grpolib.policies import Policy, RecurrentPolicy, as_policy
from grpolib.policies.normalized import RunningStatistics
from grpolib.ranks import Ranks
from grpolib.recipes import Recipe, rows_to_compile
from grpolib.sampling import Sampler
from grpolib.schedules import check_learning_rates
from grpolib.sharding import in_parts, is_sharded


def adapted(policy: Policy | nn.Module, sampler: Sampler) -> Policy:
    """The policy, or the one that its module is in the sampler's action space."""
    action_space = getattr(sampler, "action_space", None)
    if isinstance(policy, Policy):
        return policy
    if action_space is None:
        raise TypeError(f"{type(policy).__name__} has no evaluate(inputs): wrap it in a Policy that fits the sampler")
    return as_policy(policy, action_space)


def check_policy_and_recipe(policy: Policy, recipe: Recipe) -> None:
    """The plan must suit the policy, and the estimator find its critic."""
    if isinstance(policy, RecurrentPolicy) and recipe.plan.by == "step":
        raise ValueError(
            f"a recurrent policy reads whole episodes, got {recipe.plan}: set plan=MinibatchPlan(epochs, "
            "size, by='episode'), where size counts episodes"
        )
    if recipe.critic is None and recipe.needs_critic:
        raise ValueError("the estimator or a loss reads a critic's values: give critic=Critic(module)")


def more_than_one(ranks: Ranks | None) -> Ranks | None:
    """One rank alone trains as no ranks do."""
    if ranks is not None and not isinstance(ranks, Ranks):
        raise TypeError(f"ranks is {ranks!r}: give Ranks.of_torchrun(), or leave it out")
    return ranks if ranks is not None and ranks.size > 1 else None


def check_ranks(ranks: Ranks, sampler: Sampler, recipe: Recipe, modules: Iterable[nn.Module]) -> None:
    """What several ranks train must be the same on all of them."""
    ranks.check(sampler, recipe.groups_per_step)
    if any(isinstance(module, RunningStatistics) for module in modules):
        raise ValueError(
            "each rank would normalise by what it saw itself: leave Normalized and ScaledRewards out, or use "
            "one process"
        )


def check_sharding(policy: Policy, recipe: Recipe, ranks: Ranks | None, run_folder: object) -> None:
    """What is shared out among ranks needs them, and nobody who reads or writes it alone."""
    if not is_sharded(policy):
        return
    if ranks is None:
        raise ValueError("the policy is sharded: give the trainer ranks=, those that shard_policy got")
    if not in_parts(policy):
        raise ValueError("the sharded policy is whole now: make the trainer outside of `with whole(policy):`")
    if recipe.reference is not None and recipe.reference.refresh_every is not None:
        raise ValueError("a reference cannot be refreshed from a sharded policy: leave refresh_every out")
    if run_folder is not None:
        raise ValueError(
            "a run folder is written by rank 0 alone, which has a part of the policy: leave run_folder out, and let "
            "a callback of yours call trainer.save on every rank"
        )


def trained_parameters(modules: Sequence[Policy | nn.Module], name: str) -> list[nn.Parameter]:
    """Those of the policy and the critic that take a gradient; `name` is what the user calls the policy."""
    parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError(f"no parameter of the {name} takes a gradient: there is nothing to train")
    half = next((p.dtype for p in parameters if p.dtype in (torch.float16, torch.bfloat16)), None)
    if half is not None:
        warnings.warn(
            f"parameters that are trained are {half}, which rounds most small steps away: train them in float32 "
            "(from_pretrained(name, dtype=torch.float32)), and compute in half precision with "
            "CausalLMPolicy(..., autocast=torch.bfloat16)",
            stacklevel=4,
        )
    return parameters


def made_optimizer(recipe: Recipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """What the recipe's factory makes, which must be an optimizer with usable learning rates."""
    optimizer = recipe.optimizer(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer made a {type(optimizer).__name__}: return a torch.optim.Optimizer")
    check_learning_rates(optimizer)
    return optimizer


def possible_compile(compile: bool | Literal["auto"], recipe: Recipe, ranks: Ranks | None) -> bool | Literal["auto"]:
    """What was asked for; "auto" where compiling is impossible is False."""
    if compile not in (True, False, "auto"):
        raise ValueError(f"compile is {compile!r}: choose True, False or 'auto'")
    if compile is True and rows_to_compile(recipe) is None:
        raise ValueError(
            f"compile=True needs minibatches of one size and losses that stay the same, got {recipe.plan} and "
            f"schedules {recipe.schedules}: set compile=False"
        )
    if compile is True and ranks is not None:
        raise ValueError(f"compile=True with {ranks.size} ranks, whose minibatches differ in size: set False")
    return compile if ranks is None and rows_to_compile(recipe) is not None else False


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """A class in place of an instance is the usual slip."""
    if not isinstance(callbacks, Sequence):
        raise TypeError(f"callbacks is {callbacks!r}: give a list, for instance [EvaluateEvery()]")
    for callback in callbacks:
        if isinstance(callback, type) or not isinstance(callback, Callback):
            raise TypeError(f"callbacks has {callback!r}: give instances of subclasses of Callback")
