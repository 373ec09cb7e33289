"""A step of GRPO on a language model, by TRL's GRPOTrainer and by this library: seconds and memory.

    pip install "grpolib[text,bench]"
    python examples/benchmarks/language_model.py

Both train the same random Llama (4 layers, hidden size 256, 32,000 tokens, float32) on the CPU with two threads: two
prompts, eight completions of 64 tokens each, K3(0.04) to a frozen reference, one update. Each run has a process of its
own, so that its peak memory is its own. Printed are the medians over the steps after the first, and over the rounds, in
which the two take turns.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

LIBRARIES = ("trl", "grpolib")
PARTS = ("generation", "scoring", "update")
COLUMNS = (*PARTS, "step", "peak_gb")
VOCABULARY, GROUPS, GROUP_SIZE, NEW_TOKENS = 32_000, 2, 8, 64


def model_of():
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=1024, **sizes, **ids))


def tokenizer_of():
    words = Tokenizer(models.WordLevel({f"t{number}": number for number in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t2")


def prompts_of(tokens):
    draws = torch.randint(3, VOCABULARY, (GROUPS, tokens), generator=torch.Generator().manual_seed(0))
    return [" ".join(f"t{number}" for number in row) for row in draws.tolist()]


def reward(completions, **columns):
    """Something that differs from completion to completion."""
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


class Stopwatch:
    """Seconds by name; wraps a function so that its calls are counted under one."""

    def __init__(self):
        self.seconds = defaultdict(float)

    def around(self, name, function):
        def timed(*arguments, **keywords):
            start = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return timed

    def lap(self):
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds


def run_grpolib(prompt_tokens, steps):
    from grpolib import CausalLMPolicy, CompletionSampler, GRPOTrainer, ReferencePolicy, recipes

    watch = Stopwatch()
    ReferencePolicy.annotate = watch.around("scoring", ReferencePolicy.annotate)
    sampler = CompletionSampler(prompts_of(prompt_tokens), reward, GROUP_SIZE, max_new_tokens=NEW_TOKENS)
    trainer = GRPOTrainer(
        CausalLMPolicy(model_of(), tokenizer_of()), sampler, recipe=recipes.text_grpo(), groups_per_step=GROUPS
    )
    for _ in range(steps):
        metrics = trainer.step()
        scoring = watch.lap()["scoring"]
        yield {
            "generation": metrics["seconds_sampling"],
            "scoring": scoring,
            "update": metrics["seconds_updating"] - scoring,
            "step": metrics["seconds_sampling"] + metrics["seconds_updating"],
        }


def run_trl(prompt_tokens, steps):
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    watch, laps = Stopwatch(), []

    class Laps(TrainerCallback):
        def on_step_begin(self, *arguments, **keywords):
            self.start = time.perf_counter()

        def on_step_end(self, *arguments, **keywords):
            laps.append({**watch.lap(), "step": time.perf_counter() - self.start})

    with tempfile.TemporaryDirectory() as folder:
        model_of().save_pretrained(folder)  # TRL loads its reference from where the model came from
        trainer = GRPOTrainer(
            model=folder,
            reward_funcs=reward,
            processing_class=tokenizer_of(),
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts_of(prompt_tokens)] * steps),
            callbacks=[Laps()],
            args=GRPOConfig(
                output_dir=folder,
                model_init_kwargs={"dtype": "float32"},
                max_steps=steps,
                per_device_train_batch_size=GROUPS * GROUP_SIZE,
                num_generations=GROUP_SIZE,
                max_completion_length=NEW_TOKENS,
                loss_type="grpo",
                beta=0.04,
                use_bias_correction_kl=False,
                learning_rate=1e-6,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                disable_tqdm=True,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
            ),
        )
        trainer._generate = watch.around("generation", trainer._generate)
        trainer._generate_and_score_completions = watch.around("rollout", trainer._generate_and_score_completions)
        trainer.train()
    for lap in laps:
        scoring = lap["rollout"] - lap["generation"]
        yield {**lap, "scoring": scoring, "update": lap["step"] - lap["rollout"]}


def measure(library, prompt_tokens, steps):
    """One run, in this process."""
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    laps = list({"grpolib": run_grpolib, "trl": run_trl}[library](prompt_tokens, steps))
    result = {part: statistics.median(lap[part] for lap in laps[1:]) for part in (*PARTS, "step")}
    return {**result, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2}


def in_own_process(library, prompt_tokens, steps):
    settings = ["--only", library, "--prompt-tokens", str(prompt_tokens), "--steps", str(steps)]
    command = [sys.executable, __file__, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{library} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(prompt_tokens, steps, rounds):
    """The median over the rounds of each number, by library."""
    results = [{library: in_own_process(library, prompt_tokens, steps) for library in LIBRARIES} for _ in range(rounds)]
    return {
        library: {name: statistics.median(result[library][name] for result in results) for name in COLUMNS}
        for library in LIBRARIES
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-tokens", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--steps", type=int, default=4, help="of each run, the first of which is not counted")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", choices=LIBRARIES, help="one library, in this process, as JSON")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps must be at least 2: the first is not counted")
    if options.only:
        print(json.dumps(measure(options.only, options.prompt_tokens[0], options.steps)))
        return
    print(f"{'prompt':>6} {'library':>8} " + " ".join(f"{name:>10}" for name in COLUMNS))
    for tokens in options.prompt_tokens:
        results = compare(tokens, options.steps, options.rounds)
        for library, result in results.items():
            print(f"{tokens:>6} {library:>8} " + " ".join(f"{result[name]:>10.2f}" for name in COLUMNS))
        trl, ours = results["trl"], results["grpolib"]
        faster, share = trl["step"] / ours["step"], ours["peak_gb"] / trl["peak_gb"]
        print(f"{tokens:>6} tokens of prompt: {faster:.1f} times as fast, {share:.0%} of the peak memory", flush=True)


if __name__ == "__main__":
    main()
