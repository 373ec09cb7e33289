"""A language model learns to ask a database: the reward runs the query and compares what comes back.

A word-level decoder sees some questions with queries (the cold start), then writes eight queries of its own per
question. A query is worth 1 where it gives the rows that the right one gives, however it is written, 0.1 where it runs
at all and 0 where it does not. A fifth of the questions is never trained on.
"""

import argparse
import random
import sqlite3
from functools import partial

import torch
from arithmetic import Curves, Decoder, cold_start, curve

from grpolib import CausalLMPolicy, ClippedSurrogateLoss, CompletionSampler, GRPOTrainer, evaluate_completions, recipes

CITIES, JOBS, AGES = ("bonn", "lyon", "oslo", "pisa"), ("baker", "doctor", "pilot", "tailor"), range(25, 65, 5)
KINDS = {
    "how many {job}s in {city} are older than {age} ?": "select count ( * ) from people where {conditions}",
    "what is the mean age of {job}s in {city} older than {age} ?": "select avg ( age ) from people where {conditions}",
    "which {job}s in {city} are older than {age} ?": "select name from people where {conditions}",
}
CONDITIONS = "job = '{job}' and city = '{city}' and age > {age}"


def questions(seed):
    """Rows of prompts and right queries: trained on, and never trained on."""
    rows = [
        {"prompt": question.format(job=job, city=city, age=age), "answer": query.format(conditions=CONDITIONS)}
        | {"job": job, "city": city, "age": age}
        for question, query in KINDS.items()
        for job in JOBS
        for city in CITIES
        for age in AGES
    ]
    rows = [{"prompt": row["prompt"], "answer": row["answer"].format(**row)} for row in rows]
    random.Random(seed).shuffle(rows)
    return rows[len(rows) // 5 :], rows[: len(rows) // 5]


def database(seed=0):
    """Two hundred people in memory, to be read and not changed."""
    rng = random.Random(seed)
    people = [(f"p{n}", rng.choice(CITIES), rng.choice(JOBS), rng.randint(20, 69)) for n in range(200)]
    connection = sqlite3.connect(":memory:")
    connection.execute("create table people (name text, city text, job text, age integer)")
    connection.executemany("insert into people values (?, ?, ?, ?)", people)
    connection.commit()
    connection.execute("pragma query_only = on")
    return connection


class RightRows:
    """The verifiable reward."""

    def __init__(self, connection):
        self.connection = connection

    def rows(self, query):
        try:
            return sorted(self.connection.execute(query).fetchmany(1000))
        except (sqlite3.Error, sqlite3.Warning):
            return None

    def __call__(self, prompts, completions, answer):
        given = [self.rows(query) for query in completions]
        return [
            0.0 if rows is None else 1.0 if rows == self.rows(right) else 0.1
            for rows, right in zip(given, answer, strict=True)
        ]


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=60, help="GRPO updates")
    parser.add_argument("--cold-start", type=float, default=0.4, help="mean reward at which GRPO takes over")
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    trained, unseen = questions(options.seed)
    tokenizer = Words([row[column] for row in trained + unseen for column in ("prompt", "answer")])
    policy = CausalLMPolicy(Decoder(len(tokenizer.words), 48), tokenizer)
    reward = RightRows(database())
    report = partial(evaluate_completions, policy, reward=reward, max_new_tokens=24)
    cold_start(policy, trained, lambda: report(trained[:40]).sampled.mean >= options.cold_start, options.seed)
    print(f"cold start: mean reward of questions never trained on: {report(unseen)}", flush=True)

    curves = Curves()
    trainer = GRPOTrainer(
        policy,
        CompletionSampler(trained, reward, group_size=8, max_new_tokens=24),
        recipe=recipes.text_grpo().replaced(
            groups_per_step=16,
            loss=[ClippedSurrogateLoss()],
            reference=None,
            optimizer=partial(torch.optim.Adam, lr=3e-4),
        ),
        seed=options.seed,
        callbacks=[curves],
    )
    trainer.train(iterations=options.iterations)
    after = report(unseen)
    print(f"GRPO: mean reward of questions never trained on: {after}")
    for row, completion in list(zip(unseen, after.greedy.completions, strict=True))[:3]:
        print(f"    {row['prompt']}\n        {completion.text}")
    print(f"reward in training {curve(curves.right)}  {curves.right[0]:.2f} -> {curves.right[-1]:.2f}")


if __name__ == "__main__":
    main()
