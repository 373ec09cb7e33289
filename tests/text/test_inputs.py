import pytest
import torch
from helpers import bools, ints

from grpolib import TokenInputs


def some_inputs():
    return TokenInputs.of([[5, 6], [7, 8, 9], [4]], [[10], [11, 2], [12, 13, 14], [15]], [0, 0, 1, 2])


def test_prompts_are_padded_left_and_completions_right():
    inputs = some_inputs()
    assert inputs.prompts.tolist() == [[0, 5, 6], [7, 8, 9], [0, 0, 4]]
    assert inputs.prompt_mask.tolist() == [[False, True, True], [True, True, True], [False, False, True]]
    assert inputs.completions.tolist() == [[10, 0, 0], [11, 2, 0], [12, 13, 14], [15, 0, 0]]
    assert inputs.lengths.tolist() == [1, 2, 3, 1]
    assert inputs.prompt_lengths.tolist() == [2, 3, 1]
    assert inputs.tokens.tolist() == [10, 11, 2, 12, 13, 14, 15]


def test_selected_completions_bring_their_prompts_and_no_more_padding_than_they_need():
    part = some_inputs().select_episodes(ints(3, 0))
    assert part.prompts.tolist() == [[5, 6], [0, 4]]
    assert part.completions.tolist() == [[15], [10]]
    assert part.prompt_index.tolist() == [1, 0]


def test_a_prompt_stands_once_however_often_it_is_selected():
    part = some_inputs().select_episodes(ints(1, 0, 1))
    assert part.prompts.tolist() == [[5, 6]]
    assert part.prompt_index.tolist() == [0, 0, 0]


def test_concatenated_inputs_are_those_of_all_completions():
    inputs = some_inputs()
    first, second, third = (inputs.select_episodes(ints(*rows)) for rows in ((0, 1), (2,), (3,)))
    joined = first.concatenate([second, third])
    for name in ("prompts", "prompt_mask", "completions", "completion_mask", "prompt_index"):
        assert torch.equal(getattr(joined, name), getattr(inputs, name)), name


def test_single_tokens_cannot_be_selected():
    with pytest.raises(ValueError, match="by='episode'"):
        some_inputs().select_steps(slice(0, 1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompt_mask": bools(1, 0).unsqueeze(0)}, "prompts left"),
        ({"completion_mask": bools(0, 1).unsqueeze(0)}, "completions right"),
        ({"completion_mask": bools(1, 0, 1).unsqueeze(0), "completions": ints(1, 1, 1).unsqueeze(0)}, "hole"),
        ({"completion_mask": bools(1).unsqueeze(0)}, "2-D"),
        ({"prompt_index": ints(1)}, "leaves 0..0"),
        ({"prompt_index": ints(0, 0)}, "1 completions"),
    ],
)
@pytest.mark.usefixtures("without_shape_hook")
def test_masks_that_do_not_fit_are_refused(changed, message):
    mask = bools(1, 1).unsqueeze(0)
    ids = ints(5, 6).unsqueeze(0)
    fields = {
        "prompts": ids,
        "prompt_mask": mask,
        "completions": ids,
        "completion_mask": mask,
        "prompt_index": ints(0),
    }
    TokenInputs(**fields)
    with pytest.raises(ValueError, match=message):
        TokenInputs(**{**fields, **changed})


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(ValueError, match="prompt has no token"):
        TokenInputs.of([[], [1]], [[1], [2]], [0, 1])
