"""Named recipes for language models: compositions of the same pieces, with no maths of their own.

All take whole completions, one update a step or a few, and a gradient norm of 1. Groups with equal rewards stay
exactly 0 under each of them, and a group of one is refused.
"""

from functools import partial

import torch

from grpolib.estimators import GroupZScore, LeaveOneOut, ProcessSupervision, RewardToGo
from grpolib.kl_losses import K1, K3
from grpolib.losses import CISPOLoss, ClippedSurrogateLoss
from grpolib.minibatch import MinibatchPlan
from grpolib.recipe import OptimizerFactory, Recipe
from grpolib.reference import ReferencePolicy

TEXT_ADAM: OptimizerFactory = partial(torch.optim.Adam, lr=1e-6, eps=1e-5, fused=True)
"""`grpo()`'s optimizer at the learning rate of a language model."""
TRL_ADAMW: OptimizerFactory = partial(torch.optim.AdamW, lr=1e-6, weight_decay=0.0)
VERL_ADAMW: OptimizerFactory = partial(torch.optim.AdamW, lr=1e-6, weight_decay=0.01)
OPENRLHF_ADAMW: OptimizerFactory = partial(torch.optim.AdamW, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0)

ONE_UPDATE = MinibatchPlan(epochs=1, size=None, by="episode")
FOUR_UPDATES = MinibatchPlan(epochs=1, size=16, by="episode")
"""Minibatches of 16 completions: four updates of 4 groups of 16, so that ratios leave 1 and a clip can bind."""


def text_grpo() -> Recipe:
    """GRPO for language models: as `grpo()`, with the model itself as it was as the reference, and one update a step.

    A ratio is then 1 by construction, and the clip binds nothing; more epochs make use of it.

    Source: DeepSeekMath (arXiv:2402.03300) section 4.1 and its training settings.
    """
    return Recipe(
        advantages=GroupZScore(),
        loss=[ClippedSurrogateLoss(), K3(0.04)],
        plan=ONE_UPDATE,
        optimizer=TEXT_ADAM,
        reference=ReferencePolicy(),
        max_grad_norm=1.0,
    )


def rloo() -> Recipe:
    """RLOO: reward minus the mean reward of the group's others, KL in the reward, the sum over a completion's tokens.

    With one update a step the surrogate's gradient is REINFORCE's. A constant divisor leaves the sum a sum.

    Source: Ahmadian et al. (arXiv:2402.14740) section 3.
    """
    return _without_kl().replaced(
        advantages=LeaveOneOut(), reduction="constant", reference=ReferencePolicy(penalty=K1(0.05))
    )


def dr_grpo() -> Recipe:
    """Dr. GRPO: centred rewards that are not divided by their deviation, a constant divisor for the length, no KL.

    Source: Liu et al. (arXiv:2503.20783) section 3.2.
    """
    return _without_kl().replaced(advantages=GroupZScore(scale="none"), reduction="constant")


def dapo() -> Recipe:
    """DAPO: clip-higher, every token of the batch weighted the same, no KL.

    Its dynamic sampling is `DynamicSampling(sampler)`, its overlong shaping a part of the reward.

    Source: Yu et al. (arXiv:2503.14476) section 3.
    """
    return _without_kl().replaced(
        loss=[ClippedSurrogateLoss(clip_epsilon=0.2, clip_epsilon_high=0.28)], reduction="step_mean", plan=FOUR_UPDATES
    )


def gspo() -> Recipe:
    """GSPO: one ratio per completion, the geometric mean of its tokens', with a clip that is as narrow.

    Source: Zheng et al. (arXiv:2507.18071) sections 4.1 and 5.1: 3e-4, 4e-4, four minibatches.
    """
    return _without_kl().replaced(
        loss=[ClippedSurrogateLoss(clip_epsilon=3e-4, clip_epsilon_high=4e-4, ratio_level="episode_mean")],
        plan=FOUR_UPDATES,
    )


def cispo() -> Recipe:
    """CISPO: the ratio is clipped and held constant, so that no token loses its gradient; token mean, no KL.

    Source: MiniMax-M1 (arXiv:2506.13585) section 3.1; the bound as libraries have it, 1 + 4.
    """
    return _without_kl().replaced(loss=[CISPOLoss(clip_epsilon_high=4.0)], reduction="step_mean", plan=FOUR_UPDATES)


def reinforce_plus_plus() -> Recipe:
    """REINFORCE++: reward to go with the KL in the reward, standardised over the tokens of all groups at once.

    Source: Hu et al. (arXiv:2501.03262); the coefficient of 0.01 is its authors' library's.
    """
    return _without_kl().replaced(
        advantages=RewardToGo(over="batch", discount=1.0),
        reduction="step_mean",
        plan=FOUR_UPDATES,
        reference=ReferencePolicy(penalty=K1(0.01)),
    )


def sequence_grpo() -> Recipe:
    """GRPO with the ratio of whole completions, pi(y|x) / pi_old(y|x): the product over their tokens.

    Its variance grows with the length, and 0.2 is narrow for it: see `gspo()` for the geometric mean. The KL is
    ratio x k1, which has k1's value on the policy's own samples and, unlike k1 as a loss, a gradient that is not 0 in
    expectation.
    """
    return text_grpo().replaced(
        advantages=GroupZScore(epsilon=1e-8),
        loss=[
            ClippedSurrogateLoss(ratio_level="episode_sum"),
            K1(0.04, gradient="reverse_kl", ratio_level="episode_sum"),
        ],
    )


def process_supervision() -> Recipe:
    """GRPO's process supervision: rewards of steps, standardised over the group, summed from each token on.

    The reward gives `StepRewards`.

    Source: DeepSeekMath (arXiv:2402.03300) section 4.1.3.
    """
    return text_grpo().replaced(advantages=ProcessSupervision())


def like_trl() -> Recipe:
    """What TRL's GRPOTrainer does by default: divisor G - 1, token mean, no KL.

    Apart from its learning rate, which falls linearly: add `LearningRate(Linear(1e-6, 0.0, iterations=...))`.

    Source: TRL 1.16, `GRPOConfig`.
    """
    return _without_kl().replaced(
        advantages=GroupZScore(epsilon=1e-4, correction=1),
        reduction="step_mean",
        optimizer=TRL_ADAMW,
        group_size=8,
    )


def like_verl() -> Recipe:
    """What verl does with `algorithm.adv_estimator=grpo`: divisor G - 1, dual clip at 3, token mean, no KL.

    Source: verl 0.9, `core_algos.py` and the actor's settings.
    """
    return _without_kl().replaced(
        advantages=GroupZScore(epsilon=1e-6, correction=1),
        loss=[ClippedSurrogateLoss(dual_clip=3.0)],
        reduction="step_mean",
        optimizer=VERL_ADAMW,
        group_size=8,
    )


def like_openrlhf() -> Recipe:
    """What OpenRLHF does with the estimator group_norm and k3 in the loss: divisor G - 1, 1e-9 added, token mean.

    Source: OpenRLHF 0.11, `--algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3`.
    """
    return text_grpo().replaced(
        advantages=GroupZScore(epsilon=1e-9, correction=1),
        loss=[ClippedSurrogateLoss(), K3(0.01)],
        reduction="step_mean",
        optimizer=OPENRLHF_ADAMW,
        group_size=8,
    )


def _without_kl() -> Recipe:
    return text_grpo().replaced(loss=[ClippedSurrogateLoss()], reference=None)
