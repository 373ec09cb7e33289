"""Fine-tuning language models: the same groups, estimators and losses, over prompts and completions."""
