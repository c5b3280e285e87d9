"""Draw the picture of the home page: `python docs/figures.py` writes docs/figures/home.svg.

LDA on a simulated corpus. Intervals of word probabilities by Gibbs sampling, by mean-field
variational inference, and by the latter with the widths of linear response.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import jax  # noqa: E402
import matplotlib  # noqa: E402
import numpy as np  # noqa: E402

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

import inference  # noqa: E402
import pp_models  # noqa: E402
from inference.core import align  # noqa: E402

WORDS = ("tax", "budget", "bank", "school", "teacher", "health", "doctor", "farm", "water", "war")
SHOWN = 5
COLOURS = ("#1f4e6b", "#b3541e", "#1b7f4d")
# Colours of text and axes that can be read on light and on dark pages alike.
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pp-models",
    "font.family": "sans-serif",
    "font.size": 11,
    **dict.fromkeys(["text.color", "axes.labelcolor", "xtick.color", "ytick.color"], "#222"),
}


def intervals() -> dict[str, np.ndarray]:
    """Name -> (5 %, mean, 95 %) of the words' probabilities in the first topic, (3, words)."""
    rng = np.random.default_rng(4)
    beta = rng.dirichlet(np.full(len(WORDS), 0.4), 3)
    theta = rng.dirichlet(np.full(3, 0.6), 40)
    data = pp_models.data.counts(np.stack([rng.multinomial(40, p) for p in theta @ beta]))
    hyper = {"num_topics": 3, "alpha": 0.6, "eta": 0.4}
    chains = {"num_warmup": 2000, "num_samples": 4000, "num_chains": 2}
    gibbs = inference.fit("lda", data, "gibbs", hyper, progress=False, **chains)
    field = inference.fit("lda", data, "cavi", hyper, progress=False)
    corrected = field.corrected()
    pivot = {site: field.posterior.mean(site) for site in ("theta", "beta")}
    found = {}
    for name, posterior in {
        "Gibbs sampling": gibbs.posterior,
        "mean field": field.posterior,
        "mean field, widths corrected": corrected,
    }.items():
        flat = {s: np.asarray(x) for s, x in posterior.sample(jax.random.key(1), 4000).items()}
        draws = align.align_draws(field.model, flat, pivot)["beta"]
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        found[name] = np.stack([low, draws.mean(0), high])
    topic = np.argmax(found["Gibbs sampling"][2].max(1) - found["Gibbs sampling"][0].max(1))
    return {name: x[:, topic] for name, x in found.items()}


def main() -> None:
    found = intervals()
    order = np.argsort(-found["Gibbs sampling"][1])[:SHOWN]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 3.4), layout="constrained")
        for i, (name, (low, middle, high)) in enumerate(found.items()):
            y = np.arange(SHOWN) + 0.24 * (i - 1)
            axes.hlines(y, low[order], high[order], color=COLOURS[i], linewidth=3.5, label=name)
            axes.plot(middle[order], y, "o", color=COLOURS[i], markersize=7, markeredgecolor="#fff")
        axes.set_yticks(range(SHOWN), [WORDS[i] for i in order])
        axes.invert_yaxis()
        axes.tick_params(length=0)
        axes.set_xlabel("probability of the word in a topic: mean and 90 % interval")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="x", color="#ddd", linewidth=0.8)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper left", ncols=3, frameon=False, handlelength=1.2)
        path = ROOT / "docs" / "figures" / "home.svg"
        figure.savefig(path, metadata={"Date": None}, facecolor="#fff")
    for name, (low, _, high) in found.items():
        print(name, np.round((high - low)[order], 3))


if __name__ == "__main__":
    main()
