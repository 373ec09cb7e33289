"""What is run: one row is one recipe under a short name."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import gymnasium
import torch

from grpolib import (
    GAE,
    K3,
    A2CTrainer,
    AnchorState,
    ClippedSurrogateLoss,
    EntropyBonus,
    GroupZScore,
    GRPOTrainer,
    LearningRate,
    LeaveOneOut,
    Linear,
    LossSetting,
    MinibatchPlan,
    PPOTrainer,
    ProcessSupervision,
    Recipe,
    ReferencePolicy,
    RewardToGo,
    TimestepLeaveOneOut,
    Trainer,
    mlp,
    recipes,
)

ENV = "LunarLander-v3"
REPORT_SEEDS = range(5)
"""Trainer seeds of reported runs."""
CHOOSING_SEEDS = range(5, 10)
"""Trainer seeds on which settings are chosen; used for nothing else."""

OUTCOME = "GRPO, one return per episode"
PROCESS = "GRPO, process rewards"
CRITIC_FREE = "critic-free, baseline per time step"
OTHER = "other credit per step, no critic"
CRITIC = "with a critic"
SEARCH = "search for a better recipe"
FAMILIES = (OUTCOME, PROCESS, CRITIC_FREE, OTHER, CRITIC, SEARCH)


@dataclass(frozen=True)
class Row:
    """A recipe under a name, and the seeds it is planned for.

    Args:
        name: Short; in file names and tables.
        family: One of `FAMILIES`.
        description: One line.
        recipe: From the environment steps of a run, the horizon of its schedules, to its recipe.
        planned: Trainer seeds.
        trainer: From a policy and an environment to a trainer.
        max_episode_steps: Cuts episodes in training; evaluation never does. None: the environment's own limit.
    """

    name: str
    family: str
    description: str
    recipe: Callable[[int], Recipe]
    planned: range = range(3)
    trainer: Callable[..., Trainer] = GRPOTrainer
    max_episode_steps: int | None = None

    @property
    def is_search(self) -> bool:
        """Whether it belongs to the search, and so to the choosing seeds."""
        return self.family == SEARCH

    def make_trainer(self, seed: int, total_steps: int, **settings: Any) -> Trainer:
        """A trainer of a fresh policy; `settings` are the trainer's own keywords."""
        cut = {} if self.max_episode_steps is None else {"max_episode_steps": self.max_episode_steps}
        source = partial(gymnasium.make, ENV, disable_env_checker=True, **cut) if cut else ENV
        return self.trainer(new_policy(seed), source, recipe=self.recipe(total_steps), seed=seed, **settings)


def new_policy(seed: int = 0) -> torch.nn.Module:
    """The published actor, 4,996 parameters."""
    return mlp(8, 64, 64, 4, seed=seed)


def grpo(**pieces: Any) -> Recipe:
    """GRPO as published, with single pieces replaced."""
    return recipes.grpo().replaced(**pieces)


def critic_free(discount: float = 0.99, **pieces: Any) -> Recipe:
    """The centre of the critic-free rows, with single pieces replaced; it stays as it is, also beside better ones."""
    return Recipe(**{"advantages": TimestepLeaveOneOut(discount=discount), "reduction": "step_mean", **pieces})


def long_updates(total_steps: int) -> dict[str, Any]:
    """10 epochs of minibatches of 256 steps, with a learning rate that falls from 1e-3 to 0."""
    return {
        "plan": MinibatchPlan(epochs=10, size=256),
        "optimizer": partial(torch.optim.Adam, lr=1e-3, eps=1e-5, fused=True),
        "schedules": [LearningRate(Linear(1e-3, 0.0, total_steps=total_steps))],
    }


def entropy_bonus(total_steps: int, *losses: Any, schedules: Sequence[Any] = ()) -> dict[str, Any]:
    """An entropy bonus beside the surrogate and `losses`, falling from 0.01 to 0."""
    fall = LossSetting(EntropyBonus, "coefficient", Linear(0.01, 0.0, total_steps=total_steps))
    return {"loss": [ClippedSurrogateLoss(), *losses, EntropyBonus(0.01)], "schedules": [*schedules, fall]}


def long_updates_with_entropy(total_steps: int) -> dict[str, Any]:
    """Both of the above."""
    updates = long_updates(total_steps)
    return updates | entropy_bonus(total_steps, schedules=updates["schedules"])


NO_KL: dict[str, Any] = {"loss": [ClippedSurrogateLoss()], "reference": None}
KL: dict[str, Any] = {"loss": [ClippedSurrogateLoss(), K3(0.04)], "reference": ReferencePolicy(refresh_every=10)}
FIVE = range(5)
SCALED = TimestepLeaveOneOut(discount=0.99, normalize="timestep")

# Groups are written as the published study does: 4x16 is 4 starts with 16 episodes each.
ROWS = (
    Row("grpo", OUTCOME, "as published: 4x16 episodes, each weighs the same, k3 0.04", lambda _: grpo(), FIVE),
    Row(
        "grpo-step-mean", OUTCOME, "each step weighs the same, not each episode", lambda _: grpo(reduction="step_mean")
    ),
    Row("grpo-no-kl", OUTCOME, "no KL term", lambda _: grpo(**NO_KL)),
    Row(
        "grpo-step-mean-no-kl",
        OUTCOME,
        "each step weighs the same, no KL term",
        lambda _: grpo(reduction="step_mean", **NO_KL),
    ),
    Row(
        "grpo-refresh-1",
        OUTCOME,
        "reference refreshed after every iteration",
        lambda _: grpo(reference=ReferencePolicy(refresh_every=1)),
    ),
    Row("grpo-no-std", OUTCOME, "not divided by the std", lambda _: grpo(advantages=GroupZScore(scale="none"))),
    Row("grpo-rloo", OUTCOME, "RLOO: leave-one-out mean, no std", lambda _: grpo(advantages=LeaveOneOut())),
    Row("grpo-4x64", OUTCOME, "G = 64", lambda _: grpo(group_size=64)),
    Row("grpo-8x16", OUTCOME, "8 starts per iteration", lambda _: grpo(groups_per_step=8)),
    Row(
        "grpo-entropy",
        OUTCOME,
        "entropy bonus, 0.01 to 0",
        lambda steps: grpo(**entropy_bonus(steps, K3(0.04))),
    ),
    Row(
        "process",
        PROCESS,
        "process supervision as the paper writes it",
        lambda _: grpo(advantages=ProcessSupervision()),
        FIVE,
    ),
    Row(
        "process-099",
        PROCESS,
        "process supervision, its sum discounted by 0.99",
        lambda _: grpo(advantages=ProcessSupervision(discount=0.99)),
        FIVE,
    ),
    Row("critic-free", CRITIC_FREE, "centre: 4x16, discount 0.99, no KL, step mean", lambda _: critic_free(), FIVE),
    Row("critic-free-098", CRITIC_FREE, "discount 0.98", lambda _: critic_free(0.98)),
    Row("critic-free-0995", CRITIC_FREE, "discount 0.995", lambda _: critic_free(0.995)),
    Row("critic-free-0999", CRITIC_FREE, "discount 0.999", lambda _: critic_free(0.999)),
    Row("critic-free-1", CRITIC_FREE, "no discount", lambda _: critic_free(1.0)),
    Row("critic-free-kl", CRITIC_FREE, "k3 0.04, reference refreshed every 10", lambda _: critic_free(**KL)),
    Row(
        "critic-free-episode-mean",
        CRITIC_FREE,
        "each episode weighs the same",
        lambda _: critic_free(reduction="episode_mean"),
    ),
    Row("critic-free-4x4", CRITIC_FREE, "4 starts, 4 episodes each", lambda _: critic_free(group_size=4)),
    Row(
        "critic-free-16x4",
        CRITIC_FREE,
        "16 starts, 4 episodes each",
        lambda _: critic_free(groups_per_step=16, group_size=4),
    ),
    Row(
        "critic-free-1x64",
        CRITIC_FREE,
        "1 start, 64 episodes",
        lambda _: critic_free(groups_per_step=1, group_size=64),
    ),
    Row(
        "critic-free-10x256",
        CRITIC_FREE,
        "10 epochs, minibatches of 256, learning rate 1e-3 to 0",
        lambda steps: critic_free(**long_updates(steps)),
    ),
    Row(
        "critic-free-scale",
        CRITIC_FREE,
        "a scale of its own for each time step",
        lambda _: critic_free(advantages=SCALED),
    ),
    Row(
        "critic-free-shipped",
        CRITIC_FREE,
        "recipes.critic_free(steps): the same scale, 4x8, 10x256, rate 1e-3 to 0; training episodes cut at 400",
        lambda steps: recipes.critic_free(total_steps=steps),
        FIVE,
        max_episode_steps=400,
    ),
    Row(
        "anchor",
        OTHER,
        "episode z-score plus a term among nearly equal states",
        lambda _: critic_free(advantages=AnchorState()),
    ),
    Row(
        "to-go-batch",
        OTHER,
        "reward to go, standardised over the batch",
        lambda _: critic_free(advantages=RewardToGo(over="batch")),
    ),
    Row(
        "to-go-timestep",
        OTHER,
        "reward to go, standardised over the group's time step",
        lambda _: critic_free(advantages=RewardToGo(over="timestep")),
    ),
    Row(
        "ppo",
        CRITIC,
        "PPO: 16 environments x 1,024 steps, discount 0.999, lambda 0.98",
        lambda _: recipes.ppo().replaced(advantages=GAE(discount=0.999, gae_lambda=0.98)),
        FIVE,
        trainer=partial(PPOTrainer, num_envs=16, steps=1024),
    ),
    Row(
        "a2c",
        CRITIC,
        "A2C: 8 environments x 5 steps, discount 0.995",
        lambda _: recipes.a2c().replaced(advantages=GAE(discount=0.995, gae_lambda=1.0, normalize=False)),
        FIVE,
        trainer=partial(A2CTrainer, num_envs=8, steps=5),
    ),
)

_small = partial(critic_free, group_size=8)
_smaller = partial(critic_free, group_size=4)


def _search(name: str, description: str, recipe: Callable[[int], Recipe], cut: int | None = None) -> Row:
    return Row(f"search-{name}", SEARCH, description, recipe, CHOOSING_SEEDS, max_episode_steps=cut)


SEARCH_ROWS = (
    _search("4x8-cut400", "4x8, training episodes cut at 400 steps", lambda _: _small(), 400),
    _search("4x8-cut500", "4x8, cut at 500", lambda _: _small(), 500),
    _search("4x4-cut400", "4x4, cut at 400", lambda _: _smaller(), 400),
    _search("4x4-cut500", "4x4, cut at 500", lambda _: _smaller(), 500),
    _search("0995", "discount 0.995", lambda _: critic_free(0.995)),
    _search("entropy", "entropy bonus, 0.01 to 0", lambda steps: critic_free(**entropy_bonus(steps))),
    _search("10x256", "10 epochs x 256, rate 1e-3 to 0", lambda steps: critic_free(**long_updates(steps))),
    _search("10x256-0995", "10x256, discount 0.995", lambda steps: critic_free(0.995, **long_updates(steps))),
    _search("10x256-cut500", "10x256, cut at 500", lambda steps: critic_free(**long_updates(steps)), 500),
    _search("4x8-10x256", "4x8, 10x256", lambda steps: _small(**long_updates(steps))),
    _search("4x8-10x256-cut400", "4x8, 10x256, cut at 400", lambda steps: _small(**long_updates(steps)), 400),
    _search(
        "4x8-10x256-cut400-scale",
        "4x8, 10x256, cut at 400, a scale per time step",
        lambda steps: _small(advantages=SCALED, **long_updates(steps)),
        400,
    ),
    _search(
        "4x8-10x256-scale",
        "4x8, 10x256, a scale per time step",
        lambda steps: _small(advantages=SCALED, **long_updates(steps)),
    ),
    _search(
        "4x4-10x256-cut400-scale",
        "4x4, 10x256, cut at 400, a scale per time step",
        lambda steps: _smaller(advantages=SCALED, **long_updates(steps)),
        400,
    ),
    _search(
        "4x8-10x256-cut400-z",
        "4x8, 10x256, cut at 400, reward to go standardised over the group's time step",
        lambda steps: _small(advantages=RewardToGo(over="timestep"), **long_updates(steps)),
        400,
    ),
    _search("4x8-10x256-cut500", "4x8, 10x256, cut at 500", lambda steps: _small(**long_updates(steps)), 500),
    _search(
        "4x8-10x256-cut500-0995",
        "4x8, 10x256, cut at 500, discount 0.995",
        lambda steps: _small(0.995, **long_updates(steps)),
        500,
    ),
    _search("4x4-10x256-cut500", "4x4, 10x256, cut at 500", lambda steps: _smaller(**long_updates(steps)), 500),
    _search(
        "4x8-10x256-cut500-entropy",
        "4x8, 10x256, cut at 500, entropy bonus",
        lambda steps: _small(**long_updates_with_entropy(steps)),
        500,
    ),
)

BY_NAME = {row.name: row for row in (*ROWS, *SEARCH_ROWS)}

Pair = tuple[str, int]
"""A row's name and a trainer seed."""


def named(patterns: Iterable[str]) -> list[Row]:
    """The rows of these names; "all" is every row but the search, and `*` stands for any letters.

    Raises:
        ValueError: A name that fits no row; the message lists them.
    """
    found: dict[str, Row] = {}
    for pattern in patterns:
        fitting = ROWS if pattern == "all" else [row for row in BY_NAME.values() if fnmatchcase(row.name, pattern)]
        if not fitting:
            raise ValueError(f"no row {pattern!r}; there are {', '.join(BY_NAME)}")
        found |= {row.name: row for row in fitting}
    return list(found.values())


def planned() -> list[Pair]:
    """Every planned run: first the rows with five seeds, then the others; seed by seed, so that rows fill up alike."""
    ordered = [(len(row.planned) < len(FIVE), seed, place) for place, row in enumerate(ROWS) for seed in row.planned]
    return [(ROWS[place].name, seed) for _, seed, place in sorted(ordered)]


def check_seeds(rows: Iterable[Row], seeds: Iterable[int], *, may_report: bool) -> None:
    """Raise where a row of the search would be run on reported seeds.

    Raises:
        ValueError: `may_report` is False and a search row meets a reported seed.
    """
    searched = [row.name for row in rows if row.is_search]
    reported = [seed for seed in seeds if seed in REPORT_SEEDS]
    if searched and reported and not may_report:
        raise ValueError(
            f"{searched[0]} belongs to the search, which chooses on seeds {CHOOSING_SEEDS.start} to "
            f"{CHOOSING_SEEDS.stop - 1}, and seed {reported[0]} is a reported one: give --report once the choice is "
            "made"
        )
