"""Samplers: where groups of episodes come from."""

from grpolib.sampling.check import GroupEnvReport as GroupEnvReport
from grpolib.sampling.check import check_group_env as check_group_env
from grpolib.sampling.groups import GroupSampler as GroupSampler
from grpolib.sampling.processes import WorkerError as WorkerError
from grpolib.sampling.processes import WorkerProcesses as WorkerProcesses
from grpolib.sampling.protocols import Sampler as Sampler
from grpolib.sampling.ray_actors import RayWorkers as RayWorkers
from grpolib.sampling.steps import StepSampler as StepSampler
