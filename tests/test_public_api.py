import ast
import inspect
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import grpolib

DESIGNED = """
GroupBatch Minibatch MinibatchPlan StepInputs EpisodeInputs step_weights
Policy ActingPolicy RecurrentPolicy Action Evaluation as_policy mlp
cnn gru lstm network Masked MaskInObservation Normalized Recurrent Squashed
Sampler GroupSampler StepSampler WorkerProcesses RayWorkers
AdvantageEstimator GroupZScore LeaveOneOut ProcessSupervision TimestepLeaveOneOut RewardToGo GAE AnchorState
PolicyLoss LossOutput ClippedSurrogateLoss CISPOLoss ValueLoss EntropyBonus ExactKL K1 K2 K3
ReferencePolicy Critic ScaledRewards
TokenInputs CausalLMPolicy GeneratingPolicy CompletionSampler
Recipe recipes Trainer GRPOTrainer PPOTrainer A2CTrainer Ranks RankError
Callback Logger evaluate CheckpointEvery Stateful
StopAtReturn StopOnPlateau StopOnKL TimeBudget
CSVLogger JSONLinesLogger TensorBoardLogger WandbLogger LogTo
Deployed
""".split()  # noqa: SIM905

EQUATIONS = """
discounted_returns generalized_advantages
group_z_scores leave_one_out_advantages process_supervision_advantages timestep_leave_one_out_advantages
kl_k1 kl_k2 kl_k3 importance_ratio clipped_surrogate
""".split()  # noqa: SIM905


def exported(module):
    """The names that an __init__ re-exports, as it is written."""
    tree = ast.parse(Path(module.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: alias for node in imports for alias in node.names}


def run(code, *options, **keywords):
    command = [sys.executable, *options, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **keywords)


@pytest.mark.parametrize("name", DESIGNED)
def test_the_designed_names_are_there(name):
    assert name in exported(grpolib)
    assert hasattr(grpolib, name)


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_designed_equations_are_there(name):
    assert name in exported(grpolib.functional)
    assert callable(getattr(grpolib.functional, name))


@pytest.mark.parametrize("module", [grpolib, grpolib.functional])
def test_every_public_name_is_documented(module):
    for name in exported(module):
        thing = getattr(module, name)
        documentation = thing.__doc__
        assert documentation, name
        # A dataclass without a docstring gets its signature as one.
        assert not documentation.startswith(f"{name}("), name
        if inspect.isclass(thing):
            assert "__doc__" in vars(thing), name


def test_names_are_exported_as_themselves():
    # `from .x import Y as Y` tells type checkers that Y is public.
    for module in (grpolib, grpolib.functional):
        for name, alias in exported(module).items():
            assert alias.asname == alias.name == name


def test_the_package_says_that_it_is_typed():
    assert (Path(grpolib.__file__).parent / "py.typed").exists()


def test_the_version_is_written_down():
    assert grpolib.__version__[0].isdigit()


def test_recipes_are_functions_without_needed_arguments():
    for name in ("grpo", "critic_free", "ppo", "a2c"):
        assert isinstance(getattr(grpolib.recipes, name)(), grpolib.Recipe)


WITHOUT_EXTRAS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"matplotlib", "Box2D", "pygame", "gym", "tensorboard", "ray", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())

from grpolib import GroupSampler, GRPOTrainer, mlp, recipes

trainer = GRPOTrainer(mlp(4, 8, 2), "CartPole-v1", recipe=recipes.critic_free(), group_size=2, groups_per_step=1)
trainer.train(iterations=1)
print(trainer.evaluate(episodes=1).argmax.mean > 0)
try:
    GroupSampler("LunarLander-v3", 2)
except ImportError as error:
    print(repr(str(error)))
"""


def test_the_core_trains_without_any_extra_and_says_what_is_missing():
    # Warnings of deprecated names, in NumPy for instance, are errors here.
    done = run(WITHOUT_EXTRAS, "-W", "error::DeprecationWarning")
    assert done.returncode == 0, done.stderr
    trained, message = done.stdout.splitlines()
    assert trained == "True"
    assert "\\n" not in message
    assert 'pip install "grpolib[box2d]"' in message


def test_the_core_needs_no_box2d_and_takes_every_numpy():
    core = [Requirement(line) for line in metadata.requires("grpolib") if "extra ==" not in line]
    assert not any(requirement.extras for requirement in core)
    assert {requirement.name for requirement in core} & {"gym", "box2d", "Box2D"} == set()
    (numpy,) = [requirement for requirement in core if requirement.name == "numpy"]
    assert all(version in numpy.specifier for version in ("1.26.4", "2.0.0", "2.4.0"))
    assert {"box2d", "plots", "text", "cli"} <= set(metadata.metadata("grpolib").get_all("Provides-Extra"))
