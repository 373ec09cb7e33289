"""`check_group_env`: every finding by an environment that has it, and by ones that have none."""

import random
from itertools import count, cycle

import gymnasium
import numpy as np
import pytest
import torch
from environments import Counting, GivesReward, Lifting, NumpyScalars, Quitting, SameArray, Unseeded, box
from helpers import global_generators_untouched, global_states

from grpolib import GroupSampler, as_policy, check_group_env, mlp

QUESTIONS = (
    "starts_are_equal",
    "resets_are_complete",
    "episodes_are_equal",
    "has_no_global_randomness",
    "has_fresh_arrays",
)

# beartype itself draws from `random`, which is watched here.
pytestmark = pytest.mark.usefixtures("without_shape_hook")


class IgnoresSeed(Counting):
    """Draws its start from a generator of its own, seeded by the operating system."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.context = float(np.random.default_rng().random())
        return self.observation(), {}


class CountsEpisodes(Counting):
    """Something survives reset: it observes how many episodes there were."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed)

    def observation(self):
        return np.array([self.context, self.episodes], dtype=np.float32)


class NoisySteps(Counting):
    """Every step adds noise from a generator that the operating system seeded."""

    def __init__(self):
        super().__init__()
        self.noise = np.random.default_rng()

    def reward(self, action):
        return float(self.noise.random())


class OtherLength(Counting):
    """Every episode is one step longer than the last, whoever plays it."""

    lengths = count(3)

    def reset(self, *, seed=None, options=None):
        self.length = next(self.lengths)
        return super().reset(seed=seed)


class DrawsInReset(Counting):
    """Its start comes from a global generator."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.context = self.draw()
        return self.observation(), {}


class DrawsInStep(DrawsInReset):
    """Its rewards come from a global generator."""

    def reset(self, *, seed=None, options=None):
        return Counting.reset(self, seed=seed)

    def reward(self, action):
        return self.draw()


class DrawsForNothing(DrawsInStep):
    """Moves a global generator on, and does not use what it drew."""

    def reward(self, action):
        self.draw()
        return 1.0


class SeedsGlobals(DrawsInReset):
    """Seeds a global generator, and so changes it for everybody else."""

    def reset(self, *, seed=None, options=None):
        self.draw(seed)
        return Counting.reset(self, seed=seed)


class DrawsBehindOurBack(DrawsInReset):
    """Reads a global generator and puts it back."""

    def reset(self, *, seed=None, options=None):
        state = random.getstate()
        result = super().reset(seed=seed)
        random.setstate(state)
        return result


class DrawsWhenMade(Counting):
    """Uses the global generators when it is made, and never again."""

    def __init__(self):
        super().__init__()
        random.random()
        np.random.rand()  # noqa: NPY002
        torch.rand(())


class TwoArrays(Counting):
    """Gives two arrays by turns, both changed in place."""

    def __init__(self):
        super().__init__(length=6)
        self.arrays = cycle([np.zeros(2, dtype=np.float32), np.zeros(2, dtype=np.float32)])

    def observation(self):
        array = next(self.arrays)
        array[:] = self.context, self.time
        return array


class Views(Counting):
    """Gives a view of its state."""

    def __init__(self):
        super().__init__()
        self.state = np.zeros(3, dtype=np.float32)

    def observation(self):
        self.state[:2] = self.context, self.time
        return self.state[:2]


class Lists(Counting):
    """Observes a list at the start and arrays from then on."""

    def observation(self):
        array = super().observation()
        return array if self.time else array.tolist()


class Breaks(Counting):
    """Cannot be run."""

    def step(self, action):
        raise ZeroDivisionError("broken")


def draw_from_torch():
    return float(torch.rand(()))


def draw_from_numpy():
    return float(np.random.rand())  # noqa: NPY002


DRAWS = {"random": random.random, "numpy": draw_from_numpy, "torch": draw_from_torch}
SEEDS = {"random": random.seed, "numpy": np.random.seed, "torch": torch.manual_seed}


def answers(env, **keywords):
    """The questions that are answered with no."""
    report = check_group_env(env, **keywords)
    return {question for question in QUESTIONS if not getattr(report, question)}


# Answers.


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        "LunarLander-v3",
        "Pendulum-v1",
        Counting,
        Quitting,
        Lifting,
        NumpyScalars,
        Lists,
        lambda: Counting(10**6),
        lambda: GivesReward(float("nan")),
    ],
)
def test_clean_environments(env):
    report = check_group_env(env)
    assert answers(env) == set()
    assert report.is_clean
    assert "NO" not in str(report)


@pytest.mark.parametrize(
    ("env", "findings"),
    [
        (IgnoresSeed, {"starts_are_equal", "resets_are_complete", "episodes_are_equal"}),
        (CountsEpisodes, {"resets_are_complete", "episodes_are_equal"}),
        (NoisySteps, {"episodes_are_equal"}),
        (OtherLength, {"episodes_are_equal"}),
        (SameArray, {"has_fresh_arrays"}),
        (TwoArrays, {"has_fresh_arrays"}),
        (Views, {"has_fresh_arrays"}),
    ],
)
def test_each_finding_alone(env, findings):
    assert answers(env) == findings


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_start_from_a_global_generator(draw):
    found = answers(lambda: DrawsInReset(draw))
    assert found >= {"starts_are_equal", "episodes_are_equal", "has_no_global_randomness"}
    assert "has_fresh_arrays" not in found


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_rewards_from_a_global_generator(draw):
    assert answers(lambda: DrawsInStep(draw)) == {"episodes_are_equal", "has_no_global_randomness"}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_a_global_generator_that_is_moved_on_in_vain(draw):
    assert answers(lambda: DrawsForNothing(draw)) == {"has_no_global_randomness"}


@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS.keys())
def test_a_global_generator_that_is_seeded(seed):
    assert answers(lambda: SeedsGlobals(seed)) == {"has_no_global_randomness"}


def test_a_global_generator_that_is_put_back():
    found = answers(lambda: DrawsBehindOurBack(random.random))
    assert found >= {"starts_are_equal", "episodes_are_equal", "has_no_global_randomness"}


def test_no_longer_than_asked_for():
    steps = []

    class Watched(Counting):
        def reward(self, action):
            steps.append(self.time)
            return 1.0

    check_group_env(lambda: Watched(10**6), steps=7)
    assert max(steps) == 7


# What is said.


def test_the_report_explains_every_answer():
    lines = str(check_group_env(CountsEpisodes)).splitlines()
    assert lines[0] == "CountsEpisodes"
    assert len(lines) == 1 + len(QUESTIONS)
    for line, question in zip(lines[1:], QUESTIONS, strict=True):
        assert question.replace("_", " ") in line
        answer, explanation = line.split(maxsplit=1)
        assert answer == ("NO" if question in ("resets_are_complete", "episodes_are_equal") else "yes")
        assert len(explanation.partition(": ")[2]) > 40
    assert "survives reset" in lines[2]
    assert not check_group_env(CountsEpisodes).is_clean


def test_the_report_says_what_to_do_about_global_randomness():
    report = str(check_group_env(lambda: DrawsInReset(random.random)))
    assert "A global generator is used" in report
    assert "self.np_random" in report


def test_a_registered_environment_has_its_id():
    assert str(check_group_env("CartPole-v1")).startswith("CartPole-v1\n")
    assert check_group_env(lambda: gymnasium.make("CartPole-v1")).name == "CartPole-v1"


# What is left behind.


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        IgnoresSeed,
        DrawsWhenMade,
        *[lambda draw=draw: DrawsInReset(draw) for draw in DRAWS.values()],
        *[lambda seed=seed: SeedsGlobals(seed) for seed in SEEDS.values()],
    ],
)
def test_the_global_generators_are_put_back(env):
    with global_generators_untouched():
        check_group_env(env)


def test_what_does_not_run_raises_and_leaves_the_generators_too():
    before = global_states()
    with pytest.raises(ZeroDivisionError, match="broken"):
        check_group_env(Breaks)
    assert global_states() == before


def test_environments_are_closed():
    closed = []

    class Closes(Counting):
        def close(self):
            closed.append(self)

    check_group_env(Closes)
    assert len(set(map(id, closed))) == 2


def test_what_is_no_environment():
    with pytest.raises(TypeError, match=r"it must make a plain gymnasium\.Env"):
        check_group_env(lambda: box(2))


# The sampler's own look at the start.


def test_a_sampler_warns_of_what_survives_reset():
    with pytest.warns(UserWarning, match="CountsEpisodes gave different first observations") as caught:
        GroupSampler(CountsEpisodes, 2)
    assert len(caught) == 1
    assert "check_group_env" in str(caught[0].message)


def sample_twice(env):
    sampler = GroupSampler(env, 3)
    sizes = sampler.observation_space.shape[0], int(sampler.action_space.n)
    policy = as_policy(mlp(*sizes), sampler.action_space)
    for seed in range(2):
        sampler.sample(policy, 2, np.random.SeedSequence(seed))


def test_a_sampler_warns_of_an_ignored_seed_once():
    with pytest.warns(UserWarning, match="Unseeded gave different first observations") as caught:
        sample_twice(Unseeded)
    assert len(caught) == 1


@pytest.mark.parametrize("env", ["CartPole-v1", Counting, NoisySteps, SameArray])
def test_a_sampler_is_silent_where_the_starts_are_equal(env):
    sample_twice(env)
