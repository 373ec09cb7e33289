import math
import re
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
import torch
from environments import box
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiDiscrete, OneOf, Sequence, Text, Tuple
from helpers import Constant, Gives, bools, global_generators_untouched, ints
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Beta, Categorical, Independent, MixtureSameFamily, Normal

from grpolib import ActingPolicy, Masked, Policy, StepInputs, as_policy, mlp
from grpolib.policies import ModulePolicy, distributions
from grpolib.policies.spaces import check_observation_space, environment_actions, observation_dtype

INF = math.inf


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def observations(count, width=1):
    return torch.zeros(count, width)


def evaluated(policy, actions):
    actions = torch.as_tensor(actions)
    return policy.evaluate(StepInputs(observations(len(actions)), actions))


def assert_frequencies(actions, probabilities):
    """Every frequency lies within 4.5 standard deviations of its probability."""
    count = len(actions)
    found = torch.bincount(actions, minlength=len(probabilities)) / count
    for share, probability in zip(found.tolist(), probabilities, strict=True):
        assert abs(share - probability) <= 4.5 * math.sqrt(probability * (1 - probability) / count)


# Discrete actions.


def test_log_probabilities_and_entropy_of_logits():
    # softmax(ln 3, 0) = (3/4, 1/4); entropy 3/4 ln(4/3) + 1/4 ln 4.
    policy = as_policy(Constant(math.log(3.0), 0.0), Discrete(2))
    evaluation = evaluated(policy, [0, 1])
    torch.testing.assert_close(evaluation.log_probs, torch.tensor([0.75, 0.25]).log())
    expected = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    torch.testing.assert_close(evaluation.entropy, torch.full((2,), expected))
    assert evaluation.distribution.probs.shape == (2, 2)


def test_the_score_has_a_gradient_and_acting_has_none():
    module = Constant(0.0, 0.0)
    policy = as_policy(module, Discrete(2))
    evaluated(policy, [0]).log_probs.sum().backward()
    torch.testing.assert_close(module.output.grad, torch.tensor([0.5, -0.5]))  # 1 - p, -p
    action = policy.act(observations(3), rng())
    assert not action.log_probs.requires_grad
    assert action.log_probs.grad_fn is None


def test_a_forbidden_action_has_a_finite_entropy():
    evaluation = evaluated(as_policy(Constant(0.0, 0.0, -INF), Discrete(3)), [0, 1])
    torch.testing.assert_close(evaluation.entropy, torch.full((2,), 0.693147))
    torch.testing.assert_close(evaluation.log_probs, torch.full((2,), -0.693147))


def test_a_forbidden_action_leaves_finite_gradients():
    module = Constant(0.0, 0.0, -INF)
    evaluation = evaluated(as_policy(module, Discrete(3)), [0, 1])
    (evaluation.log_probs.sum() + evaluation.entropy.sum()).backward()
    assert module.output.grad.isfinite().all()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_forbidden_action_is_never_drawn(place):
    logits = [0.0, 0.0, 0.0]
    logits[place] = -INF
    action = as_policy(Constant(*logits), Discrete(3)).act(observations(5000), rng())
    probabilities = [0.5] * 3
    probabilities[place] = 0.0
    assert_frequencies(action.actions, probabilities)


def test_an_observation_that_allows_nothing_is_named():
    masked = Masked(Constant(0.0, 0.0, 0.0), Discrete(3))
    masks = torch.tensor([[1, 1, 0], [0, 0, 0]])
    with pytest.raises(ValueError, match=r"no action is allowed in observation 1 of 2.*end the episode there"):
        masked({"observation": observations(2), "action_mask": masks})


@pytest.mark.parametrize(
    ("probabilities", "smallest", "largest"),
    [
        ([0.0, 0.5, 0.5], 1, 2),
        ([0.5, 0.0, 0.5], 0, 2),
        ([0.5, 0.5, 0.0], 0, 1),
        ([0.0, 1.0, 0.0], 1, 1),
    ],
)
def test_the_smallest_and_the_largest_draw_are_allowed_actions(monkeypatch, probabilities, smallest, largest):
    draws = torch.tensor([[0.0], [1 - 2**-24]])  # what torch.rand can give at the ends, in float32
    monkeypatch.setattr(torch, "rand", lambda *arguments, **keywords: draws)
    distribution = Categorical(probs=torch.tensor([probabilities, probabilities]))
    assert distributions.sample(distribution, rng()).tolist() == [smallest, largest]


@given(st.lists(st.floats(-30.0, 30.0), min_size=2, max_size=6), st.integers(0, 1000))
def test_every_draw_is_an_action_with_its_log_probability(logits, seed):
    policy = as_policy(Constant(*logits), Discrete(len(logits)))
    action = policy.act(observations(20), rng(seed))
    assert action.actions.dtype == torch.long
    assert 0 <= int(action.actions.min()) <= int(action.actions.max()) < len(logits)
    expected = torch.tensor(logits).log_softmax(0)[action.actions]
    torch.testing.assert_close(action.log_probs, expected)


def test_frequencies_are_the_probabilities():
    probabilities = [0.5, 0.3, 0.15, 0.05]
    module = Constant(*[math.log(p) + 7.0 for p in probabilities])
    action = as_policy(module, Discrete(4)).act(observations(20_000), rng())
    assert_frequencies(action.actions, probabilities)


def test_rows_are_drawn_independently():
    logits = torch.tensor([[50.0, 0.0], [0.0, 50.0], [50.0, 0.0]])
    action = as_policy(Gives(lambda rows: logits), Discrete(2)).act(observations(3), rng())
    assert action.actions.tolist() == [0, 1, 0]
    coin = as_policy(Constant(0.0, 0.0), Discrete(2)).act(observations(64), rng()).actions
    assert 0 < int(coin.sum()) < 64


@pytest.mark.parametrize("start", [0, 5, -3])
def test_the_environment_counts_from_the_space_s_start(start):
    space = Discrete(3, start=start)
    action = as_policy(Constant(0.0, 0.0, 50.0), space).act(observations(2), rng())
    assert action.actions.tolist() == [2, 2]
    taken = environment_actions(action.actions, space)
    assert list(taken) == [start + 2, start + 2]
    assert all(type(one) is int for one in taken)
    assert all(space.contains(one) for one in taken)
    torch.testing.assert_close(
        evaluated(ModulePolicy(Constant(0.0, 0.0, 50.0), space), [2]).log_probs[0].exp(), torch.ones(())
    )


def test_the_deterministic_action_is_the_most_probable_one():
    logits = torch.tensor([[0.0, 1.0, 0.5], [2.0, 1.0, 0.5]])
    policy = as_policy(Gives(lambda rows: logits), Discrete(3))
    action = policy.act(observations(2), rng(), deterministic=True)
    assert action.actions.tolist() == [1, 0]
    torch.testing.assert_close(action.log_probs, logits.log_softmax(1).max(1).values)


def test_the_deterministic_action_draws_nothing():
    generator = rng()
    before = generator.get_state()
    as_policy(Constant(0.0, 0.0), Discrete(2)).act(observations(4), generator, deterministic=True)
    assert torch.equal(generator.get_state(), before)


def test_several_numbers_are_one_action():
    # ln 1/2 + ln 1/4 = -2.079442, the entropy is as much.
    evaluation = evaluated(as_policy(Constant(*[0.0] * 6), MultiDiscrete([2, 4])), [[0, 3], [1, 0], [1, 2]])
    torch.testing.assert_close(evaluation.log_probs, torch.full((3,), -2.079442))
    torch.testing.assert_close(evaluation.entropy, torch.full((3,), 2.079442))


# Continuous actions.


def test_a_two_dimensional_standard_normal():
    # Twice -ln(2 pi)/2 = -1.837877; entropy 1 + ln(2 pi) = 2.837877.
    policy = as_policy(Constant(0.0, 0.0, 0.0, 0.0), box(2))
    evaluation = evaluated(policy, [[0.0, 0.0]])
    torch.testing.assert_close(evaluation.log_probs, torch.tensor([-1.837877]))
    torch.testing.assert_close(evaluation.entropy, torch.tensor([2.837877]))


def test_means_come_first_then_log_standard_deviations():
    policy = as_policy(Constant(3.0, -1.0, math.log(2.0), math.log(0.5)), box(2))
    distribution = policy.distribution(observations(1))
    torch.testing.assert_close(distribution.mean, torch.tensor([[3.0, -1.0]]))
    torch.testing.assert_close(distribution.stddev, torch.tensor([[2.0, 0.5]]))


def test_the_batch_keeps_the_action_that_the_bounds_cut():
    # Mean 0, std 1, sampled 1.7: log-probability -1.7²/2 - ln(2 pi)/2 = -2.363939; that of 1.0 is -1.418939.
    policy = as_policy(Constant(0.0, 0.0), box(1, low=-1.0, high=1.0))
    log_probs = evaluated(policy, [[1.7], [1.0]]).log_probs.detach()
    torch.testing.assert_close(log_probs, torch.tensor([-2.363939, -1.418939]))
    # Had it kept the cut action beside the sampled one's log-probability, an untouched policy would have this ratio.
    assert (log_probs[1] - log_probs[0]).exp().item() == pytest.approx(2.572813)
    (taken,) = environment_actions(torch.tensor([[1.7]]), policy.action_space)
    assert taken.tolist() == [1.0]
    assert taken.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_environment_gets_its_own_dtype_within_its_own_bounds(dtype):
    space = Box(np.array([-1, -np.inf], dtype), np.array([2, np.inf], dtype), dtype=dtype)
    taken = environment_actions(torch.tensor([[-9.0, -9.0], [9.0, 9.0], [0.5, 0.5]]), space)
    assert [one.tolist() for one in taken] == [[-1.0, -9.0], [2.0, 9.0], [0.5, 0.5]]
    assert all(one.dtype == dtype and space.contains(one) for one in taken)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)])
def test_actions_have_the_shape_of_the_box(shape):
    size = math.prod(shape)
    policy = as_policy(Constant(*range(size), *[-2.0] * size), box(*shape))
    action = policy.act(observations(500), rng())
    assert action.actions.shape == (500, *shape)
    assert action.log_probs.shape == (500,)
    assert evaluated(policy, action.actions).entropy.shape == (500,)
    expected = torch.arange(size, dtype=torch.float32).reshape(shape)
    torch.testing.assert_close(action.actions.mean(0), expected, atol=4.5 * math.exp(-2) / 500**0.5, rtol=0)
    torch.testing.assert_close(action.actions.std(0), torch.full(shape, math.exp(-2.0)), rtol=0.2, atol=0)
    normal = Normal(expected, math.exp(-2.0))
    torch.testing.assert_close(action.log_probs, normal.log_prob(action.actions).flatten(1).sum(1))


@pytest.mark.parametrize("log_std", [torch.tensor([-1.0, 0.5]), torch.tensor([[-1.0, 0.5]])])
def test_a_pair_of_means_and_log_standard_deviations(log_std):
    means = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    policy = as_policy(Gives(lambda rows: (means, log_std)), box(2))
    distribution = policy.distribution(observations(3))
    torch.testing.assert_close(distribution.mean, means)
    torch.testing.assert_close(distribution.stddev, log_std.reshape(1, 2).exp().expand(3, 2))
    assert evaluated(policy, means).log_probs.shape == (3,)
    assert policy.act(observations(3), rng()).log_probs.shape == (3,)


@pytest.mark.parametrize("log_std", [torch.tensor(0.5), torch.tensor([0.5])])
def test_one_log_standard_deviation_for_all_dimensions(log_std):
    policy = as_policy(Gives(lambda rows: (torch.zeros(3, 2), log_std)), box(2))
    torch.testing.assert_close(policy.distribution(observations(3)).stddev, torch.full((3, 2), math.exp(0.5)))


def test_one_log_standard_deviation_a_row_stays_with_its_row():
    log_std = torch.tensor([[-1.0], [1.0]])
    policy = as_policy(Gives(lambda rows: (torch.zeros(2, 2), log_std)), box(2))
    torch.testing.assert_close(policy.distribution(observations(2)).stddev, log_std.exp().expand(2, 2))


def test_the_deterministic_action_is_the_mean():
    policy = as_policy(Constant(0.25, -4.0, 1.0, 1.0), box(2))
    action = policy.act(observations(2), rng(), deterministic=True)
    torch.testing.assert_close(action.actions, torch.tensor([[0.25, -4.0]] * 2))


# Distributions of the user's own.


def beta(rows):
    ones = torch.ones(len(rows), 2)
    return Independent(Beta(2 * ones, 3 * ones), 1)


def mixture(rows):
    count = len(rows)
    parts = Normal(torch.tensor([-1.0, 1.0]).expand(count, 2), torch.ones(count, 2))
    return MixtureSameFamily(Categorical(logits=torch.tensor([0.0, 50.0]).expand(count, 2)), parts)


def test_a_distribution_of_the_user_s_own():
    policy = as_policy(Gives(beta), box(2, low=0.0, high=1.0))
    action = policy.act(observations(2000), rng())
    torch.testing.assert_close(action.actions.mean(0), torch.tensor([0.4, 0.4]), atol=0.02, rtol=0)  # 2 / (2 + 3)
    torch.testing.assert_close(action.log_probs, beta(observations(2000)).log_prob(action.actions))
    assert action.log_probs.shape == (2000,)
    deterministic = policy.act(observations(1), rng(), deterministic=True).actions
    torch.testing.assert_close(deterministic, torch.full((1, 2), 1 / 3))  # its mode, (2 - 1) / (2 + 3 - 2)


def test_the_mean_stands_in_for_a_mode_that_is_not_there():
    policy = as_policy(Gives(mixture), box())
    deterministic = policy.act(observations(2), rng(), deterministic=True).actions
    torch.testing.assert_close(deterministic, torch.ones(2))


def test_entropy_without_a_closed_form_is_estimated_from_the_action_taken():
    policy = as_policy(Gives(mixture), box())
    evaluation = evaluated(policy, [1.0, 2.0])
    # Standard normal around 1: -log p(1) = ln(2 pi)/2, -log p(2) = that plus 1/2.
    torch.testing.assert_close(evaluation.entropy, torch.tensor([0.918939, 1.418939]))
    assert not evaluation.entropy.requires_grad


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("module", "space"),
    [
        (Constant(0.0, 0.3), Discrete(2)),
        (Constant(0.0, 0.0), box(1)),
        (Gives(beta), box(2)),
        (Gives(mixture), box()),
    ],
    ids=["categorical", "normal", "beta", "mixture"],
)
def test_draws_depend_on_the_given_generator_alone(module, space):
    policy = as_policy(module, space)
    with global_generators_untouched():
        first = policy.act(observations(64), rng(1)).actions
    torch.manual_seed(99)
    again = policy.act(observations(64), rng(1)).actions
    other = policy.act(observations(64), rng(2)).actions
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    generator = rng(1)
    policy.act(observations(64), generator)
    assert not torch.equal(policy.act(observations(64), generator).actions, first)


# What may be a policy.


def test_a_policy_stays_itself_and_a_module_is_wrapped():
    module = Constant(0.0, 0.0)
    policy = as_policy(module, Discrete(2))
    assert isinstance(policy, ModulePolicy)
    assert isinstance(policy, ActingPolicy)
    assert isinstance(policy, Policy)
    assert policy.module is module
    assert as_policy(policy, Discrete(2)) is policy
    assert list(policy.parameters()) == [module.output]


@pytest.mark.usefixtures("without_shape_hook")
def test_what_is_no_module_is_no_policy():
    with pytest.raises(TypeError, match=r"torch\.nn\.Module, got function.*mlp\(8, 64, 64, 4\)"):
        as_policy(lambda rows: rows, Discrete(2))


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 3, (2,), np.int64),
        Text(3),
        OneOf([Discrete(2), Discrete(3)]),
        Sequence(Discrete(2)),
        Dict({}),
        Tuple([]),
    ],
    ids=str,
)
def test_an_unsupported_action_space_is_named_at_once_with_a_way_out(space):
    with pytest.raises(ValueError, match=r"(?s)action space .*not supported.*Discrete.*TransformAction") as error:
        as_policy(Constant(0.0), space)
    assert str(space) in str(error.value)
    with pytest.raises(ValueError, match=re.escape(f"action space {space} is not supported")):
        as_policy(Constant(0.0), Dict(a=Discrete(2), b=Tuple([space])))


@pytest.mark.parametrize("space", [Text(3), Sequence(box(2)), OneOf([box(2)]), Graph(box(1), None), Dict({})], ids=str)
def test_an_unsupported_observation_space_is_named_with_a_way_out(space):
    with pytest.raises(ValueError, match=r"observation space .*not supported.*TransformObservation") as error:
        check_observation_space(space)
    assert str(space) in str(error.value)
    with pytest.raises(ValueError, match=re.escape(f"observation space {space} is not supported")):
        check_observation_space(Dict(a=box(2), b=Tuple([space])))


@pytest.mark.parametrize(
    ("output", "space", "message"),
    [
        (torch.zeros(4, 3), Discrete(2), r"\(4, 3\) for Discrete\(2\).*logits of shape \[n, 2\]"),
        (torch.zeros(4), Discrete(2), r"\(4,\) for Discrete\(2\).*\[n, 2\]"),
        (torch.zeros(4, 1, 2), Discrete(2), r"\(4, 1, 2\) for Discrete\(2\)"),
        ([0.0, 0.0], Discrete(2), r"a list for Discrete\(2\).*Distribution"),
        ((torch.zeros(4, 2), torch.zeros(2)), Discrete(2), r"a (tuple|pair).* for Discrete\(2\)"),
        (torch.zeros(4, 2), box(2), r"\(4, 2\) for Box.*\[n, 4\].*\(mean, log_std\)"),
        (torch.zeros(4), box(2), r"\(4,\) for Box.*\[n, 4\]"),
        ((torch.zeros(4, 2),), box(2), r"a tuple for Box.*\(mean, log_std\)"),
        ((torch.zeros(4, 3), torch.zeros(3)), box(2), r"\(4, 3\).* for Box.*\(mean, log_std\)"),
        ((torch.zeros(4, 1), torch.zeros(1)), box(2), r"\(4, 1\).* for Box.*\(mean, log_std\)"),
        ((torch.zeros(4, 2), torch.zeros(3)), box(2), r"\(3,\).* for Box.*\(mean, log_std\)"),
    ],
)
def test_an_output_that_does_not_fit_the_space(output, space, message):
    policy = as_policy(Gives(lambda rows: output), space)
    with pytest.raises(ValueError, match=message):
        policy.act(observations(4), rng())


# The border to Gymnasium.


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [(np.float64, np.float32), (np.float32, np.float32), (np.int64, np.float32), (np.uint8, np.uint8)],
)
def test_observations_are_float32_and_images_stay_uint8(given_dtype, kept):
    assert observation_dtype(Box(0, 1, (2,), given_dtype)) is kept


# The network that works out of the box.


def linear_layers(network):
    return [layer for layer in network if isinstance(layer, nn.Linear)]


@pytest.mark.parametrize("sizes", [(4, 2), (8, 64, 64, 4), (3, 5, 1), (2, 7, 3, 6, 4)])
def test_sizes_of_the_layers(sizes):
    network = mlp(*sizes)
    assert [(layer.in_features, layer.out_features) for layer in linear_layers(network)] == list(pairwise(sizes))
    assert [type(layer) for layer in network] == [nn.Linear, nn.Tanh] * (len(sizes) - 2) + [nn.Linear]
    assert network(torch.zeros(5, sizes[0])).shape == (5, sizes[-1])


@pytest.mark.parametrize(
    ("sizes", "gains"),
    [((8, 64, 32, 4), [math.sqrt(2), math.sqrt(2), 0.01]), ((8, 16, 1), [math.sqrt(2), 1.0]), ((3, 2), [0.01])],
)
def test_weights_are_orthogonal_with_their_gain_and_biases_zero(sizes, gains):
    for layer, gain in zip(linear_layers(mlp(*sizes)), gains, strict=True):
        weight = layer.weight.detach()
        square = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(square, gain**2 * torch.eye(len(square)), atol=1e-5 * gain**2, rtol=0)
        assert not layer.bias.any()


def test_a_policy_starts_near_uniform():
    policy = as_policy(mlp(8, 64, 64, 4), Discrete(4))
    entropy = policy.evaluate(
        StepInputs(torch.randn(100, 8, generator=rng()), torch.zeros(100, dtype=torch.long))
    ).entropy
    assert entropy.min().item() > math.log(4) - 1e-3


@pytest.mark.usefixtures("without_shape_hook")
def test_a_network_depends_on_its_seed_alone():
    with global_generators_untouched():
        first = mlp(4, 16, 2, seed=3)
    torch.manual_seed(99)
    again, other = mlp(4, 16, 2, seed=3), mlp(4, 16, 2, seed=4)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        if name.endswith("weight"):
            assert not torch.equal(value, other.state_dict()[name])


@pytest.mark.parametrize("sizes", [(), (4,), (4, 0), (0, 4), (4, -1, 2)])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(ValueError, match=r"at least an input and an output size") as error:
        mlp(*sizes)
    assert str(sizes) in str(error.value)


def test_a_real_environment_s_spaces_are_supported():
    environment = gymnasium.make("Pendulum-v1")
    policy = as_policy(mlp(3, 8, 2), environment.action_space)
    action = policy.act(torch.zeros(2, 3), rng())
    taken = environment_actions(100 * action.actions, environment.action_space)
    assert all(environment.action_space.contains(one) for one in taken)
    assert {abs(one.item()) for one in taken} <= {2.0}
    environment.close()


def test_evaluation_of_masked_logits_ignores_the_mask_s_value():
    mask = bools(True, True, False)
    for hole in (-INF, -1e9):
        logits = torch.tensor([0.3, -0.2, 0.0]).masked_fill(~mask, hole)
        evaluation = evaluated(
            as_policy(Gives(lambda rows, logits=logits: logits.expand(len(rows), 3)), Discrete(3)), ints(0)
        )
        torch.testing.assert_close(evaluation.log_probs.exp(), torch.tensor([1 / (1 + math.exp(-0.5))]))
