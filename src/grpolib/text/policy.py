"""A causal language model as a policy."""

import copy
import math
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from grpolib.functional import episode_ids, offsets, timesteps
from grpolib.functional._checks import check_whole
from grpolib.policies import Evaluation, Policy
from grpolib.sharding import check_whole_for, is_sharded
from grpolib.text.budget import micro_batches
from grpolib.text.generation import Choose, Draft, Restricted, greedy, sampled, write
from grpolib.text.huggingface import HuggingFaceModel, is_huggingface, number_of_embeddings
from grpolib.text.inputs import TokenInputs
from grpolib.text.models import LanguageModel, PlainModel
from grpolib.text.protocols import Completion
from grpolib.text.scoring import CHUNK_LOGITS, chunked_scores
from grpolib.text.tokens import Prompt, completion_text, eos_ids, prompt_ids, stop_strings


class CausalLMPolicy(nn.Module):
    """A causal language model that writes completions and scores them.

    An action is a token, pi(token | prompt, tokens before) = softmax(logits / temperature). Sampling, old, new and
    reference log-probabilities all take this temperature, and dropout is off in all of them, whatever mode the model
    is in: on the policy that sampled, the ratio is 1.

    Args:
        model: A causal language model of Hugging Face, with LoRA adapters or without, or any `nn.Module` from
            (token ids [n, T], mask [n, T]) to logits [n, T, V], which writes faster as a `Writer`. Trained in place.
        tokenizer: Hugging Face's, or anything that has `encode`, `decode` and `eos_token_id`; None where prompts are
            token ids.
        temperature: Divides the logits, > 0 and finite.
        eos_token_id: Tokens that end a completion; None takes the tokenizer's and the model's own.
        tokens_per_micro_batch: Tokens, padding included, that are scored at a time. Loss and gradient do not depend
            on it; what is kept for the gradient does.
        autocast: Compute in this type, `torch.bfloat16` say; log-probabilities stay float32. None computes as the
            parameters are.
        gradient_checkpointing: Compute each layer again going back, which takes less memory and more time.

    Raises:
        ValueError: A temperature or count out of range, or no token that ends a completion.
        TypeError: `model` is no module, or cannot checkpoint its layers.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any = None,
        *,
        temperature: float = 1.0,
        eos_token_id: int | Sequence[int] | None = None,
        tokens_per_micro_batch: int = 16_384,
        autocast: torch.dtype | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        _check_settings(model, temperature, tokens_per_micro_batch, gradient_checkpointing)
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.eos_token_ids = eos_ids(tokenizer, model, eos_token_id)
        self.tokens_per_micro_batch = tokens_per_micro_batch
        self.autocast = autocast
        self._reader: LanguageModel
        if is_huggingface(model):
            self._reader = HuggingFaceModel(model, checkpoints_layers=gradient_checkpointing)
        else:
            self._reader = PlainModel(model)
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; see `prompt_ids`.

        Raises:
            ValueError: An id that the model has no embedding for, which on a GPU would end the process.
        """
        ids = prompt_ids(self.tokenizer, prompt)
        known = number_of_embeddings(self.model)
        unknown = next((token for token in ids if not 0 <= token < known), None)
        if unknown is not None:
            raise ValueError(
                f"the prompt {prompt!r} has token id {unknown}, and the model has {known} tokens: give the policy the "
                "model's own tokenizer, or call model.resize_token_embeddings(len(tokenizer))"
            )
        return ids

    def decode(self, tokens: list[int]) -> str:
        """The text of a completion's tokens, without special ones."""
        return completion_text(self.tokenizer, [token for token in tokens if token not in self.eos_token_ids])

    def evaluate(self, inputs: TokenInputs) -> Evaluation:
        """Log-probabilities [S] and entropies [S] of the completions' tokens.

        With gradient in one piece (who trains splits by `micro_batches`), without in micro-batches.
        """
        with self._settings():
            if torch.is_grad_enabled():
                return self._evaluation(inputs)
            return self._in_pieces(inputs)

    def micro_batches(self, inputs: TokenInputs) -> list[Int[Tensor, " n"]]:
        """Which completions are scored together, so that none exceeds `tokens_per_micro_batch` unless alone."""
        return micro_batches(inputs, self.tokens_per_micro_batch)

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        rngs: Sequence[torch.Generator],
        *,
        max_new_tokens: int,
        stop: str | Sequence[str] = (),
        deterministic: bool = False,
        top_k: int | None = None,
        top_p: float | None = None,
    ) -> list[Completion]:
        """Write `group_size` completions of each prompt, prompt by prompt; see `GeneratingPolicy.generate`.

        Args:
            prompts: Text, conversations or token ids.
            group_size: G, >= 1.
            rngs: One per prompt.
            max_new_tokens: >= 1.
            stop: Strings that end a completion; they stay in it.
            deterministic: The most probable tokens instead of samples.
            top_k: Sample among so many tokens only; for evaluation.
            top_p: Sample among the tokens that have this probability together; for evaluation.

        Returns:
            Completions; `log_probs` are those of the whole distribution, also where it was restricted.

        Raises:
            TypeError: A count that is no whole number, or a stop that is no text.
            ValueError: A count < 1, or an empty stop string.
            RuntimeError: The policy is sharded, and this rank has a part of it.
        """
        check_whole_for("generate", self)
        check_whole(group_size=group_size, max_new_tokens=max_new_tokens)
        if group_size < 1 or max_new_tokens < 1:
            raise ValueError(f"group_size={group_size} and max_new_tokens={max_new_tokens} must be >= 1")
        words = stop_strings(stop)
        index = torch.arange(len(prompts)).repeat_interleave(group_size)
        ids = [self.encode(prompt) for prompt in prompts]
        starts = TokenInputs.of(ids, [[0]] * len(index), index.tolist()).to(self.device)
        draws = [torch.rand(group_size, max_new_tokens, generator=rng, dtype=torch.float64) for rng in rngs]
        with self._settings():
            drafts = write(
                self._reader.decoding(starts),
                torch.cat(draws),
                choose=_choice(deterministic, top_k, top_p),
                temperature=self.temperature,
                ends=lambda tokens: self._ends(tokens, words),
            )
        return [self._completion(draft) for draft in drafts]

    def as_reference(self) -> Policy:
        """The policy as it is now, frozen: with LoRA the same model without its adapters, else a copy.

        Raises:
            ValueError: A parameter beside the adapters is trained, so that the model without them would not stay; or
                the policy is sharded, and so cannot be copied.
        """
        if hasattr(self.model, "disable_adapter"):
            _check_adapters_alone(self.model)
            return WithoutAdapters(self)
        if is_sharded(self):
            raise ValueError(
                "a sharded policy cannot be copied as its own reference: load the model once more and give "
                "ReferencePolicy(policy=CausalLMPolicy(...)), train adapters, or take a recipe without a KL term"
            )
        frozen = copy.deepcopy(self)
        for parameter in frozen.parameters():
            parameter.requires_grad_(False)
        return frozen

    def _ends(self, tokens: Sequence[int], stop: Sequence[str]) -> bool:
        if tokens[-1] in self.eos_token_ids:
            return True
        if not stop:
            return False
        text = self.decode(list(tokens))
        return any(word in text for word in stop)

    def _completion(self, draft: Draft) -> Completion:
        return Completion(draft.tokens, torch.tensor(draft.log_probs), draft.ended, self.decode(draft.tokens))

    def _evaluation(self, inputs: TokenInputs) -> Evaluation:
        states, tokens = self._reader.states(inputs), inputs.tokens
        rows = max(1, CHUNK_LOGITS // self._reader.vocabulary_size(states))
        return Evaluation(*chunked_scores(states, tokens, self._reader.head, self.temperature, rows))

    def _in_pieces(self, inputs: TokenInputs) -> Evaluation:
        lengths, starts = inputs.lengths, offsets(inputs.lengths)
        log_probs = entropy = torch.empty(0)
        for number, episodes in enumerate(self.micro_batches(inputs)):
            part = self._evaluation(inputs.select_episodes(episodes))
            if number == 0:
                log_probs, entropy = (part.log_probs.new_empty(int(starts[-1])) for _ in range(2))
            rows = starts[episodes][episode_ids(lengths[episodes])] + timesteps(lengths[episodes])
            log_probs[rows], entropy[rows] = part.log_probs, part.entropy
        return Evaluation(log_probs, entropy)

    @contextmanager
    def _settings(self) -> Generator[None, None, None]:
        """Dropout off, and the type to compute in."""
        with ExitStack() as stack:
            stack.enter_context(without_dropout(self))
            stack.enter_context(self._precision())
            yield

    def _precision(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast)


class WithoutAdapters(nn.Module):
    """A policy whose model scores without its adapters: the model that they were added to, at no cost in memory.

    It has no parameters of its own: those are the policy's.
    """

    def __init__(self, policy: CausalLMPolicy) -> None:
        super().__init__()
        self._policy = (policy,)  # in a tuple, so that it is no part of this module

    def evaluate(self, inputs: TokenInputs) -> Evaluation:
        """See `CausalLMPolicy.evaluate`."""
        (policy,) = self._policy
        # A method that peft adds, which torch's types do not know.
        with policy.model.disable_adapter():  # type: ignore[operator]
            return policy.evaluate(inputs)


@contextmanager
def without_dropout(module: nn.Module) -> Generator[None, None, None]:
    """Every part in evaluation mode, then as it was."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _check_adapters_alone(model: Any) -> None:
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    with model.disable_adapter():  # adapters that are off take no gradient
        left = sorted(
            name for name, parameter in model.named_parameters() if parameter.requires_grad and name in trained
        )
    if left:
        raise ValueError(
            f"{left[0]} is trained and no part of an adapter, so that the model without its adapters, the reference, "
            "would move: freeze it (in LoRA bias='none'), or give "
            "ReferencePolicy(policy=copy.deepcopy(policy).requires_grad_(False))"
        )


def _choice(deterministic: bool, top_k: int | None, top_p: float | None) -> Choose:
    if deterministic:
        return greedy
    return sampled if top_k is None and top_p is None else Restricted(top_k, top_p)


def _check_settings(model: Any, temperature: float, tokens: int, checkpointing: bool) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: give a torch.nn.Module from (token ids, mask) to logits")
    check_whole(tokens_per_micro_batch=tokens)
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature is {temperature}: it must be > 0 and finite, since at 0 every log-probability is "
            "0 or -inf and nothing can be learnt; greedy completions are evaluate_completions' and "
            "generate(deterministic=True)'s"
        )
    if tokens < 1:
        raise ValueError(f"tokens_per_micro_batch is {tokens}: it must be >= 1")
    if checkpointing and not is_huggingface(model):
        raise TypeError(f"{type(model).__name__} has no layers to checkpoint from outside: do it in its own forward")
