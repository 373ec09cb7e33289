"""Pure functions from tensors to tensors: one equation each."""

from grpolib.functional.advantages import group_z_scores as group_z_scores
from grpolib.functional.advantages import leave_one_out_advantages as leave_one_out_advantages
from grpolib.functional.advantages import process_supervision_advantages as process_supervision_advantages
from grpolib.functional.advantages import (
    timestep_leave_one_out_advantages as timestep_leave_one_out_advantages,
)
from grpolib.functional.anchors import anchor_state_advantages as anchor_state_advantages
from grpolib.functional.diagnostics import clip_fractions as clip_fractions
from grpolib.functional.diagnostics import effective_sample_size as effective_sample_size
from grpolib.functional.diagnostics import explained_variance as explained_variance
from grpolib.functional.diagnostics import group_std as group_std
from grpolib.functional.diagnostics import living_peers as living_peers
from grpolib.functional.kl import categorical_kl as categorical_kl
from grpolib.functional.kl import gaussian_kl as gaussian_kl
from grpolib.functional.kl import kl_k1 as kl_k1
from grpolib.functional.kl import kl_k2 as kl_k2
from grpolib.functional.kl import kl_k3 as kl_k3
from grpolib.functional.returns import discounted_returns as discounted_returns
from grpolib.functional.returns import generalized_advantages as generalized_advantages
from grpolib.functional.segments import episode_ids as episode_ids
from grpolib.functional.segments import offsets as offsets
from grpolib.functional.segments import timesteps as timesteps
from grpolib.functional.surrogate import cispo_objective as cispo_objective
from grpolib.functional.surrogate import clipped_surrogate as clipped_surrogate
from grpolib.functional.surrogate import importance_ratio as importance_ratio
