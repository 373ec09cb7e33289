"""Policies as files: safetensors and JSON, never pickle."""

import dataclasses
import json
import math
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grpolib.policies import ModulePolicy, Policy
from grpolib.policies.adapter import RecurrentModulePolicy

FORMAT = 1
"""Version of the files' format."""


def save_policy(policy: Policy | nn.Module, folder: str | os.PathLike[str], **information: Any) -> None:
    """Write `policy.safetensors` and `policy.json` into `folder`; each file appears whole or not at all.

    Args:
        policy: Its parameters and buffers are written, under the names of the user's own module.
        folder: Made if missing; files of an earlier policy in it are replaced.
        information: Anything JSON holds, kept beside the format's version.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    # Clones: safetensors refuses tensors that share memory, as tied weights do.
    state = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in _plain(policy).state_dict().items()
    }
    with _whole_file(path / "policy.safetensors") as temporary:
        save_tensors(state, temporary)
    write_json(path / "policy.json", {"format": FORMAT, **information})


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors by name.

    Raises:
        OSError: It could not be done, as on a full disk.
    """
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(f"{path} could not be written ({error}): make room for it, then go on with resume") from error


def load_policy(policy: Policy | nn.Module, folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Load into `policy` what `save_policy` wrote, and return the information beside it.

    Raises:
        FileNotFoundError: No policy in `folder`.
        ValueError: Another format, a damaged file, or parameters that do not fit; `policy` is unchanged then.
    """
    path = Path(folder)
    if not (path / "policy.safetensors").exists():
        raise FileNotFoundError(f"no policy.safetensors in {path}: give a folder such as run/best")
    try:
        information: dict[str, Any] = json.loads((path / "policy.json").read_bytes())
        if not isinstance(information, dict):
            raise ValueError("it holds no dictionary")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path / 'policy.json'} is damaged: {error}") from error
    if information.get("format") != FORMAT:
        raise ValueError(f"{path} has format {information.get('format')!r}, this version reads {FORMAT}")
    try:
        state = load_file(path / "policy.safetensors")
    except SafetensorError as error:
        raise ValueError(f"{path / 'policy.safetensors'} is damaged: {error}") from error
    module = _plain(policy)
    _check_fits(module.state_dict(), state, path)
    module.load_state_dict(state)
    return information


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file that appears whole or not at all."""
    with _whole_file(path) as temporary:
        temporary.write_text(json.dumps(describe(content), indent=2, allow_nan=False) + "\n")


def describe(value: Any) -> Any:
    """A piece as JSON: the library's own by name and values, anything else by its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [describe(item) for item in value]
    if isinstance(value, partial):
        return {"name": _name(value.func), **{key: describe(item) for key, item in value.keywords.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value) if f.repr]
        return {"name": type(value).__name__, **{name: describe(getattr(value, name)) for name in fields}}
    return {"name": _name(value)}


@contextmanager
def _whole_file(path: Path) -> Generator[Path, None, None]:
    """A temporary path whose file takes the place of `path` if nothing goes wrong, and goes away if it does."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _plain(policy: Policy | nn.Module) -> Policy | nn.Module:
    """The user's own module: files do not depend on the adapter around it."""
    return policy.module if isinstance(policy, ModulePolicy | RecurrentModulePolicy) else policy


def _check_fits(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(f"{path} does not fit this policy: missing {missing}, unknown {unknown}")
    for name, value in expected.items():
        if torch.Size(found[name].shape) != value.shape:
            raise ValueError(
                f"{path}: {name} has shape {tuple(found[name].shape)}, this policy's has {tuple(value.shape)}"
            )
