"""`grpolib report`: one HTML page with everything in it."""

import base64
import html
import io
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from grpolib.cli.recording import VIDEO
from grpolib.cli.runs import RESULT, Column, columns_of, result_of
from grpolib.cli.settings import FILE, read_settings

CURVES = {
    "return_mean": "Mean return of the training episodes, which are sampled.",
    "group_return_std": "Spread of returns within a group. At 0 there is nothing to compare, and nothing is learnt.",
    "degenerate_fraction": "Share of groups whose members all got the same return. They teach nothing.",
    "entropy": "How random the policy is, in nats. Near 0 it explores no more.",
    "kl_old_k3": "How far the policy moved from the one that sampled, in nats. Above 0.05 the step is large.",
    "kl_reference": "Distance to the reference policy, in nats.",
    "clip_fraction": "Share of steps whose ratio was clipped. Usual are 0.01 to 0.2.",
    "grad_norm": "Norm of the gradient before it is scaled down.",
    "explained_variance": "How much of the returns' variance the critic explains; below 0 a constant is better.",
    "length_mean": "Mean length of an episode, in steps.",
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2rem }
figure { display: inline-block; width: 100%; max-width: 28rem; margin: 0 .6rem 1.2rem 0; vertical-align: top }
img, video { max-width: 100%; height: auto } figcaption { font-size: .9rem; color: #555 }
table { border-collapse: collapse } td, th { padding: .15rem .8rem .15rem 0; text-align: left }
td.number { text-align: right } pre { overflow-x: auto; background: #f5f5f5; padding: .8rem; font-size: .85rem }
"""


def report(run: Annotated[Path, tyro.conf.Positional], *, out: Path | None = None) -> None:
    """Write one page about a run: settings, curves, argmax against sampled, what each figure means, and its video.

    Args:
        run: Its folder.
        out: Default: report.html in the run's folder.
    """
    path = out or run / "report.html"
    path.write_text(page(run))
    print(f"{path} can be opened in any browser; nothing else is needed")


def page(run: Path) -> str:
    """The page, with its pictures and the video inside."""
    settings = read_settings(run)
    evaluations, metrics = columns_of(run / "evaluations.csv"), columns_of(run / "metrics.csv")
    title = html.escape(f"{settings.label}, seed {settings.seed}")
    figures = [_figure(metrics, name, text) for name, text in CURVES.items() if _is_known(metrics, name)]
    parts = [
        f"<h1>{title}</h1>",
        _result(result_of(run)) if (run / RESULT).is_file() else "<p>The run is not complete.</p>",
        "<h2>Argmax against sampled</h2>",
        _both_ways(evaluations),
        "<h2>How training went</h2>",
        *figures,
        _video(run / VIDEO),
        "<h2>Settings</h2>",
        *(_file(run / name) for name in (FILE, "config.json")),
    ]
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style>"
    )
    return head + "\n".join(parts) + "</html>\n"


def _is_known(columns: dict[str, Column], name: str) -> bool:
    return name in columns and bool(np.isfinite(columns[name]).any())


def _result(result: dict[str, Any]) -> str:
    rows = []
    for way in ("argmax", "sampled"):
        cells = "".join(f'<td class="number">{result[f"{way}_{name}"]:.1f}</td>' for name in ("mean", "std", "length"))
        rows.append(f"<tr><td>{way}</td>{cells}</tr>")
    head = "<tr><th>final policy</th><th>return</th><th>±</th><th>length</th></tr>"
    steps = f"<p>The reported starts, after {result['num_steps']:,} environment steps.</p>"
    return f"<table>{head}{''.join(rows)}</table>{steps}"


def _both_ways(evaluations: dict[str, Column]) -> str:
    curves = {way: evaluations[f"{way}_mean"] for way in ("argmax", "sampled")}
    text = (
        "The same starts by the most probable action and by sampled ones. Where the two part, the mode is another "
        "controller than the policy that was trained."
    )
    return _drawn(evaluations["num_steps"], curves, "evaluation return", text)


def _figure(metrics: dict[str, Column], name: str, text: str) -> str:
    return _drawn(metrics["num_steps"], {name: metrics[name]}, name, text)


def _drawn(steps: Column, curves: dict[str, Column], title: str, text: str) -> str:
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    figure, axis = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
    for label, values in curves.items():
        axis.plot(steps, values, label=label, marker="o" if len(steps) < 3 else None)
    axis.set(title=title, xlabel="environment steps")
    axis.grid(alpha=0.3)
    if len(curves) > 1:
        axis.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    plt.close(figure)
    inside = base64.b64encode(picture.getvalue()).decode()
    image = f'<img alt="{html.escape(title)}" src="data:image/png;base64,{inside}">'
    return f"<figure>{image}<figcaption>{html.escape(text)}</figcaption></figure>"


def _video(path: Path) -> str:
    if not path.is_file():
        return ""
    inside = base64.b64encode(path.read_bytes()).decode()
    return f'<h2>Video</h2><video controls src="data:video/mp4;base64,{inside}"></video>'


def _file(path: Path) -> str:
    content: Any = json.loads(path.read_text())
    return f"<p>{html.escape(path.name)}</p><pre>{html.escape(json.dumps(content, indent=1))}</pre>"
