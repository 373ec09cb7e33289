"""One optimizer step: forward, losses, gradient, clip, step; eager or compiled."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from grpolib.critic import Critic
from grpolib.losses import AnyMinibatch, LossOutput, PolicyLoss, counted_mean
from grpolib.metrics import MetricMeans, merged
from grpolib.policies import Policy, SplittingPolicy
from grpolib.ranks import Ranks
from grpolib.sharding import gathered, is_sharded, part_gradients

Gradients: TypeAlias = "list[Tensor | None]"
Result: TypeAlias = "tuple[Gradients, tuple[str, ...], Tensor]"

GRADIENT_NORM = "grad_norm"
RECOMPILE_LIMIT = 10_000
"""Trainers of one process share the compiled code's cache; torch would give up at the ninth."""


class Update:
    """Takes optimizer steps, and reports the metrics of each.

    The gradient is a pure function of the minibatch and the parameters, which is what `compile` compiles: the
    optimizer's own step follows it, fused or not as the recipe made it.

    Args:
        policy: Evaluated on the minibatch.
        critic: Fills the evaluation's values.
        losses: Summed; a schedule may replace them.
        parameters: What the optimizer trains.
        optimizer: Steps after the gradient was scaled down to `max_grad_norm`.
        max_grad_norm: > 0.
        ranks: Whose gradients are summed; None where there is one process.
    """

    def __init__(
        self,
        policy: Policy,
        critic: Critic | None,
        losses: Sequence[PolicyLoss],
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
        ranks: Ranks | None = None,
    ) -> None:
        self.losses = list(losses)
        self._policy = policy
        self._splitting = policy if isinstance(policy, SplittingPolicy) else None
        self._critic = critic
        self._parameters = parameters
        self._optimizer = optimizer
        self._max_grad_norm = max_grad_norm
        self._ranks = ranks
        self._is_sharded = is_sharded(policy)
        self._run: Callable[[AnyMinibatch], Result] = self._stacked
        self._compiled: Callable[[AnyMinibatch], Result] = self._stacked
        self._traced = False
        self._rows = 0

    def __call__(self, minibatch: AnyMinibatch, collected: MetricMeans) -> None:
        """One step.

        Raises:
            FloatingPointError: The gradient is not finite; this step was not taken.
        """
        gradients, names, metrics = self._run(minibatch)
        norm = float(metrics[names.index(GRADIENT_NORM)])
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"the gradient's norm is {norm}, the loss {float(metrics[0])}: the step was not taken, the policy is "
                "as it was before. Look for a network that diverged, or a loss of your own that divides by zero"
            )
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        collected.add(names, metrics)

    def compile(self, rows: int) -> None:
        """Compile the gradient for minibatches of `rows` rows at the next call; shorter ones are padded."""
        self._rows = rows
        self._compiled = torch.compile(self._stacked, dynamic=False, fullgraph=True)
        self._run, self._traced = self._compiled_or_eager, False

    def _compiled_or_eager(self, minibatch: AnyMinibatch) -> Result:
        """Compile where that is still to do, or stay eager from here on and say why in one line."""
        full = padded(minibatch, self._rows)
        try:
            return self._compiled(full)
        except Exception:
            # The first call, or one after something has changed: only tracing needs the settings.
            settings: dict[str, Any] = {"trace_autograd_ops": True}
            if not self._traced:
                settings["recompile_limit"] = RECOMPILE_LIMIT
            self._traced = True
            try:
                with torch._dynamo.config.patch(settings):  # pyright: ignore[reportPrivateUsage]  torch names it so
                    return self._compiled(full)
            except Exception as error:  # whatever a compiler or a tracer may raise: eager is always right
                cause = getattr(error, "inner_exception", error)
                reason = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
                warnings.warn(f"training goes on uncompiled: {reason}", stacklevel=2)
                self._run = self._stacked
                return self._stacked(minibatch)

    def _stacked(self, minibatch: AnyMinibatch) -> Result:
        """Gradients, and the metrics' names and vector: a single tensor to keep until the iteration's end."""
        gradients, metrics = self._gradients(minibatch)
        return gradients, tuple(metrics), torch.stack([value.detach().float() for value in metrics.values()])

    def _gradients(self, minibatch: AnyMinibatch) -> tuple[Gradients, dict[str, Tensor]]:
        """Gradients scaled down to the norm, and the metrics."""
        gradients, metrics = accumulated(self._parts(minibatch), self._raw_gradients)
        if self._ranks is not None:
            metrics = self._ranks.merged(metrics, (minibatch.weights != 0).sum())
            if not self._is_sharded:
                gradients = self._ranks.summed(gradients, self._parameters)
        norm = gathered(nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None]))
        scale = (self._max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        metrics[GRADIENT_NORM] = norm
        return [None if gradient is None else gradient * scale for gradient in gradients], metrics

    def _parts(self, minibatch: AnyMinibatch) -> list[AnyMinibatch]:
        """Micro-batches in which some row counts, or one; of a sharded policy as many as any rank has."""
        if self._splitting is None:
            return [minibatch]
        parts = [minibatch.select_episodes(some) for some in self._splitting.micro_batches(minibatch.inputs)]
        parts = [part for part in parts if bool(part.weights.any())] or parts[:1]
        if self._ranks is None or not self._is_sharded:
            return parts
        missing = max(self._ranks.gathered(len(parts))) - len(parts)
        return parts + [replace(parts[0], weights=torch.zeros_like(parts[0].weights))] * missing

    def _raw_gradients(self, minibatch: AnyMinibatch) -> tuple[Gradients, dict[str, Tensor]]:
        """Gradients as they are, and the losses' metrics."""
        evaluation = self._policy.evaluate(minibatch.inputs)
        if self._critic is not None:
            evaluation = replace(evaluation, values=self._critic(minibatch.inputs))
        outputs = [_checked(loss(evaluation, minibatch), loss) for loss in self.losses]
        loss = torch.stack([output.loss for output in outputs]).sum()
        if not loss.requires_grad:
            raise ValueError(f"the losses {self.losses} do not depend on the policy: compute them from the evaluation")
        gradients = self._differentiate(loss)
        metrics = {"loss": loss.detach(), "entropy": counted_mean(minibatch, evaluation.entropy)}
        for number, output in enumerate(outputs):
            for name, value in output.metrics.items():
                metrics[f"{name}_{number}" if name in metrics else name] = value
        return gradients, metrics

    def _differentiate(self, loss: Tensor) -> Gradients:
        if self._ranks is not None and self._is_sharded:
            return part_gradients(loss, self._policy, self._parameters, self._ranks)
        return list(torch.autograd.grad(loss, self._parameters, allow_unused=True))


def accumulated(
    parts: Sequence[AnyMinibatch],
    gradients_of: Callable[[AnyMinibatch], tuple[Gradients, dict[str, Tensor]]],
) -> tuple[Gradients, dict[str, Tensor]]:
    """Gradients of a minibatch from its micro-batches, which share its weights: the losses are sums, so they add up.

    Metrics are the means over the counted rows, or the extremes of `_min` and `_max`.
    """
    if len(parts) == 1:
        return gradients_of(parts[0])
    total: Gradients = []
    collected: dict[str, list[Tensor]] = {}
    for part in parts:
        gradients, metrics = gradients_of(part)
        total = [_sum(one, other) for one, other in zip(total or [None] * len(gradients), gradients, strict=True)]
        for name, value in metrics.items():
            collected.setdefault(name, []).append(value)
    counts = torch.stack([(part.weights != 0).sum() for part in parts])
    return total, {name: merged(name, torch.stack(values), counts) for name, values in collected.items()}


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one.add_(other)


def _checked(output: Any, loss: PolicyLoss) -> LossOutput:
    if not isinstance(output, LossOutput):
        raise TypeError(
            f"{loss} gave a {type(output).__name__}: return LossOutput(loss, metrics), where loss is a scalar, "
            "(per step x weights).sum()"
        )
    if not isinstance(output.metrics, Mapping):
        raise TypeError(f"{loss} gave {output.metrics!r} as its metrics: give a dictionary, which may be empty")
    for name, value in (("loss", output.loss), *output.metrics.items()):
        if not isinstance(value, Tensor) or value.ndim != 0:
            given = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TypeError(f"{loss} gave {given} as {name!r}: give a tensor without dimensions")
    return output


def padded(minibatch: AnyMinibatch, size: int) -> AnyMinibatch:
    """The minibatch with rows of weight 0 behind it, `size` in all: a short last one must not recompile."""
    missing = size - len(minibatch.weights)
    if missing == 0:
        return minibatch
    rows = torch.arange(size, device=minibatch.weights.device).clamp(max=len(minibatch.weights) - 1)
    weights = nn.functional.pad(minibatch.weights, (0, missing))
    return minibatch.select(rows, inputs=minibatch.inputs.select_steps(rows), weights=weights)
