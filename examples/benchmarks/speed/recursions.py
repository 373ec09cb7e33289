"""Part recursions: flat and ragged, against padded, flagged and looped."""

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial

import gymnasium
import numpy as np
import torch
from torch import Tensor

import grpolib.functional as F  # noqa: N812
from speed.rates import SB3
from speed.turns import Call, Table, in_fresh_process, is_installed, medians, on_one_thread, say, seconds_of


def ragged(steps: int) -> dict[str, Tensor]:
    """Random steps of episodes of 70 to 1,000 steps, of which the last one is cut to fit."""
    lengths = np.random.default_rng(0).integers(70, 1001, size=steps // 70 + 1)
    lengths = lengths[: np.searchsorted(lengths.cumsum(), steps) + 1]
    lengths[-1] -= lengths.sum() - steps
    rng = torch.Generator().manual_seed(0)
    rewards, values, final_values = (torch.randn(n, generator=rng) for n in (steps, steps, len(lengths)))
    columns = {"rewards": rewards, "values": values, "final_values": final_values}
    return {**columns, "lengths": torch.from_numpy(lengths), "terminated": final_values > 0}


def torchrl_calls(data: dict[str, Tensor]) -> dict[str, Callable[[], Tensor]]:
    """Its recursions on [episodes, longest, 1], padded beforehand, and on [1, steps, 1] with flags; flat results."""
    from torchrl.objectives.value import functional as peer

    lengths, lasts = data["lengths"], data["lengths"].cumsum(0) - 1
    done, terminated = (torch.zeros_like(data["rewards"], dtype=torch.bool) for _ in range(2))
    done[lasts], terminated[lasts] = True, data["terminated"]
    next_values = data["values"].roll(-1)
    next_values[lasts] = data["final_values"]
    flat = (data["values"], next_values, data["rewards"], done, terminated)
    rows = torch.arange(int(lengths.max())) < lengths[:, None]
    padded = [column.new_zeros(rows.shape).masked_scatter(rows, column)[..., None] for column in flat]
    flagged = [column[None, :, None] for column in flat]
    return {
        "torchrl vec, padded": lambda: peer.vec_generalized_advantage_estimate(0.99, 0.95, *padded)[0][..., 0][rows],
        "torchrl vec, flags": lambda: peer.vec_generalized_advantage_estimate(0.99, 0.95, *flagged)[0].flatten(),
        "torchrl loop, padded": lambda: peer.generalized_advantage_estimate(0.99, 0.95, *padded)[0][..., 0][rows],
    }


def sb3_call(data: dict[str, Tensor]) -> Call:
    """The loop of a rollout buffer over as many steps of 16 environments."""
    from stable_baselines3.common.buffers import RolloutBuffer

    rows, box = len(data["rewards"]) // 16, gymnasium.spaces.Box(-1, 1, (1,))
    buffer = RolloutBuffer(rows, box, gymnasium.spaces.Discrete(4), "cpu", gae_lambda=0.95, gamma=0.99, n_envs=16)
    buffer.rewards, buffer.values = (data[name][: rows * 16].view(rows, 16).numpy() for name in ("rewards", "values"))
    buffer.episode_starts = (np.random.default_rng(0).random((rows, 16)) < 1 / 535).astype(np.float32)
    return lambda: buffer.compute_returns_and_advantage(torch.zeros(16), np.zeros(16, dtype=bool))


def recursion_seconds(steps: int, peers: Sequence[str]) -> dict[str, float]:
    data = ragged(steps)
    calls: dict[str, Call] = {
        "reward to go": partial(F.discounted_returns, data["rewards"], data["lengths"], discount=0.99),
        "GAE": partial(F.generalized_advantages, **data, discount=0.99, gae_lambda=0.95),
    }
    others = torchrl_calls(data) if "torchrl" in peers else {}
    differs = max([float((call() - calls["GAE"]()).abs().max()) for call in others.values()], default=math.nan)
    calls |= others
    if "stable_baselines3" in peers:
        calls[f"{SB3} loop"] = sb3_call(data)
    for call in calls.values():
        call()
    turns = [{name: seconds_of(call) for name, call in calls.items()} for _ in range(3)]
    return {**medians(turns), "torchrl differs by": differs}


def recursions(settings: argparse.Namespace) -> dict[str, Table]:
    peers = [name for name in ("torchrl", "stable_baselines3") if is_installed(name, "its recursion")]
    rows, raw = [], {}
    for steps in [size for size in (10**4, 10**5, 10**6, 10**7) if size <= 5 * settings.steps]:
        for threads, where in (("1", (on_one_thread,)), ("default", ())):
            raw[f"{steps}, {threads}"] = seconds = in_fresh_process(*where, recursion_seconds, steps, peers)
            say(f"  {steps:,} steps, threads {threads}: GAE {seconds['GAE']:.2g} s")
            cells = {f"{name} [ms]": value * 1e3 for name, value in seconds.items() if name != "torchrl differs by"}
            best = min([cell for name, cell in cells.items() if name[:5] in ("torch", SB3[:5])], default=math.nan)
            rows.append({"steps": steps, "threads": threads, **cells, "fastest peer / GAE": best / cells["GAE [ms]"]})
    note = "Episodes of 70 to 1,000 steps, median of 3 turns. Reward to go and GAE are flat in and flat out."
    if "torchrl" in peers:
        differs = max(record["torchrl differs by"] for record in raw.values())
        note += " torchrl: padding is not counted, taking the steps out of it is; its advantages of standard normal "
        note += f"rewards and values differ from the library's by at most {differs:.0e}."
    if "stable_baselines3" in peers:
        note += f" {SB3}: a buffer of 16 environments, whatever their episodes."
    return {"recursions": Table(note, rows, raw)}
