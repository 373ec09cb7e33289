"""The reference policy of a KL term: a frozen copy, refreshed or mixed in at intervals."""

import copy
import dataclasses
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from grpolib.batch import GroupBatch
from grpolib.functional._checks import check_whole_or_none
from grpolib.kl_losses import KLEstimator
from grpolib.policies import Evaluation, Policy, ReferablePolicy
from grpolib.policies.adapter import ModulePolicy, RecurrentModulePolicy, as_policy
from grpolib.policies.distributions import parameters_of

PolicyT = TypeVar("PolicyT", bound=Policy)


@dataclass(frozen=True)
class ReferencePolicy:
    """A frozen policy that a KL term compares with; a copy of the trained one, unless one is given.

    Args:
        refresh_every: Iterations between updates of the copy; None keeps it as it is (an SFT model).
        mix: Share of the trained policy that an update brings in: reference <- mix x policy + (1 - mix) x
            reference. 1 copies.
        penalty: Puts the KL into the reward instead of the loss: fills `penalties` with coefficient x estimate,
            detached.
        policy: The frozen policy, or a module of the kind that the trained one was made of; None takes a copy of
            the trained one when training starts.

    Raises:
        ValueError: refresh_every < 1, or mix outside (0, 1].

    Source: DeepSeekMath (arXiv:2402.03300) algorithm 1, iterative GRPO; TRL's `sync_ref_model` for the mix.
    """

    refresh_every: int | None = None
    mix: float = 1.0
    penalty: KLEstimator | None = None
    policy: Policy | nn.Module | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_whole_or_none(refresh_every=self.refresh_every)
        if self.refresh_every is not None and self.refresh_every < 1:
            raise ValueError(f"refresh_every is {self.refresh_every}: refresh every >= 1 iterations, or None for never")
        if not 0 < self.mix <= 1:
            raise ValueError(f"mix is {self.mix}: it must lie in (0, 1]; 1 copies the policy")

    def started_from(self, policy: Policy) -> "ReferencePolicy":
        """This reference with a frozen policy of its own; the receiver is not changed.

        A `ReferablePolicy` makes it (with LoRA: the model without its adapters), any other is copied.

        Raises:
            ValueError: `refresh_every` with a policy that shares the reference's parameters.
            TypeError: The reference was given a module that is no `Policy`, and the trained policy is no
                policy of a module that could show how to make one of it.
        """
        source = policy if self.policy is None else _as_policy_like(policy, self.policy)
        frozen = source.as_reference() if isinstance(source, ReferablePolicy) else frozen_copy(source)
        if self.refresh_every is not None and not any(True for _ in frozen.parameters()):
            raise ValueError(
                f"refresh_every={self.refresh_every} and the reference has no parameters of its own (a model whose "
                "adapters are off has none): leave refresh_every out, or give ReferencePolicy(policy=...)"
            )
        return replace(self, policy=frozen)

    @torch.no_grad()
    def annotate(self, batch: GroupBatch[Any], *, with_parameters: bool = False) -> GroupBatch[Any]:
        """The batch with `reference_log_probs`, and `penalties` where the KL is in the reward.

        Args:
            batch: Scored once, before any update.
            with_parameters: Fill `reference_parameters` too, which `ExactKL` reads.
        """
        if not isinstance(self.policy, Policy):
            raise ValueError("the reference has no policy yet: call started_from(policy)")
        evaluation = self.policy.evaluate(batch.inputs)
        return replace(
            batch,
            reference_log_probs=evaluation.log_probs,
            penalties=self._penalties(batch, evaluation.log_probs),
            reference_parameters=_parameters(evaluation) if with_parameters else None,
        )

    @torch.no_grad()
    def update(self, policy: Policy, iteration: int) -> None:
        """Bring in the trained policy when the 1-based `iteration` is a multiple of `refresh_every`."""
        if self.refresh_every is None or iteration % self.refresh_every != 0 or not isinstance(self.policy, Policy):
            return
        current = policy.state_dict()
        mixed: set[int] = set()
        for name, value in self.policy.state_dict().items():
            if value.data_ptr() in mixed:
                continue  # tied parameters stand under several names
            mixed.add(value.data_ptr())
            if value.is_floating_point():
                value.lerp_(current[name], self.mix)
            else:
                value.copy_(current[name])

    def _penalties(self, batch: GroupBatch[Any], log_probs: Tensor) -> Tensor | None:
        if self.penalty is None:
            return None
        penalties = self.penalty.coefficient * self.penalty.estimate(batch.log_probs, log_probs)
        # A step that does not count may hold anything, and has no reward to take from.
        return penalties if batch.counted is None else torch.where(batch.counted, penalties, 0.0)


def frozen_copy(policy: PolicyT) -> PolicyT:
    """A copy in evaluation mode whose parameters take no gradient."""
    frozen = copy.deepcopy(policy)
    frozen.train(False)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    return frozen


def _as_policy_like(policy: Policy, module: Policy | nn.Module) -> Policy:
    if isinstance(module, Policy):
        return module
    if isinstance(policy, ModulePolicy | RecurrentModulePolicy):
        return as_policy(module, policy.action_space)
    raise TypeError(
        f"the reference's policy is a {type(module).__name__}, which has no evaluate(inputs): wrap it in a Policy, as "
        f"the trained {type(policy).__name__} is one"
    )


def _parameters(evaluation: Evaluation) -> Tensor:
    if evaluation.distribution is None:
        raise ValueError("ExactKL needs a policy whose evaluation has its distribution: use K3 instead")
    return parameters_of(evaluation.distribution)
