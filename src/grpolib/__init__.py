"""Group-relative policy optimisation in small, typed, composable PyTorch pieces."""

__version__ = "0.1.0.dev0"

# ruff: noqa: I001  the layers, from the equations up

from grpolib import functional as functional

from grpolib.batch import GroupBatch as GroupBatch
from grpolib.minibatch import EpisodeInputs as EpisodeInputs
from grpolib.minibatch import Minibatch as Minibatch
from grpolib.minibatch import MinibatchPlan as MinibatchPlan
from grpolib.minibatch import StepInputs as StepInputs
from grpolib.minibatch import step_weights as step_weights

from grpolib.policies import Action as Action
from grpolib.policies import ActingPolicy as ActingPolicy
from grpolib.policies import Deployed as Deployed
from grpolib.policies import Evaluation as Evaluation
from grpolib.policies import Masked as Masked
from grpolib.policies import MaskInObservation as MaskInObservation
from grpolib.policies import Normalized as Normalized
from grpolib.policies import Policy as Policy
from grpolib.policies import Recurrent as Recurrent
from grpolib.policies import RecurrentPolicy as RecurrentPolicy
from grpolib.policies import Squashed as Squashed
from grpolib.policies import as_policy as as_policy
from grpolib.policies import cnn as cnn
from grpolib.policies import gru as gru
from grpolib.policies import lstm as lstm
from grpolib.policies import mlp as mlp
from grpolib.policies import network as network
from grpolib.sampling import GroupSampler as GroupSampler
from grpolib.sampling import RayWorkers as RayWorkers
from grpolib.sampling import Sampler as Sampler
from grpolib.sampling import StepSampler as StepSampler
from grpolib.sampling import WorkerError as WorkerError
from grpolib.sampling import WorkerProcesses as WorkerProcesses
from grpolib.sampling import check_group_env as check_group_env

from grpolib.text import CausalLMPolicy as CausalLMPolicy
from grpolib.text import Completion as Completion
from grpolib.text import CompletionSampler as CompletionSampler
from grpolib.text import DynamicSampling as DynamicSampling
from grpolib.text import GeneratingPolicy as GeneratingPolicy
from grpolib.text import StepRewards as StepRewards
from grpolib.text import TokenInputs as TokenInputs
from grpolib.text import evaluate_completions as evaluate_completions

from grpolib.critic import Critic as Critic
from grpolib.critic import ScaledRewards as ScaledRewards
from grpolib.estimators import GAE as GAE
from grpolib.estimators import AdvantageEstimator as AdvantageEstimator
from grpolib.estimators import AnchorState as AnchorState
from grpolib.estimators import GroupZScore as GroupZScore
from grpolib.estimators import LeaveOneOut as LeaveOneOut
from grpolib.estimators import ProcessSupervision as ProcessSupervision
from grpolib.estimators import RewardToGo as RewardToGo
from grpolib.estimators import TimestepLeaveOneOut as TimestepLeaveOneOut
from grpolib.kl_losses import K1 as K1
from grpolib.kl_losses import K2 as K2
from grpolib.kl_losses import K3 as K3
from grpolib.kl_losses import ExactKL as ExactKL
from grpolib.losses import CISPOLoss as CISPOLoss
from grpolib.losses import ClippedSurrogateLoss as ClippedSurrogateLoss
from grpolib.losses import EntropyBonus as EntropyBonus
from grpolib.losses import LossOutput as LossOutput
from grpolib.losses import PolicyLoss as PolicyLoss
from grpolib.losses import ValueLoss as ValueLoss
from grpolib.reference import ReferencePolicy as ReferencePolicy

from grpolib import recipes as recipes
from grpolib.algorithms import A2CTrainer as A2CTrainer
from grpolib.algorithms import GRPOTrainer as GRPOTrainer
from grpolib.algorithms import PPOTrainer as PPOTrainer
from grpolib.callbacks import Callback as Callback
from grpolib.callbacks import CheckpointEvery as CheckpointEvery
from grpolib.callbacks import EvaluateEvery as EvaluateEvery
from grpolib.checkpoint import load_policy as load_policy
from grpolib.checkpoint import save_policy as save_policy
from grpolib.evaluation import EvaluationReport as EvaluationReport
from grpolib.evaluation import evaluate as evaluate
from grpolib.loggers import CSVLogger as CSVLogger
from grpolib.loggers import Logger as Logger
from grpolib.ranks import RankError as RankError
from grpolib.ranks import Ranks as Ranks
from grpolib.recipes import Recipe as Recipe
from grpolib.resume import Stateful as Stateful
from grpolib.schedules import LearningRate as LearningRate
from grpolib.sharding import shard_policy as shard_policy
from grpolib.sharding import whole as whole
from grpolib.schedules import Linear as Linear
from grpolib.schedules import LossSetting as LossSetting
from grpolib.stopping import StopAtReturn as StopAtReturn
from grpolib.stopping import StopOnKL as StopOnKL
from grpolib.stopping import StopOnPlateau as StopOnPlateau
from grpolib.stopping import TimeBudget as TimeBudget
from grpolib.trainer import Trainer as Trainer
from grpolib.writers import JSONLinesLogger as JSONLinesLogger
from grpolib.writers import LogTo as LogTo
from grpolib.writers import TensorBoardLogger as TensorBoardLogger
from grpolib.writers import WandbLogger as WandbLogger
