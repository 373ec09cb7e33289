"""Distributions of several numbers, of nested spaces, within bounds and under masks, against sums written out."""

import itertools
import math

import numpy as np
import pytest
import torch
from environments import box
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from helpers import Constant, Gives, bools, global_generators_untouched
from scipy import integrate, stats
from torch import nn

from grpolib import Masked, Squashed, StepInputs, as_policy
from grpolib.functional import gaussian_kl
from grpolib.policies.distributions import as_distribution, kl_to_parameters, mode, num_outputs, parameters_of, sample
from grpolib.policies.spaces import environment_actions
from grpolib.policies.squashed import SquashedGaussian
from grpolib.trees import leaves, select

INF = math.inf
SEVERAL = MultiDiscrete([2, 3, 1])
NESTED = Dict(gear=Discrete(3), lamps=Tuple([MultiBinary(2), MultiDiscrete([2, 2])]))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def logits_of(*probabilities):
    return torch.tensor(probabilities).log()


def rows(count):
    return torch.zeros(count, 1)


# Several numbers.


def test_several_numbers_are_drawn_and_scored_one_by_one():
    # (1/4, 3/4), (1/2, 1/3, 1/6), (1): p(1, 2, 0) = 3/4 * 1/6 * 1 = 1/8.
    logits = logits_of(0.25, 0.75, 1 / 2, 1 / 3, 1 / 6, 1.0).unsqueeze(0)
    distribution = as_distribution(logits, SEVERAL)
    torch.testing.assert_close(distribution.log_prob(torch.tensor([[1, 2, 0]])), torch.tensor([1 / 8]).log())
    # ln 2 - 3/4 ln(3)/... written out: -Σ p ln p of both, and 0 for the one without a choice.
    of_first = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    of_second = math.log(2) / 2 + math.log(3) / 3 + math.log(6) / 6
    torch.testing.assert_close(distribution.entropy(), torch.tensor([of_first + of_second]))
    assert mode(distribution).tolist() == [[1, 0, 0]]
    drawn = sample(as_distribution(logits.expand(20_000, -1), SEVERAL), rng())
    assert drawn.shape == (20_000, 3)
    assert drawn.dtype == torch.long
    found = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6) / 20_000
    expected = torch.outer(torch.tensor([0.25, 0.75]), torch.tensor([1 / 2, 1 / 3, 1 / 6])).flatten()
    torch.testing.assert_close(found, expected, atol=4.5 * math.sqrt(0.25 / 20_000), rtol=0)
    assert not drawn[:, 2].any()


def test_probabilities_of_several_numbers_sum_to_one():
    space = MultiDiscrete([[2, 3], [4, 2]])
    actions = torch.tensor(list(itertools.product(range(2), range(3), range(4), range(2))))
    logits = torch.randn(1, 11, generator=rng()).expand(len(actions), -1)
    distribution = as_distribution(logits, space)
    torch.testing.assert_close(distribution.log_prob(actions).exp().sum(), torch.ones(()))
    probabilities = distribution.log_prob(actions).exp()
    torch.testing.assert_close(distribution.entropy()[0], -(probabilities * probabilities.log()).sum())


def test_gradients_through_padding_are_finite():
    logits = torch.randn(4, 6, generator=rng()).requires_grad_()
    distribution = as_distribution(logits, SEVERAL)
    (distribution.log_prob(sample(distribution, rng())).sum() + distribution.entropy().sum()).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[:, :5].abs().sum() > 0


def test_a_switch_has_the_logit_of_being_on():
    # sigmoid(ln 3) = 3/4.
    distribution = as_distribution(torch.tensor([[math.log(3.0), 0.0]]), MultiBinary(2))
    torch.testing.assert_close(distribution.log_prob(torch.tensor([[1, 0]])), torch.tensor([3 / 8]).log())
    expected = math.log(2) - 0.75 * math.log(0.75) - 0.25 * math.log(0.25)
    torch.testing.assert_close(distribution.entropy(), torch.tensor([expected]))
    assert mode(distribution).tolist() == [[1, 0]]


def test_the_environment_gets_several_numbers_in_its_own_shape_start_and_type():
    space = MultiDiscrete([[2, 3], [4, 2]], start=[[0, 10], [-4, 1]], dtype=np.int32)
    (taken,) = environment_actions(torch.tensor([[1, 2, 3, 0]]), space)
    assert taken.tolist() == [[1, 12], [-1, 1]]
    assert taken.dtype == np.int32
    assert space.contains(taken)
    (taken,) = environment_actions(torch.tensor([[1, 0, 0, 1]]), MultiBinary((2, 2)))
    assert taken.tolist() == [[1, 0], [0, 1]]
    assert MultiBinary((2, 2)).contains(taken)


@pytest.mark.parametrize("action", [[2, 0, 0], [-1, 0, 0], [0, 0], [0.0, 0.0, 0.0]])
def test_numbers_that_the_space_does_not_have_are_named(action):
    with pytest.raises(ValueError, match=r"the policy gave actions .* for MultiDiscrete.*expected 3 whole numbers"):
        environment_actions(torch.tensor([action]), SEVERAL)


# Nested spaces.


def test_a_nested_distribution_is_the_product_of_its_parts():
    output = torch.randn(5, num_outputs(NESTED), generator=rng())
    distribution = as_distribution(output, NESTED)
    actions = sample(distribution, rng(1))
    gear, switches, several = output.split([3, 2, 4], dim=1)
    parts = [
        as_distribution(gear, NESTED["gear"]),
        as_distribution(switches, NESTED["lamps"][0]),
        as_distribution(several, NESTED["lamps"][1]),
    ]
    values = [actions["gear"], *actions["lamps"]]
    scored = [part.log_prob(value) for part, value in zip(parts, values, strict=True)]
    torch.testing.assert_close(distribution.log_prob(actions), torch.stack(scored).sum(0))
    torch.testing.assert_close(distribution.entropy(), torch.stack([part.entropy() for part in parts]).sum(0))
    for found, part in zip(leaves(mode(distribution)), parts, strict=True):
        assert torch.equal(found, mode(part))


def test_the_outputs_of_the_parts_may_come_by_name_and_place():
    output = torch.randn(3, num_outputs(NESTED), generator=rng())
    gear, switches, several = output.split([3, 2, 4], dim=1)
    by_name = as_distribution({"lamps": (switches, several), "gear": gear}, NESTED)
    in_a_row = as_distribution(output, NESTED)
    actions = sample(in_a_row, rng())
    assert torch.equal(by_name.log_prob(actions), in_a_row.log_prob(actions))


def test_the_environment_gets_nested_actions():
    actions = {"gear": torch.tensor([2, 0]), "lamps": (torch.tensor([[0, 1], [1, 1]]), torch.tensor([[1, 0], [0, 1]]))}
    taken = environment_actions(actions, NESTED)
    assert len(taken) == 2
    assert all(NESTED.contains(one) for one in taken)
    assert taken[0]["gear"] == 2
    assert [part.tolist() for part in taken[1]["lamps"]] == [[1, 1], [0, 1]]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (torch.zeros(2, 8), r"shape \(2, 8\).*expected \[n, 9\]"),
        ({"gear": torch.zeros(2, 3)}, r"a dictionary of \['gear'\].*a dictionary \(a tuple, for a Tuple\)"),
        ({"gear": torch.zeros(2, 3), "lamps": (torch.zeros(2, 2),)}, r"a tuple.*expected \[n, 6\]"),
    ],
)
def test_outputs_that_do_not_fit_a_nested_space(output, message):
    with pytest.raises(ValueError, match=message):
        as_distribution(output, NESTED)


def test_actions_that_lack_a_part_are_named():
    with pytest.raises(ValueError, match=r"gave actions \['gear'\] for Dict.*one part for each"):
        environment_actions({"gear": torch.zeros(1, dtype=torch.long)}, NESTED)


@pytest.mark.usefixtures("without_shape_hook")
def test_every_draw_comes_from_the_given_generator():
    distribution = as_distribution(torch.zeros(50, num_outputs(NESTED)), NESTED)
    with global_generators_untouched():
        first = sample(distribution, rng(3))
    assert all(torch.equal(a, b) for a, b in zip(leaves(first), leaves(sample(distribution, rng(3))), strict=True))


# Within bounds.

LOW, HIGH = -2.0, 5.0
BOUNDED = Box(LOW, HIGH, (1,), np.float64)


def squashed(mean, std, low=LOW, high=HIGH):
    bounds = torch.tensor([low]), torch.tensor([high])
    return SquashedGaussian(torch.tensor([[mean]]), torch.tensor([[math.log(std)]]), *bounds)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.3), (-1.5, 2.0)])
def test_the_density_within_bounds(mean, std):
    distribution = squashed(mean, std)

    def density(action):
        return float(distribution.log_prob(torch.tensor([[action]], dtype=torch.float64)).exp())

    middle, half = (LOW + HIGH) / 2, (HIGH - LOW) / 2
    for action in (-1.9, 0.0, 1.5, 4.0):
        unit = (action - middle) / half
        expected = stats.norm.pdf(math.atanh(unit), mean, std) / (half * (1 - unit**2))
        assert density(action) == pytest.approx(expected, rel=1e-5)
    total, _ = integrate.quad(lambda u: density(middle + half * math.tanh(u)) * half / math.cosh(u) ** 2, -9, 9)
    mass = stats.norm.cdf(9, mean, std) - stats.norm.cdf(-9, mean, std)
    assert total == pytest.approx(mass, abs=1e-5)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.3), (-1.5, 2.0), (3.0, 0.05)])
def test_the_entropy_within_bounds(mean, std):
    half = (HIGH - LOW) / 2
    distribution = squashed(mean, std)

    def change(u):
        # log(half · (1 - tanh² u)) = log half - 2 log cosh u
        return math.log(half) - 2 * np.logaddexp(u, -u) + 2 * math.log(2)

    expected_change, _ = integrate.quad(
        lambda u: stats.norm.pdf(u, mean, std) * change(u), mean - 12 * std, mean + 12 * std
    )
    assert float(distribution.entropy()) == pytest.approx(stats.norm.entropy(mean, std) + expected_change, abs=1e-4)


def test_the_entropy_within_bounds_has_a_gradient():
    mean, log_std = torch.tensor([[0.4]], dtype=torch.float64), torch.tensor([[0.1]], dtype=torch.float64)
    bounds = torch.tensor([LOW]), torch.tensor([HIGH])
    torch.autograd.gradcheck(
        lambda *parameters: SquashedGaussian(*parameters, *bounds).entropy(),
        (mean.requires_grad_(), log_std.requires_grad_()),
    )


def test_draws_within_bounds_follow_the_density():
    count = 20_000
    policy = as_policy(Squashed(Constant(0.5, math.log(0.8)), BOUNDED), BOUNDED)
    actions = policy.act(rows(count), rng()).actions
    assert bool(((actions > LOW) & (actions < HIGH)).all())
    unit = (actions[:, 0].numpy() - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    assert stats.kstest(np.arctanh(unit), stats.norm(0.5, 0.8).cdf).pvalue > 1e-3
    (mean,) = policy.act(rows(1), rng(), deterministic=True).actions
    assert float(mean) == pytest.approx((LOW + HIGH) / 2 + (HIGH - LOW) / 2 * math.tanh(0.5))


@pytest.mark.parametrize("mean", [-30.0, -9.0, 9.0, 30.0])
def test_far_beyond_the_bounds_everything_stays_finite(mean):
    module = Constant(mean, 0.0)
    policy = as_policy(Squashed(module, BOUNDED), BOUNDED)
    action = policy.act(rows(50), rng())
    assert all(BOUNDED.contains(one) for one in environment_actions(action.actions, BOUNDED))
    evaluation = policy.evaluate(StepInputs(rows(50), action.actions))
    assert torch.equal(evaluation.log_probs.detach(), action.log_probs)
    (evaluation.log_probs.sum() + evaluation.entropy.sum()).backward()
    assert module.output.grad.isfinite().all()


def test_the_kl_does_not_depend_on_the_bounds():
    one, other = squashed(0.3, 0.5), squashed(-0.2, 0.9)
    kl = kl_to_parameters(one, parameters_of(other), bools(True))
    parameters = [torch.tensor([[value]]) for value in (0.3, 0.5, -0.2, 0.9)]
    torch.testing.assert_close(kl, gaussian_kl(*parameters))


@pytest.mark.parametrize(
    "space", [box(2), Discrete(2), Box(np.array([0.0, -INF]), np.ones(2), dtype=np.float64)], ids=str
)
def test_without_bounds_there_is_nothing_to_squeeze_into(space):
    with pytest.raises(ValueError, match=r"has no bounds to squeeze actions into"):
        Squashed(Constant(0.0), space)


def test_a_squashed_module_gives_two_numbers_an_action():
    with pytest.raises(ValueError, match=r"expected \[n, 2\], means and then log standard deviations"):
        Squashed(Constant(0.0), BOUNDED)(rows(3))


# Masks.


def masked(logits, masks, space=None):
    """Evaluate and act with constant logits under one mask a row."""
    space = space or Discrete(len(logits))
    policy = as_policy(Masked(Constant(*logits), space), space)
    masks = torch.tensor(masks)
    return policy, {"observation": rows(len(masks)), "action_mask": masks}


def test_what_is_not_allowed_has_no_probability():
    policy, observations = masked([0.0, math.log(3.0), 5.0], [[1, 1, 0], [1, 0, 0]])
    evaluation = policy.evaluate(StepInputs(observations, torch.tensor([1, 0])))
    torch.testing.assert_close(evaluation.log_probs, torch.tensor([0.75, 1.0]).log())
    expected = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    torch.testing.assert_close(evaluation.entropy, torch.tensor([expected, 0.0]))
    (evaluation.log_probs.sum() + evaluation.entropy.sum()).backward()
    gradient = policy.module.module.output.grad
    assert gradient.isfinite().all()
    assert gradient[2] == 0.0
    many = {name: part.repeat(2000, *[1] * (part.ndim - 1)) for name, part in observations.items()}
    actions = policy.act(many, rng()).actions.reshape(2000, 2)
    assert actions[:, 0].unique().tolist() == [0, 1]
    assert actions[:, 1].unique().tolist() == [0]


def test_masks_of_several_numbers():
    policy, observations = masked([0.0] * 5, [[1, 0, 1, 1, 0]], MultiDiscrete([2, 3]))
    evaluation = policy.evaluate(StepInputs(observations, torch.tensor([[0, 1]])))
    torch.testing.assert_close(evaluation.log_probs, torch.tensor([0.5]).log())
    torch.testing.assert_close(evaluation.entropy, torch.tensor([math.log(2)]))


@pytest.mark.parametrize(
    ("space", "masks", "message"),
    [
        (Discrete(2), [[1, 1], [0, 0]], r"observation 1 of 2 \(number 0 of the action\): end the episode there"),
        (MultiDiscrete([2, 2]), [[1, 1, 0, 0]], r"observation 0 of 1 \(number 1 of the action\)"),
    ],
)
def test_where_nothing_is_allowed_there_is_an_error(space, masks, message):
    policy, observations = masked([0.0] * len(masks[0]), masks, space)
    with pytest.raises(ValueError, match="no action is allowed in " + message):
        policy.act(observations, rng())


@pytest.mark.parametrize("space", [box(1), MultiBinary(2), NESTED], ids=str)
def test_what_has_no_logits_to_mask_is_named_at_once(space):
    with pytest.raises(ValueError, match=r"has no logits to mask: use Discrete or MultiDiscrete, or return logits"):
        Masked(Constant(0.0), space)


# The exact KL.


@pytest.mark.parametrize(
    "space",
    [SEVERAL, MultiBinary(3), NESTED, Dict(a=box(2), b=Discrete(2)), Tuple([Discrete(2), Tuple([SEVERAL])])],
    ids=str,
)
def test_the_kl_of_a_product_is_the_sum_of_the_kls(space):
    outputs = [torch.randn(4, num_outputs(space), generator=rng(seed)) for seed in (1, 2)]
    one, other = (as_distribution(output, space) for output in outputs)
    counts = bools(True, True, True, False)
    kl = kl_to_parameters(one, parameters_of(other), counts)
    assert kl[3] == 0.0
    count = 100_000
    many = [as_distribution(select(output, slice(0, 1)).expand(count, -1), space) for output in outputs]
    actions = sample(many[0], rng())
    estimates = many[0].log_prob(actions) - many[1].log_prob(actions)
    assert abs(float(estimates.mean() - kl[0])) < 4.5 * float(estimates.std()) / math.sqrt(count)
    torch.testing.assert_close(kl_to_parameters(one, parameters_of(one), counts), torch.zeros(4), atol=1e-6, rtol=0)


class Two(nn.Module):
    """A mean and a log standard deviation for a Box within a Dict."""

    def __init__(self):
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(2))

    def forward(self, observations):
        count = len(observations)
        return {"a": (torch.ones(count, 2), self.log_std), "b": torch.zeros(count, 2)}


def test_a_box_within_a_dict_may_have_its_pair():
    space = Dict(a=box(2), b=Discrete(2))
    evaluation = as_policy(Two(), space).evaluate(StepInputs(rows(1), {"a": torch.ones(1, 2), "b": torch.tensor([0])}))
    torch.testing.assert_close(evaluation.log_probs, torch.tensor([-math.log(2 * math.pi) - math.log(2)]))


def test_a_distribution_of_one_s_own_in_a_nested_space():
    space = Dict(a=Discrete(2), b=Discrete(2))
    module = Gives(lambda seen: as_distribution(torch.zeros(len(seen), 4), space))
    assert as_policy(module, space).act(rows(3), rng()).log_probs.tolist() == pytest.approx([-2 * math.log(2)] * 3)
