"""The unit of work of every sampler of environments: one complete episode in each of a few environments."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from grpolib.batch import GroupBatch, StepInputs
from grpolib.policies import ActingPolicy, Policy
from grpolib.policies.spaces import as_tensor, environment_actions, observation_dtype
from grpolib.sampling.environments import Env, environment_name


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
    current = _reset(environments, reset_seeds)
    device = device_of(policy)
    space = environments[0].action_space
    alive = np.arange(len(environments))
    members, observations, actions, log_probs, rewards = [], [], [], [], []
    terminated = np.zeros(len(environments), dtype=bool)
    time = 0
    while len(alive):
        observation = current[alive]
        action = policy.act(as_tensor(observation, device), rng, deterministic=deterministic)
        running, step_rewards = [], np.empty(len(alive), dtype=np.float32)
        taken = environment_actions(action.actions, space)
        for row, (member, act) in enumerate(zip(alive.tolist(), taken, strict=True)):
            current[member], step_rewards[row], terminated[member], truncated = checked_step(
                environments[member], act, reset_seeds[member], time
            )
            running.append(not (terminated[member] or truncated))
        members.append(alive)
        observations.append(observation)
        actions.append(action.actions.cpu())
        log_probs.append(action.log_probs.cpu())
        rewards.append(step_rewards)
        alive = alive[running]
        time += 1
    return _as_group(members, observations, actions, log_probs, rewards, terminated, current)


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


def _reset(environments: Sequence[Env], reset_seeds: Sequence[int]) -> NDArray[Any]:
    space = environments[0].observation_space
    starts = np.empty((len(environments), *(space.shape or ())), dtype=observation_dtype(space))
    for member, (environment, seed) in enumerate(zip(environments, reset_seeds, strict=True)):
        observation, _ = environment.reset(seed=seed)
        starts[member] = checked_observation(observation, environment, seed, "at reset")
    return starts


def checked_step(environment: Env, action: Any, seed: int, time: int) -> tuple[NDArray[Any], float, bool, bool]:
    """Step once: observation, reward, terminated, truncated; what is not finite never gets further."""
    observation, reward, terminated, truncated, _ = environment.step(action)
    reward = float(reward)
    if not math.isfinite(reward):
        raise ValueError(
            f"{environment_name(environment)} gave reward {reward} at step {time} of the episode with reset "
            f"seed {seed}: rewards must be finite"
        )
    checked = checked_observation(observation, environment, seed, f"after step {time}")
    return checked, reward, bool(terminated), bool(truncated)


def checked_observation(observation: Any, environment: Env, seed: int, when: str) -> NDArray[Any]:
    """The observation, to be copied by the caller: an environment may reuse its array."""
    array = np.asarray(observation)
    expected = environment.observation_space.shape
    if array.shape != expected:
        raise ValueError(
            f"{environment_name(environment)} gave an observation of shape {array.shape} {when} (reset seed "
            f"{seed}), its observation space says {expected}"
        )
    # A sum is finite only if all its terms are, and costs a fifth of isfinite().all(); overflow is looked into.
    if not math.isfinite(array.sum()) and not np.isfinite(array).all():
        raise ValueError(
            f"{environment_name(environment)} gave a non-finite observation {when} (reset seed {seed}): {array}"
        )
    return array


def _as_group(
    members: list[NDArray[Any]],
    observations: list[NDArray[Any]],
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
        inputs=StepInputs(torch.from_numpy(np.concatenate(observations))[order], torch.cat(actions)[order]),
        log_probs=torch.cat(log_probs)[order],
        rewards=torch.from_numpy(np.concatenate(rewards))[order],
        lengths=torch.from_numpy(np.bincount(member_of_row, minlength=count)),
        group_ids=torch.zeros(count, dtype=torch.long),
        terminated=torch.from_numpy(terminated),
        final_inputs=torch.from_numpy(final_observations),
    )
