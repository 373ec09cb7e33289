"""Evaluation of completions: greedy and sampled, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from grpolib.functional._checks import check_whole
from grpolib.sampling.protocols import group_seed
from grpolib.sampling.rollout import generator
from grpolib.text.policy import CausalLMPolicy
from grpolib.text.prompts import PromptRow, Prompts, PromptSource
from grpolib.text.protocols import Completion
from grpolib.text.rewards import Reward, score
from grpolib.text.rewards.protocol import totals
from grpolib.text.sampler import columns_of


@dataclass(frozen=True)
class CompletionReport:
    """Completions of one kind, one per prompt (times `samples`), and their rewards; NaN where one was not scored."""

    completions: list[Completion]
    rewards: Float[Tensor, " N"]

    @property
    def mean(self) -> float:
        """Mean reward of those that were scored."""
        return float(self.rewards.nanmean())


@dataclass(frozen=True)
class CompletionReports:
    """The most probable completions, and completions as they are sampled in training."""

    greedy: CompletionReport
    sampled: CompletionReport

    def __str__(self) -> str:
        return f"greedy {self.greedy.mean:.3f}, sampled {self.sampled.mean:.3f}"


def evaluate_completions(
    policy: CausalLMPolicy,
    prompts: PromptSource,
    reward: Reward,
    *,
    max_new_tokens: int = 256,
    stop: str | Sequence[str] = (),
    samples: int = 1,
    seed: int = 0,
    top_k: int | None = None,
    top_p: float | None = None,
    prompts_at_a_time: int = 64,
) -> CompletionReports:
    """Complete every prompt greedily and by sampling, and say what the reward gives; the policy is not changed.

    Args:
        policy: Writes at its own temperature.
        prompts: As for `CompletionSampler`.
        reward: As for `CompletionSampler`.
        max_new_tokens: Where a completion is cut.
        stop: Strings that end a completion.
        samples: Sampled completions of each prompt, >= 1.
        seed: Of the samples, >= 0.
        top_k: Sample among so many tokens only.
        top_p: Sample among the tokens that have this probability together.
        prompts_at_a_time: Prompts that are completed together, >= 1.

    Raises:
        TypeError: A count that is no whole number, or a stop that is no text.
        ValueError: A number out of range, or an empty stop string.
    """
    check_whole(max_new_tokens=max_new_tokens, samples=samples, prompts_at_a_time=prompts_at_a_time, seed=seed)
    if max_new_tokens < 1 or samples < 1 or prompts_at_a_time < 1 or seed < 0:
        raise ValueError(
            f"max_new_tokens={max_new_tokens}, samples={samples} and prompts_at_a_time={prompts_at_a_time} must be "
            f">= 1, seed={seed} >= 0"
        )
    rows = list(Prompts(prompts))
    kinds: dict[bool, list[Completion]] = {True: [], False: []}
    for start in range(0, len(rows), prompts_at_a_time):
        some = range(start, min(start + prompts_at_a_time, len(rows)))
        for greedy, completions in kinds.items():
            completions += policy.generate(
                [rows[number].prompt for number in some],
                1 if greedy else samples,
                [generator(group_seed(np.random.SeedSequence(seed), number)) for number in some],
                max_new_tokens=max_new_tokens,
                stop=stop,
                deterministic=greedy,
                top_k=top_k,
                top_p=top_p,
            )
    repeated = [row for row in rows for _ in range(samples)]
    return CompletionReports(_report(reward, rows, kinds[True]), _report(reward, repeated, kinds[False]))


def _report(reward: Reward, rows: Sequence[PromptRow], completions: list[Completion]) -> CompletionReport:
    texts = [completion.text for completion in completions]
    values = totals(score(reward, [row.prompt for row in rows], texts, columns_of(rows)))
    return CompletionReport(completions, torch.tensor([float("nan") if v is None else v for v in values]))
