"""Policies: the protocols, and adapters from any `nn.Module` and action space."""

from grpolib.policies.adapter import ModulePolicy as ModulePolicy
from grpolib.policies.adapter import as_policy as as_policy
from grpolib.policies.deployment import Deployed as Deployed
from grpolib.policies.masks import Masked as Masked
from grpolib.policies.masks import MaskInObservation as MaskInObservation
from grpolib.policies.networks import cnn as cnn
from grpolib.policies.networks import gru as gru
from grpolib.policies.networks import lstm as lstm
from grpolib.policies.networks import mlp as mlp
from grpolib.policies.networks import network as network
from grpolib.policies.normalized import Normalized as Normalized
from grpolib.policies.protocols import ActingPolicy as ActingPolicy
from grpolib.policies.protocols import Action as Action
from grpolib.policies.protocols import Evaluation as Evaluation
from grpolib.policies.protocols import Policy as Policy
from grpolib.policies.protocols import RecurrentPolicy as RecurrentPolicy
from grpolib.policies.protocols import ReferablePolicy as ReferablePolicy
from grpolib.policies.protocols import SplittingPolicy as SplittingPolicy
from grpolib.policies.recurrent import Recurrent as Recurrent
from grpolib.policies.squashed import Squashed as Squashed
