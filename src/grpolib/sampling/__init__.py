"""Samplers: where groups of episodes come from."""

from grpolib.sampling.groups import GroupSampler as GroupSampler
from grpolib.sampling.protocols import Sampler as Sampler
from grpolib.sampling.steps import StepSampler as StepSampler
