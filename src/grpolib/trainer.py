"""The loop: sample, estimate, evaluate, step."""

import logging
import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from grpolib.archive import write_archive
from grpolib.batch import GroupBatch
from grpolib.callbacks import Callback, CheckpointEvery, EvaluateEvery, ProgressBar
from grpolib.checkpoint import describe
from grpolib.evaluation import REPORTED_SEEDS, EvaluationReport, Evaluator
from grpolib.fitting import (
    adapted,
    check_callbacks,
    check_policy_and_recipe,
    check_ranks,
    check_sharding,
    made_optimizer,
    more_than_one,
    possible_compile,
    trained_parameters,
)
from grpolib.functional._checks import check_whole, check_whole_or_none
from grpolib.interrupts import deferred_interrupt
from grpolib.kl_losses import needs_reference_parameters
from grpolib.loggers import RunFolder
from grpolib.metrics import MetricMeans, Metrics, batch_metrics, joined
from grpolib.policies import Policy
from grpolib.policies.normalized import observation_statistics, taking_in
from grpolib.ranks import Ranks, SharedEngine
from grpolib.recipes import Pieces, Recipe, check_pieces, rows_to_compile
from grpolib.resume import (
    CHECKPOINTS,
    read_latest,
    read_state,
    restore,
    restore_callbacks,
    sampler_settings,
    state_of,
)
from grpolib.sampling import Sampler
from grpolib.sampling.engines import InProcessEngine
from grpolib.sampling.environments import EnvSource
from grpolib.sampling.rollout import device_of, generator, one_torch_thread
from grpolib.schedules import check_learning_rates
from grpolib.sharding import gathered, is_sharded, whole
from grpolib.updates import Update

logger = logging.getLogger(__name__)
TrainerT = TypeVar("TrainerT")
Given = ParamSpec("Given")

AUTO_UPDATES = 20_000
"""Updates from which compiling pays for itself."""
AUTO_ITERATION = 10
"""Iteration from which "auto" compiles: the first evaluations are on the screen by then."""
SMALL_POLICY = 1_000_000
"""Parameters below which one torch thread is faster than several."""


class Trainer:
    """Trains a policy on the groups of a sampler with the pieces that it is given.

    The policy is kept in evaluation mode: old, new and reference log-probabilities must come from the same
    function, so dropout and the like stay off. The trainer draws from generators of its own, keyed by
    (seed, iteration, group): the same seed gives the same bits.

    Args:
        policy: A `Policy`, or any `nn.Module` from observations to logits, Gaussian parameters or a
            `Distribution`; trained in place.
        sampler: Where groups come from.
        seed: >= 0.
        run_folder: Where config.json, metrics.csv, evaluations.csv, best/ and last/ go; None writes nothing.
        compile: Compile the update (10 to 30 s, needs a C++ compiler), from the first iteration; "auto": from the
            tenth, where a run of `total_steps` is long enough to pay for it. Results differ by rounding.
        callbacks: Called in this order, after the progress bar (on a terminal) and before what a run_folder
            brings: its files, and `EvaluateEvery()` where there is none among the callbacks; `CheckpointEvery` last of
            all. `on_train_end` in the reverse order, so that what was opened last is closed first.
        ranks: The processes that train together: each samples its share of the groups, all take the same steps, rank
            0 writes. None trains in this process alone.
        pieces: The fields of `Recipe`, by keyword.

    Raises:
        TypeError: A keyword that is no piece, or a policy that is no module.
        ValueError: Pieces that do not fit together; see `Recipe`.
        FileExistsError: The run folder is not empty.
    """

    def __init__(
        self,
        policy: Policy | nn.Module,
        sampler: Sampler,
        *,
        seed: int = 0,
        run_folder: str | os.PathLike[str] | None = None,
        compile: bool | Literal["auto"] = False,
        callbacks: Sequence[Callback] = (),
        ranks: Ranks | None = None,
        **pieces: Unpack[Pieces],
    ) -> None:
        check_pieces(pieces)
        check_whole(seed=seed)
        if seed < 0:
            raise ValueError(f"seed is {seed}: it must be >= 0")
        check_callbacks(callbacks)
        self.recipe = Recipe(**pieces)
        self.policy = adapted(policy, sampler)
        check_policy_and_recipe(self.policy, self.recipe)
        self.sampler = sampler
        self.seed = seed
        self.ranks = more_than_one(ranks)
        self.compile = possible_compile(compile, self.recipe, self.ranks)
        self.critic = self.recipe.critic
        trained: list[Policy | nn.Module] = [self.policy] if self.critic is None else [self.policy, self.critic.module]
        modules = [part for module in trained for part in module.modules()]
        self._statistics = observation_statistics(modules)
        if self.ranks is not None:
            check_ranks(self.ranks, sampler, self.recipe, modules)
            self.ranks.start_equal(
                tensor for module in trained if not is_sharded(module) for tensor in module.state_dict().values()
            )
        check_sharding(self.policy, self.recipe, self.ranks, run_folder)
        reference = self.recipe.reference
        self.reference = None if reference is None else reference.started_from(self.policy)
        self._switch_to_evaluation_mode()
        self._parameters = trained_parameters(trained, type(policy).__name__)
        self._is_small = sum(parameter.numel() for parameter in self._parameters) < SMALL_POLICY
        self.optimizer = made_optimizer(self.recipe, self._parameters)
        self.update = Update(
            self.policy,
            self.critic,
            self.recipe.loss,
            self._parameters,
            self.optimizer,
            self.recipe.max_grad_norm,
            self.ranks,
        )
        self.is_compiled = False
        self._compiles_again = False
        self._evaluator: Evaluator | None = None
        self.iteration = 0
        self.num_steps = 0
        self.target_steps: int | None = None
        self.target_iterations: int | None = None
        self.is_mid_iteration = False
        self.writes = self.ranks is None or self.ranks.rank == 0
        self.callbacks = [c for c in (ProgressBar(), *callbacks) if self.writes or not getattr(c, "writes", False)]
        self.run_folder: Path | None = None
        if run_folder is not None:
            if not os.fspath(run_folder):
                raise ValueError("run_folder is empty: name a folder, or leave it out to write nothing")
            folder = Path(run_folder).expanduser()
            self._write_to(folder, RunFolder(folder, self._config()) if self.writes else None)

    @classmethod
    def resume(
        cls: Callable[Given, TrainerT],  # any Trainer: said like this, the constructor's arguments keep their types
        path: str | os.PathLike[str],
        *arguments: Given.args,
        **keywords: Given.kwargs,
    ) -> TrainerT:
        """The trainer that wrote a checkpoint, which goes on as if it had never stopped: with the same bits.

        Policy, environment, pieces and callbacks are given again, as to the constructor; the file holds numbers
        alone, and nothing of it is executed or imported. Seed and compile are the file's. `train(total_steps=)`
        counts from the run's start.

        Args:
            path: A run folder, which goes on from its latest checkpoint (rows of later iterations are dropped), or a
                single checkpoint: then nothing is written unless a new `run_folder` is given.
            arguments: As the constructor's: the policy, whose parameters are overwritten, and where groups come from.
            keywords: As the constructor's.

        Raises:
            FileNotFoundError: No checkpoint there.
            ValueError: A damaged checkpoint (the message names an earlier one that is whole), or other pieces than the
                run was started with (it names the first difference).
        """
        goes_on = (Path(path) / CHECKPOINTS).is_dir()
        checkpoint, state = read_latest(Path(path)) if goes_on else (Path(path), read_state(Path(path)))
        for name in ("seed", "compile"):
            if keywords.setdefault(name, state[name]) != state[name]:
                raise ValueError(f"{name} is {keywords[name]!r}, and {state[name]!r} in {checkpoint}: leave it out")
        if goes_on and keywords.get("run_folder") is not None:
            raise ValueError(f"the run goes on in {path}: leave run_folder out, or resume from {checkpoint}")
        trainer: Any = cls(*arguments, **keywords)
        restore(trainer, state, checkpoint)
        logger.info("%s: goes on after iteration %d, %d steps", checkpoint, trainer.iteration, trainer.num_steps)
        trainer._compiles_again = state["is_compiled"]
        if goes_on:
            trainer._write_to(Path(path), RunFolder.reopened(path, trainer.iteration) if trainer.writes else None)
        restore_callbacks(trainer, state, checkpoint)
        made: TrainerT = trainer
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint from which `resume` goes on: a new folder of JSON and safetensors, whole or not at all.

        With several ranks, rank 0 writes it, and any other number of ranks can go on from it; where the policy is
        sharded, all ranks must call it.

        Args:
            path: Must not exist.

        Raises:
            FileExistsError: It exists.
            RuntimeError: An iteration was broken off, so there is nothing whole to save.
        """
        if self.is_mid_iteration:
            raise RuntimeError(
                f"iteration {self.iteration} is not complete: save between iterations, in a callback's on_iteration_end"
            )
        state = gathered(state_of(self)) if is_sharded(self.policy) else state_of(self)
        if self.writes:
            write_archive(Path(path), state)
            logger.info("iteration %d: saved as %s", self.iteration, path)

    def train(self, *, total_steps: int | None = None, iterations: int | None = None) -> None:
        """Train until the run has `total_steps` environment steps, or for `iterations` further iterations.

        An iteration is never cut: the run ends with at least `total_steps`, less than one iteration more, and a
        warning says so where the first iteration alone takes more.
        The first Ctrl-C or SIGTERM lets the iteration finish, then everything is written and KeyboardInterrupt or
        SystemExit(143) raised; a second one stops at once.

        Args:
            total_steps: Steps of the run, counted from its start, >= 1.
            iterations: Further iterations, >= 1.

        Raises:
            TypeError: Neither or both are given.
            ValueError: One of them is below 1.
        """
        self._set_target(total_steps, iterations)
        with ExitStack() as stack:
            interrupt = stack.enter_context(deferred_interrupt())
            for callback in self.callbacks:
                stack.callback(callback.on_train_end, self)
                callback.on_train_start(self)
            while not self._is_finished():
                metrics = self.step()
                self._warn_of_a_budget_below_one_iteration()
                verdicts = [callback.on_iteration_end(self, metrics) for callback in self.callbacks]
                if self._is_so_anywhere(interrupt.signal_number is not None):
                    interrupt.raise_requested()
                    raise KeyboardInterrupt  # the signal came to another rank
                if self._is_so_anywhere(False in verdicts):
                    who = [one for one, verdict in zip(self.callbacks, verdicts, strict=True) if verdict is False]
                    logger.info("iteration %d: stopped by %s", self.iteration, who or "another rank")
                    break

    def step(self) -> Metrics:
        """One iteration: sample groups, learn from them, and say what happened."""
        start = time.perf_counter()
        self.is_mid_iteration = True
        self.iteration += 1
        self._switch_to_evaluation_mode()
        for schedule in self.recipe.schedules:
            schedule(self)
        check_learning_rates(self.optimizer)
        if not self.is_compiled and self._compiles_now():
            logger.info("iteration %d: the updates are compiled from here on, which takes a while once", self.iteration)
            self.update.compile(rows_to_compile(self.recipe) or 0)
            self.is_compiled = True
        seed = np.random.SeedSequence(self.seed, spawn_key=(self.iteration,))
        with whole(self.policy):
            sample = self._sample(seed)
            sampled = time.perf_counter()
            with one_torch_thread() if self._is_small else nullcontext():
                own = self._annotated(sample.to(device_of(self.policy)))
        with one_torch_thread() if self._is_small else nullcontext():
            batch = own if self.ranks is None else self.ranks.union(own)
            learned = self._learn(batch, own, generator(seed))
        self.num_steps += batch.num_steps
        self.is_mid_iteration = False
        timings = _timings(start, sampled, time.perf_counter(), batch.num_steps)
        return joined({"iteration": self.iteration, "num_steps": self.num_steps}, learned, timings)

    def evaluate(
        self, *, episodes: int = 50, first_seed: int = REPORTED_SEEDS, env: EnvSource | None = None
    ) -> EvaluationReport:
        """Evaluate the policy both ways, on the sampler's workers; with several ranks, call it on all; see `evaluate`.

        Args:
            episodes: Episodes each way.
            first_seed: Default: the reported seeds.
            env: None takes the sampler's environment.

        Raises:
            TypeError: The sampler has no environment, and none was given.
        """
        source = getattr(self.sampler, "source", None) if env is None else env
        if source is None:
            raise TypeError(
                f"{type(self.sampler).__name__} has no environment to evaluate in: give env=, or "
                "call evaluate_completions(policy, prompts, reward) for a language model"
            )
        if self._evaluator is None or self._evaluator.source is not source:
            engine = getattr(self.sampler, "engine", InProcessEngine())
            self._evaluator = Evaluator(source, engine if self.ranks is None else SharedEngine(engine, self.ranks))
        return self._evaluator(self.policy, episodes=episodes, first_seed=first_seed)

    def close(self) -> None:
        """Release the sampler's environments and worker processes; may be called twice."""
        self.sampler.close()

    def _sample(self, seed: np.random.SeedSequence) -> GroupBatch[Any]:
        """The groups of this process."""
        if self.ranks is None:
            return self.sampler.sample(self.policy, self.recipe.groups_per_step, seed)
        share = self.ranks.share(self.recipe.groups_per_step)
        return self.sampler.sample(self.policy, len(share), seed, first_group=share.start)

    def _annotated(self, batch: GroupBatch[Any]) -> GroupBatch[Any]:
        """The batch with what the reference and the critic make of it."""
        if self.reference is not None:
            with_parameters = any(needs_reference_parameters(loss) for loss in self.update.losses)
            batch = self.reference.annotate(batch, with_parameters=with_parameters)
        return batch if self.critic is None else self.critic.annotate(batch)

    def _learn(self, batch: GroupBatch[Any], own: GroupBatch[Any], rng: torch.Generator) -> Metrics:
        """Estimate advantages and go through the minibatches; `own` is this process's part of the batch."""
        advantages = self._advantages(batch)
        value_targets = getattr(self.recipe.advantages, "returns", None)
        returns = None if value_targets is None else value_targets(batch)
        collected = MetricMeans()
        minibatches = batch.minibatches(
            advantages,
            self.recipe.reduction,
            self.recipe.plan,
            rng,
            returns=returns,
            max_length=self.sampler.max_length,
        )
        if self.ranks is not None:
            minibatches = self.ranks.own(minibatches, own, advantages, batch.inputs, returns)
        for minibatch in minibatches:
            self.update(minibatch, collected)
        self._take_in(batch)
        if self.reference is not None:
            self.reference.update(self.policy, self.iteration)
        return joined(batch_metrics(batch, returns), collected.read())

    def _advantages(self, batch: GroupBatch[Any]) -> Tensor:
        """The estimator's, which reads a batch that metrics and losses read after it."""
        read = (batch.rewards, batch.log_probs, batch.lengths)
        versions = [tensor._version for tensor in read]
        advantages = self.recipe.advantages(batch)
        if [tensor._version for tensor in read] != versions:
            raise ValueError(f"{self.recipe.advantages} changed the batch, which is read after it: give new tensors")
        return advantages

    @torch.no_grad()
    def _take_in(self, batch: GroupBatch[Any]) -> None:
        """Show the batch to what normalises observations, now that all was learnt from it."""
        if self._statistics:
            with taking_in(self._statistics):
                self.policy.evaluate(batch.inputs)
                if self.critic is not None:
                    self.critic(batch.inputs)

    def _is_so_anywhere(self, flag: bool) -> bool:
        """What one rank decides holds for all, or they would wait for each other."""
        return flag if self.ranks is None else self.ranks.any(flag)

    def _switch_to_evaluation_mode(self) -> None:
        """Whoever used the policy in between may have switched dropout on."""
        self.policy.train(False)
        if self.critic is not None:
            self.critic.module.train(False)

    def _write_to(self, path: Path, folder: RunFolder | None) -> None:
        """Add what a run folder brings; checkpoints come after everything that they must know of."""
        self.run_folder = path
        brought: list[Callback] = [] if folder is None else [folder]
        if hasattr(self.sampler, "source") and not any(isinstance(c, EvaluateEvery) for c in self.callbacks):
            brought.append(EvaluateEvery())
        self.callbacks = sorted([*self.callbacks, *brought], key=lambda c: isinstance(c, CheckpointEvery))

    def _config(self) -> dict[str, Any]:
        return {
            "grpolib": version("grpolib"),
            "torch": torch.__version__,
            "seed": self.seed,
            "compile": self.compile,
            "sampler": sampler_settings(self.sampler),
            "policy": str(self.policy),
            "recipe": describe(self.recipe),
        }

    def _set_target(self, total_steps: int | None, iterations: int | None) -> None:
        if (total_steps is None) == (iterations is None):
            raise TypeError("give either total_steps= or iterations=")
        check_whole_or_none(total_steps=total_steps, iterations=iterations)
        for name, value in (("total_steps", total_steps), ("iterations", iterations)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: it must be >= 1")
        self.target_steps = total_steps
        self.target_iterations = None if iterations is None else self.iteration + iterations

    def _warn_of_a_budget_below_one_iteration(self) -> None:
        if self.iteration == 1 and self.target_steps is not None and self.num_steps > self.target_steps:
            warnings.warn(
                f"total_steps is {self.target_steps}, and the first iteration took {self.num_steps}: an iteration "
                "is never cut. Take fewer or shorter episodes an iteration, or train for more",
                stacklevel=3,
            )

    def _compiles_now(self) -> bool:
        """A function of the arguments and the iteration alone, so that the bits stay the same."""
        if self.compile != "auto" or self._compiles_again:
            return bool(self.compile)
        plan = self.recipe.plan
        updates = (self.target_steps or 0) * plan.epochs / (plan.size or 1)
        return self.iteration >= AUTO_ITERATION and updates >= AUTO_UPDATES

    def _is_finished(self) -> bool:
        if self.target_steps is not None:
            return self.num_steps >= self.target_steps
        return self.target_iterations is not None and self.iteration >= self.target_iterations


def _timings(start: float, sampled: float, end: float, num_steps: int) -> Metrics:
    return {
        "seconds_sampling": sampled - start,
        "seconds_updating": end - sampled,
        "steps_per_second": num_steps / (end - start),
    }
