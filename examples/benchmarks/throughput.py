"""How fast: the library beside its peers, each in a process of its own, taken in turns.

    python examples/benchmarks/throughput.py --out FOLDER                            # all parts: about an hour
    python examples/benchmarks/throughput.py --out FOLDER --parts throughput --full  # really all the steps: hours
    python examples/benchmarks/throughput.py --report FOLDER                         # its tables into the page

Parts: throughput (the published listing, Stable-Baselines3, the library, the floor), scaling (group size, episode
length), memory (bytes per step, growth over 300 iterations), recursions (advantages of up to five times --steps
steps), solve (seconds until LunarLander is solved). Each leaves FOLDER/<part>.json; throughput also a picture.
Needs Linux and `pip install -e ".[box2d,plots,bench]"`; what needs a package that is not there is left out.
"""

import argparse
import json
from pathlib import Path

from speed.memory import memory
from speed.rates import throughput
from speed.recursions import recursions
from speed.scaling import scaling
from speed.solve import solve
from speed.turns import Table, is_installed, say
from speed.writing import draw, machine, markdown

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
PARTS = {"throughput": throughput, "scaling": scaling, "memory": memory, "recursions": recursions, "solve": solve}


def run_part(part: str, settings: argparse.Namespace) -> None:
    """Measure a part, write its file and print its tables."""
    file = settings.out / f"{part}.json"
    if file.exists():
        raise FileExistsError(f"{file} is there from an earlier run: nothing is overwritten, give another --out")
    say(f"{part} ...")
    where = machine()
    tables = {name: table._replace(note=f"{table.note} {where}.") for name, table in PARTS[part](settings).items()}
    content = {name: table._asdict() for name, table in tables.items()}
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(*map(markdown, tables.values()), sep="\n")
    if part == "throughput":
        draw(tables[part], settings.out / "throughput.png")


def report(folder: Path) -> None:
    """Put the tables of a folder between their marks in the page, and the picture beside it."""
    text = PAGE.read_text()
    for file in sorted(folder.glob("*.json")):
        for name, content in json.loads(file.read_text()).items():
            table = Table(**content)
            before, mark, rest = text.partition(f"<!-- table {name} -->\n")
            if not mark:
                raise ValueError(f"{PAGE} has no line <!-- table {name} -->, behind which the table would go")
            text = before + mark + f"\n{markdown(table)}\n<!-- end -->" + rest.partition("<!-- end -->")[2]
            if name == "throughput":
                draw(table, PAGE.parent / "images" / "throughput.png")
    PAGE.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000_000, help="environment steps of a run, default: %(default)s")
    parser.add_argument("--measure-steps", type=int, default=60_000, help="of a window, default: %(default)s")
    parser.add_argument("--full", action="store_true", help="throughput: run all the steps instead of a window")
    parser.add_argument("--repeats", type=int, default=3, help="turns, of which the median counts: %(default)s")
    parser.add_argument("--subprocess-envs", action="store_true", help="Stable-Baselines3 with SubprocVecEnv, too")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="folder for the results")
    where.add_argument("--report", type=Path, metavar="FOLDER", help="fill docs/performance.md from this folder")
    settings = parser.parse_args()
    if settings.report:
        report(settings.report)
        return
    settings.out.mkdir(parents=True, exist_ok=True)
    for part in settings.parts:
        if part in ("memory", "recursions") or is_installed("Box2D", part):
            run_part(part, settings)


if __name__ == "__main__":
    main()
