"""A fixed number of steps from each of a few environments, for estimators with a critic."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from grpolib.batch import GroupBatch, concatenate
from grpolib.functional._checks import check_whole
from grpolib.policies import ActingPolicy
from grpolib.policies.spaces import environment_actions
from grpolib.sampling.engines import Run, Workers, make_engine
from grpolib.sampling.environments import (
    BLOCK,
    TRAINING_SEEDS,
    Env,
    EnvSource,
    describe_environments,
    is_list,
    make_environments,
)
from grpolib.sampling.lanes import Lanes
from grpolib.sampling.protocols import group_seed
from grpolib.sampling.rollout import CPU, check_action, device_of, generator, initial_state, inputs_of
from grpolib.trees import Tree, join, move, num_rows, select, tree_map

RECENT = 100
"""Finished episodes over which the training return is averaged."""


class StepSampler:
    """`steps` steps from each of `num_envs` environments; episodes are carried over to the next sample.

    A segment ends where its episode ends or the rollout does; `final_inputs` holds the true observation after
    its last step, and `terminated` is False where a critic has to bootstrap from it. Every segment is a group of
    its own: estimators that compare the members of a group raise. `metrics` holds the returns and lengths of
    the last 100 finished episodes.

    Args:
        env: An id, a factory, or one factory per environment.
        num_envs: K, >= 1.
        steps: Per environment and sample, >= 1.
        workers: Where environments run: 0 here, a number of processes, or "auto"; the batch has the same bits.
    """

    def __init__(self, env: EnvSource, num_envs: int = 16, steps: int = 1024, *, workers: Workers = 0) -> None:
        check_whole(num_envs=num_envs, steps=steps)
        if num_envs < 1 or steps < 1:
            raise ValueError(f"num_envs={num_envs} and steps={steps} must be >= 1")
        self.engine = make_engine(workers)
        self.source = env
        self.num_envs = num_envs
        self.steps = steps
        description = describe_environments(env, num_envs)
        self.observation_space = description.observation_space
        self.action_space = description.action_space
        self.name = description.name
        self.max_length = description.time_limit
        self._stage = BlockStage(env, num_envs, steps)
        self._finished: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._open: list[OpenEpisode] = []
        self._replays = False

    def sample(
        self, policy: ActingPolicy, num_groups: int, seed: np.random.SeedSequence, *, first_group: int = 0
    ) -> GroupBatch[Any]:
        """num_envs x steps steps; a block of environments takes the place of a group. See `Sampler.sample`.

        Raises:
            ValueError: num_groups is not num_envs, or the environment gave something that is not finite.
            WorkerError: A worker process raised, died or hangs.
        """
        if num_groups != self.num_envs:
            raise ValueError(
                f"num_groups is {num_groups}, this sampler has {self.num_envs} environments: set "
                f"groups_per_step={self.num_envs}"
            )
        blocks = range(0, self.num_envs, BLOCK)
        replayed = [self._open[first : first + BLOCK] if self._replays else () for first in blocks]
        jobs = [BlockJob(k, group_seed(seed, first_group + k), replayed[k]) for k in range(len(blocks))]
        rollouts = self.engine.map(self._stage, policy, jobs, pinned=True)
        segments = concatenate([batch for batch, _ in rollouts])
        self._replays = False
        self._open = self._continued(segments.inputs.actions, [stand for _, stands in rollouts for stand in stands])
        self._finished.extend(
            zip(segments.metrics["returns"].tolist(), segments.metrics["lengths"].tolist(), strict=True)
        )
        return replace(segments, metrics=_finished_metrics(self._finished))

    def state(self) -> dict[str, Any]:
        """The open episodes, as what it takes to play them again, and the last finished ones."""
        return {
            "open": [asdict(episode) for episode in self._open],
            "finished": [list(episode) for episode in self._finished],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over open episodes; the next `sample` plays them again, and raises where they do not come to the same.

        Raises:
            ValueError: They are of another number of environments.
        """
        # A tuple comes back from a file as a list; a tree has no lists.
        episodes = [OpenEpisode(**tree_map(lambda value: value, episode)) for episode in state["open"]]
        if len(episodes) not in (0, self.num_envs):
            raise ValueError(f"{len(episodes)} open episodes for {self.num_envs} environments: give as many as before")
        self._finished = deque(((float(total), int(length)) for total, length in state["finished"]), maxlen=RECENT)
        self._open, self._replays = episodes, bool(episodes)

    def close(self) -> None:
        """Close the environments and end the workers."""
        self.engine.close()

    def _continued(self, actions: Tree, stands: Sequence[tuple["Place", Tree | None]]) -> list["OpenEpisode"]:
        """The episodes that are open now; each environment has `steps` of the actions."""
        taken = [select(actions, slice(k * self.steps, (k + 1) * self.steps)) for k in range(self.num_envs)]
        before = [episode.actions for episode in self._open] or [select(actions, slice(0, 0))] * self.num_envs
        return [
            OpenEpisode(place.seed, _last(place.time, old, new), place.total, place.observation, state)
            for (place, state), old, new in zip(stands, before, taken, strict=True)
        ]


class Place(NamedTuple):
    """Where an environment stands: its reset seed, the steps since, their return, a checksum of the observation."""

    seed: int
    time: int
    total: float
    observation: str


@dataclass(frozen=True)
class OpenEpisode:
    """What it takes to play an episode again: its reset seed and actions [t, ...], and what they came to.

    `state` is a recurrent policy's, one row: it comes from parameters that may have changed since, so it is kept.
    """

    seed: int
    actions: Tree
    total: float
    observation: str
    state: Tree | None = None

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place(self.seed, num_rows(self.actions), self.total, self.observation)


def _last(count: int, old: Tree, new: Tree) -> Tree:
    """The last `count` rows of both together."""
    missing = count - num_rows(new)
    if missing <= 0:
        return select(new, slice(-missing, None))
    return join([select(old, slice(num_rows(old) - missing, None)), new])


@dataclass(frozen=True, eq=False)
class BlockJob:
    """One rollout of one block of environments, after episodes that are played again."""

    block: int
    seed: np.random.SeedSequence
    replayed: Sequence[OpenEpisode] = ()


@dataclass(frozen=True, eq=False)
class BlockStage:
    """Blocks of environments that keep their open episodes from job to job."""

    source: EnvSource
    num_envs: int
    steps: int

    def build(self) -> Run:
        """Make nothing yet: a block is made where its first job runs."""
        return BlockRun(self)


class BlockRun:
    """Runs rollouts of the blocks that live here."""

    def __init__(self, stage: BlockStage) -> None:
        self._stage = stage
        self._blocks: dict[int, _Block] = {}

    def __call__(self, policy: ActingPolicy, job: BlockJob) -> tuple[GroupBatch[Any], list[tuple[Place, Tree | None]]]:
        """`steps` steps of each environment of the block, and where that leaves them, with the policy's states."""
        if job.block not in self._blocks:
            self._blocks[job.block] = _Block(self._environments(job.block))
        block = self._blocks[job.block]
        if job.replayed:
            block.replay(job.replayed)
        return block.run(policy, self._stage.steps, job.seed), block.stands()

    def close(self) -> None:
        """Close the environments."""
        for block in self._blocks.values():
            for environment in block.environments:
                environment.close()

    def _environments(self, block: int) -> list[Env]:
        first = block * BLOCK
        count = min(BLOCK, self._stage.num_envs - first)
        source = self._stage.source
        return make_environments(source[first : first + count] if is_list(source) else source, count)


class _End(NamedTuple):
    """Where a segment ends: its last step of the rollout, whether the episode terminated, what came after."""

    step: int
    terminated: bool
    observation: Tree


class _Block:
    """Environments that share a policy call, a generator and a worker."""

    def __init__(self, environments: Sequence[Env]) -> None:
        self.environments = environments
        self._lanes = Lanes(environments)
        self._totals = np.zeros(len(environments))
        self._started = False
        self._state: Tree | None = None

    def run(self, policy: ActingPolicy, steps: int, seed: np.random.SeedSequence) -> GroupBatch[Any]:
        """`steps` steps of each environment, as segments in the order of the environments."""
        resets, rng = np.random.default_rng(group_seed(seed, 0)), generator(group_seed(seed, 1))
        everyone = list(range(len(self.environments)))
        if not self._started:
            for member in everyone:
                self._reset(member, resets)
            self._started = True
        device, space = device_of(policy), self.environments[0].action_space
        first_times = list(self._lanes.times)
        start = initial_state(policy, len(everyone))
        state = self._state if self._state is not None and start is not None else start
        first_states = [[_row(state, member)] for member in everyone]
        ends: list[list[_End]] = [[] for _ in everyone]
        finished: list[tuple[float, int]] = []
        observations, actions, log_probs, rewards = [], [], [], []
        for step in range(steps):
            observation = self._lanes.observations(everyone)
            action = policy.act(move(observation, device), rng, state=state)
            check_action(action, policy, len(everyone))
            outcome = self._lanes.step(everyone, environment_actions(action.actions, space))
            observations.append(observation)
            actions.append(move(action.actions, CPU))
            log_probs.append(action.log_probs.cpu())
            rewards.append(outcome.rewards)
            self._totals += outcome.rewards
            state = action.state
            for member in everyone:
                if outcome.terminated[member] or outcome.truncated[member]:
                    ends[member].append(self._end(step, member, outcome.terminated[member]))
                    finished.append((float(self._totals[member]), self._lanes.times[member]))
                    self._reset(member, resets)
                    state = _started_anew(state, start, member)
                    if step < steps - 1:
                        first_states[member].append(_row(start, member))
        self._state = state
        for member in everyone:
            if not ends[member] or ends[member][-1].step < steps - 1:
                ends[member].append(self._end(steps - 1, member, False))
        states = None if start is None else join([row for rows in first_states for row in rows if row is not None])
        batch = _as_segments(observations, actions, log_probs, rewards, ends, first_times, states)
        return replace(batch, metrics=_finished_metrics(finished))

    def replay(self, episodes: Sequence[OpenEpisode]) -> None:
        """Play open episodes again.

        Raises:
            ValueError: One ends early, or comes to another observation or return than it did.
        """
        for member, episode in enumerate(episodes):
            self._lanes.reset(member, episode.seed)
            self._totals[member] = 0.0
            for action in environment_actions(episode.actions, self.environments[0].action_space):
                outcome = self._lanes.step([member], [action])
                self._totals[member] += outcome.rewards[0]
                if outcome.terminated[0] or outcome.truncated[0]:
                    break
            if self._place(member) != episode.place:
                raise ValueError(
                    f"{self._lanes.where(member)}: the open episode of {len(episode.actions)} steps, played again, "
                    "came to something else, so the run cannot go on exactly. Draw everything from self.np_random and "
                    "let nothing survive reset (check_group_env says more), or start anew with the saved policy"
                )
        self._started = True
        states = [episode.state for episode in episodes if episode.state is not None]
        self._state = join(states) if states else None

    def stands(self) -> list[tuple[Place, Tree | None]]:
        """Where the environments stand, and the policy's state in each."""
        return [(self._place(member), _row(self._state, member)) for member in range(len(self.environments))]

    def _place(self, member: int) -> Place:
        lanes = self._lanes
        checksum = lanes.observation_checksum(member)
        return Place(lanes.seeds[member], lanes.times[member], float(self._totals[member]), checksum)

    def _end(self, step: int, member: int, terminated: bool) -> _End:
        return _End(step, terminated, self._lanes.observations([member]))

    def _reset(self, member: int, rng: np.random.Generator) -> None:
        self._lanes.reset(member, int(rng.integers(TRAINING_SEEDS)))
        self._totals[member] = 0.0


def _finished_metrics(finished: Collection[tuple[float, int]]) -> dict[str, torch.Tensor]:
    return {
        "returns": torch.tensor([total for total, _ in finished]),
        "lengths": torch.tensor([length for _, length in finished], dtype=torch.long),
    }


def _as_segments(
    observations: list[Tree],
    actions: list[Tree],
    log_probs: list[torch.Tensor],
    rewards: list[NDArray[np.float32]],
    segments: list[list[_End]],
    first_times: Sequence[int],
    states: Tree | None,
) -> GroupBatch[Any]:
    """Rows that were collected step by step, sorted by environment and cut where episodes ended."""
    ends = [end for member in segments for end in member]
    lengths = torch.from_numpy(np.concatenate([np.diff([-1, *(end.step for end in member)]) for member in segments]))
    starts = [[first, *([0] * (len(member) - 1))] for first, member in zip(first_times, segments, strict=True)]
    return GroupBatch(
        inputs=inputs_of(_rows(observations), _rows(actions), lengths, states),
        log_probs=_by_member(torch.stack(log_probs)),
        rewards=_by_member(torch.from_numpy(np.stack(rewards))),
        lengths=lengths,
        group_ids=torch.arange(len(ends)),
        terminated=torch.tensor([end.terminated for end in ends]),
        final_inputs=join([end.observation for end in ends]),
        first_timesteps=torch.from_numpy(np.concatenate(starts).astype(np.int64)),
    )


def _rows(steps: list[Tree]) -> Tree:
    """Trees [K, ...], one a step, as rows."""
    return tree_map(lambda *parts: _by_member(torch.stack(parts)), *steps)


def _row(tree: Tree | None, member: int) -> Tree | None:
    """One environment's row of a policy's state."""
    return None if tree is None else select(tree, slice(member, member + 1))


def _started_anew(state: Tree | None, start: Tree | None, member: int) -> Tree | None:
    """The state with the start of an episode in one environment's row."""
    if state is None:
        return None
    place = torch.tensor([member])
    return tree_map(lambda now, first: now.index_copy(0, place.to(now.device), first[place]), state, start)


def _by_member(values: torch.Tensor) -> torch.Tensor:
    """[steps, K, ...] as rows, one environment after the other."""
    return values.transpose(0, 1).flatten(0, 1)
