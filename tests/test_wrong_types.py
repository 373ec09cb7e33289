"""Wrong types, which the annotations forbid: what a user without a type checker is told.

They run in one interpreter without the tests' checks of types, which would speak first.
"""

import json
import re
import subprocess
import sys

import pytest

SETUP = """
import math, torch, gymnasium, numpy as np
from gymnasium.spaces import Box, Discrete
from torch import nn
import grpolib as gl
from grpolib import *

policy = mlp(4, 2)
env = "CartPole-v1"
quick = dict(recipe=recipes.critic_free(), group_size=2, groups_per_step=1, plan=MinibatchPlan(epochs=1))
def batch(**changes):
    inputs = StepInputs(torch.zeros(4, 1), torch.zeros(4))
    columns = dict(inputs=inputs, log_probs=torch.zeros(4), rewards=torch.ones(4))
    episodes = dict(lengths=torch.tensor([2, 2]), group_ids=torch.tensor([0, 0]), terminated=torch.tensor([True, True]))
    return GroupBatch(**{**columns, **episodes, **changes})
def step(**pieces):
    return GRPOTrainer(policy, env, **{**quick, **pieces}).step()
def loss_that_gives(value):
    return step(loss=[lambda evaluation, minibatch: value(evaluation.log_probs)])
"""

CASES = [
    ("GRPOTrainer(policy, env).train(total_steps=math.nan)", TypeError, "total_steps is nan: give a whole number"),
    ("GRPOTrainer(policy, env).train(iterations=1.5)", TypeError, "iterations is 1.5: give a whole number"),
    ("GRPOTrainer(policy, env, seed=1.5)", TypeError, "seed is 1.5"),
    ("GRPOTrainer(policy, env, group_size=2.5)", TypeError, "group_size is 2.5"),
    ("GRPOTrainer(policy, env, groups_per_step='4')", TypeError, "groups_per_step is '4'"),
    ("GroupSampler(env, 2.5)", TypeError, "group_size is 2.5"),
    ("GroupSampler(env, bad_groups='ignore')", ValueError, "bad_groups is 'ignore': choose 'raise' or 'drop'"),
    ("GroupSampler(env, bad_groups=None)", ValueError, "bad_groups is None: choose 'raise' or 'drop'"),
    ("StepSampler(env, 1.5, 5)", TypeError, "num_envs is 1.5"),
    ("MinibatchPlan(size=1.5)", TypeError, "size is 1.5"),
    ("MinibatchPlan(epochs=math.inf)", TypeError, "epochs is inf"),
    ("ReferencePolicy(refresh_every=1.5)", TypeError, "refresh_every is 1.5"),
    ("EvaluateEvery(math.nan)", TypeError, "steps is nan"),
    ("evaluate(policy, env, first_seed=1.5)", TypeError, "first_seed is 1.5"),
    ("GroupZScore(scale='member')", ValueError, "scale is 'member': choose one of 'group', 'batch', 'none'"),
    ("step(plan=64)", TypeError, "plan is 64: give a MinibatchPlan"),
    ("step(plan=None)", TypeError, "plan is None: give a MinibatchPlan"),
    ("step(reference=True)", TypeError, "reference is True: give a ReferencePolicy"),
    ("step(critic=3)", TypeError, "critic is 3: give a Critic"),
    ("step(schedules=LearningRate(lambda trainer: 1e-3))", TypeError, "schedules is .* give a list"),
    ("step(loss='ppo')", TypeError, "'p' can not be called as a piece: give an instance or a function"),
    ("step(loss=[ClippedSurrogateLoss])", TypeError, "ClippedSurrogateLoss.* give an instance"),
    ("step(advantages=GroupZScore)", TypeError, "GroupZScore.* give an instance"),
    ("step(advantages=3.0)", TypeError, "3.0 can not be called"),
    ("step(optimizer='adam')", TypeError, "'adam' can not be called"),
    ("step(optimizer=lambda parameters: None)", TypeError, "optimizer made a NoneType: return a torch.optim.Optimizer"),
    ("step(callbacks=[3])", TypeError, "callbacks has 3: give instances of subclasses of Callback"),
    ("step(advantages=lambda batch: None)", TypeError, "advantages are NoneType: an estimator gives a tensor"),
    ("step(advantages=lambda batch: batch.rewards.numpy())", TypeError, "advantages are ndarray"),
    ("step(advantages=lambda batch: batch.rewards.long())", TypeError, "advantages are torch.int64"),
    ("loss_that_gives(lambda x: LossOutput(x))", TypeError, "as 'loss': give a tensor without dimensions"),
    ("loss_that_gives(lambda x: LossOutput(0.0))", TypeError, "gave 0.0 as 'loss'"),
    ("loss_that_gives(lambda x: LossOutput(x.sum(), {'mine': x}))", TypeError, "as 'mine': give a tensor"),
    ("loss_that_gives(lambda x: LossOutput(x.sum(), {'mine': 1.0}))", TypeError, "gave 1.0 as 'mine'"),
    ("loss_that_gives(lambda x: LossOutput(x.detach().sum()))", ValueError, "do not depend on the policy"),
    ("PPOTrainer(policy, GroupSampler(env, 2))", TypeError, "give a StepSampler, not a GroupSampler"),
    ("GRPOTrainer(policy, StepSampler(env, 2, 2))", TypeError, "has no groups.*use PPOTrainer"),
    ("GRPOTrainer(policy, env, seed=None)", TypeError, "seed is None: give a whole number"),
    ("GRPOTrainer(policy, env, seed=True)", TypeError, "seed is True: give a whole number"),
    ("GroupSampler(env, None)", TypeError, "group_size is None: give a whole number"),
    ("GRPOTrainer(policy, env).evaluate(episodes=None)", TypeError, "episodes is None"),
    ("CheckpointEvery(None)", TypeError, "iterations is None"),
    ("GAE(discount='1')", TypeError, "discount is '1': give a number"),
    ("GAE(normalize='timestep')", TypeError, "normalize is 'timestep': give True or False"),
    ("step(max_grad_norm='3')", TypeError, "max_grad_norm is '3': give a number"),
    ("recipes.critic_free(total_steps=1.5)", TypeError, "total_steps is 1.5: give a whole number"),
    ("Linear(math.nan, 0.0, iterations=3)", ValueError, "start is nan: give a finite number"),
    (
        "step(optimizer=lambda p: torch.optim.SGD(p, lr=math.inf))",
        ValueError,
        "the learning rate is inf",
    ),
    ("step(schedules=[LearningRate(lambda trainer: math.nan)])", ValueError, "the learning rate is nan"),
    ("step(callbacks=[EvaluateEvery])", TypeError, "callbacks has <class .* give instances"),
    ("step(callbacks=EvaluateEvery())", TypeError, "callbacks is .* give a list"),
    ("step(run_folder='')", ValueError, "run_folder is empty: name a folder"),
    ("step(loss=[ClippedSurrogateLoss()], recipe=recipes.grpo())", ValueError, "or set reference=None"),
    ("step(advantages=lambda batch: batch.rewards.sub_(1.0))", ValueError, "changed the batch, which is read after it"),
    ("GRPOTrainer(mlp(5, 8, 2), env).step()", RuntimeError, r"Sequential on observations \(16, 4\) of torch.float32"),
    ("loss_that_gives(lambda x: LossOutput(x.sum(), None))", TypeError, "gave None as its metrics: give a dictionary"),
    ("Critic(None)", TypeError, "module is None: a critic is a torch.nn.Module"),
    ("GRPOTrainer(policy, env, ranks=3)", TypeError, r"ranks is 3: give Ranks.of_torchrun\(\)"),
    ("evaluate(env, policy)", TypeError, "Sequential.* is a module where an environment belongs"),
    ("batch(rewards=[1.0] * 4)", TypeError, "rewards is list: give a tensor of floating-point numbers"),
    ("batch(rewards=torch.ones(4, dtype=torch.cfloat))", TypeError, "rewards is torch.complex64"),
    ("batch(scored=torch.tensor([1, 0]))", TypeError, "scored is torch.int64: give a tensor of truth values"),
    ("batch(loss_mask=torch.ones(4))", TypeError, "loss_mask is torch.float32: give a tensor of truth values"),
    ("batch(terminated=torch.tensor([1, 1]))", TypeError, "terminated is torch.int64"),
    ("batch(lengths=torch.tensor([2.0, 2.0]))", TypeError, "lengths is torch.float32: give a tensor of whole numbers"),
]


@pytest.fixture(scope="module")
def answers():
    script = (
        SETUP
        + f"""
import json, sys
answers = {{}}
for code in {[code for code, _, _ in CASES]!r}:
    try:
        eval(code)
        answers[code] = ["nothing", ""]
    except Exception as error:
        answers[code] = [type(error).__name__, str(error)]
json.dump(answers, sys.stdout)
"""
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize(("code", "kind", "message"), CASES, ids=[code for code, _, _ in CASES])
def test_the_error_names_the_value_and_the_way_out(answers, code, kind, message):
    name, text = answers[code]
    assert name == kind.__name__, text
    assert re.search(message, text), text
