"""The unit of work of every sampler of groups: one complete episode in each of a few environments."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grpolib.batch import GroupBatch
from grpolib.minibatch import EpisodeInputs, StepInputs
from grpolib.policies import ActingPolicy, Action, Policy, RecurrentPolicy
from grpolib.policies.spaces import environment_actions
from grpolib.sampling.environments import Env
from grpolib.sampling.lanes import Lanes
from grpolib.trees import Tree, join, move, num_rows, select

CPU = torch.device("cpu")


def rollout(
    environments: Sequence[Env],
    policy: ActingPolicy,
    reset_seeds: Sequence[int],
    rng: torch.Generator,
    *,
    deterministic: bool = False,
) -> GroupBatch[Any]:
    """One complete episode in each environment, as one group; only the living are stepped.

    The policy is called once per time step for all that are still running: float32 results depend on the
    shape of the batch, so the caller fixes who runs together.

    Args:
        environments: Plain environments; each is reset once and never steps past its episode's end.
        policy: Called without gradient.
        reset_seeds: One per environment; equal seeds give a group that shares its start.
        rng: Of this group alone.
        deterministic: Act by mode instead of by sample.

    Raises:
        ValueError: A reward, observation or log-probability is not finite.
    """
    lanes = Lanes(environments)
    for member, seed in enumerate(reset_seeds):
        lanes.reset(member, seed)
    device = device_of(policy)
    space = environments[0].action_space
    terminated = np.zeros(len(environments), dtype=bool)
    alive = list(range(len(environments)))
    start = state = initial_state(policy, len(environments))
    members, observations, actions, log_probs, rewards = [], [], [], [], []
    while alive:
        observation = lanes.observations(alive)
        action = policy.act(move(observation, device), rng, state=state, deterministic=deterministic)
        check_action(action, policy, len(alive))
        outcome = lanes.step(alive, environment_actions(action.actions, space))
        members.append(alive)
        observations.append(observation)
        actions.append(move(action.actions, CPU))
        log_probs.append(action.log_probs.cpu())
        rewards.append(outcome.rewards)
        terminated[alive] = outcome.terminated
        goes_on = [not any(ended) for ended in zip(outcome.terminated, outcome.truncated, strict=True)]
        alive = [member for member, stays in zip(alive, goes_on, strict=True) if stays]
        state = None if start is None else select(action.state, torch.tensor(goes_on))
    final = lanes.observations(list(range(len(environments))))
    return _as_group(members, observations, actions, log_probs, rewards, terminated, final, start)


def check_action(action: Action, policy: ActingPolicy, count: int) -> None:
    """Raise before an environment sees an action that is not one of `count` with finite log-probabilities."""
    if action.log_probs.shape != (count,) or num_rows(action.actions) != count:
        raise ValueError(
            f"the policy {type(policy).__name__} gave {num_rows(action.actions)} actions and log-probabilities of "
            f"shape {tuple(action.log_probs.shape)} for {count} observations: expected one each"
        )
    if action.state is not None and not isinstance(policy, RecurrentPolicy):
        raise TypeError(
            f"the policy {type(policy).__name__} gave a state and has no initial_state(count): see RecurrentPolicy"
        )
    if not math.isfinite(float(action.log_probs.sum())):
        raise ValueError(
            f"the policy {type(policy).__name__} gave log-probabilities {action.log_probs.tolist()}: they must be "
            "finite. It has diverged, or its output is no distribution"
        )


def initial_state(policy: ActingPolicy, count: int) -> Tree | None:
    """The state of a recurrent policy at the start of `count` episodes; None for any other policy."""
    return policy.initial_state(count) if isinstance(policy, RecurrentPolicy) else None


def inputs_of(
    observations: Tree, actions: Tree, lengths: torch.Tensor, states: Tree | None
) -> StepInputs | EpisodeInputs:
    """What the policy reads to score the steps: with the episodes' first states, where it has any."""
    if states is None:
        return StepInputs(observations, actions)
    return EpisodeInputs(observations, actions, lengths, move(states, CPU))


def device_of(policy: Policy) -> torch.device:
    """Where the policy's parameters are; the CPU for one without any."""
    return next((parameter.device for parameter in policy.parameters()), torch.device("cpu"))


def generator(seed: np.random.SeedSequence) -> torch.Generator:
    """A torch generator that depends on `seed` alone."""
    return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))


@contextmanager
def one_torch_thread() -> Generator[None, None, None]:
    """Small networks run faster on one thread, and their bits must not depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _as_group(
    members: list[list[int]],
    observations: list[Tree],
    actions: list[Tree],
    log_probs: list[torch.Tensor],
    rewards: list[NDArray[Any]],
    terminated: NDArray[np.bool_],
    final_observations: Tree,
    start: Tree | None,
) -> GroupBatch[Any]:
    """Rows that were collected time step by time step, sorted by episode."""
    member_of_row = np.concatenate(members)
    order = torch.from_numpy(np.argsort(member_of_row, kind="stable"))
    count = len(terminated)
    lengths = torch.from_numpy(np.bincount(member_of_row, minlength=count))
    return GroupBatch(
        inputs=inputs_of(select(join(observations), order), select(join(actions), order), lengths, start),
        log_probs=torch.cat(log_probs)[order],
        rewards=torch.from_numpy(np.concatenate(rewards))[order],
        lengths=lengths,
        group_ids=torch.zeros(count, dtype=torch.long),
        terminated=torch.from_numpy(terminated),
        final_inputs=final_observations,
    )
