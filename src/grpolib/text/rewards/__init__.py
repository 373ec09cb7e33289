"""Verifiable rewards: functions of completions whose value a program can check, and nobody has to learn."""

from grpolib.text.rewards.checker import Checker as Checker
from grpolib.text.rewards.equivalence import MathEquivalence as MathEquivalence
from grpolib.text.rewards.exact import ExactMatch as ExactMatch
from grpolib.text.rewards.exact import exact_match as exact_match
from grpolib.text.rewards.formats import FullMatch as FullMatch
from grpolib.text.rewards.formats import ThinkAnswer as ThinkAnswer
from grpolib.text.rewards.length import SoftOverlong as SoftOverlong
from grpolib.text.rewards.limits import Limits as Limits
from grpolib.text.rewards.numeric import NumberEquals as NumberEquals
from grpolib.text.rewards.program_output import ProgramOutput as ProgramOutput
from grpolib.text.rewards.programs import LimitedPython as LimitedPython
from grpolib.text.rewards.programs import RunProgram as RunProgram
from grpolib.text.rewards.protocol import Reward as Reward
from grpolib.text.rewards.protocol import Score as Score
from grpolib.text.rewards.protocol import Scores as Scores
from grpolib.text.rewards.python_tests import PythonTests as PythonTests
from grpolib.text.rewards.reasoning_tasks import ReasoningGym as ReasoningGym
from grpolib.text.rewards.scoring import score as score
from grpolib.text.rewards.sql import SQLResult as SQLResult
from grpolib.text.rewards.steps import StepRewards as StepRewards
from grpolib.text.rewards.weighted import Weighted as Weighted
from grpolib.text.rewards.weighted import score_parts as score_parts
from grpolib.text.rewards.workers import OnWorkers as OnWorkers
