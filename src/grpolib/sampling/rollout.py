"""The unit of work of every sampler of groups: one complete episode in each of a few environments."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grpolib.batch import GroupBatch
from grpolib.minibatch import StepInputs
from grpolib.policies import ActingPolicy, Action, Policy
from grpolib.policies.spaces import environment_actions
from grpolib.sampling.environments import Env
from grpolib.sampling.lanes import Lanes


def rollout(
    environments: Sequence[Env],
    policy: ActingPolicy,
    reset_seeds: Sequence[int],
    rng: torch.Generator,
    *,
    deterministic: bool = False,
) -> GroupBatch[StepInputs]:
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
    members, observations, actions, log_probs, rewards = [], [], [], [], []
    while alive:
        observation = torch.from_numpy(lanes.observations.take(alive, axis=0))
        action = policy.act(observation.to(device), rng, deterministic=deterministic)
        check_action(action, policy, len(alive))
        outcome = lanes.step(alive, environment_actions(action.actions, space))
        members.append(alive)
        observations.append(observation)
        actions.append(action.actions.cpu())
        log_probs.append(action.log_probs.cpu())
        rewards.append(outcome.rewards)
        terminated[alive] = outcome.terminated
        alive = [m for m, *ended in zip(alive, outcome.terminated, outcome.truncated, strict=True) if not any(ended)]
    return _as_group(members, observations, actions, log_probs, rewards, terminated, lanes.observations)


def check_action(action: Action, policy: ActingPolicy, count: int) -> None:
    """Raise before an environment sees an action that is not one of `count` with finite log-probabilities."""
    if action.log_probs.shape != (count,) or len(action.actions) != count:
        raise ValueError(
            f"the policy {type(policy).__name__} gave {len(action.actions)} actions and log-probabilities of shape "
            f"{tuple(action.log_probs.shape)} for {count} observations: expected one each"
        )
    if not math.isfinite(float(action.log_probs.sum())):
        raise ValueError(
            f"the policy {type(policy).__name__} gave log-probabilities {action.log_probs.tolist()}: they must be "
            "finite. It has diverged, or its output is no distribution"
        )


def device_of(policy: Policy) -> torch.device:
    """Where the policy's parameters are; the CPU for one without any."""
    return next((parameter.device for parameter in policy.parameters()), torch.device("cpu"))


def generator(seed: np.random.SeedSequence) -> torch.Generator:
    """A torch generator that depends on `seed` alone."""
    return torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0] >> np.uint64(1)))


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Small networks run faster on one thread, and their bits must not depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _as_group(
    members: list[list[int]],
    observations: list[torch.Tensor],
    actions: list[torch.Tensor],
    log_probs: list[torch.Tensor],
    rewards: list[NDArray[Any]],
    terminated: NDArray[np.bool_],
    final_observations: NDArray[Any],
) -> GroupBatch[StepInputs]:
    """Rows that were collected time step by time step, sorted by episode."""
    member_of_row = np.concatenate(members)
    order = torch.from_numpy(np.argsort(member_of_row, kind="stable"))
    count = len(terminated)
    return GroupBatch(
        inputs=StepInputs(torch.cat(observations)[order], torch.cat(actions)[order]),
        log_probs=torch.cat(log_probs)[order],
        rewards=torch.from_numpy(np.concatenate(rewards))[order],
        lengths=torch.from_numpy(np.bincount(member_of_row, minlength=count)),
        group_ids=torch.zeros(count, dtype=torch.long),
        terminated=torch.from_numpy(terminated),
        final_inputs=torch.from_numpy(final_observations),
    )
