"""A folder of JSON and safetensors that appears whole or not at all, and is read without running anything."""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grpolib.checkpoint import save_tensors

FORMAT = 1
"""Version of the folder's format."""
STATE, TENSORS = "checkpoint.json", "tensors.safetensors"
REFERENCE = "$tensor"
"""The key that stands in the JSON for a tensor of the other file."""


def write_archive(folder: Path, state: Mapping[str, Any]) -> None:
    """Write numbers, words, tensors, and lists and dictionaries of them; what is there after a crash is complete.

    Args:
        folder: Must not exist. It is written beside, flushed to the disk, and then renamed.
        state: Keys become words, tuples become lists.

    Raises:
        FileExistsError: The folder exists.
        OSError: It could not be written, as on a full disk; nothing of it stays.
        TypeError: The state holds something else; the message says where.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists: give another, nothing is overwritten")
    tensors: dict[str, Tensor] = {}
    structure = _packed(state, "", tensors)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
    temporary.mkdir()
    try:
        save_tensors(tensors, temporary / TENSORS)
        checksums = {"state": _checksum(structure), TENSORS: _file_checksum(temporary / TENSORS)}
        document = {"format": FORMAT, "sha256": checksums, "state": structure}
        (temporary / STATE).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        for path in (temporary / TENSORS, temporary / STATE, temporary):
            _flush(path)
        os.replace(temporary, folder)
        _flush(folder.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_archive(folder: Path) -> dict[str, Any]:
    """What `write_archive` wrote: nothing missing, nothing added, no bit changed. Tensors lie on the CPU.

    Raises:
        FileNotFoundError: No such folder, or one of its files is missing.
        ValueError: Another format, a file too many, a link, or a damaged file; the message names it.
    """
    for path in (folder / STATE, folder / TENSORS):
        if not path.is_file():
            raise FileNotFoundError(f"no {path.name} in {folder}: give a folder that trainer.save(folder) made")
        if path.is_symlink():
            raise ValueError(f"{path} is a link: nothing outside a checkpoint is read, put the file itself there")
    unknown = sorted({path.name for path in folder.iterdir()} - {STATE, TENSORS})
    if unknown:
        raise ValueError(f"{folder / unknown[0]} is no part of a checkpoint: move it elsewhere")
    document = _read_json(folder / STATE)
    if document.get("format") != FORMAT:
        raise ValueError(
            f"{folder / STATE} has format {document.get('format')!r}, this version reads {FORMAT}: resume with the "
            "version of grpolib that wrote it"
        )
    if document.get("sha256") != {
        "state": _checksum(document.get("state")),
        TENSORS: (document.get("sha256") or {}).get(TENSORS),
    }:
        _refuse(folder / STATE, "its checksum is not the one written in it")
    try:
        tensors = load_file(folder / TENSORS)  # maps the file; one of another size than it says is not read through
    except SafetensorError as error:
        _refuse(folder / TENSORS, str(error))
    if document["sha256"][TENSORS] != _file_checksum(folder / TENSORS):
        _refuse(folder / TENSORS, f"its checksum is not the one in {STATE}")
    return _unpacked_all(document["state"], tensors, folder)


def write_text(path: Path, text: str) -> None:
    """Replace a small file; it holds the old text or the new one, also after a power failure."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text)
    _flush(temporary)
    os.replace(temporary, path)
    _flush(path.parent)


def _packed(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; tensors go to `tensors` by where they stand."""
    if isinstance(value, Tensor):
        if where in tensors:
            raise TypeError(f"two tensors are called {where}: a name must not have a slash in it")
        # A clone: safetensors refuses tensors that share memory, as tied weights do.
        tensors[where] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {REFERENCE: where}
    if isinstance(value, Mapping):
        return {str(key): _packed(item, f"{where}/{key}".lstrip("/"), tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(item, f"{where}/{number}", tensors) for number, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise TypeError(
        f"{where} is {value!r}: a checkpoint holds tensors, finite numbers, words, and lists and dictionaries of them"
    )


def _unpacked_all(structure: Any, tensors: Mapping[str, Tensor], folder: Path) -> dict[str, Any]:
    left = dict(tensors)
    try:
        state = _unpacked(structure, left)
    except KeyError as error:
        _refuse(folder / TENSORS, f"{error} is missing")
    if left:
        _refuse(folder / TENSORS, f"{sorted(left)} stand in it and not in {STATE}")
    if not isinstance(state, dict):
        _refuse(folder / STATE, "its state is no dictionary")
    return state


def _unpacked(value: Any, left: dict[str, Tensor]) -> Any:
    """The value with tensors in their places again, taken out of `left`."""
    if isinstance(value, dict):
        name = value.get(REFERENCE)
        return left.pop(name) if isinstance(name, str) else {key: _unpacked(item, left) for key, item in value.items()}
    return [_unpacked(item, left) for item in value] if isinstance(value, list) else value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        _refuse(path, str(error))
    if not isinstance(document, dict) or not isinstance(document.get("sha256", {}), dict):
        _refuse(path, "it holds no dictionary")
    return document


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _refuse(path: Path, reason: str) -> NoReturn:
    raise ValueError(f"{path} is damaged ({reason}): bring back a copy of it, or resume from an earlier checkpoint")


def _checksum(structure: Any) -> str:
    return hashlib.sha256(json.dumps(structure, separators=(",", ":")).encode()).hexdigest()


def _file_checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _flush(path: Path) -> None:
    """Wait until a file, or what a directory lists, is on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no directories
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
