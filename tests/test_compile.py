"""Compiled updates: the same training but for rounding, one compilation a run, and a way back to eager.

The run-time checks of shapes that the tests switch on cannot be compiled, so these tests import the library a second
time, as users have it.
"""

import importlib
import math
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from environments import Counting
from helpers import assert_same_parameters, global_states, parameters_of, slow
from torch import nn
from torch._dynamo.utils import counters


def plain_modules():
    """The library without run-time checks, by module name."""

    def ours():
        return [name for name in sys.modules if name.partition(".")[0] == "grpolib"]

    with pytest.MonkeyPatch.context() as patch:
        for name in ours():
            patch.delitem(sys.modules, name)
        finders = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")]
        patch.setattr(sys, "meta_path", finders)
        importlib.import_module("grpolib")
        return {name: sys.modules.pop(name) for name in ours()}


MODULES = plain_modules()
grpolib = MODULES["grpolib"]
mlp, recipes = grpolib.mlp, grpolib.recipes
WHOLE = grpolib.MinibatchPlan(epochs=1, size=None)

# torch warns about functions of its own while it compiles.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


@pytest.fixture(autouse=True)
def plain_library(monkeypatch):
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(monkeypatch):
    """What is traced is kept here and run as it is: without the compiler's ten seconds."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return made


class Watches(grpolib.Callback):
    """The metrics of every iteration, and how many graphs there were at its end."""

    def __init__(self, graphs=()):
        self.graphs, self.metrics, self.counts = graphs, [], []

    def on_iteration_end(self, trainer, metrics):
        self.metrics.append(metrics)
        self.counts.append(len(self.graphs))


def cartpole(module=None, *, compile=True, seed=0, **keywords):
    settings = {"group_size": 4, "groups_per_step": 2, **keywords}
    return grpolib.GRPOTrainer(module or mlp(4, 16, 2), "CartPole-v1", compile=compile, seed=seed, **settings)


def counting(**keywords):
    """Ten steps an iteration, so three minibatches an epoch, the last one short."""
    settings = {"group_size": 2, "groups_per_step": 1, "plan": grpolib.MinibatchPlan(epochs=2, size=4), **keywords}
    return grpolib.GRPOTrainer(mlp(2, 2), lambda: Counting(5), **{"compile": True, **settings})


def trained(trainer, iterations=2):
    trainer.train(iterations=iterations)
    return trainer


def trainables(trainer):
    modules = [trainer.policy] if trainer.critic is None else [trainer.policy, trainer.critic.module]
    return nn.ModuleList(modules)


def assert_close(trainer, expected):
    """Equal but for rounding.

    A gradient that is off by 1e-8 moves Adam's step by at most lr x 1e-8 / eps = 3e-7; a few dozen such steps stay
    below 1e-5, a thirtieth of what a single step of 3e-4 may move a weight.
    """
    for name, value in parameters_of(trainables(expected)).items():
        torch.testing.assert_close(parameters_of(trainables(trainer))[name], value, rtol=0, atol=1e-5, msg=name)


# The same training.


def run_of(name, compile, watches):
    annealed = [grpolib.LearningRate(grpolib.Linear(3e-4, 0.0, iterations=5))]
    settings = {"compile": compile, "callbacks": [watches], "schedules": annealed}
    if name == "ppo":
        return grpolib.PPOTrainer(mlp(4, 16, 2), "CartPole-v1", num_envs=3, steps=50, **settings)
    recipe = getattr(recipes, name)().replaced(plan=grpolib.MinibatchPlan(epochs=4, size=64))
    return cartpole(recipe=recipe, **settings)


def gradients_of(trainer, minibatch):
    trainer.update(minibatch, MODULES["grpolib.metrics"].MetricMeans())
    return [parameter.grad.clone() for parameter in trainables(trainer).parameters()]


def minibatches_of(trainer, seed=5):
    """Minibatches of a fresh batch, with everything in them that the losses read."""
    rng = torch.Generator().manual_seed(seed)
    batch = trainer.sampler.sample(trainer.policy, trainer.recipe.groups_per_step, np.random.SeedSequence(seed))
    if trainer.reference is not None:
        batch = trainer.reference.annotate(batch)
    if trainer.critic is not None:
        batch = trainer.critic.annotate(batch)
    advantages, returns = trainer.recipe.advantages(batch), None
    if hasattr(trainer.recipe.advantages, "returns"):
        returns = trainer.recipe.advantages.returns(batch)
    return list(batch.minibatches(advantages, trainer.recipe.reduction, trainer.recipe.plan, rng, returns=returns))


@pytest.mark.parametrize(
    ("name", "backend"),
    # The compiler proper takes ten seconds and more; the third run stops before it.
    [slow("grpo", "inductor"), slow("ppo", "inductor"), ("critic_free", "aot_eager")],
)
def test_compiled_training_is_eager_training_but_for_rounding(name, backend, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    watched = {compile: Watches() for compile in (False, True)}
    eager = trained(run_of(name, False, watched[False]))
    globals_before, threads = global_states(), torch.get_num_threads()
    graphs_before = counters["stats"]["unique_graphs"]
    compiled = trained(run_of(name, True, watched[True]))

    # Short last minibatches and another learning rate make no second graph.
    assert any(metrics["num_steps"] % 64 for metrics in watched[True].metrics)
    assert counters["stats"]["unique_graphs"] == graphs_before + 1
    assert global_states() == globals_before
    assert torch.get_num_threads() == threads

    assert_close(compiled, eager)
    for metrics, expected in zip(watched[True].metrics, watched[False].metrics, strict=True):
        assert metrics.keys() == expected.keys()
        for figure in metrics.keys() - {"seconds_sampling", "seconds_updating", "steps_per_second"}:
            assert metrics[figure] == pytest.approx(expected[figure], rel=1e-3, abs=1e-5, nan_ok=True), figure

    # Single gradients, from the same weights.
    minibatches = minibatches_of(eager)
    assert len({len(minibatch.weights) for minibatch in minibatches}) == 2
    for minibatch in minibatches:
        trainables(compiled).load_state_dict(trainables(eager).state_dict())
        for gradient, expected in zip(gradients_of(compiled, minibatch), gradients_of(eager, minibatch), strict=True):
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
    assert counters["stats"]["unique_graphs"] == graphs_before + 1

    # A checkpoint does not know how it was trained.
    grpolib.save_policy(compiled.policy, tmp_path)
    fresh = mlp(4, 16, 2, seed=9)
    grpolib.load_policy(fresh, tmp_path)
    assert_same_parameters(parameters_of(fresh), parameters_of(compiled.policy.module))
    trained(cartpole(fresh, compile=False), 1)


@pytest.mark.slow
def test_a_compiled_run_goes_on_with_the_same_bits(tmp_path):
    unbroken, stopped = trained(cartpole(), 4), trained(cartpole(), 2)
    stopped.save(tmp_path / "saved")
    settings = {"group_size": 4, "groups_per_step": 2}
    goes_on = grpolib.GRPOTrainer.resume(tmp_path / "saved", mlp(4, 16, 2, seed=9), "CartPole-v1", **settings)
    trained(goes_on, 2)
    assert goes_on.is_compiled
    assert_same_parameters(parameters_of(goes_on.policy), parameters_of(unbroken.policy))


# One compilation a run.


def test_one_graph_a_run(graphs):
    annealed = [grpolib.LearningRate(grpolib.Linear(1e-3, 0.0, iterations=5))]
    watches = Watches(graphs)
    trainer = cartpole(callbacks=[watches], schedules=annealed)
    trained(trained(trainer, 3), 2)
    assert watches.counts == [1] * 5
    assert len({metrics["updates"] for metrics in watches.metrics}) > 1, "batches of one size show nothing"
    assert any(metrics["num_steps"] % 64 for metrics in watches.metrics)


def test_a_batch_smaller_than_a_minibatch(graphs):
    plan = grpolib.MinibatchPlan(epochs=2, size=64)
    compiled = trained(counting(plan=plan), 4)
    assert len(graphs) == 1
    assert_close(compiled, trained(counting(plan=plan, compile=False), 4))


def test_trainers_of_one_kind_may_share_a_graph_but_no_weights(graphs):
    trainers = [counting(seed=seed) for seed in (1, 2)]
    for _ in range(2):
        for trainer in trainers:
            trained(trainer, 1)
    assert 1 <= len(graphs) <= 2
    for seed, trainer in zip((1, 2), trainers, strict=True):
        assert_close(trainer, trained(counting(seed=seed, compile=False)))


def test_any_number_of_kinds_of_trainers_is_compiled(graphs):
    # torch gives up on a function that was compiled for more than 8 kinds of input; here it is more than 1.
    with torch._dynamo.config.patch(recompile_limit=1):
        for clip_epsilon in (0.1, 0.2, 0.3):
            trained(counting(loss=[grpolib.ClippedSurrogateLoss(clip_epsilon)], reference=None))
    assert len(graphs) == 3


@pytest.mark.parametrize("name", ["grpo", "critic_free", "ppo"])
def test_rows_of_weight_0_change_nothing(name):
    trainer = trained(run_of(name, False, Watches()))
    minibatch = minibatches_of(trainer)[-1]
    padded = MODULES["grpolib.updates"].padded(minibatch, len(minibatch.weights) + 30)
    assert len(padded.weights) == len(padded.inputs) == len(minibatch.weights) + 30
    means = [MODULES["grpolib.metrics"].MetricMeans() for _ in range(2)]
    state = {key: value.clone() for key, value in trainables(trainer).state_dict().items()}
    gradients = []
    for part, collected in zip((minibatch, padded), means, strict=True):
        trainables(trainer).load_state_dict(state)
        trainer.update(part, collected)
        gradients.append([parameter.grad.clone() for parameter in trainables(trainer).parameters()])
    for gradient, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6 * float(expected.abs().max()))
    assert means[1].read() == pytest.approx(means[0].read(), rel=1e-4, abs=1e-6)


def test_what_has_the_right_size_is_not_padded():
    minibatch = minibatches_of(counting(compile=False))[0]
    assert MODULES["grpolib.updates"].padded(minibatch, len(minibatch.weights)) is minibatch


# When.


@pytest.fixture
def early(monkeypatch):
    """Compile from 10 updates on, in the third iteration."""
    monkeypatch.setattr(MODULES["grpolib.trainer"], "AUTO_UPDATES", 10)
    monkeypatch.setattr(MODULES["grpolib.trainer"], "AUTO_ITERATION", 3)


def auto(watches, **keywords):
    return counting(compile="auto", callbacks=[watches], **keywords)


@pytest.mark.usefixtures("early")
def test_auto_compiles_a_long_run_at_a_fixed_iteration(graphs):
    # Two epochs over 50 steps in minibatches of 4 are 25 updates; five iterations of ten steps.
    watches = Watches(graphs)
    auto(watches).train(total_steps=50)
    assert watches.counts == [0, 0, 1, 1, 1]


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("target", [{"total_steps": 19}, {"iterations": 5}])
def test_auto_leaves_a_short_run_alone(graphs, target):
    # 19 x 2 / 4 = 9.5 updates; a number of iterations says nothing about steps.
    watches = Watches(graphs)
    auto(watches).train(**target)
    assert set(watches.counts) == {0}


@pytest.mark.usefixtures("early")
def test_auto_counts_from_the_start_of_the_run(graphs):
    watches = Watches(graphs)
    trainer = trained(auto(watches), 4)
    trainer.train(total_steps=60)
    assert watches.counts == [0, 0, 0, 0, 1, 1]


def test_auto_waits_for_the_tenth_iteration_of_twenty_thousand_updates(graphs):
    def counts(total_steps):
        watches = Watches(graphs)
        trainer = auto(watches)
        trainer.target_steps = total_steps
        for _ in range(11):
            watches.on_iteration_end(trainer, trainer.step())
        return watches.counts

    # Two epochs in minibatches of 4: half as many updates as steps.
    assert counts(39_999) == [0] * 11
    assert counts(40_000) == [0] * 9 + [1, 1]


IMPOSSIBLE = {
    "whole episodes": {"plan": grpolib.MinibatchPlan(epochs=1, size=2, by="episode")},
    "whole batch": {"plan": WHOLE},
    "a loss that changes": {
        "loss": [grpolib.ClippedSurrogateLoss(), grpolib.EntropyBonus(0.1)],
        "reference": None,
        "schedules": [grpolib.LossSetting(grpolib.EntropyBonus, "coefficient", grpolib.Linear(0.1, 0.0, iterations=9))],
    },
}


@pytest.mark.parametrize("pieces", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_what_cannot_be_compiled_is_said(pieces):
    with pytest.raises(ValueError, match=r"compile=True needs minibatches of one size and losses that stay the same"):
        trained(counting(**pieces))


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("pieces", IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_auto_leaves_what_cannot_be_compiled_eager(graphs, pieces):
    counting(compile="auto", **pieces).train(total_steps=100)
    assert graphs == []


def test_another_word_is_refused():
    with pytest.raises(ValueError, match=r"compile is 'never': .*True, False or 'auto'"):
        counting(compile="never")


# The way back.


class Branches(nn.Module):
    """Python decides by what a tensor holds, which cannot be traced."""

    def __init__(self, *sizes):
        super().__init__()
        self.network = mlp(*sizes)

    def forward(self, observations):
        if bool((observations > 1e9).any()):
            raise ValueError("far out")
        return self.network(observations)


def one_warning(run):
    """The result of `run`, and the text of the one warning that it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)
        result = run()
    assert [warning.category for warning in caught] == [UserWarning], [str(warning.message) for warning in caught]
    return result, str(caught[0].message)


@pytest.mark.parametrize("size", [64, 10_000])
def test_a_policy_that_cannot_be_traced_stays_eager(graphs, size):
    plan = grpolib.MinibatchPlan(epochs=2, size=size)
    uncompiled, message = one_warning(lambda: trained(cartpole(Branches(4, 16, 2), plan=plan), 3))
    assert message.startswith("training goes on uncompiled: ")
    assert "\n" not in message
    assert graphs == []
    eager = trained(cartpole(Branches(4, 16, 2), plan=plan, compile=False), 3)
    assert_same_parameters(parameters_of(uncompiled.policy), parameters_of(eager.policy))


@pytest.mark.slow
def test_without_a_compiler_it_stays_eager():
    config = importlib.import_module("torch._inductor.config")
    # A size of its own: nothing that was compiled before may be found again.
    with config.patch({"cpp.cxx": (None, "/nowhere/g++")}):
        uncompiled, message = one_warning(lambda: trained(cartpole(mlp(4, 23, 2)), 2))
    assert message.startswith("training goes on uncompiled: ")
    assert "compiler" in message
    eager = trained(cartpole(mlp(4, 23, 2), compile=False), 2)
    assert_same_parameters(parameters_of(uncompiled.policy), parameters_of(eager.policy))


def test_the_reason_is_the_compiler_s_own(monkeypatch):
    def backend(graph, inputs):
        raise OSError("the disk is full")

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    _, message = one_warning(lambda: trained(counting()))
    assert "the disk is full" in message


class CountsCalls(nn.Module):
    """Keeps a number in Python that changes with every call, so that every call is a new case for the compiler."""

    def __init__(self):
        super().__init__()
        self.network, self.calls = mlp(2, 2), 0

    def forward(self, observations):
        self.calls += 1
        return self.network(observations) + 0.0 * self.calls


def changes_the_loss(trainer):
    trainer.update.losses = [grpolib.ClippedSurrogateLoss(0.1 * trainer.iteration)]


@pytest.mark.parametrize("case", ["policy", "schedule", "threads"])
def test_what_changes_after_compiling_stops_no_run(graphs, monkeypatch, case):
    """A few graphs more, or eager with one warning: but training goes on, and learns the same."""
    if case == "threads":
        # A large policy is left the threads that torch has; no policy is small here.
        monkeypatch.setattr(MODULES["grpolib.trainer"], "SMALL_POLICY", 0)

    def run(compile):
        trainer = grpolib.GRPOTrainer(
            CountsCalls() if case == "policy" else mlp(2, 2),
            lambda: Counting(5),
            group_size=2,
            groups_per_step=1,
            plan=grpolib.MinibatchPlan(epochs=2, size=4),
            advantages=lambda batch: batch.rewards.sin(),
            loss=[grpolib.ClippedSurrogateLoss()],
            reference=None,
            schedules=[changes_the_loss] if case == "schedule" else [],
            compile=compile,
        )
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            trained(trainer, 1)
            torch.set_num_threads(2 if case == "threads" else 1)
            return trained(trainer, 2)
        finally:
            torch.set_num_threads(threads)

    with torch._dynamo.config.patch(recompile_limit=3), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled = run(True)
    assert 1 <= len(graphs) <= 10, "a compilation takes seconds: there is an end to it"
    assert len(caught) <= 1
    assert_close(compiled, run(False))


def test_a_gradient_that_is_not_finite_stops_a_compiled_run_too(graphs):
    def bad(evaluation, minibatch):
        return grpolib.LossOutput(evaluation.log_probs.sum() * math.inf)

    trainer = counting(loss=[bad], reference=None)
    before = parameters_of(trainer.policy)
    with pytest.raises(FloatingPointError, match="the gradient's norm is"):
        trained(trainer)
    assert len(graphs) == 1
    assert_same_parameters(parameters_of(trainer.policy), before)
