"""From the CSV files to tables and figures, and into the page that shows them."""

import re
from collections.abc import Mapping
from pathlib import Path

from study import environments, figures, tables
from study.results import Results
from study.rows import BY_NAME, CRITIC_FREE, FAMILIES, OTHER, OUTCOME, PROCESS, ROWS, SEARCH_ROWS

HEADLINE = [
    BY_NAME[name]
    for name in (
        *("grpo", "process", "process-099", "critic-free", "critic-free-shipped"),
        *("anchor", "to-go-batch", "to-go-timestep", "ppo", "a2c"),
    )
]
CURVES = [
    BY_NAME[name] for name in ("grpo", "process", "process-099", "critic-free", "critic-free-shipped", "ppo", "a2c")
]
PER_STEP = [row for row in ROWS if row.family in (PROCESS, OTHER) or row.name in ("grpo", "critic-free")]
IN_FAMILIES = sorted(BY_NAME.values(), key=lambda row: FAMILIES.index(row.family))
"""Every row; one of the search is shown once it has reported seeds."""

MARKED = re.compile(r"(<!-- table:(?P<name>[\w-]+) -->\n)(?P<old>.*?)(<!-- /table -->)", re.DOTALL)
OPENING = re.compile(r"<!-- table:")

SKELETON = """# The LunarLander study

<!-- `python examples/benchmarks/lunarlander_study.py report` fills what stands between the markers. -->

Mean ± standard deviation over trainer seeds (divisor N). IQM: interquartile mean over the seeds, with a 95 % bootstrap
interval. Returns: 50 reported starts. Solved: return >= 200.

## The published experiment, again

<!-- table:published -->
<!-- /table -->

<!-- table:seeds -->
<!-- /table -->

## The main rows

<!-- table:headline -->
<!-- /table -->

![Learning curves](results/learning-curves.png)

## Which ingredient of GRPO matters

<!-- table:ingredients -->
<!-- /table -->

![Every row, both ways](results/ablations.png)

## Credit per step

<!-- table:per-step -->
<!-- /table -->

## The critic-free recipe and its settings

<!-- table:critic-free -->
<!-- /table -->

## Argmax, sampled, and how random the policy is

![Argmax against sampled, with the entropy](results/argmax-and-sampled.png)

<!-- table:outcomes -->
<!-- /table -->

## As training goes on

![Progression from the same starts](results/progression.png)

<!-- table:progress -->
<!-- /table -->

## How the optimisation went

<!-- table:diagnostics -->
<!-- /table -->

## The search

Chosen on trainer seeds 5 to 9.

<!-- table:search -->
<!-- /table -->

## Other environments

<!-- table:environments -->
<!-- /table -->
"""


def write_report(results: Results) -> list[Path]:
    """Write every table and figure into the results' folder, and the tables between the markers of the page beside it.

    The page is `results.md`; where there is none, one without words is made.

    Returns:
        What was written.
    """
    folder = results.folder
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    made = make_tables(results)
    for name, table in made.items():
        path = folder / f"{name}.md"
        path.write_text(table + "\n")
        written.append(path)
    page = folder.parent / "results.md"
    page.write_text(filled(page.read_text() if page.exists() else SKELETON, made))
    return [*written, page, *draw_figures(results)]


def make_tables(results: Results) -> dict[str, str]:
    """Every table by its name."""
    runs, stages = results.runs(), results.progress()
    return {
        "published": tables.beside_published(runs),
        "seeds": tables.seeds(runs, [row for row in ROWS if len(row.planned) == 5]),
        "headline": tables.returns(runs, [*HEADLINE, *SEARCH_ROWS]),
        "ingredients": tables.returns(runs, [row for row in ROWS if row.family == OUTCOME]),
        "per-step": tables.returns(runs, PER_STEP),
        "critic-free": tables.returns(runs, [row for row in ROWS if row.family == CRITIC_FREE]),
        "outcomes": tables.outcomes(runs, IN_FAMILIES),
        "progress": tables.progress(stages, [*HEADLINE, *SEARCH_ROWS]),
        "diagnostics": tables.diagnostics(runs, IN_FAMILIES),
        "search": tables.searched(runs),
        "environments": environments.table(environments.finished(results.folder)),
    }


def draw_figures(results: Results) -> list[Path]:
    """Every figure; none before the first run."""
    runs = results.runs()
    if not runs:
        return []
    paths = [
        results.folder / f"{name}.png" for name in ("learning-curves", "argmax-and-sampled", "progression", "ablations")
    ]
    figures.learning_curves(results.curves(), CURVES, paths[0])
    figures.argmax_and_sampled(runs, IN_FAMILIES, paths[1])
    figures.progression(results.progress(), CURVES, paths[2])
    figures.ablations(runs, IN_FAMILIES, paths[3])
    return paths


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with each table between its markers, whatever stood there.

    Raises:
        ValueError: A marker without its end, or of a table that there is not.
    """
    found = list(MARKED.finditer(page))
    unknown = [match["name"] for match in found if match["name"] not in made]
    if unknown:
        raise ValueError(f"no table {unknown[0]!r}; there are {', '.join(made)}")
    if len(found) != len(OPENING.findall(page)) or any(OPENING.search(match["old"]) for match in found):
        raise ValueError(
            "a marker '<!-- table:NAME -->' stands alone: each has a line of its own and ends with '<!-- /table -->'"
        )
    return MARKED.sub(lambda match: f"{match[1]}{made[match['name']]}\n{match[4]}", page)
