"""What a user's script looks like to a type checker, and that it runs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typed_script

ROOT = Path(__file__).parents[1]
SCRIPT = Path(typed_script.__file__)

WRONG = """
from grpolib import GAE, Critic, GroupSampler, GRPOTrainer, K3, Linear, LeaveOneOut, Trainer, mlp, recipes

policy, sampler = mlp(4, 8, 2), GroupSampler("CartPole-v1", 2)
Trainer(policy, sampler, advantages=LeaveOneOut(), loss=[3])
Trainer(policy, sampler, advantages="loo")
Trainer(policy, sampler, advantages=LeaveOneOut(), clip=0.2)
GRPOTrainer(policy, 3)
GRPOTrainer(policy, "CartPole-v1", recipe=recipes.grpo)
K3("0.04")
K3(0.04, gradient="forward")
GAE(gamma=0.99)
Critic(lambda x: x)
Linear(1.0, 0.0, steps=3)
trainer: GRPOTrainer = Trainer(policy, sampler, advantages=LeaveOneOut())
GRPOTrainer.resume("run", policy)
GRPOTrainer.resume("run", policy, "CartPole-v1", group_sise=4)
"""


@pytest.mark.slow
def test_a_strict_type_checker_takes_the_script_and_refuses_wrong_calls(tmp_path):
    pytest.importorskip("mypy")
    wrong = tmp_path / "wrong_script.py"
    wrong.write_text(WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(SCRIPT), str(wrong)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stderr == ""
    # By name: what the checker remembers from another run has that run's folder.
    places = [line.split(": error:")[0] for line in found.stdout.splitlines() if ": error:" in line]
    errors = {Path(place).name for place in places}
    lines = [number for number, line in enumerate(WRONG.splitlines(), 1) if line and "import" not in line]
    assert errors == {f"{wrong.name}:{number}" for number in lines[1:]}, found.stdout


def test_the_script_runs(capsys, tmp_path):
    assert typed_script.groups().num_steps > 8
    assert [trainer.num_steps for trainer in typed_script.segments()] == [16, 16, 20]
    assert typed_script.named().group_size == 2
    assert typed_script.stopped(tmp_path / "saved").iteration == 0
    assert torch.isfinite(typed_script.by_hand())
    assert capsys.readouterr().out.count("\n") == 2
