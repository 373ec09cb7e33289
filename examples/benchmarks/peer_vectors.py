"""Advantages as other libraries compute them, by their own code; written to tests/golden/peers.json.

    python -m venv peers && peers/bin/pip install torch==2.13.0 stable-baselines3 torchrl trl
    peers/bin/pip install --no-deps verl
    peers/bin/python examples/benchmarks/peer_vectors.py

Stable-Baselines3 and torchrl are imported and called. TRL computes its advantages in the middle of a long method and
importing verl needs Ray, so of these two the lines in question are cut out of the installed files and run unchanged.
Nothing of the library is imported here: tests/test_peers.py compares.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from torchrl.objectives.value.functional import generalized_advantage_estimate

OUT = Path(__file__).parents[2] / "tests" / "golden" / "peers.json"
NUM_ENVS, STEPS = 3, 16
SETTINGS = [(0.99, 0.95), (0.9, 0.8), (1.0, 1.0), (0.97, 0.0), (0.5, 0.3)]


# Generalised advantages.


def random_rollout(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """[steps, environments] of rewards, values, values after each step, and both flags; sometimes both are set."""
    shape = (STEPS, NUM_ENVS)
    ends = rng.choice(4, shape, p=[0.7, 0.12, 0.12, 0.06])
    rollout = {
        "rewards": rng.normal(size=shape),
        "values": rng.normal(size=shape),
        "next_values": rng.normal(size=shape),
        "terminated": (ends == 1) | (ends == 3),
        "truncated": (ends == 2) | (ends == 3),
    }
    done = rollout["terminated"] | rollout["truncated"]
    # After a step that ends nothing, the next observation is the one that the next step starts from.
    rollout["next_values"][:-1][~done[:-1]] = rollout["values"][1:][~done[:-1]]
    return rollout


def stable_baselines3_gae(rollout: dict[str, np.ndarray], discount: float, gae_lambda: float) -> RolloutBuffer:
    """The buffer after `compute_returns_and_advantage`; float64, so that equations are compared and not rounding."""
    box, discrete = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)
    buffer = RolloutBuffer(STEPS, box, discrete, "cpu", gae_lambda=gae_lambda, gamma=discount, n_envs=NUM_ENVS)
    for name in ("rewards", "returns", "values", "advantages", "episode_starts"):
        setattr(buffer, name, getattr(buffer, name).astype(np.float64))
    done = rollout["terminated"] | rollout["truncated"]
    starts = np.ones(NUM_ENVS)
    for t in range(STEPS):
        rewards = rollout["rewards"][t].copy()
        # What OnPolicyAlgorithm.collect_rollouts does with a time limit: the final value goes into the reward.
        cut = rollout["truncated"][t] & ~rollout["terminated"][t]
        rewards[cut] += discount * rollout["next_values"][t][cut]
        nothing = np.zeros((NUM_ENVS, 1))
        values = torch.from_numpy(rollout["values"][t])
        buffer.add(nothing, nothing, rewards, starts, values, torch.zeros(NUM_ENVS))
        starts = done[t]
    buffer.compute_returns_and_advantage(torch.from_numpy(rollout["next_values"][-1]), done[-1])
    return buffer


def torchrl_gae(rollout: dict[str, np.ndarray], discount: float, gae_lambda: float) -> torch.Tensor:
    """[steps, environments] of advantages."""
    by_env = {name: torch.from_numpy(np.ascontiguousarray(x.T))[..., None] for name, x in rollout.items()}
    done = by_env["terminated"] | by_env["truncated"]
    values, rewards, terminated = by_env["values"], by_env["rewards"], by_env["terminated"]
    advantages, _ = generalized_advantage_estimate(
        discount, gae_lambda, values, by_env["next_values"], rewards, done, terminated
    )
    return advantages[..., 0].T


def gae_case(rng: np.random.Generator, discount: float, gae_lambda: float) -> dict[str, Any]:
    rollout = random_rollout(rng)
    done = rollout["terminated"] | rollout["truncated"]
    done[-1] = True
    lengths, terminated, final_values = [], [], []
    for env in range(NUM_ENVS):
        ends = np.flatnonzero(done[:, env])
        lengths += np.diff(ends, prepend=-1).tolist()
        terminated += rollout["terminated"][ends, env].tolist()
        final_values += rollout["next_values"][ends, env].tolist()
    buffer = stable_baselines3_gae(rollout, discount, gae_lambda)
    return {
        "discount": discount,
        "gae_lambda": gae_lambda,
        "rewards": rollout["rewards"].T.ravel().tolist(),
        "values": rollout["values"].T.ravel().tolist(),
        "lengths": lengths,
        "terminated": terminated,
        "final_values": final_values,
        "stable_baselines3": buffer.advantages.T.ravel().tolist(),
        "stable_baselines3_returns": buffer.returns.T.ravel().tolist(),
        "torchrl": torchrl_gae(rollout, discount, gae_lambda).T.ravel().tolist(),
    }


# Group advantages.


def source_of(package: str, path: str) -> ast.Module:
    """The syntax tree of an installed file, without importing it."""
    return ast.parse(Path(str(distribution(package).locate_file(path))).read_text())


def functions_of(module: ast.Module, *names: str) -> dict[str, Any]:
    """Top-level functions by name, without decorators and annotations, which would need the package."""
    found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name in names]
    for function in found:
        function.decorator_list, function.returns = [], None
        for argument in ast.walk(function.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
    return run(found, {})


def lines_of(module: ast.Module, first: str, last: str) -> list[ast.stmt]:
    """The run of statements, wherever it is, from the one that starts with `first` to the one with `last`."""
    for body in _bodies(module):
        starts = [k for k, node in enumerate(body) if ast.unparse(node).startswith(first)]
        if starts:
            ends = [k for k, node in enumerate(body) if k > starts[0] and ast.unparse(node).startswith(last)]
            return body[starts[0] : ends[0] + 1]
    raise LookupError(f"no statement starts with {first!r}: look for the place in the new version")


def _bodies(module: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(module):
        if isinstance(body := getattr(node, "body", None), list):
            yield body


def run(statements: list[Any], names: dict[str, Any]) -> dict[str, Any]:
    namespace = {"torch": torch, "np": np, "defaultdict": defaultdict, **names}
    exec(compile(ast.Module(statements, []), "peer", "exec"), namespace)
    return namespace


VERL = functions_of(
    source_of("verl", "verl/trainer/ppo/core_algos.py"),
    "compute_grpo_outcome_advantage",
    "compute_rloo_outcome_advantage",
    "compute_rloo_vectorized_outcome_advantage",
)
NANSTD = functions_of(source_of("trl", "trl/trainer/utils.py"), "nanstd")["nanstd"]
TRL_GRPO = lines_of(
    source_of("trl", "trl/trainer/grpo_trainer.py"),
    "if self.multi_objective_aggregation == 'sum_then_normalize'",
    "advantages = torch.nan_to_num",
)
TRL_RLOO = lines_of(
    source_of("trl", "trl/trainer/rloo_trainer.py"),
    "grouped_rewards = rewards.view",
    "advantages = torch.nan_to_num",
)


def verl_advantages(scores: torch.Tensor, group_ids: list[int]) -> dict[str, list[float]]:
    """One token a completion, so that a completion's advantage is its token's."""

    def of(name: str, **options: Any) -> list[float]:
        rewards, mask = scores.clone()[:, None], torch.ones(len(scores), 1, dtype=scores.dtype)
        advantages, _ = VERL[name](rewards, mask, np.array(group_ids), **options)
        return advantages[:, 0].tolist()

    return {
        "grpo": of("compute_grpo_outcome_advantage"),
        "dr_grpo": of("compute_grpo_outcome_advantage", norm_adv_by_std_in_grpo=False),
        "rloo": of("compute_rloo_outcome_advantage"),
        "rloo_vectorized": of("compute_rloo_vectorized_outcome_advantage"),
    }


def trl_advantages(scores: torch.Tensor, group_size: int) -> dict[str, list[float]]:
    """Rows of one group beside each other; NaN is a completion that no reward function could score."""

    def grpo(scale: str) -> list[float]:
        trainer = SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize",
            reward_weights=torch.ones(1, dtype=scores.dtype),
            scale_rewards=scale,
        )
        names = {
            "self": trainer,
            "device": "cpu",
            "nanstd": NANSTD,
            "num_generations": group_size,
            "rewards_per_func": scores[:, None],
            "unscorable_mask": scores.isnan(),
        }
        return run(TRL_GRPO, names)["advantages"].tolist()

    trainer = SimpleNamespace(normalize_advantages=False)
    names = {"self": trainer, "nanstd": NANSTD, "num_generations": group_size, "rewards": scores}
    rloo = run(TRL_RLOO, names)["advantages"].tolist()
    return {"group": grpo("group"), "batch": grpo("batch"), "none": grpo("none"), "rloo": rloo}


def group_cases(rng: np.random.Generator) -> list[dict[str, Any]]:
    """Even groups for both libraries, then uneven ones, which only verl can hold."""
    cases = []
    for num_groups, group_size in ((1, 2), (3, 4), (2, 8), (4, 16)):
        scores = torch.from_numpy(rng.normal(size=num_groups * group_size) * 10)
        group_ids = [group for group in range(num_groups) for _ in range(group_size)]
        ours = {"scores": scores.tolist(), "group_ids": group_ids}
        cases.append({**ours, "verl": verl_advantages(scores, group_ids), "trl": trl_advantages(scores, group_size)})
    group_ids = [group for group, size in enumerate((2, 5, 3, 9)) for _ in range(size)]
    scores = torch.from_numpy(rng.normal(size=len(group_ids)))
    cases.append({"scores": scores.tolist(), "group_ids": group_ids, "verl": verl_advantages(scores, group_ids)})
    return cases


def differences() -> dict[str, Any]:
    """Where the libraries' numbers are not ours, on purpose."""
    equal = torch.full((8,), 0.3, dtype=torch.float32)  # what rewards usually are
    unscored = torch.tensor([1.0, torch.nan, 0.0, 1.0, 5.0, 2.0, 2.0, 7.0], dtype=torch.float64)
    lone = torch.tensor([torch.nan, torch.nan, torch.nan, 1.0], dtype=torch.float64)
    return {
        "equal": {"score": 0.3, "size": 8, "trl": trl_advantages(equal, 8), "verl": verl_advantages(equal, [0] * 8)},
        "alone": {"score": 3.0, "verl": verl_advantages(torch.tensor([3.0], dtype=torch.float64), [0])},
        "unscored": {
            "scores": [None if score.isnan() else float(score) for score in unscored],
            "group_size": 4,
            "trl": trl_advantages(unscored, 4),
        },
        "one scored": {"scores": [None, None, None, 1.0], "trl": trl_advantages(lone, 4)},
    }


def main() -> None:
    torch.set_default_dtype(torch.float64)  # the equations are to be compared, not their rounding
    rng = np.random.default_rng(0)
    vectors = {
        "versions": {name: version(name) for name in ("stable-baselines3", "torchrl", "trl", "verl", "torch")},
        "gae": [gae_case(rng, *setting) for setting in SETTINGS],
        "groups": group_cases(rng),
        "differences": differences(),
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(vectors, allow_nan=False) + "\n")
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
