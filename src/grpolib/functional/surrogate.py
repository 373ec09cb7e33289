"""The importance ratio and the objectives built on it. All are per step and to be maximised."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from grpolib.functional._checks import check_choice, check_lengths, check_not_negative, check_shape
from grpolib.functional.segments import at_least_float32, episode_ids, repeat_on_steps, segment_sums

RatioLevel = Literal["step", "episode_mean", "episode_sum"]

MAX_LOG_RATIO = 20.0
"""Where the log-ratio is cut off above, in nats: exp(20) ≈ 4.85e8. Its gradient is 0 beyond."""


def importance_ratio(
    log_probs: Float[Tensor, " S"],
    old_log_probs: Float[Tensor, " S"],
    *,
    lengths: Int[Tensor, " N"] | None = None,
    level: RatioLevel = "step",
) -> Float[Tensor, " S"]:
    """Return the probability ratio of the policy and the policy that sampled.

        ρₜ = exp(min(ℓ, 20)),   ℓ = log π(aₜ|sₜ) - log π_old(aₜ|sₜ)

    "episode_mean" puts the mean of ℓ over t's episode there (GSPO), "episode_sum" the sum (the ratio of the
    episodes' probabilities); the episode's ratio repeats on its steps. Beyond 20 the gradient is exactly 0.

    Args:
        log_probs: log π(aₜ|sₜ), nats.
        old_log_probs: log π_old(aₜ|sₜ) at sampling time, nats; a constant.
        lengths: Steps of each episode, ≥ 1, summing to S; read by the episode levels alone.
        level: What one ratio stands for: "step", "episode_mean" or "episode_sum".

    Returns:
        Ratios in [0, exp(20)], float32 or wider, differentiable in `log_probs`.

    Raises:
        ValueError: Shapes differ, `level` is unknown, or an episode level comes without valid `lengths`.

    Source: PPO (arXiv:1707.06347), section 3; GSPO (arXiv:2507.18071), section 4.1, for "episode_mean".

    >>> importance_ratio(torch.tensor([0.5, 0.1]).log(), torch.tensor([0.25, 0.1]).log())
    tensor([2., 1.])
    """
    check_choice("level", level, ("step", "episode_mean", "episode_sum"))
    check_shape(log_probs.shape, "log_probs", old_log_probs=old_log_probs)
    dtype = at_least_float32(log_probs, old_log_probs)
    log_ratios = log_probs.to(dtype) - old_log_probs.detach().to(dtype)
    if level != "step":
        log_ratios = _episode_log_ratios(log_ratios, lengths, level)
    return log_ratios.clamp(max=MAX_LOG_RATIO).exp()


def _episode_log_ratios(
    log_ratios: Float[Tensor, " S"], lengths: Int[Tensor, " N"] | None, level: RatioLevel
) -> Float[Tensor, " S"]:
    if lengths is None:
        raise ValueError(f"level {level!r} needs whole episodes: pass lengths, or use level='step'.")
    check_lengths(lengths, log_probs=log_ratios)
    per_episode = segment_sums(log_ratios, episode_ids(lengths), len(lengths))
    if level == "episode_mean":
        per_episode = per_episode / lengths
    return repeat_on_steps(per_episode.to(log_ratios.dtype), lengths)


def clip_bounds(clip_epsilon: float, clip_epsilon_high: float | None = None) -> tuple[float, float]:
    """Return the interval [1 - ε_low, 1 + ε_high] that ratios are clipped to; ε_high defaults to ε_low.

    >>> clip_bounds(0.25, 0.5)
    (0.75, 1.5)
    """
    if not 0 <= clip_epsilon < 1:
        raise ValueError(f"clip_epsilon is {clip_epsilon}: give a number in [0, 1), 0.2 is usual.")
    if clip_epsilon_high is None:
        return 1 - clip_epsilon, 1 + clip_epsilon
    check_not_negative("clip_epsilon_high", clip_epsilon_high)
    return 1 - clip_epsilon, 1 + clip_epsilon_high


def clipped_surrogate(
    ratios: Float[Tensor, " S"],
    advantages: Float[Tensor, " S"],
    *,
    clip_epsilon: float = 0.2,
    clip_epsilon_high: float | None = None,
    dual_clip: float | None = None,
) -> Float[Tensor, " S"]:
    """Return PPO's clipped objective of each step, to be maximised.

        min(ρ A, clip(ρ, 1 - ε_low, 1 + ε_high) A);   where A < 0 and c is given: max(that, c A)

    Args:
        ratios: ρ, e.g. from `importance_ratio`.
        advantages: A; a constant.
        clip_epsilon: ε_low in [0, 1).
        clip_epsilon_high: ε_high ≥ 0; None takes ε_low. Larger than ε_low is DAPO's clip-higher.
        dual_clip: c > 1 bounds what a negative advantage can cost; None leaves it unbounded.

    Returns:
        Objective in the unit of `advantages`, float32 or wider, differentiable in `ratios`.

    Raises:
        ValueError: Shapes differ or a bound is out of range.

    Source: PPO (arXiv:1707.06347), section 3, eq. 7; dual clip: Ye et al. (arXiv:1912.09729).

    >>> clipped_surrogate(torch.tensor([1.5, 0.5, 1.5, 0.5]), torch.tensor([1.0, 1.0, -1.0, -1.0]))
    tensor([ 1.2000,  0.5000, -1.5000, -0.8000])
    """
    low, high = clip_bounds(clip_epsilon, clip_epsilon_high)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip is {dual_clip}: give a number above 1 (3 is usual) or None.")
    check_shape(ratios.shape, "ratios", advantages=advantages)
    dtype = at_least_float32(ratios, advantages)
    ratios, advantages = ratios.to(dtype), advantages.detach().to(dtype)
    objective = torch.minimum(ratios * advantages, ratios.clamp(low, high) * advantages)
    if dual_clip is None:
        return objective
    return torch.where(advantages < 0, torch.maximum(objective, dual_clip * advantages), objective)


def cispo_objective(
    ratios: Float[Tensor, " S"],
    advantages: Float[Tensor, " S"],
    log_probs: Float[Tensor, " S"],
    *,
    clip_epsilon_high: float,
    clip_epsilon: float | None = None,
) -> Float[Tensor, " S"]:
    """Return CISPO's objective of each step: REINFORCE under a clipped, constant importance weight.

        sg(clip(ρ, low, 1 + ε_high)) A log π,   low = 1 - ε_low, or 0 where ε_low is None

    The upper bound is 1 + ε_high. Libraries disagree under the same name: some read ε_high as the bound
    itself (their 5.0 is 4.0 here), some clip to 1 ± ε. Every step keeps a gradient, also beyond the bounds.

    Args:
        ratios: ρ, e.g. from `importance_ratio`; a constant here.
        advantages: A; a constant.
        log_probs: log π(aₜ|sₜ), nats.
        clip_epsilon_high: ε_high ≥ 0.
        clip_epsilon: ε_low in [0, 1); None sets no lower bound, as the paper does in effect.

    Returns:
        Objective in the unit of `advantages` times nats, float32 or wider, differentiable in `log_probs`.

    Raises:
        ValueError: Shapes differ or a bound is out of range.

    Source: MiniMax-M1 (arXiv:2506.13585), section 3.1.

    >>> ratios, advantages, log_probs = torch.tensor([9.0, 0.5]), torch.ones(2), torch.tensor([-1.0, -1.0])
    >>> cispo_objective(ratios, advantages, log_probs, clip_epsilon_high=4.0)
    tensor([-5.0000, -0.5000])
    """
    low, high = clip_bounds(0.0 if clip_epsilon is None else clip_epsilon, clip_epsilon_high)
    low = 0.0 if clip_epsilon is None else low
    check_shape(ratios.shape, "ratios", advantages=advantages, log_probs=log_probs)
    dtype = at_least_float32(ratios, advantages, log_probs)
    weights = ratios.detach().to(dtype).clamp(low, high)
    return weights * advantages.detach().to(dtype) * log_probs.to(dtype)
