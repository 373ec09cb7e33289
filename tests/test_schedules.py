"""What changes while a run goes on: lines over a horizon, learning rates, and settings of a loss."""

from types import SimpleNamespace

import pytest
import torch
from environments import Counting, Quitting
from hypothesis import given
from hypothesis import strategies as st

from grpolib import (
    K3,
    CISPOLoss,
    ClippedSurrogateLoss,
    EntropyBonus,
    GroupSampler,
    LearningRate,
    LeaveOneOut,
    Linear,
    LossSetting,
    MinibatchPlan,
    ReferencePolicy,
    Trainer,
    mlp,
)

PLAN = MinibatchPlan(epochs=2, size=4)


def at(iteration=1, num_steps=0):
    """A trainer in its `iteration`-th iteration, which has taken `num_steps` steps before."""
    return SimpleNamespace(iteration=iteration, num_steps=num_steps)


# The line.


def test_four_iterations_from_a_tenth_to_nothing():
    line = Linear(0.1, 0.0, iterations=4)
    values = [line(at(iteration)) for iteration in range(1, 9)]
    assert values == pytest.approx([0.1, 0.075, 0.05, 0.025, 0.0, 0.0, 0.0, 0.0])
    assert values[4:] == [0.0] * 4


def test_the_horizon_in_steps_counts_those_taken_before():
    line = Linear(1.0, 0.0, total_steps=1000)
    assert [line(at(num_steps=n)) for n in (0, 250, 999)] == pytest.approx([1.0, 0.75, 0.001])
    assert [line(at(num_steps=n)) for n in (1000, 1023, 10**9)] == [0.0, 0.0, 0.0]


def test_a_line_may_rise_and_may_be_flat():
    assert Linear(0.2, 0.6, iterations=4)(at(3)) == pytest.approx(0.4)
    assert Linear(0.2, 0.6, iterations=4)(at(99)) == pytest.approx(0.6)
    assert Linear(0.2, 0.2, total_steps=10)(at(num_steps=7)) == 0.2


@given(st.floats(0, 1), st.integers(1, 10**7), st.integers(0, 10**8))
def test_a_line_to_zero_never_passes_it(start, total_steps, num_steps):
    value = Linear(start, 0.0, total_steps=total_steps)(at(num_steps=num_steps))
    assert 0.0 <= value <= start
    if num_steps >= total_steps:
        assert value == 0.0


@pytest.mark.parametrize(
    ("horizon", "message"),
    [
        ({}, "either total_steps= or iterations="),
        ({"total_steps": 10, "iterations": 2}, "either total_steps= or iterations="),
        ({"total_steps": 0}, "horizon must be >= 1"),
        ({"iterations": 0}, "horizon must be >= 1"),
        ({"iterations": -4}, "horizon must be >= 1"),
    ],
)
def test_horizons_that_cannot_be(horizon, message):
    with pytest.raises(ValueError, match=message):
        Linear(1.0, 0.0, **horizon)


# In a trainer.


class Rates:
    """An optimizer's learning rate at each of its steps."""

    def __init__(self):
        self.seen = []

    def __call__(self, parameters):
        parameters = list(parameters)
        groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 77.0}]
        optimizer = torch.optim.SGD(groups, lr=33.0)
        optimizer.register_step_pre_hook(lambda *_: self.seen.append([g["lr"] for g in optimizer.param_groups]))
        return optimizer


def trained(schedules, calls, **pieces):
    """A trainer after these calls of `train`, on an environment of 3 steps: 12 steps and 6 updates an iteration."""
    pieces = {"advantages": LeaveOneOut(), "plan": PLAN, "groups_per_step": 2, **pieces}
    trainer = Trainer(mlp(2, 2), GroupSampler(Counting, 2), schedules=schedules, **pieces)
    for call in calls:
        trainer.train(**call)
    return trainer


@pytest.mark.parametrize("calls", [(4,), (2, 2), (1, 3)])
@pytest.mark.parametrize("horizon", [{"iterations": 4}, {"total_steps": 48}])
def test_several_calls_go_along_the_same_line_as_one(calls, horizon):
    rates = Rates()
    trained([LearningRate(Linear(0.1, 0.0, **horizon))], [{"iterations": n} for n in calls], optimizer=rates)
    # Every update of an iteration reads the same rate, in every parameter group.
    expected = [rate for rate in (0.1, 0.075, 0.05, 0.025) for _ in range(6)]
    assert len(rates.seen) == 24
    for (first, second), rate in zip(rates.seen, expected, strict=True):
        assert first == second == pytest.approx(rate)


def test_a_run_that_overshoots_its_horizon_stops_learning_and_never_goes_back():
    rates = Rates()
    schedules = [LearningRate(Linear(0.1, 0.0, total_steps=20))]
    trainer = trained(schedules, [{"total_steps": 30}], optimizer=rates)
    assert trainer.num_steps == 36
    # Steps before each iteration: 0, 12, 24.
    assert [first for first, _ in rates.seen[::6]] == pytest.approx([0.1, 0.04, 0.0])
    assert rates.seen[-1] == [0.0, 0.0]


def test_any_function_of_the_trainer_is_a_schedule():
    rates, seen = Rates(), []
    halved = LearningRate(lambda trainer: 0.5**trainer.iteration)
    trained([halved, lambda trainer: seen.append(trainer.num_steps)], [{"iterations": 3}], optimizer=rates)
    assert [first for first, _ in rates.seen[::6]] == [0.5, 0.25, 0.125]
    assert seen == [0, 12, 24]


# Settings of a loss.


def test_the_entropy_bonus_is_annealed_to_exactly_nothing():
    loss = [ClippedSurrogateLoss(), EntropyBonus(0.3)]
    seen = []
    schedules = [
        LossSetting(EntropyBonus, "coefficient", Linear(0.3, 0.0, iterations=3)),
        lambda trainer: seen.append(trainer.update.losses[1].coefficient),
    ]
    trainer = trained(schedules, [{"iterations": 5}], loss=loss)
    assert seen == pytest.approx([0.3, 0.2, 0.1, 0.0, 0.0])
    assert seen[3:] == [0.0, 0.0]
    # The recipe's own loss is a value that several trainers may share.
    assert loss[1].coefficient == 0.3
    assert trainer.recipe.loss[1].coefficient == 0.3
    assert trainer.update.losses[0] == ClippedSurrogateLoss()


def test_at_the_end_of_its_schedule_a_bonus_changes_no_bit():
    def final(*losses, **schedule):
        trainer = Trainer(
            mlp(2, 8, 2),
            GroupSampler(Quitting, 4),
            advantages=LeaveOneOut(),
            loss=[ClippedSurrogateLoss(), *losses],
            groups_per_step=2,
            **schedule,
        )
        trainer.train(iterations=2)
        return [parameter.detach() for parameter in trainer.policy.parameters()]

    gone = [LossSetting(EntropyBonus, "coefficient", lambda trainer: 0.0)]
    without, ended, kept = final(), final(EntropyBonus(0.3), schedules=gone), final(EntropyBonus(0.3))
    assert all(torch.equal(first, second) for first, second in zip(without, ended, strict=True))
    assert not all(torch.equal(first, second) for first, second in zip(without, kept, strict=True))


def test_all_losses_of_the_type_are_set_and_no_other():
    losses = [ClippedSurrogateLoss(0.1), ClippedSurrogateLoss(0.2, dual_clip=3.0), CISPOLoss(1.0)]
    trainer = SimpleNamespace(update=SimpleNamespace(losses=losses))
    LossSetting(ClippedSurrogateLoss, "clip_epsilon", lambda _: 0.05)(trainer)
    expected = [ClippedSurrogateLoss(0.05), ClippedSurrogateLoss(0.05, dual_clip=3.0), CISPOLoss(1.0)]
    assert trainer.update.losses == expected


def test_a_setting_of_a_kl_term():
    pieces = {"loss": [ClippedSurrogateLoss(), K3(0.5)], "reference": ReferencePolicy()}
    trainer = trained([LossSetting(K3, "coefficient", Linear(0.5, 0.1, iterations=2))], [{"iterations": 2}], **pieces)
    assert trainer.update.losses[1].coefficient == pytest.approx(0.3)


def test_a_value_that_the_loss_refuses_raises_before_the_iteration():
    trainer = trained([], [])
    with pytest.raises(ValueError, match=r"clip_epsilon is 1\.5"):
        LossSetting(ClippedSurrogateLoss, "clip_epsilon", lambda _: 1.5)(trainer)
    assert trainer.update.losses == [ClippedSurrogateLoss()]


@pytest.mark.parametrize("loss", [EntropyBonus, K3])
def test_a_loss_that_is_not_there_raises(loss):
    setting = LossSetting(loss, "coefficient", Linear(0.0, 0.1, iterations=2))
    with pytest.raises(ValueError, match=f"no {loss.__name__} among the losses"):
        trained([setting], [{"iterations": 1}])


def test_a_field_that_is_not_there_raises():
    setting = LossSetting(ClippedSurrogateLoss, "epsilon", lambda _: 0.1)
    with pytest.raises((TypeError, ValueError), match="epsilon"):
        trained([setting], [{"iterations": 1}])
