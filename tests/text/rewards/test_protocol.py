import functools

from grpolib.text.rewards import ExactMatch, Reward, exact_match
from grpolib.text.rewards.protocol import reward_name


def test_functions_and_objects_are_rewards():
    assert isinstance(exact_match, Reward)
    assert isinstance(ExactMatch(), Reward)
    assert not isinstance(1.0, Reward)


def test_names():
    assert reward_name(exact_match) == "exact_match"
    assert reward_name(ExactMatch()) == "ExactMatch"
    assert reward_name(functools.partial(exact_match)) == "partial"
