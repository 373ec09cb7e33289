"""GRPO on a model of Hugging Face: a prompt list, a reward, a dozen lines.

    python examples/hf_model.py --model Qwen/Qwen2.5-0.5B-Instruct --device cuda --lora
    python examples/hf_model.py                       # a tiny random model: shows that it runs, learns nothing

The reward is 1 where the last number of the completion is the sum asked for.
"""

import argparse

import torch

from grpolib import CausalLMPolicy, CompletionSampler, GRPOTrainer, recipes
from grpolib.text.rewards import NumberEquals

ROWS = [{"prompt": f"What is {a} + {b}? Answer with a number.", "answer": a + b} for a in range(9) for b in range(9)]


def tiny_model():
    """A random Llama that reads characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = [chr(code) for code in range(32, 127)]
    characters = Tokenizer(models.WordLevel({"</s>": 0, **{c: i + 1 for i, c in enumerate(letters)}}, unk_token="?"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1 + len(letters), **sizes, bos_token_id=0, eos_token_id=0))
    return model, PreTrainedTokenizerFast(tokenizer_object=characters, eos_token="</s>")


def pretrained(name, device):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).to(device)
    return model, AutoTokenizer.from_pretrained(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a name on the Hub or a folder; none builds a tiny random one")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lora", action="store_true", help="train adapters; the reference is the model without them")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()

    torch.manual_seed(0)
    model, tokenizer = pretrained(options.model, options.device) if options.model else tiny_model()
    if options.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    rows = ROWS
    if tokenizer.chat_template:
        rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]

    policy = CausalLMPolicy(model, tokenizer, autocast=torch.bfloat16 if options.device == "cuda" else None)
    sampler = CompletionSampler(rows, NumberEquals(), group_size=8, max_new_tokens=options.max_new_tokens)
    trainer = GRPOTrainer(policy, sampler, recipe=recipes.text_grpo())
    for _ in range(options.iterations):
        metrics = trainer.step()
        print(
            f"{metrics['iteration']:>4}  reward {metrics['return_mean']:.3f}  length {metrics['length_mean']:.0f}  "
            f"no signal {metrics['degenerate_fraction']:.0%}  KL {metrics['kl_reference']:.4f}"
        )


if __name__ == "__main__":
    main()
