"""A language model's run that stops and goes on has the bits of one that never stopped."""

import pytest
from helpers import assert_same_parameters, parameters_of
from language_models import Recurrent, policy_of

from grpolib import Callback, CompletionSampler, DynamicSampling, GRPOTrainer, recipes

PROMPTS = ["ab", "d", "e", "cde", "b"]
TIMINGS = {"seconds_sampling", "seconds_updating", "steps_per_second"}


def late_letters(prompts, completions):
    return [float(sum(letter > "m" for letter in text)) for text in completions]


class Keeps(Callback):
    def __init__(self):
        self.rows = []

    def on_iteration_end(self, trainer, metrics):
        self.rows.append({name: str(value) for name, value in metrics.items() if name not in TIMINGS})


def sampler(filtered):
    plain = CompletionSampler(PROMPTS, late_letters, 4, max_new_tokens=5)
    return DynamicSampling(plain) if filtered else plain


RECIPE = recipes.text_grpo().replaced(groups_per_step=2)


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.filterwarnings("ignore:.*cannot be shared")
def test_prompts_completions_and_updates_go_on(filtered, tmp_path):
    unbroken, kept = policy_of(Recurrent()), Keeps()
    trainer = GRPOTrainer(unbroken, sampler(filtered), recipe=RECIPE, seed=1, callbacks=[kept])
    trainer.train(iterations=4)

    first, before = policy_of(Recurrent()), Keeps()
    stopped = GRPOTrainer(first, sampler(filtered), recipe=RECIPE, seed=1, callbacks=[before])
    stopped.train(iterations=2)  # the third step goes over the end of the prompts
    stopped.save(tmp_path / "saved")

    after, other = Keeps(), policy_of(Recurrent())
    other.load_state_dict({name: value + 1 for name, value in other.state_dict().items()})
    goes_on = GRPOTrainer.resume(tmp_path / "saved", other, sampler(filtered), recipe=RECIPE, callbacks=[after])
    goes_on.train(iterations=2)
    assert_same_parameters(parameters_of(other), parameters_of(unbroken))
    assert before.rows + after.rows == kept.rows
    assert_same_parameters(parameters_of(goes_on.reference.policy), parameters_of(trainer.reference.policy))
