"""A language model learns to ask a database: the reward runs the query and compares what comes back.

A small Llama that reads words first sees some questions with queries (the cold start), then writes eight queries of its
own per question. A query is worth 1 where it gives the rows that the right one gives, however it is written, else 0:
its execution accuracy. A fifth of the questions is never trained on, and the accuracy printed is on those.

    pip install "grpolib[text]"
    python examples/text_to_sql.py       # a minute or two on one core

    cold start: execution accuracy on questions never trained on: greedy 1.000, sampled 0.276
    GRPO: execution accuracy on questions never trained on: greedy 0.842, sampled 0.786
"""

import argparse
import random
import sqlite3
import tempfile
from functools import partial
from pathlib import Path

import torch
from arithmetic import Curves, cold_start, curve
from transformers import LlamaConfig, LlamaForCausalLM

from grpolib import CausalLMPolicy, ClippedSurrogateLoss, CompletionSampler, GRPOTrainer, evaluate_completions, recipes
from grpolib.text.rewards import SQLResult

CITIES, JOBS, AGES = ("bonn", "lyon", "oslo", "pisa"), ("baker", "doctor", "pilot", "tailor"), range(25, 65, 5)
KINDS = {
    "how many {job}s in {city} are older than {age} ?": "select count ( * ) from people where {conditions}",
    "what is the mean age of {job}s in {city} older than {age} ?": "select avg ( age ) from people where {conditions}",
    "which {job}s in {city} are older than {age} ?": "select name from people where {conditions}",
}
CONDITIONS = "job = '{job}' and city = '{city}' and age > {age}"


def questions(database, seed):
    """Rows of prompts, right queries and the database: trained on, and never trained on."""
    rows = [
        {
            "prompt": question.format(job=job, city=city, age=age),
            "query": query.format(conditions=CONDITIONS.format(job=job, city=city, age=age)),
            "database": database,
        }
        for question, query in KINDS.items()
        for job in JOBS
        for city in CITIES
        for age in AGES
    ]
    random.Random(seed).shuffle(rows)
    return rows[len(rows) // 5 :], rows[: len(rows) // 5]


def make_database(path, seed=0):
    """Two hundred people."""
    rng = random.Random(seed)
    people = [(f"p{n}", rng.choice(CITIES), rng.choice(JOBS), rng.randint(20, 69)) for n in range(200)]
    connection = sqlite3.connect(path)
    connection.execute("create table people (name text, city text, job text, age integer)")
    connection.executemany("insert into people values (?, ?, ?, ?)", people)
    connection.commit()
    connection.close()


class Words:
    """The tokenizer: one token per word."""

    eos_token_id = 0

    def __init__(self, texts):
        self.words = ["<end>", *sorted({word for text in texts for word in text.split()})]
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def encode(self, text):
        return [self.numbers[word] for word in text.split()]

    def decode(self, token_ids):
        return " ".join(self.words[token] for token in token_ids)


def small_llama(vocabulary):
    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes, bos_token_id=0, eos_token_id=0))


def train(folder, options):
    database = Path(folder, "people.db")
    make_database(database)
    torch.manual_seed(options.seed)
    trained, unseen = questions(str(database), options.seed)
    unseen = unseen[: options.unseen]
    tokenizer = Words([row[column] for row in trained + unseen for column in ("prompt", "query")])
    policy = CausalLMPolicy(small_llama(len(tokenizer.words)), tokenizer)
    report = partial(evaluate_completions, policy, reward=SQLResult(), max_new_tokens=24)

    pairs = [(row["prompt"], row["query"]) for row in trained]
    cold_start(
        policy, pairs, lambda: report(trained[: options.unseen or 40]).sampled.mean >= options.cold_start, options.seed
    )
    print(f"cold start: execution accuracy on questions never trained on: {report(unseen, samples=4)}", flush=True)
    curves = Curves()
    trainer = GRPOTrainer(
        policy,
        CompletionSampler(trained, SQLResult(), group_size=8, max_new_tokens=24),
        recipe=recipes.text_grpo().replaced(
            groups_per_step=16,
            loss=[ClippedSurrogateLoss()],  # no KL: there is nothing in this model to stay close to
            reference=None,
            optimizer=partial(torch.optim.Adam, lr=5e-4),
        ),
        seed=options.seed,
        callbacks=[curves],
    )
    trainer.train(iterations=options.iterations)
    after = report(unseen, samples=4)
    print(f"GRPO: execution accuracy on questions never trained on: {after}")
    for row, completion in list(zip(unseen, after.greedy.completions, strict=True))[:3]:
        print(f"    {row['prompt']}\n        {completion.text}")
    print(f"right in training {curve(curves.right)}  {curves.right[0]:.2f} -> {curves.right[-1]:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=120, help="GRPO updates")
    parser.add_argument("--cold-start", type=float, default=0.2, help="sampled accuracy at which GRPO takes over")
    parser.add_argument("--unseen", type=int, help="questions of the evaluation; all 76 where not given")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train(folder, options)


if __name__ == "__main__":
    main()
