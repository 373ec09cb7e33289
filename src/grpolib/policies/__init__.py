"""Policies: the protocols, and adapters from any `nn.Module` and action space."""

from grpolib.policies.adapter import ModulePolicy as ModulePolicy
from grpolib.policies.adapter import as_policy as as_policy
from grpolib.policies.deployment import Deployed as Deployed
from grpolib.policies.networks import mlp as mlp
from grpolib.policies.protocols import ActingPolicy as ActingPolicy
from grpolib.policies.protocols import Action as Action
from grpolib.policies.protocols import Evaluation as Evaluation
from grpolib.policies.protocols import Policy as Policy
from grpolib.policies.protocols import ReferablePolicy as ReferablePolicy
from grpolib.policies.protocols import SplittingPolicy as SplittingPolicy
