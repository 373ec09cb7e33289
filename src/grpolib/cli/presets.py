"""Settings that are known to work, by environment."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Algorithm: TypeAlias = Literal["critic-free", "grpo", "ppo", "a2c"]


@dataclass(frozen=True)
class Preset:
    """What `train` takes for an environment unless it is told otherwise.

    Args:
        total_steps: Environment steps.
        max_episode_steps: Cuts episodes in training, never in evaluation; None: as the environment does.
    """

    total_steps: int
    max_episode_steps: int | None = None


ANYWHERE = Preset(total_steps=500_000)
PRESETS = {
    "CartPole-v1": Preset(total_steps=200_000),
    "Acrobot-v1": Preset(total_steps=500_000),
    "LunarLander-v3": Preset(total_steps=1_000_000, max_episode_steps=400),
    "LunarLanderContinuous-v3": Preset(total_steps=1_000_000, max_episode_steps=400),
    "MountainCarContinuous-v0": Preset(total_steps=500_000),
    "BipedalWalker-v3": Preset(total_steps=2_000_000),
}
