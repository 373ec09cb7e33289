"""Policies with a memory: whole episodes at once give what acting step by step gave, also across rollouts and files."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from environments import Counting, Quitting, box
from gymnasium.spaces import Dict, Discrete
from helpers import parameters_of
from torch import nn

from grpolib import (
    Action,
    Deployed,
    EpisodeInputs,
    GroupSampler,
    GRPOTrainer,
    MinibatchPlan,
    PPOTrainer,
    Recurrent,
    RecurrentPolicy,
    StepSampler,
    as_policy,
    evaluate,
    gru,
    lstm,
)
from grpolib.trees import leaves, select

EPISODES = MinibatchPlan(epochs=2, size=4, by="episode")
SEED = np.random.SeedSequence(0)


def policy_of(make, env=Quitting, scale=20.0):
    """A policy whose outputs are far from zero."""
    module = make(env.observation_space, env.action_space, width=8, seed=1)
    with torch.no_grad():
        module.head.weight.mul_(scale)
    return as_policy(module, env.action_space)


def step_by_step(policy, observations, state):
    """Logits of one episode from torch's cells, one step after the other."""
    module, memory = policy.module, policy.module.memory
    kind = nn.GRUCell if isinstance(memory, nn.GRU) else nn.LSTMCell
    cell = kind(memory.input_size, memory.hidden_size)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in memory.state_dict().items()})
    hidden = tuple(part[:, 0] for part in state) if isinstance(state, tuple) else state[:, 0]
    logits = []
    for observation in observations:
        hidden = cell(module.encoder(observation[None]), hidden)
        logits.append(module.head(hidden[0] if isinstance(hidden, tuple) else hidden)[0])
    return torch.stack(logits)


@pytest.mark.parametrize("make", [gru, lstm])
def test_whole_episodes_give_what_single_steps_give(make):
    policy = policy_of(make)
    batch = GroupSampler(lambda: Quitting(6), 4).sample(policy, 3, SEED)
    assert isinstance(batch.inputs, EpisodeInputs)
    assert batch.lengths.unique().numel() > 2  # ragged
    assert not any(state.any() for state in leaves(batch.inputs.states))
    evaluation = policy.evaluate(batch.inputs)
    torch.testing.assert_close(evaluation.log_probs.detach(), batch.log_probs, atol=1e-6, rtol=0)
    for episode in range(batch.num_episodes):
        rows = batch.steps_of(torch.tensor([episode]))
        state = select(batch.inputs.states, torch.tensor([episode]))
        logits = step_by_step(policy, batch.inputs.observations[rows], state)
        expected = logits.log_softmax(1).gather(1, batch.inputs.actions[rows, None])[:, 0]
        torch.testing.assert_close(evaluation.log_probs[rows], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [gru, lstm])
def test_the_gradient_goes_through_time(make):
    policy = policy_of(make)
    batch = GroupSampler(lambda: Quitting(5), 4).sample(policy, 1, SEED)
    together = torch.autograd.grad(policy.evaluate(batch.inputs).log_probs.sum(), list(policy.parameters()))
    single = [torch.zeros_like(parameter) for parameter in policy.parameters()]
    for episode in range(batch.num_episodes):
        rows = batch.steps_of(torch.tensor([episode]))
        state = select(batch.inputs.states, torch.tensor([episode]))
        logits = step_by_step(policy, batch.inputs.observations[rows], state)
        # The cell of step_by_step has parameters of its own: those of encoder and head remain.
        score = logits.log_softmax(1).gather(1, batch.inputs.actions[rows, None]).sum()
        found = torch.autograd.grad(score, list(policy.parameters()), allow_unused=True)
        single = [total if one is None else total + one for total, one in zip(single, found, strict=True)]
    names = [name for name, _ in policy.named_parameters()]
    for name, one, other in zip(names, together, single, strict=True):
        if "memory" not in name:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert any(one.abs().sum() > 0 for name, one in zip(names, together, strict=True) if "weight_hh" in name)


@pytest.mark.parametrize("make", [gru, lstm])
def test_episodes_go_on_with_their_state_in_the_next_rollout(make):
    policy = policy_of(make, Counting)
    halves = StepSampler(lambda: Counting(5), 3, 4)
    first, second = (halves.sample(policy, 3, np.random.SeedSequence(seed)) for seed in (1, 2))
    starts = second.first_timesteps
    assert starts.tolist() == [4, 0] * 3
    for episode, start in enumerate(starts.tolist()):
        state = select(second.inputs.states, torch.tensor([episode]))
        assert all(bool(part.any()) == (start > 0) for part in leaves(state))
    # The state after the first half is that of its steps, one by one.
    after, rows = policy.initial_state(3), first.inputs.observations.unflatten(0, (3, 4))
    for time in range(4):
        after = policy.act(rows[:, time], torch.Generator(), state=after).state
    for found, expected in zip(leaves(second.inputs.states), leaves(after), strict=True):
        torch.testing.assert_close(found[starts > 0], expected, atol=1e-6, rtol=0)
    scored = policy.evaluate(second.inputs).log_probs.detach()
    torch.testing.assert_close(scored, second.log_probs, atol=1e-6, rtol=0)


def test_an_episode_that_ends_with_the_rollout_leaves_no_state_behind():
    sampler = StepSampler(lambda: Counting(4), 2, 4)
    policy = policy_of(gru, Counting)
    for seed in (1, 2):
        batch = sampler.sample(policy, 2, np.random.SeedSequence(seed))
        assert batch.lengths.tolist() == [4, 4]
        assert not batch.inputs.states.any()


def test_the_past_decides_what_comes_next():
    policy = policy_of(gru, Counting)
    now = torch.tensor([[0.5, 2.0]])
    pasts = [torch.tensor([[value, 1.0]]) for value in (0.0, 1.0)]
    states = [policy.act(past, torch.Generator()).state for past in pasts]
    log_probs = [policy.act(now, torch.Generator().manual_seed(0), state=state).log_probs for state in states]
    assert not torch.equal(*log_probs)


def of_three(make, start, seed):
    """A trainer of three environments, made by `start`."""
    module = make(Quitting.observation_space, Quitting.action_space, width=4, seed=seed)
    return start(module, lambda: Quitting(7), plan=EPISODES, num_envs=3, steps=5)


@pytest.mark.parametrize("make", [gru, lstm])
def test_a_run_with_a_memory_goes_on_with_the_same_bits(make, tmp_path):
    unbroken, broken = (of_three(make, PPOTrainer, seed=1) for _ in range(2))
    unbroken.train(iterations=4)
    broken.train(iterations=2)
    broken.save(tmp_path / "checkpoint")
    resumed = of_three(make, partial(PPOTrainer.resume, tmp_path / "checkpoint"), seed=9)
    resumed.train(iterations=2)
    trainers = (unbroken, resumed)
    one, other = (parameters_of(trainer.policy) for trainer in trainers)
    assert all(torch.equal(one[name], other[name]) for name in one)
    batches = [trainer.sampler.sample(trainer.policy, 3, SEED) for trainer in trainers]
    assert torch.equal(batches[0].log_probs, batches[1].log_probs)
    for found, expected in zip(*(leaves(batch.inputs.states) for batch in batches), strict=True):
        assert torch.equal(found, expected)


def test_evaluation_and_deployment_carry_the_state():
    policy = policy_of(gru, Counting)
    report = evaluate(policy, lambda: Counting(5), episodes=3)
    assert report.argmax.lengths.tolist() == [5, 5, 5]
    assert 0.0 < report.start_entropy < math.log(2) + 1e-6
    act = Deployed(policy, Counting.observation_space, Counting.action_space)
    observations = np.array([[0.1, 0.0], [0.9, 0.0]], dtype=np.float32)
    _, state = act.predict(observations)
    _, both = act.predict(observations, state=state, episode_start=[False, True])
    _, first = act.predict(observations[:1], state=state[:1])
    _, anew = act.predict(observations[1:])
    torch.testing.assert_close(both, torch.cat([first, anew]))


def test_a_memory_over_images_and_nested_observations():
    space = Dict(place=box(2), kind=Discrete(3))
    module = lstm(space, Discrete(2), width=4)
    observations = {"place": torch.zeros(5, 2), "kind": torch.eye(3)[torch.tensor([0, 1, 2, 0, 1])]}
    outputs, _ = module(observations, torch.tensor([2, 3]), module.initial_state(2))
    assert outputs.shape == (5, 2)


# What cannot be.


def test_minibatches_of_steps_are_refused_at_once():
    module = gru(Counting.observation_space, Counting.action_space)
    with pytest.raises(ValueError, match=r"reads whole episodes, got MinibatchPlan.*by='episode'\)"):
        GRPOTrainer(module, Counting)
    batch = GroupSampler(Counting, 2).sample(as_policy(module, Counting.action_space), 1, SEED)
    with pytest.raises(ValueError, match=r"reads whole episodes: set plan=MinibatchPlan\(epochs, episodes"):
        batch.inputs.select_steps(slice(0, 1))


class Forgetful(nn.Module):
    """Gives a state, but does not say how one starts."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(1))

    def act(self, observations, rng, *, state=None, deterministic=False):
        count = len(observations)
        return Action(torch.zeros(count, dtype=torch.long), torch.zeros(count), torch.zeros(count))

    def evaluate(self, inputs):
        raise NotImplementedError


def test_a_state_without_a_start_is_named():
    assert not isinstance(Forgetful(), RecurrentPolicy)
    with pytest.raises(TypeError, match=r"Forgetful gave a state and has no initial_state\(count\)"):
        GroupSampler(Counting, 2).sample(Forgetful(), 1, SEED)


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("memory", "error", "message"),
    [
        (nn.RNN(2, 2, batch_first=True), TypeError, r"memory is a RNN: give a torch\.nn\.GRU or LSTM"),
        (nn.GRU(2, 2), ValueError, r"make it with batch_first=True"),
        (nn.LSTM(2, 2, batch_first=True, bidirectional=True), ValueError, r"bidirectional=False"),
    ],
)
def test_memories_that_cannot_act(memory, error, message):
    with pytest.raises(error, match=message):
        Recurrent(nn.Identity(), memory, nn.Linear(2, 2))
