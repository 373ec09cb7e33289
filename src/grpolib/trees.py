"""Observations and actions of nested spaces: trees of tensors with one row a step, handled as one tensor is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

Tree: TypeAlias = Any
"""A tensor [n, ...], or a dictionary or tuple of trees, all with the same n rows.

Any to a type checker: a policy for one space says what it takes, a tensor for instance.
"""


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree of `function(leaf, *leaves of the others at the same place)`.

    What is no dictionary, tuple or list is a leaf; lists become tuples.
    """
    if isinstance(tree, Mapping):
        return {name: tree_map(function, part, *(other[name] for other in others)) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(tree_map(function, *parts) for parts in zip(tree, *others, strict=True))
    return function(tree, *others)


def leaves(tree: Any) -> list[Any]:
    """The leaves, in the tree's order."""
    if isinstance(tree, Mapping):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def num_rows(tree: Tree) -> int:
    """N.

    Raises:
        ValueError: The leaves differ in their number of rows.
    """
    if isinstance(tree, Tensor):
        return len(tree)
    counts = sorted({len(leaf) for leaf in leaves(tree)})
    if len(counts) != 1:
        raise ValueError(f"the parts have {counts} rows: all parts have one row a step")
    return counts[0]


def select(tree: Tree, rows: Tensor | slice) -> Tree:
    """These rows of each leaf: their numbers, a range, or truth values."""
    return tree_map(lambda leaf: leaf[rows], tree)


def join(trees: Sequence[Tree]) -> Tree:
    """The rows of the first tree, then those of the second, and so on."""
    return tree_map(lambda *parts: torch.cat(parts), *trees)


def move(tree: Tree, device: torch.device) -> Tree:
    """The same tree on another device."""
    return tree_map(lambda leaf: leaf.to(device), tree)


def features(tree: Tree) -> Float[Tensor, "n F"]:
    """One row of numbers a step: the leaves side by side, in floating point."""
    if isinstance(tree, Tensor):
        return _as_floats(tree)
    return torch.cat([_as_floats(leaf) for leaf in leaves(tree)], dim=1)


def _as_floats(leaf: Tensor) -> Tensor:
    rows = leaf.reshape(len(leaf), -1)
    return rows if rows.is_floating_point() else rows.float()
