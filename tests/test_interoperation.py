"""Policies here and models of Stable-Baselines3; programs of torch.export."""

import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from space_cases import ACTIONS, OBSERVATIONS, make, module

from grpolib import Deployed, GroupSampler, Masked, Normalized, as_policy, evaluate, mlp, network
from grpolib.trees import leaves, tree_map

DEPLOYMENT = (Path(__file__).parent.parent / "docs" / "deployment.md").read_text()


@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.parametrize("observation", ["box", "dict", "tuple"])
def test_every_policy_is_deployed(observation, action):
    env = make(observation, action)
    act = Deployed(module(observation, action), env.observation_space, env.action_space)
    seen, _ = env.reset(seed=0)
    state = None
    for deterministic in (True, False):
        taken, state = act.predict(seen, state=state, deterministic=deterministic)
        assert env.action_space.contains(taken)
        seen, *_ = env.step(taken)


def test_a_batch_of_nested_observations_gives_a_batch_of_actions():
    env = make("dict", "dict")
    act = Deployed(module("dict", "dict"), env.observation_space, env.action_space)
    singles = [env.reset(seed=seed)[0] for seed in range(3)]
    batch = tree_map(lambda *parts: np.stack(parts), *singles)
    for together, single in zip(act(batch), singles, strict=True):
        assert env.action_space.contains(together)
        pairs = zip(leaves(together), leaves(act(single)), strict=True)
        assert all(np.allclose(one, other, atol=1e-6) for one, other in pairs)
    with pytest.raises(ValueError, match=r"got shape \[.*give one observation, \[.*or a batch"):
        act({**batch, "place": np.zeros((2, 2))})


@pytest.mark.parametrize(
    ("policy", "observation"),
    [
        (network(OBSERVATIONS["image"], 3), "image"),
        (network(OBSERVATIONS["dict"], 3), "dict"),
        (Normalized(network(OBSERVATIONS["tuple"], 3), OBSERVATIONS["tuple"]), "tuple"),
        (Masked(network(OBSERVATIONS["box"], ACTIONS["discrete"][0]), ACTIONS["discrete"][0]), "masked"),
    ],
    ids=["image", "dict", "normalized tuple", "masked box"],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_a_network_is_exported(policy, observation):
    def env():
        return make("box", "masked") if observation == "masked" else make(observation, "discrete")

    sampler = GroupSampler(env, 2)
    batch = sampler.sample(as_policy(policy, sampler.action_space), 1, np.random.SeedSequence(0))
    example = batch.inputs.observations
    program = torch.export.export(policy.eval(), (example,))
    torch.testing.assert_close(program.module()(example), policy(example))


def test_stable_baselines3_evaluates_a_policy_of_ours():
    helper = pytest.importorskip("stable_baselines3.common.evaluation")
    env = gymnasium.make("CartPole-v1")
    policy = mlp(4, 16, 2, seed=3)
    act = Deployed(policy, env.observation_space, env.action_space)
    env.reset(seed=1_000_000_000)
    theirs, _ = helper.evaluate_policy(act, env, n_eval_episodes=3, return_episode_rewards=True, warn=False)
    assert len(theirs) == 3
    assert all(value >= 1.0 for value in theirs)


def test_a_model_of_stable_baselines3_is_a_policy_here():
    pytest.importorskip("stable_baselines3")
    (code,) = re.findall(r"^```py\n(.*?)^```$", DEPLOYMENT, flags=re.MULTILINE | re.DOTALL)
    namespace = {}
    exec(compile(code, "deployment.md", "exec"), namespace)
    model = namespace["borrowed"]
    ours = evaluate(model, "CartPole-v1", episodes=2)
    env = gymnasium.make("CartPole-v1")
    for episode in range(2):
        observation, _ = env.reset(seed=1_000_000_000 + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.policy.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + reward, terminated or truncated
        assert total == float(ours.argmax.returns[episode])
