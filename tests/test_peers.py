"""Numbers that other libraries' own code computed: examples/benchmarks/peer_vectors.py wrote them."""

import json
from pathlib import Path

import pytest
import torch
from helpers import make_batch

from grpolib import GAE, GroupZScore, LeaveOneOut
from grpolib.functional import group_z_scores, leave_one_out_advantages

PEERS = json.loads((Path(__file__).parent / "golden" / "peers.json").read_text())


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def assert_agree(actual, expected):
    """To a millionth, relative to the number or to 1."""
    torch.testing.assert_close(actual, f64(expected), rtol=1e-6, atol=1e-6)


def batch_of(case):
    """The rollout's segments, each an episode of its own; float64."""
    return make_batch(
        case["lengths"],
        group_ids=range(len(case["lengths"])),
        rewards=f64(case["rewards"]),
        terminated=torch.tensor(case["terminated"]),
        values=f64(case["values"]),
        final_values=f64(case["final_values"]),
    )


def estimator_of(case, **options):
    return GAE(discount=case["discount"], gae_lambda=case["gae_lambda"], **options)


# Generalised advantages, on rollouts in which episodes terminate, are cut by a time limit, or by the rollout's end.


@pytest.mark.parametrize("library", ["stable_baselines3", "torchrl"])
@pytest.mark.parametrize("case", PEERS["gae"])
def test_generalised_advantages(case, library):
    assert 0 < sum(case["terminated"]) < len(case["terminated"])
    assert_agree(estimator_of(case, normalize=False)(batch_of(case)), case[library])


@pytest.mark.parametrize("case", PEERS["gae"])
def test_value_targets(case):
    assert_agree(estimator_of(case).returns(batch_of(case)), case["stable_baselines3_returns"])


def test_a_time_limit_taken_for_an_end_is_another_result():
    # The comparison can tell: without bootstrapping, the same rollout is far from both libraries.
    case = PEERS["gae"][0]
    ended = batch_of({**case, "terminated": [True] * len(case["terminated"])})
    off = (estimator_of(case, normalize=False)(ended) - f64(case["torchrl"])).abs().max()
    assert float(off) > 0.1


# Group advantages. TRL divides by std + 1e-4 and verl by std + 1e-6, both with the divisor G - 1.


def scored(case):
    sizes = [case["group_ids"].count(group) for group in sorted(set(case["group_ids"]))]
    return f64(case["scores"]), torch.tensor(case["group_ids"]), sizes


Z_SCORES = [
    ("verl", "grpo", {"epsilon": 1e-6, "correction": 1}),
    ("verl", "dr_grpo", {"scale": "none"}),
    ("trl", "group", {"epsilon": 1e-4, "correction": 1}),
    ("trl", "batch", {"epsilon": 1e-4, "correction": 1, "scale": "batch"}),
    ("trl", "none", {"scale": "none"}),
]
LEAVE_ONE_OUT = [("verl", "rloo"), ("verl", "rloo_vectorized"), ("trl", "rloo")]


def with_cases(variants):
    """Each variant with each case of its library; TRL cannot hold uneven groups."""
    return [(case, *variant) for case in PEERS["groups"] for variant in variants if variant[0] in case]


@pytest.mark.parametrize(("case", "library", "name", "options"), with_cases(Z_SCORES))
def test_group_z_scores(case, library, name, options):
    advantages = group_z_scores(f64(case["scores"]), torch.tensor(case["group_ids"]), **options)
    assert_agree(advantages, case[library][name])


@pytest.mark.parametrize(("case", "library", "name"), with_cases(LEAVE_ONE_OUT))
def test_leave_one_out(case, library, name):
    advantages = leave_one_out_advantages(f64(case["scores"]), torch.tensor(case["group_ids"]))
    assert_agree(advantages, case[library][name])


def test_uneven_groups_are_among_the_cases():
    sizes = [{case["group_ids"].count(group) for group in case["group_ids"]} for case in PEERS["groups"]]
    assert max(map(len, sizes)) == 4


def unscored_batch(scores):
    given = torch.tensor([score is not None for score in scores])
    rewards = f64([float("nan") if score is None else score for score in scores])
    return make_batch([1] * len(scores), group_ids=[k // 4 for k in range(len(scores))], rewards=rewards, scored=given)


@pytest.mark.parametrize("case", ["unscored", "one scored"])
def test_completions_without_a_score(case):
    # TRL's NaN rows are our unscored episodes: out of the statistics, and 0. A lone scored member is 0 too.
    case = PEERS["differences"][case]
    batch = unscored_batch(case["scores"])
    assert_agree(GroupZScore(epsilon=1e-4, correction=1)(batch), case["trl"]["group"])
    assert_agree(GroupZScore(scale="none")(batch), case["trl"]["none"])
    assert_agree(LeaveOneOut()(batch), case["trl"]["rloo"])


# Where ours are other numbers, on purpose.


def test_equal_rewards_are_exactly_zero_here_and_a_residue_elsewhere():
    case = PEERS["differences"]["equal"]
    scores, group_ids = torch.full((case["size"],), case["score"]), torch.zeros(case["size"], dtype=torch.long)
    zeros = [0.0] * case["size"]
    assert group_z_scores(scores, group_ids, epsilon=1e-6, correction=1).tolist() == zeros
    assert group_z_scores(scores, group_ids, epsilon=1e-4, correction=1).tolist() == zeros
    assert leave_one_out_advantages(scores, group_ids).tolist() == zeros
    # Every member of the dead group gets the same push: 0.029 in verl, 3e-4 in TRL.
    assert case["verl"]["grpo"] == pytest.approx([0.02888] * case["size"], rel=1e-3)
    assert case["trl"]["group"] == pytest.approx([2.979e-4] * case["size"], rel=1e-3)


def test_a_group_of_one_is_refused_here_and_is_its_raw_score_elsewhere():
    case = PEERS["differences"]["alone"]
    for function in (group_z_scores, leave_one_out_advantages):
        with pytest.raises(ValueError, match="group 0 has one member"):
            function(f64([case["score"]]), torch.tensor([0]))
    assert case["verl"]["grpo"] == pytest.approx([3.0], rel=1e-5)
    # Two functions of one name disagree there.
    assert case["verl"]["rloo"] == [3.0]
    assert case["verl"]["rloo_vectorized"] == [0.0]
