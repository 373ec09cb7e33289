"""Language models that FSDP2 shares out: every rank keeps a part of each parameter, its gradient and its moments."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from grpolib.policies import Policy, SplittingPolicy

if TYPE_CHECKING:
    from grpolib.ranks import Ranks


def shard_policy(policy: nn.Module, ranks: "Ranks") -> None:
    """Share a language model's parameters out among the ranks, in place, by PyTorch's `fully_shard`.

    While the policy learns, a layer is whole only for as long as it computes. While it writes completions, the whole
    model is on every rank, since ranks write texts of different lengths. All ranks start from rank 0's weights; one
    rank alone keeps its policy as it is.

    Args:
        policy: A `CausalLMPolicy`, before the trainer gets it.
        ranks: What the trainer gets too.

    Raises:
        TypeError: Another policy; every rank has the whole of those.
        ImportError: PyTorch is too old for it.
    """
    from torch.distributed import fsdp
    from torch.distributed.device_mesh import init_device_mesh

    from grpolib.text.inputs import TokenInputs

    if not isinstance(policy, SplittingPolicy):
        raise TypeError(f"policy is a {type(policy).__name__}: FSDP2 is for language models, give a CausalLMPolicy")
    if not hasattr(fsdp.FSDPModule, "set_reshard_after_forward"):
        raise ImportError(f"PyTorch {torch.__version__} has no FSDP2 that keeps a model whole for a while: update it")
    if ranks.size == 1:
        return
    ranks.start_equal(policy.state_dict().values())
    device = next(policy.parameters()).device
    mesh = init_device_mesh(device.type, (ranks.size,))
    for part in (*_layers(policy), policy):
        fsdp.fully_shard(part, mesh=mesh)
    # The trainer calls `evaluate`, which also uses weights that the model's own forward has left behind.
    fsdp.register_fsdp_forward_method(policy, "evaluate")
    with torch.no_grad(), whole(policy):  # FSDP2 takes for the whole what is called first, which must not be a layer
        policy.evaluate(TokenInputs.of([[0]], [[0]], [0]).to(device))


def is_sharded(policy: Policy | nn.Module) -> bool:
    """Whether it went through `shard_policy`."""
    return hasattr(policy, "unshard")


def in_parts(policy: Policy | nn.Module) -> bool:
    """Whether this rank has a part of every parameter."""
    return all(_is_part(parameter) for parameter in policy.parameters())


@contextmanager
def whole(policy: Policy | nn.Module) -> Generator[None, None, None]:
    """Have the whole of a sharded policy on every rank, where each may then call it as often as it likes.

    All ranks come here together. Any other policy is whole anyway.

    >>> with whole(torch.nn.Linear(1, 1)):
    ...     pass
    """
    parts = _shards(policy)
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not policy, recurse=False)


def check_whole_for(call: str, policy: nn.Module) -> None:
    """Raise before a call that some ranks make more often than others, who would wait for ever."""
    if any(_is_part(parameter) for parameter in policy.parameters()):
        raise RuntimeError(
            f"this rank has a part of the policy: call {call} within `with whole(policy):`, on all ranks"
        )


def part_gradients(
    loss: Tensor, policy: Policy | nn.Module, parameters: Sequence[nn.Parameter], ranks: "Ranks"
) -> "list[Tensor | None]":
    """This rank's part of the gradients' sum over all ranks; FSDP2 gives their mean, and only into `.grad`."""
    for parameter in parameters:
        parameter.grad = None
    loss.backward()
    # What the layers leave over stays whole by itself, and would be what it was before the optimizer's step.
    for part in _shards(policy):
        part.reshard()
    return [None if parameter.grad is None else parameter.grad * ranks.size for parameter in parameters]


def gathered(state: Any) -> Any:
    """A state dictionary with whole tensors in the place of parts; all ranks come here together."""
    if _is_part(state):
        return state.full_tensor()
    if isinstance(state, Mapping):
        return {name: gathered(value) for name, value in state.items()}
    return state


def part_like(value: Any, expected: Any) -> Any:
    """This rank's part of a whole tensor, where `expected` is one of a tensor of that shape; else the value."""
    if not _is_part(expected) or not isinstance(value, Tensor) or value.shape != expected.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    local = value.to(expected.device)
    return distribute_tensor(local, expected.device_mesh, expected.placements, src_data_rank=None)


def _shards(policy: Policy | nn.Module) -> list[Any]:
    return [module for module in policy.modules() if is_sharded(module)]


def _is_part(value: Any) -> bool:
    return hasattr(value, "full_tensor")


def _layers(model: nn.Module) -> list[nn.Module]:
    """What transformers says is not to be split: the blocks. None for a model that says nothing."""
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in names]
