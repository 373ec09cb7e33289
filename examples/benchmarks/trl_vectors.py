"""Losses and gradients as TRL's own trainer computes them; written to tests/golden/trl.json.

    python -m venv peers && peers/bin/pip install torch==2.13.0 trl==1.16.0
    peers/bin/python examples/benchmarks/trl_vectors.py

A tiny Llama whose weights are a formula scores the same completions under every loss; what is kept of a gradient is,
for each parameter, its norm and its product with a fixed direction. Nothing of the library is imported here:
tests/text/test_trl.py compares.
"""

import itertools
import json
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

OUT = Path(__file__).parents[2] / "tests" / "golden" / "trl.json"
MODEL = {
    "vocab_size": 19,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
PROMPTS = [[3, 4, 5, 6], [7, 8]]
COMPLETIONS = [[[9, 10, 2], [11], [12, 13, 14, 15, 16], [4, 2]], [[17, 18, 3, 2], [5, 5], [6, 7, 8, 9, 10], [2]]]
ADVANTAGES = [1.5, -0.5, -0.7, -0.3, 0.9, -1.1, 0.6, -0.4]
MAX_LENGTH = 6


def deterministic_weights(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            places = torch.arange(parameter.numel(), dtype=torch.float64)
            values = 0.3 * torch.sin(12.9898 * places + number) + (1.0 if parameter.ndim == 1 else 0.0)
            parameter.copy_(values.reshape(parameter.shape))


def shifts(number: int, size: int, scale: float) -> torch.Tensor:
    """How far old and reference log-probabilities are from the policy's."""
    return scale * torch.sin(7.0 * torch.arange(size, dtype=torch.float64) + number).float()


def summary(gradients: list[torch.Tensor]) -> dict[str, list[float]]:
    directions = [torch.cos(3.7 * torch.arange(g.numel(), dtype=torch.float64)) for g in gradients]
    return {
        "norms": [float(g.double().norm()) for g in gradients],
        "products": [float(g.double().flatten() @ d) for g, d in zip(gradients, directions, strict=True)],
    }


def padded(rows: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    gaps = [[0] * (width - len(row)) for row in rows]
    ids = [gap + row if left else row + gap for row, gap in zip(rows, gaps, strict=True)]
    mask = [
        [0] * len(gap) + [1] * len(row) if left else [1] * len(row) + [0] * len(gap)
        for row, gap in zip(rows, gaps, strict=True)
    ]
    return torch.tensor(ids), torch.tensor(mask)


def trainer_of(model: LlamaForCausalLM, folder: str) -> GRPOTrainer:
    vocabulary = {f"t{number}": number for number in range(MODEL["vocab_size"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="t0")), pad_token="t0", eos_token="t2"
    )
    settings = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=MAX_LENGTH,
        use_cpu=True,
        bf16=False,
        beta=0.0,
        report_to=[],
        gradient_checkpointing=False,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "t3"}] * 8),
        processing_class=tokenizer,
    )


def main() -> None:
    model = LlamaForCausalLM(LlamaConfig(**MODEL))
    deterministic_weights(model)
    prompt_ids, prompt_mask = padded([prompt for prompt in PROMPTS for _ in range(4)], left=True)
    completion_ids, completion_mask = padded([ids for group in COMPLETIONS for ids in group], left=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(model, folder)
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
        with torch.no_grad():
            log_probs, entropy, _ = trainer._get_per_token_logps_and_entropies(
                model,
                torch.cat([prompt_ids, completion_ids], 1),
                torch.cat([prompt_mask, completion_mask], 1),
                completion_ids.shape[1],
                compute_entropy=True,
            )
        inputs = {
            "prompt_ids": prompt_ids,
            "prompt_mask": prompt_mask,
            "completion_ids": completion_ids,
            "completion_mask": completion_mask,
            "advantages": torch.tensor(ADVANTAGES),
            "old_per_token_logps": log_probs + shifts(1, log_probs.numel(), 0.4).reshape(log_probs.shape),
            "ref_per_token_logps": log_probs + shifts(2, log_probs.numel(), 0.8).reshape(log_probs.shape),
            "num_items_in_batch": completion_mask.sum(),
        }
        mask = completion_mask.bool()
        cases = []
        for loss_type, level, (beta, corrected) in itertools.product(
            ("grpo", "bnpo", "dr_grpo", "dapo"), ("token", "sequence"), ((0.0, False), (0.04, False), (0.04, True))
        ):
            trainer.loss_type, trainer.importance_sampling_level, trainer.beta = loss_type, level, beta
            trainer.args.use_bias_correction_kl = corrected
            trainer.args.steps_per_generation = 1
            loss = trainer._compute_loss(model, inputs)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            case = {"loss_type": loss_type, "level": level, "beta": beta, "use_bias_correction_kl": corrected}
            cases.append({**case, "loss": float(loss), **summary(list(gradients))})
    golden = {
        "versions": {name: version(name) for name in ("trl", "transformers", "torch")},
        "model": MODEL,
        "prompts": PROMPTS,
        "completions": COMPLETIONS,
        "advantages": ADVANTAGES,
        "max_length": MAX_LENGTH,
        "log_probs": log_probs[mask].tolist(),
        "entropy": entropy[mask].tolist(),
        "old_log_probs": inputs["old_per_token_logps"][mask].tolist(),
        "reference_log_probs": inputs["ref_per_token_logps"][mask].tolist(),
        "cases": cases,
    }
    OUT.write_text(json.dumps(golden, indent=1) + "\n")
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
