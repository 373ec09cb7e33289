"""The results as Markdown tables, from the lines of the CSV files."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from study import published
from study.rows import BY_NAME, CHOOSING_SEEDS, REPORT_SEEDS, Row
from study.running import SHARES
from study.spread import Lines, Spread, of_row, spread

NONE = "No finished run yet."
NO_NUMBER = ""

Show = Callable[[float], str]


def plain(value: float) -> str:
    return f"{value:.1f}"


def two_places(value: float) -> str:
    return f"{value:.2f}"


def three_places(value: float) -> str:
    return f"{value:.3f}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def percent(value: float) -> str:
    return f"{value:.0%}".replace("%", " %")


def returns(runs: Lines, rows: Iterable[Row], seeds: Collection[int] = REPORT_SEEDS) -> str:
    """A line per row: returns both ways, the best checkpoint and the entropy, over the seeds."""
    columns: dict[str, Callable[[Row, Lines], str]] = {
        "row": lambda row, own: f"`{row.name}`",
        "what": lambda row, own: row.description,
        "seeds": lambda row, own: str(len(own)),
        "argmax return": lambda row, own: str(spread(own, "argmax_mean")),
        "IQM [95 %]": lambda row, own: _middle(spread(own, "argmax_mean")),
        "solved": lambda row, own: _mean(own, "argmax_solved", percent),
        "published, argmax": lambda row, own: published.ARGMAX.get(row.name, NO_NUMBER),
        "sampled return": lambda row, own: str(spread(own, "sampled_mean")),
        "published, sampled": lambda row, own: published.SAMPLED.get(row.name, NO_NUMBER),
        "best checkpoint, argmax": lambda row, own: str(spread(own, "best_argmax_mean")),
        "entropy at the start": lambda row, own: _mean(own, "start_entropy", two_places),
    }
    present = [(row, own) for row in rows if (own := of_row(runs, row.name, seeds))]
    if not any(row.name in published.ARGMAX for row, _ in present):
        columns = {title: cell for title, cell in columns.items() if "published" not in title}
    lines = [[cell(row, own) for cell in columns.values()] for row, own in present]
    return markdown(list(columns), lines, right=range(2, len(columns)))


def searched(runs: Lines) -> str:
    """Every row that was run on the choosing seeds, the best first."""
    found = {line["row"] for line in runs if line["seed"] in CHOOSING_SEEDS and line["row"] in BY_NAME}
    ranked = sorted(found, key=lambda name: -_of(runs, name, CHOOSING_SEEDS).middle)
    return returns(runs, [BY_NAME[name] for name in ranked], CHOOSING_SEEDS)


def outcomes(runs: Lines, rows: Iterable[Row]) -> str:
    """How episodes end, how long they are, what the engines use: means over the seeds, argmax / sampled."""
    columns: list[tuple[str, str, Show]] = [
        ("landed", "landed", percent),
        ("crashed", "crashed", percent),
        ("timed out", "timed_out", percent),
        ("steps", "length", whole),
        ("engine use", "engine", plain),
    ]
    lines = []
    for row in rows:
        own = of_row(runs, row.name, REPORT_SEEDS)
        if own:
            cells = [
                " / ".join(_mean(own, f"{way}_{name}", show) for way in ("argmax", "sampled"))
                for _, name, show in columns
            ]
            lines.append([f"`{row.name}`", *cells])
    header = ["row, argmax / sampled", *(title for title, _, _ in columns)]
    return markdown(header, lines, right=range(1, len(header)))


def diagnostics(runs: Lines, rows: Iterable[Row]) -> str:
    """How the optimisation went: means over the seeds, the maxima over seeds too."""
    columns: list[tuple[str, Callable[[Lines], str]]] = [
        ("iterations", lambda own: _mean(own, "iterations", whole)),
        ("KL to the reference, median", lambda own: _mean(own, "kl_reference_median", three_places)),
        ("KL to the reference, max", lambda own: _max(own, "kl_reference_max", three_places)),
        ("KL to the sampling policy, median", lambda own: _mean(own, "kl_old_median", three_places)),
        ("KL to the sampling policy, max", lambda own: _max(own, "kl_old_max", three_places)),
        ("clip fraction, median", lambda own: _mean(own, "clip_fraction_median", three_places)),
        ("clip fraction, max", lambda own: _max(own, "clip_fraction_max", three_places)),
        ("std within a group, last 10", lambda own: _mean(own, "group_return_std", plain)),
        ("degenerate groups, max", lambda own: _max(own, "degenerate_fraction_max", two_places)),
        ("near-degenerate, max", lambda own: _max(own, "near_degenerate_fraction_max", two_places)),
        ("explained variance, last 10", lambda own: _mean(own, "explained_variance", two_places)),
        ("minutes", lambda own: _mean(own, "seconds", lambda seconds: plain(seconds / 60))),
    ]
    lines = []
    for row in rows:
        own = of_row(runs, row.name, REPORT_SEEDS)
        if own:
            lines.append([f"`{row.name}`", *(cell(own) for _, cell in columns)])
    header = ["row", *(title for title, _ in columns)]
    return markdown(header, lines, right=range(1, len(header)))


def progress(stages: Lines, rows: Iterable[Row]) -> str:
    """Argmax return and share landed from the same starts as training goes on: means over the seeds."""
    lines = []
    for row in rows:
        own = of_row(stages, row.name, REPORT_SEEDS)
        if own:
            at = [[line for line in own if line["share"] == share] for share in SHARES]
            cells = [f"{_mean(some, 'argmax_mean', whole)} / {_mean(some, 'argmax_landed', percent)}" for some in at]
            lines.append([f"`{row.name}`", *cells])
    if not lines:
        return NONE
    there = zip(published.GRPO_PROGRESS_RETURN, published.GRPO_PROGRESS_LANDED, strict=True)
    lines.append(["published GRPO, median seed", *(f"{whole(value)} / {percent(landed)}" for value, landed in there)])
    header = ["return / landed, argmax", *(f"{share * 100:g} %" for share in SHARES)]
    return markdown(header, lines, right=range(1, len(header)))


def seeds(runs: Lines, rows: Iterable[Row]) -> str:
    """Argmax / sampled return of each seed's final policy."""
    lines = []
    for row in rows:
        by_seed = {line["seed"]: line for line in of_row(runs, row.name, REPORT_SEEDS)}
        if by_seed:
            lines.append([f"`{row.name}`", *(both_ways(by_seed.get(seed)) for seed in REPORT_SEEDS)])
    if not lines:
        return NONE
    lines.append(["published GRPO, argmax", *(plain(value) for value in published.GRPO_ARGMAX)])
    header = ["argmax / sampled", *(f"seed {seed}" for seed in REPORT_SEEDS)]
    return markdown(header, lines, right=range(1, len(header)))


def beside_published(runs: Lines) -> str:
    """Every published figure, and the same one here: lowest to highest seed where nothing else is said."""
    argmax, best = Spread(published.GRPO_ARGMAX), published.GRPO_BEST_ARGMAX
    wanted: list[tuple[str, str, str, str, Callable[[Spread], str]]] = [
        ("grpo", "final policy, argmax return, mean ± std", "argmax_mean", str(argmax), str),
        ("grpo", "the same, each seed", "argmax_mean", _each(argmax), _each),
        ("grpo", "solved, argmax, mean", "argmax_solved", "2 %", lambda s: percent(s.mean)),
        ("grpo", "best checkpoint, argmax return, mean ± std", "best_argmax_mean", best, str),
        ("grpo", "sampled return", "sampled_mean", published.SAMPLED["grpo"], _range(whole)),
        ("grpo", "solved, sampled, best seed", "sampled_solved", "94 %", lambda s: percent(max(s.values))),
        ("grpo", "entropy at the start [nats]", "start_entropy", published.ENTROPY["grpo"], _range(two_places)),
        ("grpo", "iterations", "iterations", "74 to 79", _range(whole)),
        ("grpo", "KL to the reference, median [nats]", "kl_reference_median", "0.013 to 0.019", _range(three_places)),
        ("grpo", "KL to the reference, max [nats]", "kl_reference_max", "0.119 to 0.167", _range(three_places)),
        ("grpo", "clip fraction, median", "clip_fraction_median", "0.028 to 0.042", _range(three_places)),
        ("grpo", "clip fraction, max", "clip_fraction_max", "0.071 to 0.101", _range(three_places)),
        ("grpo", "std of returns within a group, at the end", "group_return_std", "41 to 82", _range(whole)),
        ("grpo", "degenerate groups, max", "degenerate_fraction_max", "0.00", _range(two_places)),
        ("grpo", "near-degenerate groups, max", "near_degenerate_fraction_max", "0.00", _range(two_places)),
        ("grpo", "seconds per seed (other machine)", "seconds", "743", _range(whole)),
        ("ppo", "final policy, argmax return", "argmax_mean", published.ARGMAX["ppo"], _range(whole)),
        ("ppo", "sampled return", "sampled_mean", published.SAMPLED["ppo"], _range(whole)),
        ("ppo", "entropy at the start [nats]", "start_entropy", published.ENTROPY["ppo"], _range(two_places)),
        ("ppo", "iterations", "iterations", "123", _range(whole)),
        ("ppo", "explained variance, at the end", "explained_variance", "0.94 to 0.99", _range(two_places)),
        ("a2c", "final policy, argmax return", "argmax_mean", published.ARGMAX["a2c"], _range(whole)),
        ("a2c", "sampled return", "sampled_mean", published.SAMPLED["a2c"], _range(whole)),
        ("a2c", "entropy at the start [nats]", "start_entropy", published.ENTROPY["a2c"], _range(two_places)),
    ]
    lines = []
    for row, title, column, there, show in wanted:
        own = of_row(runs, row, REPORT_SEEDS)
        here = spread(own, column)
        lines.append([f"`{row}`", title, there, NO_NUMBER if here is None else show(here), str(len(own))])
    return markdown(["row", "figure", "published, 5 seeds", "here", "seeds here"], lines, right=[2, 3, 4])


def both_ways(line: Mapping[str, float] | None) -> str:
    """Argmax and sampled return of a run."""
    if line is None:
        return NO_NUMBER
    return f"{line['argmax_mean']:.1f} / {line['sampled_mean']:.1f}"


def _of(runs: Lines, row: str, seeds: Collection[int]) -> Spread:
    found = spread(of_row(runs, row, seeds), "argmax_mean")
    return found or Spread((float("-inf"),))


def _range(show: Show) -> Callable[[Spread], str]:
    return lambda found: found.range(show)


def _each(found: Spread) -> str:
    return ", ".join(map(plain, found.values))


def _middle(found: Spread | None) -> str:
    if found is None:
        return NO_NUMBER
    if found.interval is None:
        return plain(found.middle)
    low, high = found.interval
    return f"{found.middle:.1f} [{low:.1f}, {high:.1f}]"


def _mean(lines: Lines, name: str, show: Show) -> str:
    found = spread(lines, name)
    return NO_NUMBER if found is None else show(found.mean)


def _max(lines: Lines, name: str, show: Show) -> str:
    found = spread(lines, name)
    return NO_NUMBER if found is None else show(max(found.values))


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], right: Collection[int]) -> str:
    """A table whose columns `right` are aligned to the right; a sentence where there are no lines."""
    if not lines:
        return NONE
    rule = ["---:" if column in right else "---" for column in range(len(header))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *lines))
