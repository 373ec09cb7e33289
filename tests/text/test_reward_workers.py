"""A reward on workers: the scores of a call here, in order, and one clear error when something goes wrong."""

import os

import pytest

from grpolib import WorkerError, WorkerProcesses
from grpolib.text.rewards import ExactMatch, OnWorkers, StepRewards, Weighted, score, score_parts

pytestmark = pytest.mark.usefixtures("without_shape_hook")
TEXTS = ["a", "bb", "ccc", "dddd", "eeeee"]
PROMPTS = list(range(5))
COLUMNS = {"base": [10, 20, 30, 40, 50]}


def sizes(prompts, completions, base, **_):
    """How many completions the call had, and what each is: a mixture of all that a reward may give."""
    values = [number + len(text) for number, text in zip(base, completions, strict=True)]
    return [None if prompt == 1 else value for prompt, value in zip(prompts, values, strict=True)]


async def waited_for(completions, **_):
    return [StepRewards((1,), (float(len(text)),)) for text in completions]


def where(completions, **_):
    return [os.getpid() for _ in completions]


def how_many(completions, **_):
    return [len(completions)] * len(completions)


class Obeys:
    """The completion is an order."""

    def __call__(self, completions, **_):
        for order in completions:
            if order == "die":
                os._exit(3)
            if order == "raise":
                raise RuntimeError("no such answer")
        return [1.0] * len(completions)


@pytest.fixture
def on_workers():
    made = []

    def make(reward, workers=2, **settings):
        made.append(OnWorkers(reward, workers, **settings))
        return made[-1]

    yield make
    for reward in made:
        reward.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reward", [sizes, waited_for])
def test_the_scores_are_those_of_a_call_here(on_workers, reward, workers):
    expected = score(reward, PROMPTS, TEXTS, COLUMNS)
    there = on_workers(reward, workers, rows=2)
    assert score(there, PROMPTS, TEXTS, COLUMNS) == expected
    assert score(there, PROMPTS[:1], TEXTS[:1], {"base": [10]}) == expected[:1]
    assert score(there, [], [], {}) == []


def test_it_is_called_elsewhere_for_so_many_completions(on_workers):
    assert os.getpid() not in score(on_workers(where), PROMPTS, TEXTS, {})
    assert score(on_workers(how_many, 0, rows=3), PROMPTS, TEXTS, {}) == [3, 3, 3, 2, 2]


def test_a_part_of_a_sum_keeps_its_name_and_column(on_workers):
    columns = {"answer": TEXTS}
    reward = Weighted({"right": on_workers(ExactMatch(), 1, rows=9), "long": how_many})
    assert score_parts(reward, PROMPTS, TEXTS, columns)[1] == {"right": [1.0] * 5, "long": [5.0] * 5}
    assert score_parts(on_workers(sizes, 0), PROMPTS, TEXTS, COLUMNS)[1].keys() == {"sizes"}


def test_a_reward_that_fails_there_is_one_error_and_the_next_call_starts_anew(on_workers):
    there = on_workers(Obeys(), 1)
    with pytest.raises(WorkerError, match=r"(?s)running the reward of completions 1 to 1.*no such answer"):
        score(there, [0, 1], ["fine", "raise"], {})
    with pytest.raises(WorkerError, match="while running the reward of completions 0 to 0"):
        score(there, [0], ["die"], {})
    assert score(there, [0], ["fine"], {}) == [1.0]


def test_a_wrong_score_names_the_reward(on_workers):
    with pytest.raises(WorkerError, match="words gave 'much'"):
        score(on_workers(words, 1), [0], ["text"], {})


def words(completions, **_):
    return ["much" for _ in completions]


@pytest.mark.parametrize(
    ("reward", "workers", "rows", "error", "says"),
    [
        ("sizes", 1, 1, TypeError, "reward is 'sizes': give a function"),
        (sizes, -1, 1, ValueError, "workers is -1"),
        (sizes, WorkerProcesses(1), 0, ValueError, "rows is 0"),
        (sizes, 1, 1.5, TypeError, "rows"),
    ],
)
def test_settings_that_are_none_are_refused(reward, workers, rows, error, says):
    with pytest.raises(error, match=says):
        OnWorkers(reward, workers, rows=rows)
