"""The published figures that stand beside ours: five seeds of two million steps each."""

GRPO_ARGMAX = (22.5, -126.9, 40.5, -3.0, -1877.5)
"""Final policy of seeds 0 to 4, mean return over 50 starts."""
GRPO_BEST_ARGMAX = "51.0 ± 61.0"
"""Best checkpoint; its five figures, 77.8, -18.4, 86.3, 136.2 and -26.8, give ± 63.4."""

GRPO_PROGRESS_RETURN = (-363.0, -183.0, -168.0, 31.0, 84.0, -25.0)
GRPO_PROGRESS_LANDED = (0.0, 0.0, 0.0, 0.5, 0.35, 0.0)
"""Argmax of the median seed at 0, 2.5, 10, 25, 50 and 100 % of the steps, from the same 20 starts."""

ARGMAX = {"grpo": "-388.9 ± 746.6", "ppo": "273 to 280", "a2c": "-120 to 50"}
SAMPLED = {"grpo": "31 to 234", "ppo": "269 to 279", "a2c": "-118 to 62"}
ENTROPY = {"grpo": "0.97 to 1.21", "ppo": "0.27 to 0.44", "a2c": "0.08 to 0.24"}
