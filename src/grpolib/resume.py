"""What a run needs to go on: a trainer's state, read from it and put back into another."""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from grpolib.archive import read_archive
from grpolib.checkpoint import describe
from grpolib.policies import Policy
from grpolib.sampling import Sampler
from grpolib.sharding import part_like

if TYPE_CHECKING:
    from grpolib.trainer import Trainer

CHECKPOINTS, LATEST, BEST = "checkpoints", "latest", "best"

KINDS: dict[str, Any] = {
    "versions": dict,
    "seed": int,
    "iteration": int,
    "num_steps": int,
    "compile": bool | str,
    "is_compiled": bool,
    "recipe": dict,
    "sampler": dict,
    "policy": dict,
    "critic": (dict, NoneType),
    "reference": (dict, NoneType),
    "optimizer": dict,
    "episodes": (dict, NoneType),
    "callbacks": list,
}
"""What a checkpoint holds."""

SHAPED_OTHERWISE = (torch.optim.LBFGS, *([torch.optim.Adafactor] if hasattr(torch.optim, "Adafactor") else []))
"""Optimizers of torch whose state does not have its parameters' shapes."""


@runtime_checkable
class Stateful(Protocol):
    """A sampler or a callback that carries something from iteration to iteration, kept in checkpoints.

    Without these methods it is taken to depend on the trainer's seed, iteration and number of steps alone.
    """

    def state(self) -> Mapping[str, Any]:
        """Numbers, words, tensors, and lists and dictionaries of them."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave; raise a `ValueError` for anything else."""
        ...


def state_of(trainer: "Trainer") -> dict[str, Any]:
    """Everything that decides the next iterations; draws are keyed by seed and iteration, so no generator is in it."""
    sampler = trainer.sampler
    return {
        "versions": {"grpolib": version("grpolib"), "torch": str(torch.__version__)},
        "seed": trainer.seed,
        "iteration": trainer.iteration,
        "num_steps": trainer.num_steps,
        "compile": trainer.compile,
        "is_compiled": trainer.is_compiled,
        "recipe": describe(trainer.recipe),
        "sampler": sampler_settings(sampler),
        **{name: None if module is None else module.state_dict() for name, module in _modules(trainer).items()},
        "optimizer": trainer.optimizer.state_dict(),
        "episodes": sampler.state() if isinstance(sampler, Stateful) else None,
        "callbacks": [
            {"name": type(callback).__name__, "state": callback.state()}
            for callback in trainer.callbacks
            if isinstance(callback, Stateful)
        ],
    }


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The state in a checkpoint, with everything in it that belongs there and nothing else.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, or of another format.
    """
    state = read_archive(checkpoint)
    missing, unknown = sorted(KINDS.keys() - state.keys()), sorted(state.keys() - KINDS.keys())
    if missing or unknown:
        raise ValueError(f"{checkpoint} is no checkpoint of a trainer: missing {missing}, unknown {unknown}")
    for name, kind in KINDS.items():
        if not isinstance(state[name], kind) or (kind is int and state[name] < 0):
            raise ValueError(f"{checkpoint} has {state[name]!r} as {name}: a trainer never wrote that")
    return state


def latest_checkpoint(run_folder: Path) -> Path:
    """The checkpoint that a run folder's `checkpoints/latest` names.

    Raises:
        FileNotFoundError: There is none yet.
        ValueError: The file holds something else than a number.
    """
    pointer = run_folder / CHECKPOINTS / LATEST
    if not pointer.is_file():
        raise FileNotFoundError(f"no checkpoint in {run_folder} yet: start the run anew in another folder")
    name = pointer.read_bytes().strip()
    if not name.isdigit():
        raise ValueError(f"{pointer} holds {name[:80]!r}: write the number of one of the folders beside it, such as 20")
    return pointer.with_name(name.decode())


def read_latest(run_folder: Path) -> tuple[Path, dict[str, Any]]:
    """The latest checkpoint of a run folder, and the state in it.

    Raises:
        FileNotFoundError: There is none yet.
        ValueError: It is damaged or missing; the message names an earlier one that is whole, where there is one.
    """
    latest = latest_checkpoint(run_folder)
    try:
        return latest, read_state(latest)
    except (ValueError, FileNotFoundError) as error:
        earlier = (
            path for path in latest.parent.iterdir() if path.name.isdigit() and int(path.name) < int(latest.name)
        )
        for checkpoint in sorted(earlier, key=lambda path: int(path.name), reverse=True):
            if _is_whole(checkpoint):
                pointer = latest.with_name(LATEST)
                raise ValueError(
                    f"{error}. {checkpoint} is whole: write {checkpoint.name} into {pointer} to go on from there"
                ) from error
        raise


def _is_whole(checkpoint: Path) -> bool:
    try:
        read_state(checkpoint)
    except (ValueError, FileNotFoundError):
        return False
    return True


def restore(trainer: "Trainer", state: Mapping[str, Any], checkpoint: Path) -> None:
    """Make a new trainer the one that was saved, callbacks aside; where it does not fit, nothing is changed.

    Raises:
        ValueError: Another recipe or sampler than the saved one's, or tensors that do not fit.
    """
    settings = (("recipe", describe(trainer.recipe)), ("sampler", sampler_settings(trainer.sampler)))
    for name, given in settings:
        difference = first_difference(state[name], given, name)
        if difference is not None:
            raise ValueError(f"{difference} of {checkpoint}: give the pieces that the run was started with")
    modules = _modules(trainer)
    for name, module in modules.items():
        _check_fits(module, state[name], f"{checkpoint}: {name}")
    optimizer = _optimizer_state(trainer.optimizer, state["optimizer"], f"{checkpoint}: optimizer")
    if isinstance(trainer.sampler, Stateful):
        _load(trainer.sampler, state["episodes"], f"{checkpoint}: episodes")
    for name, module in modules.items():
        if module is not None:
            expected = module.state_dict()
            module.load_state_dict({key: part_like(value, expected[key]) for key, value in state[name].items()})
    trainer.optimizer.load_state_dict(optimizer)
    trainer.iteration, trainer.num_steps = state["iteration"], state["num_steps"]


def restore_callbacks(trainer: "Trainer", state: Mapping[str, Any], checkpoint: Path) -> None:
    """Callbacks take what those of the same name left, in their order; new ones start as they are."""
    left = list(state["callbacks"])
    for callback in trainer.callbacks:
        if isinstance(callback, Stateful):
            name = type(callback).__name__
            found = next((entry for entry in left if entry["name"] == name), None)
            if found is not None:
                left.remove(found)
                _load(callback, found["state"], f"{checkpoint}: {name}")


def first_difference(saved: Any, given: Any, where: str) -> str | None:
    """Where two descriptions first differ, in words; None where they are equal."""
    if isinstance(saved, dict) and isinstance(given, dict):
        pairs = [(f".{key}", saved.get(key), given.get(key)) for key in {**saved, **given}]
    elif isinstance(saved, list) and isinstance(given, list) and len(saved) == len(given):
        pairs = [(f"[{number}]", *pair) for number, pair in enumerate(zip(saved, given, strict=True))]
    else:
        return None if saved == given else f"{where} is {given!r}, and {saved!r} in the file"
    differences = (first_difference(one, other, where + place) for place, one, other in pairs)
    return next((difference for difference in differences if difference is not None), None)


def sampler_settings(sampler: Sampler) -> dict[str, Any]:
    """A sampler as JSON: its name, its environment's, and its sizes."""
    names = {"name": "environment", "group_size": "group_size", "num_envs": "num_envs", "steps": "steps"}
    found = {shown: getattr(sampler, name) for name, shown in names.items() if hasattr(sampler, name)}
    return {"name": type(sampler).__name__, **found}


def _modules(trainer: "Trainer") -> dict[str, Policy | nn.Module | None]:
    """What holds parameters; a reference that shares the policy's has none of its own."""
    reference = None if trainer.reference is None else trainer.reference.policy
    has_parameters = reference is not None and any(True for _ in reference.parameters())
    return {
        "policy": trainer.policy,
        "critic": None if trainer.critic is None else trainer.critic.module,
        "reference": reference if has_parameters else None,
    }


def _check_fits(module: Policy | nn.Module | None, saved: Any, where: str) -> None:
    expected = {} if module is None else module.state_dict()
    found = saved or {}
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(f"{where} does not fit the one given: missing {missing}, unknown {unknown}")
    for name, value in expected.items():
        _check_like(found[name], value, f"{where}/{name}")


def _check_like(found: Any, expected: Tensor, where: str) -> None:
    if not isinstance(found, Tensor):
        raise ValueError(f"{where} is {found!r}: expected a tensor")
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise ValueError(
            f"{where} has shape {tuple(found.shape)} and {found.dtype}, the one given {tuple(expected.shape)} and "
            f"{expected.dtype}: give a module like the saved one"
        )


def _optimizer_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The saved state as `load_state_dict` takes it: parameters by their numbers, tuples as tuples."""
    fresh = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    groups, states = saved.get("param_groups"), saved.get("state")
    if not isinstance(groups, list) or not isinstance(states, dict) or len(saved) != 2:
        raise ValueError(f"{where} has {sorted(saved)}: expected param_groups and state")
    if [_shape_of_group(group) for group in groups] != [_shape_of_group(group) for group in fresh["param_groups"]]:
        raise ValueError(f"{where} has other parameter groups or settings than the one given: give one like it")
    known = {str(number): parameter for number, parameter in enumerate(parameters)}
    for number, values in states.items():
        if number not in known or not isinstance(values, dict):
            raise ValueError(f"{where} has a state {number!r}: the parameters are 0 to {len(known) - 1}")
        for name, value in values.items():
            if isinstance(value, Tensor) and value.ndim > 0 and not isinstance(optimizer, SHAPED_OTHERWISE):
                _check_shape(value, known[number], f"{where}/state/{number}/{name}")
    restored = [
        {key: tuple(value) if isinstance(old[key], tuple) else value for key, value in group.items()}
        for old, group in zip(fresh["param_groups"], groups, strict=True)
    ]
    cut = {
        int(number): {name: part_like(value, known[number]) for name, value in values.items()}
        for number, values in states.items()
    }
    return {"state": cut, "param_groups": restored}


def _shape_of_group(group: Any) -> Any:
    """What cannot change in a parameter group: the settings' names, and the parameters' numbers."""
    return (sorted(group), group.get("params")) if isinstance(group, dict) else group


def _check_shape(value: Tensor, parameter: Tensor, where: str) -> None:
    if value.shape != parameter.shape:
        raise ValueError(f"{where} has shape {tuple(value.shape)}, its parameter {tuple(parameter.shape)}")


def _load(piece: Stateful, state: Any, where: str) -> None:
    try:
        piece.load_state(state)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{where} is not what a {type(piece).__name__} wrote: {error!r}") from error
