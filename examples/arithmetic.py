"""A language model learns to add by GRPO: a few minutes on a CPU, nothing to download.

A character-level decoder of 340,000 parameters first sees some sums with their results (the cold start), then
writes 16 results of its own per sum and is told 1 for a right one, 0 for a wrong one. A tenth of all sums of two
two-digit numbers is never trained on, and the accuracy printed is on those.
"""

import argparse
import math
import random
import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from grpolib import (
    Callback,
    CausalLMPolicy,
    ClippedSurrogateLoss,
    CompletionSampler,
    GRPOTrainer,
    TokenInputs,
    evaluate_completions,
    recipes,
)
from grpolib.text.rewards import exact_match

LONGEST = 10  # "99+99=198" and the end
Cache = tuple[Tensor, Tensor]  # keys and values of what was read, [n, heads, T, width / heads] each


class Characters:
    """The tokenizer: one token per character."""

    alphabet = "\n0123456789+="
    eos_token_id = 0

    def encode(self, text: str) -> list[int]:
        return [self.alphabet.index(character) for character in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(self.alphabet[token] for token in token_ids)


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layer = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, before: Cache | None) -> tuple[Tensor, Cache]:
        by_head = self.queries_keys_values(self.before_attention(x)).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = by_head.permute(2, 0, 3, 1, 4)
        if before is not None:
            keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=before is None)
        x = x + self.mix(attended.transpose(1, 2).flatten(2))
        return x + self.layer(self.before_layer(x)), (keys, values)


class Decoder(nn.Module):
    """Token ids [n, T] to logits [n, T, V]; padding is on the right, where no token sees it."""

    def __init__(self, vocabulary: int, longest: int, width: int = 96, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.2)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.read(ids, [None] * len(self.blocks))[0]

    def read(self, ids: Tensor, caches: Sequence[Cache | None]) -> tuple[Tensor, list[Cache]]:
        """Logits of tokens that follow what the blocks have read, and what they have read then."""
        start = 0 if caches[0] is None else caches[0][0].shape[2]
        x, read = self.tokens(ids) + self.places.weight[start : start + ids.shape[1]], []
        for block, before in zip(self.blocks, caches, strict=True):
            x, cache = block(x, before)
            read.append(cache)
        return self.head(x), read

    def decoding(self, prompts: TokenInputs) -> "Writing":
        return Writing(self, prompts)


class Writing:
    """Completions while they are written: each token is read once. Prompts are of one length here."""

    def __init__(self, decoder: Decoder, prompts: TokenInputs) -> None:
        self.decoder = decoder
        logits, self.caches = decoder.read(prompts.prompts, [None] * len(decoder.blocks))
        self.logits = logits[:, -1]
        self.keep(prompts.prompt_index)

    def keep(self, rows: Tensor) -> None:
        self.logits = self.logits[rows]
        self.caches = [(keys[rows], values[rows]) for keys, values in self.caches]

    def advance(self, tokens: Tensor, rows: Tensor) -> None:
        self.keep(rows)
        logits, self.caches = self.decoder.read(tokens.unsqueeze(1), self.caches)
        self.logits = logits[:, -1]


def sums(seed):
    """Rows of prompts and answers: trained on, and never trained on."""
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10, 100) for b in range(10, 100)]
    random.Random(seed).shuffle(rows)
    return rows[810:], rows[:810]


def cold_start(policy, pairs, is_enough, seed):
    """Supervised training on answers until some come out right when sampled; from nothing, none would."""
    prompts, answers = ([policy.encode(text) for text in texts] for texts in zip(*pairs, strict=True))
    answers = [[*answer, policy.tokenizer.eos_token_id] for answer in answers]
    examples = TokenInputs.of(prompts, answers, range(len(pairs)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3, betas=(0.9, 0.98))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, 1.0, 50)
    rng = torch.Generator().manual_seed(seed)
    for update in range(1000):
        some = torch.randint(len(pairs), (128,), generator=rng)
        loss = -policy.evaluate(examples.select_episodes(some)).log_probs.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warm_up.step()
        if update % 5 == 4 and is_enough():
            return


def right_share(policy, rows):
    return evaluate_completions(policy, rows, exact_match, max_new_tokens=4)


class Curves(Callback):
    """Keeps the share of right results and of groups without a signal."""

    def __init__(self):
        self.right, self.silent = [], []

    def on_iteration_end(self, trainer, metrics):
        self.right.append(metrics["return_mean"])
        self.silent.append(metrics["degenerate_fraction"])


def curve(values, points=60):
    """A line of text: the means of `points` runs of values in [0, 1]."""
    size = max(1, math.ceil(len(values) / points))
    means = [sum(values[i : i + size]) / len(values[i : i + size]) for i in range(0, len(values), size)]
    return "".join(" ▁▂▃▄▅▆▇█"[round(8 * mean)] for mean in means)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=1200, help="GRPO updates")
    parser.add_argument("--cold-start", type=float, default=0.4, help="share of right results at which GRPO takes over")
    parser.add_argument("--unseen", type=int, help="sums of the evaluation; all 810 where not given")
    options = parser.parse_args()
    started = time.perf_counter()

    torch.manual_seed(options.seed)
    trained, unseen = sums(options.seed)
    unseen = unseen[: options.unseen]
    policy = CausalLMPolicy(Decoder(len(Characters.alphabet), LONGEST), Characters())
    pairs = [(row["prompt"], row["answer"]) for row in trained]
    some = trained[: options.unseen or 100]
    cold_start(policy, pairs, lambda: right_share(policy, some).sampled.mean >= options.cold_start, options.seed)

    def show(when):
        reports = right_share(policy, unseen)
        seconds = time.perf_counter() - started
        print(f"{when} ({seconds:.0f} s): right results of sums never trained on: {reports}", flush=True)
        for row, completion in list(zip(unseen, reports.sampled.completions, strict=True))[:5]:
            print(f"    {row['prompt']}{completion.text}" + ("" if completion.text == row["answer"] else "  wrong"))

    print(f"{sum(p.numel() for p in policy.parameters()):,} parameters")
    show("cold start")
    curves = Curves()
    trainer = GRPOTrainer(
        policy,
        CompletionSampler(trained, exact_match, group_size=16, max_new_tokens=4),
        recipe=recipes.text_grpo().replaced(
            groups_per_step=32,
            loss=[ClippedSurrogateLoss()],  # no KL: there is nothing in this model to stay close to
            reference=None,
            optimizer=partial(torch.optim.Adam, lr=3e-4),
        ),
        seed=options.seed,
        callbacks=[curves],
    )
    trainer.train(iterations=options.iterations)
    show("GRPO")
    print(f"right in training    {curve(curves.right)}  {curves.right[0]:.2f} -> {curves.right[-1]:.2f}")
    print(f"groups without signal {curve(curves.silent)}  {curves.silent[0]:.2f} -> {curves.silent[-1]:.2f}")


if __name__ == "__main__":
    main()
