"""Language models: policies that write completions, samplers of prompts, and how both are scored."""

from grpolib.text.dynamic import DynamicSampling as DynamicSampling
from grpolib.text.evaluation import CompletionReport as CompletionReport
from grpolib.text.evaluation import CompletionReports as CompletionReports
from grpolib.text.evaluation import evaluate_completions as evaluate_completions
from grpolib.text.inputs import TokenInputs as TokenInputs
from grpolib.text.models import Decoding as Decoding
from grpolib.text.models import Writer as Writer
from grpolib.text.policy import CausalLMPolicy as CausalLMPolicy
from grpolib.text.protocols import Completion as Completion
from grpolib.text.protocols import GeneratingPolicy as GeneratingPolicy
from grpolib.text.rewards import StepRewards as StepRewards
from grpolib.text.sampler import CompletionSampler as CompletionSampler
from grpolib.text.tokens import Tokenizer as Tokenizer
