"""Tiny random language models, built here: nothing is downloaded."""

import numpy as np
import torch
from torch import nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from grpolib import CausalLMPolicy, CompletionSampler

EOS = 2
VOCABULARY = 41
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
}


def llama(**settings):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SIZES, **settings}))


def qwen(**settings):
    torch.manual_seed(1)
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **settings}))


def gpt2(**settings):
    torch.manual_seed(2)
    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    ids = {"bos_token_id": 1, "eos_token_id": EOS, "initializer_range": 0.3}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **ids, **settings}))


def mistral():
    """Its layers see a window, so its cache does not hold every key."""
    torch.manual_seed(3)
    return MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))


def gemma():
    """Its logits are squashed behind the output embedding."""
    torch.manual_seed(4)
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=2.0))


SHARING = {"llama": llama, "qwen": qwen, "gpt2": gpt2}


class Recurrent(nn.Module):
    """A causal model of one's own: (ids, mask) to logits."""

    def __init__(self, vocabulary=VOCABULARY, width=16):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Embedding(vocabulary, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, mask):
        return self.head(self.gru(self.embedding(ids))[0]) * 3


class Keeping(Recurrent):
    """The same model, which keeps its state while it writes."""

    def decoding(self, prompts):
        return KeepingDecoding(self, prompts)


class KeepingDecoding:
    def __init__(self, model, prompts):
        self.model = model
        # One at a time: the padding on the left would change the state.
        states = [
            model.gru(model.embedding(ids[mask]).unsqueeze(0))[1]
            for ids, mask in zip(prompts.prompts, prompts.prompt_mask, strict=True)
        ]
        self.state = torch.cat(states, 1)[:, prompts.prompt_index]
        self.logits = model.head(self.state[0]) * 3

    def advance(self, tokens, rows):
        _, self.state = self.model.gru(self.model.embedding(tokens).unsqueeze(1), self.state[:, rows].contiguous())
        self.logits = self.model.head(self.state[0]) * 3


class Fixed(nn.Module):
    """The same logits for every token, whatever came before."""

    def __init__(self, *logits):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float32))

    def forward(self, ids, mask):
        return self.logits.expand(*ids.shape, -1)


class Letters:
    """Token i is the i-th letter; EOS is "c"."""

    eos_token_id = EOS

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]

    def decode(self, token_ids):
        return "".join(chr(ord("a") + token) for token in token_ids)


def seed(number=0, iteration=1):
    return np.random.SeedSequence(number, spawn_key=(iteration,))


def lengths_reward(prompts, completions, **columns):
    return [float(len(text)) for text in completions]


PROMPTS = ["dab", "e", "fghhh", "bbb"]


def batch_of(policy, num_groups=3, group_size=4, max_new_tokens=7, **settings):
    sampler = CompletionSampler(PROMPTS, lengths_reward, group_size, max_new_tokens=max_new_tokens, **settings)
    return sampler.sample(policy, num_groups, seed())


def policy_of(model, **settings):
    return CausalLMPolicy(model, Letters(), **settings)
