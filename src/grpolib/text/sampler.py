"""Groups of completions of one prompt each."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from grpolib.batch import GroupBatch
from grpolib.functional import offsets
from grpolib.functional._checks import check_whole, check_whole_or_none
from grpolib.sampling.protocols import group_seed
from grpolib.sampling.rollout import generator
from grpolib.text.inputs import TokenInputs
from grpolib.text.prompts import PromptRow, Prompts, PromptSource, prompt_numbers
from grpolib.text.protocols import Completion, GeneratingPolicy
from grpolib.text.rewards import Reward, Score, Scores, StepRewards, score_parts
from grpolib.text.tokens import stop_strings

Truncated: TypeAlias = Literal["keep", "mask"]


class CompletionSampler:
    """M groups of G completions, each group of one prompt.

    A step is a token, an episode a completion, a group a prompt. The reward stands on a completion's last token, or
    on its steps' last tokens where it is `StepRewards`. A completion cut by its length has `terminated` False.

    Group k of a step draws its prompt and its tokens from (seed, step, k) alone: a run goes on after an interruption
    as it would have, and the same completions come whatever else is in the batch, but for a rounding of the logits.

    Args:
        prompts: A list of strings, conversations or rows with a column "prompt", a JSON Lines file's path, or a
            `datasets.Dataset`.
        reward: Called as reward(prompts=..., completions=..., **columns), a list each, with one entry per completion;
            gives, or is async and gives, a number, `StepRewards` or None (could not be scored) for each. Metrics:
            `reward_NAME`, of each part where it is a `Weighted`, of the reward itself otherwise.
        group_size: G, >= 2.
        max_new_tokens: Where a completion is cut, >= 1.
        stop: Strings that end a completion; they stay in it.
        truncated: "keep" trains on completions that were cut, "mask" leaves their tokens out of the loss; their
            rewards count in their groups either way.
        truncation_penalty: Taken from the reward of a completion that was cut, >= 0.
        groups_at_a_time: Groups that are written together; None writes all of a step's.
        top_k: Refused; see Raises.
        top_p: Refused; see Raises.

    Raises:
        TypeError: A count that is no whole number, a reward that cannot be called, a stop that is no text, or prompts
            that are no list.
        ValueError: A group of one, a number out of range, or top_k or top_p: the log-probabilities of a restricted
            distribution are not those that the policy is trained with.
    """

    def __init__(
        self,
        prompts: PromptSource,
        reward: Reward,
        group_size: int = 16,
        *,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] = (),
        truncated: Truncated = "keep",
        truncation_penalty: float = 0.0,
        groups_at_a_time: int | None = None,
        top_k: None = None,
        top_p: None = None,
    ) -> None:
        check_whole(group_size=group_size, max_new_tokens=max_new_tokens)
        check_whole_or_none(groups_at_a_time=groups_at_a_time)
        if not callable(reward):
            raise TypeError(f"reward is {reward!r}: give a function, or Weighted({{name: function, ...}}) for several")
        if group_size < 2:
            raise ValueError(f"group_size is {group_size}: a group needs >= 2 completions to compare")
        if max_new_tokens < 1 or (groups_at_a_time is not None and groups_at_a_time < 1):
            raise ValueError(f"max_new_tokens={max_new_tokens} and groups_at_a_time={groups_at_a_time} must be >= 1")
        if truncated not in get_args(Truncated) or not 0 <= truncation_penalty < math.inf:
            raise ValueError(
                f"truncated={truncated!r} must be one of {get_args(Truncated)} and "
                f"truncation_penalty={truncation_penalty} >= 0 and finite"
            )
        if top_k is not None or top_p is not None:
            raise ValueError(
                f"top_k={top_k} and top_p={top_p}: training samples the whole distribution, since a token's ratio and "
                "gradient are of its probability under all tokens; restrict it in evaluate_completions instead"
            )
        self.prompts = Prompts(prompts)
        self.reward = reward
        self.group_size = group_size
        self.max_length = max_new_tokens
        self.stop = stop_strings(stop)
        self._truncated = truncated
        self._truncation_penalty = truncation_penalty
        self._groups_at_a_time = groups_at_a_time

    def sample(
        self, policy: GeneratingPolicy, num_groups: int, seed: np.random.SeedSequence, *, first_group: int = 0
    ) -> GroupBatch[TokenInputs]:
        """Groups first_group, ..., first_group + num_groups - 1; see `Sampler.sample`.

        Raises:
            TypeError: The policy writes no completions.
            ValueError: num_groups < 1, or the reward gave something else than one finite value or None each.
        """
        if num_groups < 1:
            raise ValueError(f"num_groups is {num_groups}: sample at least one group")
        if not isinstance(policy, GeneratingPolicy):
            raise TypeError(f"{type(policy).__name__} writes no completions: give CausalLMPolicy(model, tokenizer)")
        groups = range(first_group, first_group + num_groups)
        rows = [self.prompts[number] for number in prompt_numbers(seed, groups, len(self.prompts))]
        rngs = [generator(group_seed(seed, group)) for group in groups]
        prompts = [policy.encode(row.prompt) for row in rows]
        completions = self._written(policy, prompts, rngs)
        scores, parts = self._scores(rows, completions)
        return self._batch(policy, prompts, completions, scores, parts)

    def close(self) -> None:
        """Nothing to release."""

    def _written(
        self, policy: GeneratingPolicy, prompts: Sequence[list[int]], rngs: Sequence[torch.Generator]
    ) -> list[Completion]:
        size = self._groups_at_a_time or len(prompts)
        completions = []
        for start in range(0, len(prompts), size):
            completions += policy.generate(
                prompts[start : start + size],
                self.group_size,
                rngs[start : start + size],
                max_new_tokens=self.max_length,
                stop=self.stop,
            )
        return completions

    def _scores(
        self, rows: Sequence[PromptRow], completions: Sequence[Completion]
    ) -> tuple[list[Score], dict[str, Scores]]:
        of_completions = [row for row in rows for _ in range(self.group_size)]
        prompts = [row.prompt for row in of_completions]
        texts = [completion.text for completion in completions]
        return score_parts(self.reward, prompts, texts, columns_of(of_completions))

    def _batch(
        self,
        policy: GeneratingPolicy,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Completion],
        scores: Sequence[Score],
        parts: Mapping[str, Scores],
    ) -> GroupBatch[TokenInputs]:
        groups = torch.arange(len(prompts)).repeat_interleave(self.group_size)
        lengths = torch.tensor([len(completion.tokens) for completion in completions])
        ended = torch.tensor([completion.ended for completion in completions])
        scored = torch.tensor([score is not None for score in scores])
        lasts = offsets(lengths)[1:] - 1
        rewards, where = token_rewards(completions, scores, policy.decode)
        rewards[lasts] -= torch.where(ended, 0.0, self._truncation_penalty)
        return GroupBatch(
            inputs=TokenInputs.of(prompts, [completion.tokens for completion in completions], groups.tolist()),
            log_probs=torch.cat([completion.log_probs for completion in completions]),
            rewards=rewards,
            lengths=lengths,
            group_ids=groups,
            terminated=ended,
            loss_mask=ended.repeat_interleave(lengths) if self._truncated == "mask" else None,
            scored=scored,
            reward_mask=where,
            metrics={"unscored_fraction": (~scored).float(), **_given(parts)},
        )


def _given(parts: Mapping[str, Scores]) -> dict[str, Tensor]:
    """The values of each part where it applies."""
    return {
        f"reward_{name}": torch.tensor([value for value in values if value is not None], dtype=torch.float64)
        for name, values in parts.items()
    }


def columns_of(rows: Sequence[PromptRow]) -> dict[str, list[Any]]:
    """The rows' columns, a list each.

    Raises:
        ValueError: A row lacks a column that another has.
    """
    names = sorted({name for row in rows for name in row.columns})
    for row in rows:
        missing = [name for name in names if name not in row.columns]
        if missing:
            raise ValueError(f"the row of the prompt {row.prompt!r} has no {missing[0]!r}, other rows have it")
    return {name: [row.columns[name] for row in rows] for name in names}


def token_rewards(
    completions: Sequence[Completion], scores: Sequence[Score], decode: Callable[[list[int]], str]
) -> tuple[Tensor, Tensor | None]:
    """Rewards per token, and where they stand if any are of steps: each on the token that ends it.

    Raises:
        ValueError: A step that ends beyond its completion's text.
    """
    placed = [_placed(completion, score, decode) for completion, score in zip(completions, scores, strict=True)]
    rewards, where = [], []
    for completion, of_tokens in zip(completions, placed, strict=True):
        rewards += [of_tokens.get(place, 0.0) for place in range(len(completion.tokens))]
        where += [place in of_tokens for place in range(len(completion.tokens))]
    in_steps = any(isinstance(score, StepRewards) for score in scores)
    return torch.tensor(rewards), torch.tensor(where) if in_steps else None


def _placed(completion: Completion, score: Score, decode: Callable[[list[int]], str]) -> Mapping[int, float]:
    if score is None:
        return {}
    if not isinstance(score, StepRewards):
        return {len(completion.tokens) - 1: score}
    if score.ends[-1] > len(completion.text):
        raise ValueError(
            f"a step ends at character {score.ends[-1]} of a completion of {len(completion.text)}: {completion.text!r}"
        )
    of_tokens: dict[int, float] = {}
    written = [len(decode(completion.tokens[: count + 1])) for count in range(len(completion.tokens))]
    for end, value in zip(score.ends, score.values, strict=True):
        place = next(place for place, length in enumerate(written) if length >= end)
        of_tokens[place] = of_tokens.get(place, 0.0) + value
    return of_tokens
