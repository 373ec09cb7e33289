"""A user's script that wires every piece by hand. It runs, and type checkers accept it in strict mode."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn

import grpolib
from grpolib import (
    GAE,
    K1,
    K2,
    K3,
    A2CTrainer,
    ActingPolicy,
    Action,
    AdvantageEstimator,
    AnchorState,
    Callback,
    CISPOLoss,
    ClippedSurrogateLoss,
    Critic,
    EntropyBonus,
    EvaluateEvery,
    Evaluation,
    EvaluationReport,
    ExactKL,
    GroupBatch,
    GroupSampler,
    GroupZScore,
    GRPOTrainer,
    LearningRate,
    LeaveOneOut,
    Linear,
    LossOutput,
    LossSetting,
    Minibatch,
    MinibatchPlan,
    Policy,
    PolicyLoss,
    PPOTrainer,
    ProcessSupervision,
    Recipe,
    ReferencePolicy,
    RewardToGo,
    Sampler,
    StepInputs,
    StepSampler,
    TimestepLeaveOneOut,
    Trainer,
    ValueLoss,
    as_policy,
    evaluate,
    mlp,
    recipes,
    step_weights,
)

# Pieces of one's own: a network, a policy, an estimator, a loss, a callback, a schedule, an optimizer.


class Network(nn.Module):
    """Observations of CartPole to two logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, observations: Tensor) -> Tensor:
        logits: Tensor = self.layer(observations)
        return logits


class OwnPolicy(nn.Module):
    """A policy that is written out instead of adapted."""

    def __init__(self) -> None:
        super().__init__()
        self.network = Network()

    def act(
        self,
        observations: Tensor,
        rng: torch.Generator,
        *,
        state: object = None,
        deterministic: bool = False,
    ) -> Action:
        logits = self.network.forward(observations).detach()
        draws = torch.rand(len(observations), 1, generator=rng)
        threshold = torch.full_like(draws, 0.5) if deterministic else draws
        actions = (logits.softmax(1)[:, :1] < threshold).long().squeeze(1)
        return Action(actions, logits.log_softmax(1).gather(1, actions[:, None]).squeeze(1))

    def evaluate(self, inputs: StepInputs) -> Evaluation:
        distribution = torch.distributions.Categorical(logits=self.network.forward(inputs.observations))
        log_probs: Tensor = distribution.log_prob(inputs.actions)
        return Evaluation(log_probs, distribution.entropy(), distribution=distribution)


def longest_first(batch: GroupBatch[StepInputs]) -> Tensor:
    """An estimator is a function from a batch to one number a step."""
    lengths = batch.lengths.float()
    return (lengths - lengths.mean())[batch.episode_ids]


def imitation(evaluation: Evaluation, minibatch: Minibatch[StepInputs]) -> LossOutput:
    """A loss is a function from an evaluation and a minibatch to a number."""
    loss = -(evaluation.log_probs * minibatch.weights).sum()
    return LossOutput(loss, {"imitation": loss.detach()})


class StopEarly(Callback):
    def on_iteration_end(self, trainer: Trainer, metrics: dict[str, float]) -> bool:
        return metrics["return_mean"] < 450.0

    def on_evaluation(self, trainer: Trainer, report: EvaluationReport) -> None:
        print(report.argmax.mean, report.sampled.solved)


def cosine(trainer: Trainer) -> float:
    return 1e-3 * float(np.cos(trainer.iteration / 100))


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def environment() -> gymnasium.Env[np.ndarray, int]:
    return gymnasium.make("CartPole-v1")


ESTIMATORS: list[AdvantageEstimator] = [
    GroupZScore(epsilon=1e-6, correction=1, scale="none"),
    LeaveOneOut(),
    ProcessSupervision(discount=0.9),
    TimestepLeaveOneOut(discount=0.99, normalize=False),
    RewardToGo("timestep"),
    AnchorState(radius=0.3, weight=0.5),
    longest_first,
]
LOSSES: list[PolicyLoss] = [
    ClippedSurrogateLoss(0.2, clip_epsilon_high=0.28, dual_clip=3.0),
    CISPOLoss(clip_epsilon_high=4.0),
    EntropyBonus(0.01),
    K1(0.1, gradient="reverse_kl"),
    K2(0.1),
    K3(0.1, gradient="reverse_kl", ratio_level="step"),
    ExactKL(0.1),
    imitation,
]


def groups() -> Trainer:
    """Every piece of a trainer on groups."""
    sampler: Sampler = GroupSampler(environment, group_size=4)
    trainer = Trainer(
        as_policy(Network(), environment().action_space),
        sampler,
        advantages=ESTIMATORS[0],
        loss=LOSSES,
        reduction="constant",
        plan=MinibatchPlan(epochs=2, size=4, by="episode"),
        optimizer=partial(torch.optim.Adam, lr=1e-3),
        schedules=[
            LearningRate(Linear(1e-3, 0.0, iterations=10)),
            LearningRate(cosine),
            LossSetting(EntropyBonus, "coefficient", Linear(0.01, 0.0, total_steps=1_000)),
            lambda trainer: None,
        ],
        reference=ReferencePolicy(refresh_every=10, mix=0.5, penalty=K1(0.05)),
        groups_per_step=2,
        max_grad_norm=0.5,
        seed=1,
        callbacks=[StopEarly(), EvaluateEvery(steps=1_000, episodes=2)],
    )
    trainer.train(iterations=1)
    return trainer


def segments() -> list[Trainer]:
    """Critics, on segments of a fixed number of steps."""
    critic = Critic(mlp(4, 8, 1, seed=2))
    by_hand = Trainer(
        OwnPolicy(),
        StepSampler([environment] * 2, num_envs=2, steps=8),
        advantages=GAE(discount=0.99, gae_lambda=0.95, normalize=True),
        loss=[ClippedSurrogateLoss(), ValueLoss(0.5)],
        reduction="step_mean",
        critic=critic,
        groups_per_step=2,
        optimizer=sgd,
    )
    by_name = PPOTrainer(Network(), "CartPole-v1", num_envs=2, steps=8, recipe=recipes.ppo(total_steps=100))
    a2c = A2CTrainer(Network(), environment, num_envs=2, critic=critic)
    trainers: list[Trainer] = [by_hand, by_name, a2c]
    for trainer in trainers:
        trainer.train(total_steps=16)
    return trainers


def named() -> Recipe:
    """Recipes, and single pieces of them replaced."""
    policy: ActingPolicy = OwnPolicy()
    scored: Policy = policy
    recipe = recipes.critic_free().replaced(group_size=2, groups_per_step=1)
    trainer = GRPOTrainer(policy, "CartPole-v1", recipe=recipe, advantages=longest_first, plan=MinibatchPlan(1, None))
    metrics = trainer.step()
    report = evaluate(policy, "CartPole-v1", episodes=2)
    print(metrics["entropy"] + report.argmax.mean, scored.training, grpolib.__version__)
    return recipe


def stopped(folder: Path) -> GRPOTrainer:
    """A run that goes on from a file."""
    GRPOTrainer(OwnPolicy(), "CartPole-v1", group_size=2).save(folder)
    return GRPOTrainer.resume(folder, OwnPolicy(), "CartPole-v1", group_size=2)


def by_hand() -> Tensor:
    """One update, without a trainer."""
    policy = as_policy(mlp(4, 8, 2, seed=0), environment().action_space)
    batch = GroupSampler("CartPole-v1", 2).sample(policy, 1, np.random.SeedSequence(0))
    reference = ReferencePolicy().started_from(policy)
    batch = reference.annotate(batch)
    advantages = LeaveOneOut()(batch)
    weights = step_weights(batch.lengths, "episode_mean")
    total = torch.zeros(())
    for minibatch in batch.minibatches(advantages, "step_mean", MinibatchPlan(), torch.Generator()):
        output = ClippedSurrogateLoss()(policy.evaluate(minibatch.inputs), minibatch)
        output.loss.backward()
        total = total + output.loss.detach()
    return total * weights.sum()


if __name__ == "__main__":
    groups()
    segments()
    named()
    by_hand()
