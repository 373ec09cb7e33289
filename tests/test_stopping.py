import math
import time

import pytest
import torch
from environments import Quitting
from helpers import Constant

from grpolib import (
    K1,
    Callback,
    ClippedSurrogateLoss,
    EvaluateEvery,
    GRPOTrainer,
    MinibatchPlan,
    ReferencePolicy,
    StopAtReturn,
    StopOnKL,
    StopOnPlateau,
    TimeBudget,
    recipes,
)
from grpolib.losses import LossOutput

GOES_ON, QUITS = [5.0, -5.0], [-5.0, 5.0]
"""Outputs whose most probable action gives a return of 1 + 2 + 3 = 6, and of 1."""


class Plays(Callback):
    """Sets the policy's output at the end of each iteration; the last one stays."""

    def __init__(self, *outputs):
        self.outputs = outputs

    def on_iteration_end(self, trainer, metrics):
        output = self.outputs[min(trainer.iteration, len(self.outputs)) - 1]
        with torch.no_grad():
            trainer.policy.module.output.copy_(torch.tensor(output))


class Moves(Callback):
    """Says what an iteration's metrics are, whatever was learnt."""

    def __init__(self, name, *values):
        self.name, self.values = name, values

    def on_iteration_end(self, trainer, metrics):
        metrics[self.name] = self.values[trainer.iteration - 1]


def evaluations():
    return EvaluateEvery(1, episodes=2)


def iterations_with(*callbacks, start=QUITS, most=8, **pieces):
    """How many iterations there are of `most`."""
    trainer = GRPOTrainer(
        Constant(*start),
        Quitting,
        group_size=2,
        groups_per_step=1,
        plan=MinibatchPlan(epochs=1, size=None),
        callbacks=callbacks,
        **pieces,
    )
    trainer.train(iterations=most)
    return trainer.iteration


# A return that is good enough.


def test_training_stops_in_the_iteration_whose_evaluation_reaches_the_threshold():
    plays = Plays(QUITS, QUITS, GOES_ON)
    assert iterations_with(plays, evaluations(), StopAtReturn(6.0)) == 3  # 6 is reached, not passed
    assert iterations_with(plays, evaluations(), StopAtReturn(6.1)) == 8


def test_before_the_evaluation_it_stops_one_iteration_later():
    assert iterations_with(StopAtReturn(6.0), Plays(QUITS, QUITS, GOES_ON), evaluations()) == 4


def test_a_policy_that_is_good_from_the_start_has_one_iteration():
    assert iterations_with(StopAtReturn(6.0), evaluations(), start=GOES_ON) == 1


def test_the_latest_evaluation_decides():
    # Reached at the start, but no longer at the end of the first iteration.
    assert iterations_with(Plays(QUITS), evaluations(), StopAtReturn(6.0), start=GOES_ON) == 8


def test_either_way_of_acting_decides():
    # Even odds: the mode is the first action and goes on to the end, half of the samples quit at each step.
    even = [1e-3, 0.0]
    assert iterations_with(Plays(even), evaluations(), StopAtReturn(6.0, way="argmax")) == 1
    many = EvaluateEvery(1, episodes=40)
    assert iterations_with(Plays(even), many, StopAtReturn(6.0, way="sampled"), most=3) == 3


def test_a_run_folder_brings_the_evaluations(tmp_path):
    assert iterations_with(StopAtReturn(6.0), start=GOES_ON, run_folder=tmp_path) == 1


# No new best.


def test_training_stops_after_so_many_evaluations_without_a_new_best():
    # Means 1 (start), 1, 6, 6, 6: an equal one is no new best.
    plays = Plays(QUITS, GOES_ON)
    assert iterations_with(plays, evaluations(), StopOnPlateau(2)) == 4
    assert iterations_with(plays, evaluations(), StopOnPlateau(1)) == 1
    assert iterations_with(plays, evaluations(), StopOnPlateau(7)) == 8


def test_a_worse_evaluation_counts_against_the_best_one():
    assert iterations_with(Plays(GOES_ON, QUITS, GOES_ON, QUITS), evaluations(), StopOnPlateau(3)) == 4


def test_who_stopped_is_said_to_those_who_listen(caplog, capfd):
    caplog.set_level("INFO", logger="grpolib")
    assert iterations_with(Plays(QUITS), evaluations(), StopAtReturn(-1.0)) == 1
    assert caplog.messages == ["iteration 1: stopped by [StopAtReturn(threshold=-1.0, way='argmax')]"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("rule", [StopAtReturn(6.0), StopOnPlateau(3)])
def test_a_rule_that_would_see_no_evaluation_is_refused(rule):
    with pytest.raises(ValueError, match=r"decides by evaluations.*add EvaluateEvery\(\)") as error:
        iterations_with(rule)
    assert repr(rule) in str(error.value)


# Too far.


@pytest.mark.parametrize("metric", ["kl_old_k3", "kl_reference"])
def test_training_stops_after_the_iteration_whose_kl_is_above_the_limit(metric):
    moves = Moves(metric, 0.0, 0.02, 0.021, 0.0)
    assert iterations_with(moves, StopOnKL(0.02, metric), most=4) == 3
    assert iterations_with(moves, StopOnKL(0.5, metric), most=4) == 4


def test_a_kl_that_is_no_number_is_above_every_limit():
    assert iterations_with(Moves("kl_old_k3", math.nan), StopOnKL(0.02)) == 1


def test_what_training_itself_measures():
    # A high learning rate moves the policy from the second update on; a tiny one does not.
    def iterations(rate):
        pieces = {
            "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=rate),
            "plan": MinibatchPlan(epochs=4, size=None),
        }
        trainer = GRPOTrainer(
            Constant(0.1, 0.0), Quitting, callbacks=[StopOnKL(1e-3), StopOnKL(1e-3, "kl_reference")], **pieces
        )
        trainer.train(iterations=3)
        return trainer.iteration

    assert iterations(100.0) == 1
    assert iterations(1e-6) == 3


def test_a_kl_that_nobody_measures_is_refused():
    with pytest.raises(ValueError, match=r"log no kl_reference: .*K1, K2, K3 and ExactKL"):
        iterations_with(StopOnKL(0.1, "kl_reference"), recipe=recipes.critic_free())

    def own(evaluation, minibatch):
        return LossOutput(-(evaluation.log_probs * minibatch.weights).sum())

    with pytest.raises(ValueError, match=r"log no kl_old_k3: .*ClippedSurrogateLoss and CISPOLoss"):
        iterations_with(StopOnKL(0.1), loss=[own], reference=None)
    assert isinstance(recipes.grpo().reference, ReferencePolicy)


@pytest.mark.parametrize("term", [K1(0.1), K1(0.1, gradient="reverse_kl")])
def test_an_estimate_that_may_be_negative_is_no_limit(term):
    pieces = {"loss": [ClippedSurrogateLoss(), term], "most": 2}
    with pytest.raises(ValueError, match=r"kl_reference of K1\(.* may be negative .*: use K2, K3 or ExactKL"):
        iterations_with(StopOnKL(0.1, "kl_reference"), **pieces)
    assert iterations_with(StopOnKL(0.1), **pieces) == 2


# Time.


class Sleeps(Callback):
    def on_iteration_end(self, trainer, metrics):
        time.sleep(0.1)


def test_training_stops_when_the_time_is_up():
    assert iterations_with(Sleeps(), TimeBudget(0.05)) == 1
    assert 2 <= iterations_with(Sleeps(), TimeBudget(0.25)) <= 3
    assert iterations_with(TimeBudget(1e6), most=3) == 3


def test_each_call_of_train_has_all_of_the_time():
    trainer = GRPOTrainer(Constant(0.0, 0.0), Quitting, group_size=2, callbacks=[TimeBudget(30.0)])
    trainer.train(iterations=1)
    trainer.callbacks[1]._start -= 31.0  # half a minute goes by
    trainer.train(iterations=2)
    assert trainer.iteration == 3


# Settings.


@pytest.mark.usefixtures("without_shape_hook")
@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: StopAtReturn(math.nan), ValueError, "threshold is nan: give a finite return"),
        (lambda: StopAtReturn(math.inf), ValueError, "threshold is inf"),
        (lambda: StopAtReturn(1.0, way="mode"), ValueError, "way is 'mode': choose one of 'argmax', 'sampled'"),
        (lambda: StopOnPlateau(0), ValueError, "evaluations is 0: it must be >= 1"),
        (lambda: StopOnPlateau(1.5), TypeError, "evaluations is 1.5: give a whole number"),
        (lambda: StopOnPlateau(1, way="best"), ValueError, "way is 'best'"),
        (lambda: StopOnKL(0.0), ValueError, "limit is 0.0: it must be > 0"),
        (lambda: StopOnKL(math.nan), ValueError, "limit is nan"),
        (lambda: StopOnKL(0.1, "kl"), ValueError, "metric is 'kl': choose one of 'kl_old_k3', 'kl_reference'"),
        (lambda: TimeBudget(-1.0), ValueError, "seconds is -1.0: it must be > 0"),
    ],
)
def test_settings_that_cannot_be(make, error, message):
    with pytest.raises(error, match=message):
        make()
