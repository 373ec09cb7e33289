"""Runs by one process or by several ranks; as a script, a part of a job of ranks."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import environments  # noqa: F401  Box2D, imported with its warnings off
import gymnasium
import torch
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).parent / "text"))
from language_models import PROMPTS, lengths_reward, llama, policy_of

from grpolib import (
    Callback,
    CheckpointEvery,
    ClippedSurrogateLoss,
    CompletionSampler,
    EvaluateEvery,
    GRPOTrainer,
    MinibatchPlan,
    Ranks,
    ReferencePolicy,
    mlp,
    recipes,
    shard_policy,
    whole,
)
from grpolib.sharding import gathered
from grpolib.text_recipes import text_grpo

TIMINGS = {"seconds_sampling", "seconds_updating", "steps_per_second"}
SGD = partial(torch.optim.SGD, lr=0.5)


def short():
    return gymnasium.make("CartPole-v1", max_episode_steps=20)


class Keeps(Callback):
    def __init__(self):
        self.rows = []

    def on_iteration_end(self, trainer, metrics):
        self.rows.append({name: value for name, value in metrics.items() if name not in TIMINGS})

    def on_evaluation(self, trainer, report):
        self.rows.append(report.as_row())


def gym(ranks=None, plan=None, **pieces):
    """Groups that two ranks share unevenly, a KL term, an evaluation of two blocks."""
    policy = mlp(4, 8, 2, seed=0 if ranks is None else ranks.rank)  # rank 0's counts
    kept = Keeps()
    callbacks = [EvaluateEvery(100, episodes=9), kept]
    settings = {"group_size": 3, "groups_per_step": 3, "optimizer": SGD, "seed": 1, **pieces}
    plan = plan or MinibatchPlan(epochs=1, size=None)
    trainer = GRPOTrainer(policy, short, plan=plan, callbacks=callbacks, ranks=ranks, **settings)
    trainer.train(iterations=2)
    return trainer, kept.rows


def small_minibatches(ranks=None):
    """So small that a rank has no row in some of them."""
    return gym(ranks, MinibatchPlan(epochs=2, size=2), recipe=recipes.critic_free(), optimizer=partial(SGD, lr=0.01))


def whole_episodes(ranks=None):
    return gym(ranks, MinibatchPlan(epochs=1, size=2, by="episode"), reference=ReferencePolicy(refresh_every=1))


def text(ranks=None):
    """Micro-batches of a few tokens: a gradient of several parts on every rank."""
    kept = Keeps()
    policy = policy_of(llama(), tokens_per_micro_batch=40)
    sampler = CompletionSampler(PROMPTS, lengths_reward, 4, max_new_tokens=7)
    trainer = GRPOTrainer(
        policy, sampler, recipe=text_grpo(), groups_per_step=3, optimizer=SGD, callbacks=[kept], ranks=ranks, seed=1
    )
    trainer.train(iterations=1)
    return trainer, kept.rows


def sharded_trainer(ranks=None, folder=None):
    """A language model of which each rank has a part, with an optimizer that has a state."""
    policy = policy_of(llama(), tokens_per_micro_batch=24)
    if ranks is not None:
        shard_policy(policy, ranks)
    sampler = CompletionSampler(PROMPTS, lengths_reward, 4, max_new_tokens=7)
    reference = ReferencePolicy(policy=policy_of(llama()))
    recipe = text_grpo().replaced(reference=reference, optimizer=partial(SGD, momentum=0.9))
    settings = {"recipe": recipe, "groups_per_step": 3}
    make = GRPOTrainer if folder is None else partial(GRPOTrainer.resume, folder)
    return make(policy, sampler, ranks=ranks, **settings, **({} if folder else {"seed": 1}))


def sharded(ranks=None):
    trainer, kept = sharded_trainer(ranks), Keeps()
    trainer.callbacks.append(kept)
    trainer.train(iterations=2)
    return trainer, kept.rows


def said(call):
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return None


def refused(trainer, ranks, folder):
    """What a sharded policy does not do, in words, and the share of its numbers that this rank has."""
    policy, sampler = trainer.policy, trainer.sampler
    make = partial(GRPOTrainer, policy, sampler)
    plain = text_grpo().replaced(reference=None, loss=[ClippedSurrogateLoss()])
    generate = partial(policy.generate, PROMPTS[:1], 1, [torch.Generator()], max_new_tokens=1)
    calls = {
        "alone": partial(make, recipe=plain),
        "folder": partial(make, recipe=plain, ranks=ranks, run_folder=folder / "refused"),
        "copied": partial(make, recipe=text_grpo(), ranks=ranks),
        "refreshed": partial(make, recipe=text_grpo(), ranks=ranks, reference=ReferencePolicy(refresh_every=1)),
        "generate": generate,
    }
    found = {name: said(call) for name, call in calls.items()}
    with whole(policy):
        found["whole"] = said(partial(make, recipe=plain, ranks=ranks))
        generate()
    mine = sum(parameter.to_local().numel() for parameter in policy.parameters())
    return {**found, "share": mine / sum(parameter.numel() for parameter in policy.parameters())}


RUNS = {run.__name__: run for run in (gym, small_minibatches, whole_episodes, text, sharded)}


def go_on(folder, iterations, ranks=None):
    """Start a run, or go on with it, with any number of ranks."""
    settings = {
        "callbacks": [CheckpointEvery(1), EvaluateEvery(100, episodes=1)],
        "group_size": 3,
        "groups_per_step": 3,
        "plan": MinibatchPlan(epochs=1, size=40),
        "ranks": ranks,
    }
    if (Path(folder) / "checkpoints").exists():
        trainer = GRPOTrainer.resume(folder, mlp(4, 8, 2, seed=9), short, **settings)
    else:
        trainer = GRPOTrainer(mlp(4, 8, 2, seed=0), short, run_folder=folder, seed=1, **settings)
    trainer.train(iterations=iterations)
    return trainer


class Dies(Callback):
    def on_iteration_end(self, trainer, metrics):
        if trainer.ranks.rank == 1:
            os._exit(7)


def write(folder, name, ranks):
    trainer, rows = RUNS[name](ranks)
    gradients = gathered({k: p.grad for k, p in trainer.policy.named_parameters()})
    save_file(gradients, folder / f"{name}.{ranks.rank}.gradients")
    save_file(gathered(trainer.policy.state_dict()), folder / f"{name}.{ranks.rank}.weights")
    (folder / f"{name}.{ranks.rank}.json").write_text(json.dumps(rows))


def main(task, folder):
    torch.set_num_threads(1)
    with Ranks.of_torchrun(timeout=60.0) as ranks:
        if task == "runs":
            for name in RUNS:
                write(folder, name, ranks)
            go_on(folder / "run", 2, ranks)
            trainer = sharded_trainer(ranks)
            trainer.train(iterations=1)
            trainer.save(folder / "sharded-1")
            trainer = sharded_trainer(ranks, folder / "sharded-1")
            trainer.train(iterations=1)
            trainer.save(folder / "sharded-2")
            (folder / f"refused.{ranks.rank}.json").write_text(json.dumps(refused(trainer, ranks, folder)))
        else:
            go_on(folder / "run", 1, ranks)
            trainer = GRPOTrainer(mlp(4, 8, 2, seed=0), short, callbacks=[Dies()], ranks=ranks)
            trainer.train(iterations=2)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
