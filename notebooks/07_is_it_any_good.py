# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 7. Is my variational posterior any good?
#
# **What you will learn.** How a mean-field posterior is wrong, in closed form where that can be
# had. How to compare a posterior with a Markov chain and read the result: means, widths, coverage,
# labels, convergence. Three checks that need no reference: the importance weights' tail, the
# bound's gap, and calibration on simulated data. How to get the right widths from the same fit.
#
# **What you need.** Coordinate ascent (notebook 1) and what a Gibbs sampler does. Everything else
# is explained here.

# %%
import warnings

warnings.filterwarnings(
    "ignore", message="IProgress not found"
)  # of tqdm, in a Jupyter without ipywidgets

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from scipy.stats import norm

import inference
import pp_models
from inference.calibration import sbc
from inference.comparison import marginal_likelihood
from inference.core import align
from inference.io.arviz import smoothed_weights

jax.config.update("jax_num_cpu_devices", 2)
plt.rcParams.update(
    {
        "figure.figsize": (7, 3.2),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "font.size": 9,
    }
)
COLOUR = {
    "exact": "#0067a5",
    "gibbs": "#0067a5",
    "nuts": "#2f8fc4",
    "cavi": "#c84a00",
    "svi": "#a87400",
    "map": "#5f6670",
}

# %% [markdown]
# ## 1. The smallest case: two correlated numbers
#
# Let the true posterior be a normal density $p(x_1, x_2)$ with means zero, variances one and
# correlation $\rho$. Its precision matrix is
#
# $$ \Lambda = \Sigma^{-1} = \frac{1}{1 - \rho^2} \begin{pmatrix} 1 & -\rho \\ -\rho & 1 \end{pmatrix}. $$
#
# Mean field looks for the product $q(x) = q_1(x_1)\, q_2(x_2)$ that minimises $\mathrm{KL}(q \,\|\,
# p) = \mathrm{E}_q \log (q / p)$. Coordinate ascent sets each factor to $\log q_i =
# \mathrm{E}_{q_j} \log p + \text{const}$, which here is a normal density again:
#
# $$ q_i = \mathcal{N}\!\left(m_i,\ \Lambda_{ii}^{-1}\right),
# \qquad m_1 \leftarrow -\frac{\Lambda_{12}}{\Lambda_{11}}\, m_2 = \rho\, m_2, \qquad m_2 \leftarrow \rho\, m_1 . $$
#
# The means end where they should, at zero. The variance of $q_i$ is $1 / \Lambda_{ii} = 1 - \rho^2$
# and the true one is 1. Mean field reports the variance of $x_1$ *given* $x_2$ for the variance of
# $x_1$: too small by exactly the factor $1 - \rho^2$.

# %%
rho = 0.8
covariance = np.array([[1, rho], [rho, 1]])
precision = np.linalg.inv(covariance)
variance = 1 / np.diag(precision)  # of q_1 and q_2

path = [np.array([-1.0, 2.0])]  # the means, after each update of one of them
for _ in range(8):
    m1 = -precision[0, 1] / precision[0, 0] * path[-1][1]
    path.append(np.array([m1, path[-1][1]]))
    path.append(np.array([m1, -precision[1, 0] / precision[1, 1] * m1]))
path = np.array(path)
print(
    "variance of q:",
    variance,
    "  true variance:",
    np.diag(covariance),
    "  mean of q after 8 sweeps:",
    path[-1].round(3),
)

# %% tags=["check"]
# "too small by exactly the factor 1 - rho^2": an identity, to rounding
assert np.allclose(variance / np.diag(covariance), 1 - rho**2, rtol=1e-12, atol=0)

# %%
angle = np.linspace(0, 2 * np.pi, 200)
circle = np.stack([np.cos(angle), np.sin(angle)])
fig, (left, right) = plt.subplots(1, 2, width_ratios=(1, 1.25), constrained_layout=True)
for size in (1, 2):
    left.plot(
        *(size * np.linalg.cholesky(covariance) @ circle),
        color=COLOUR["exact"],
        label="truth" if size == 1 else None,
    )
    left.plot(
        *(size * np.sqrt(variance)[:, None] * circle),
        color=COLOUR["cavi"],
        label="mean field" if size == 1 else None,
    )
left.plot(*path.T, color="black", lw=0.8, marker=".", ms=3, label="mean of q, update by update")
left.set(
    xlabel="$x_1$",
    ylabel="$x_2$",
    title="One and two sd of truth and q",
    aspect="equal",
    xlim=(-3.2, 3.2),
    ylim=(-3.9, 2.4),
)
left.legend(loc="lower right", fontsize=7)
grid = np.linspace(-3.5, 3.5, 300)
right.plot(grid, norm.pdf(grid), color=COLOUR["exact"], label="truth, sd 1")
right.plot(
    grid,
    norm.pdf(grid, scale=np.sqrt(variance[0])),
    color=COLOUR["cavi"],
    label=rf"mean field, sd $\sqrt{{1-\rho^2}}$ = {np.sqrt(variance[0]):.1f}",
)
right.set(
    xlabel="$x_1$", ylabel="density", title="The marginal: right place, too narrow", ylim=(0, 0.9)
)
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# Three things to see. The ellipse of $q$ fits *inside* the true one: $q$ avoids places where $p$ is
# small, and does not mind leaving places out where $p$ is large. The means walk to the centre in a
# zigzag, and every sweep multiplies their error by $\rho^2$: **strong correlation makes mean field
# slow and narrow at the same time**. And the distance that is left has a closed form,
#
# $$ \mathrm{KL}(q \,\|\, p) = \tfrac12 \left[ \operatorname{tr}(\Lambda V) - 2 - \log \det(\Lambda V) \right]
# = -\tfrac12 \log (1 - \rho^2), \qquad V = (1 - \rho^2) I. $$


# %%
def divergence(variances):
    """KL(q || p) of a product of two normals with the right means."""
    product = precision @ np.diag(variances)
    return 0.5 * (np.trace(product) - 2 - np.log(np.linalg.det(product)))


print(
    f"KL(q || p) = {divergence(variance):.4f} nats;  with the true variances instead: {divergence(np.ones(2)):.4f} nats"
)

# %% tags=["check"]
# the closed form, to rounding; that q is the best product: any other variances are worse; and the
# rate of convergence, rho^2 a sweep
assert np.allclose(divergence(variance), -0.5 * np.log(1 - rho**2), rtol=1e-12, atol=0)
assert all(
    divergence(variance * np.array(factor)) > divergence(variance)
    for factor in ((0.9, 1), (1.1, 1), (1, 0.9), (1.1, 1.1), (1 / variance[0], 1 / variance[1]))
)
assert np.allclose(path[3::2][:, 0] / path[1:-2:2][:, 0], rho**2, rtol=1e-12, atol=0)

# %% [markdown]
# The last printed number matters: a product with the *right* variances has a *higher* divergence.
# The narrowness is not a failure of the optimiser. It is what this objective asks for.
#
# What does it do to an interval? $q$'s central 90 % interval is $\pm 1.645\, r$ with $r = \sqrt{1 -
# \rho^2}$ the ratio of the sds, and the truth is inside with probability
#
# $$ \mathrm{coverage}_{90}(r) = 2 \Phi(1.645\, r) - 1, $$
#
# where $\Phi$ is the standard normal distribution function. Here, with $r = 0.6$, an interval that
# says 90 % holds 68 %.


# %%
def covered(ratio, level=0.9):
    """The probability that a normal interval holds, where its sd is `ratio` times the true one."""
    return 2 * norm.cdf(norm.isf((1 - level) / 2) * ratio) - 1


print(
    {
        f"r = {r}": f"90 % holds {covered(r):.0%}, 50 % holds {covered(r, 0.5):.0%}"
        for r in (1.0, 0.9, 0.6, 0.3)
    }
)

# %% tags=["check"]
# "an interval that says 90 % holds 68 %": closed form, then the same by a million draws of the
# truth (standard error 0.0005)
assert abs(covered(0.6) - 0.676) < 0.001
draws = np.random.default_rng(0).multivariate_normal(np.zeros(2), covariance, 1_000_000)[:, 0]
assert abs(np.mean(np.abs(draws) < norm.isf(0.05) * np.sqrt(variance[0])) - covered(0.6)) < 0.003

# %% [markdown]
# ## 2. A model of the zoo against a Markov chain
#
# For real models there is no closed form, so we compare with a long Markov chain. The model is
# `bernoulli_mixture`: each row of zeros and ones comes from one of $K$ components,
#
# $$ \pi \sim \mathrm{Dirichlet}, \qquad \beta_{ki} \sim \mathrm{Beta}(a, b),
# \qquad z_n \sim \mathrm{Discrete}(\pi), \qquad x_{ni} \sim \mathrm{Bernoulli}(\beta_{z_n i}). $$
#
# We draw 60 rows of six columns from two components that overlap: columns 1 to 3 are mostly one in
# component A, columns 4 to 6 in component B.

# %%
rng = np.random.default_rng(0)
probabilities = np.array([[0.8, 0.8, 0.8, 0.2, 0.2, 0.2], [0.2, 0.2, 0.2, 0.8, 0.8, 0.8]])
component = rng.choice(2, 60, p=[0.6, 0.4])
data = pp_models.data.dense((rng.random((60, 6)) < probabilities[component]).astype(float))

result = inference.compare(
    "bernoulli_mixture",
    data,
    reference="gibbs",
    engines=["nuts", "cavi", "svi", "map"],
    hyper={"num_components": 2, "concentration": 2.0, "a": 1.5, "b": 1.5},
    options={
        "gibbs": {"num_samples": 1000, "num_warmup": 300, "num_chains": 4},
        "nuts": {"num_samples": 500, "num_warmup": 300},
    },
    num_draws=4000,
    quick=True,
    progress=False,
)
FIGURES = ("mean_error_sd", "sd_ratio", "coverage50", "coverage90", "khat")
rows = result.summary["engines"]
print(f"{'engine':8}" + "".join(f"{name:>15}" for name in FIGURES) + "   verdict")
for name, row in rows.items():
    print(
        f"{name:8}"
        + "".join(f"{'-' if row[f] is None else format(row[f], '.2f'):>15}" for f in FIGURES)
        + f"   {row['verdict']}"
    )

# %% [markdown]
# How to read a row. The unit of everything is the reference's posterior sd, because an error of
# 0.01 is large for a parameter known to 0.005 and nothing for one known to 0.5.
#
# - `mean_error_sd`: the mean over parameters of $|m - m_0| / s_0$, with $m$ the engine's posterior
#   mean, $m_0$ and $s_0$ the reference's mean and sd. Below 0.2 is what two good chains differ by.
# - `sd_ratio`: the median of $s / s_0$. One is right; mean field lies below.
# - `coverage50`, `coverage90`: how much of the reference lies inside the engine's central 50 % and
#   90 % intervals.
# - `map` is a point. It has no width, and its verdict says so.
#
# `nuts` is the control: a second sampler that shares no code with the first shows what "the same"
# looks like with this many draws. Without such a control nobody knows whether 0.05 is an error or
# noise.

# %% tags=["check"]
# the control agrees; both variational engines are narrower than it and have their means right (0.2:
# the verdicts' own limit); the point has no width
assert rows["nuts"]["mean_error_sd"] < 0.15 and abs(rows["nuts"]["sd_ratio"] - 1) < 0.08
assert all(
    rows[e]["mean_error_sd"] < 0.2 and rows[e]["sd_ratio"] < rows["nuts"]["sd_ratio"] - 0.03
    for e in ("cavi", "svi")
)
assert all(rows[e]["coverage90"] < rows["nuts"]["coverage90"] for e in ("cavi", "svi"))
assert rows["map"]["sd_ratio"] is None and "silent about uncertainty" in rows["map"]["verdict"]

# %% [markdown]
# One number for all parameters hides which ones are wrong. `result.quantities` has every number
# that was compared; `.to_dataframe()` makes it a table.

# %%
table = result.quantities.to_dataframe().reset_index().set_index(["engine", "label"])
labels = list(table.loc["cavi"].index)
fig, (left, right) = plt.subplots(1, 2, width_ratios=(1.5, 1), constrained_layout=True)
for engine, shift in (("nuts", 0.12), ("cavi", -0.12)):
    left.plot(
        np.arange(len(labels)) + shift,
        table.loc[engine]["sd_ratio"],
        ls="",
        marker="d" if engine == "nuts" else "s",
        ms=5,
        color=COLOUR[engine],
        label=engine,
    )
left.axhline(1, color=COLOUR["gibbs"], lw=1)
left.set_xticks(np.arange(len(labels)), labels, rotation=60, fontsize=7)
left.set(ylabel="sd / reference sd", title="Widths: mean field lies below one")
left.legend()
ratios = np.linspace(0.4, 1.2, 50)
right.plot(ratios, covered(ratios), color="black", lw=1, label=r"$2\Phi(1.645\,r) - 1$")
for engine, marker in (("nuts", "d"), ("cavi", "s")):
    right.plot(
        table.loc[engine]["sd_ratio"],
        table.loc[engine]["coverage90"],
        ls="",
        marker=marker,
        ms=4,
        color=COLOUR[engine],
        label=engine,
    )
right.set(
    xlabel="sd / reference sd, $r$",
    ylabel="coverage of 90 % intervals",
    title="... and coverage follows",
    ylim=(0.5, 1),
)
right.legend()
plt.show()
print(
    "sd ratio of cavi, site by site:",
    {site: round(one["sd_ratio"], 2) for site, one in rows["cavi"]["sites"].items()},
)

# %% [markdown]
# Every parameter is too narrow, the weights $\pi$ more than most probabilities: whether a doubtful
# row belongs to A or B moves the weight of A and the probabilities of both components together, and
# mean field holds each of these fixed at its mean while it updates the others. On the right,
# coverage follows the formula of section 1, although nothing here is normal: once the ratio of sds
# is known, coverage brings little news, unless means are off.

# %% tags=["check"]
# "every parameter is too narrow, the weights more than most"; "coverage follows the formula":
# within 0.05 for every parameter, which mean errors of
# 0.2 sd and skewed marginals can
# cost
assert np.all(table.loc["cavi"]["sd_ratio"] < 0.99)
assert rows["cavi"]["sites"]["pi"]["sd_ratio"] < rows["cavi"]["sites"]["beta"]["sd_ratio"] - 0.02
assert np.all(
    np.abs(table.loc["cavi"]["coverage90"] - covered(table.loc["cavi"]["sd_ratio"])) < 0.05
)

# %% [markdown]
# ## 3. Labels mean nothing
#
# Exchange the names A and B everywhere and neither the likelihood nor the prior changes. The
# posterior therefore has $K! = 2$ copies of everything. A chain may be in one copy or wander
# through both, and $q$ sits in one. So **the mean of $\beta_{11}$ under the posterior is the same
# as that of $\beta_{21}$ and tells nothing**, and draws must be given one common labelling before
# they are compared.
#
# `result.fits["gibbs"].posterior.draws` are the chains as they ran. `result.draws["gibbs"]` are the
# same draws, each relabelled to lie nearest to one stated pivot, the reference's own mean
# (`inference.core.align`).

# %%
raw = np.asarray(
    result.fits["gibbs"].posterior.draws["beta"]
)  # (chains, draws, components, columns)
aligned = result.draws["gibbs"]["beta"].reshape(raw.shape)
fig, panels = plt.subplots(1, 2, sharey=True, constrained_layout=True)
for panel, chains, title in zip(
    panels, (raw, aligned), ("As the chains ran", "After alignment"), strict=True
):
    for number, chain in enumerate(chains):
        panel.plot(
            chain[::5, 0, 0],
            lw=0.5,
            color=plt.cm.cividis(number / 3.5),
            label=f"chain {number + 1}",
        )
    panel.set(
        xlabel="draw / 5",
        title=f"{title}: R-hat {split_gelman_rubin(chains[:, :, 0, 0]):.2f}",
        ylim=(0, 1),
    )
panels[0].set_ylabel(r"$\beta_{11}$, a probability")
panels[1].legend(loc="lower right", ncols=2, fontsize=7)
plt.show()

# %% [markdown]
# R-hat compares the variance between chains with the variance within them; 1 is what chains of the
# same distribution give. On the left it is far above one, and nothing is wrong with the sampler:
# chains that began at random have different names for the same components. On the right the names
# agree.
#
# Some functions need no alignment since no relabelling can change them: the log joint density, the
# likelihood of a row, the expected data $\sum_k \pi_k \beta_{ki}$. They are the safer thing to
# judge by, and the report has them beside the sites.

# %%
gibbs = result.fits["gibbs"]
weights = np.asarray(gibbs.posterior.draws["pi"])
expected = np.einsum("cnk,cnki->cni", weights, raw)  # the probability of a one in each column
swapped = {"pi": weights.reshape(-1, 2)[:, ::-1], "beta": raw.reshape(-1, 2, 6)[:, ::-1]}
print(
    "R-hat of the expected data, no alignment:",
    np.round([split_gelman_rubin(expected[:, :, i]) for i in range(6)], 3),
)
print(
    "log joint of draw 1, and of the same draw with A and B exchanged:",
    gibbs.log_joint(result.draws["gibbs"])[0].round(3),
    gibbs.log_joint(swapped)[0].round(3),
)

# %% tags=["check"]
# before: chains in different copies. After: together. Invariant functionals are the same to
# rounding (single precision: 1e-5 of 200) and mix without alignment
assert split_gelman_rubin(raw[:, :, 0, 0]) > 1.5
assert split_gelman_rubin(aligned[:, :, 0, 0]) < 1.05
assert max(split_gelman_rubin(expected[:, :, i]) for i in range(6)) < 1.05
assert np.allclose(
    gibbs.log_joint(swapped), gibbs.log_joint(result.draws["gibbs"]), rtol=2e-5, atol=0
)
assert np.allclose(np.sort(aligned, axis=2), np.sort(raw, axis=2)) and not np.allclose(
    aligned, raw
)  # relabelled, and nothing else

# %% [markdown]
# ## 4. Who judges the judge?
#
# A reference that has not converged judges nobody. Four figures, all in `result.summary`: `rhat`
# (at most 1.05, better 1.01), `ess_bulk`, the number of independent draws that the chains are worth
# (at least 50, better 400), `divergences` (NUTS only), and whether the chains are in different
# modes after alignment. With $n_{\mathrm{eff}}$ effective draws the reference's own means are
# uncertain by $1 / \sqrt{n_{\mathrm{eff}}}$ sd: an engine cannot be shown to be better than that.

# %%
reference = rows["gibbs"]
print(
    f"gibbs: R-hat {reference['rhat']:.3f}, effective draws {reference['ess_bulk']:.0f} of {reference['draws']}"
)
print(f"noise of its means: {reference['ess_bulk'] ** -0.5:.3f} sd")

hasty = inference.compare(
    "bernoulli_mixture",
    data,
    reference="gibbs",
    engines=["cavi"],
    hyper=result.hyper,
    options={"gibbs": {"num_samples": 50, "num_warmup": 0, "num_chains": 2}},
    quick=True,
    progress=False,
)
print("hasty reference: cavi is", hasty.summary["engines"]["cavi"]["verdict"])
print(hasty.summary["engines"]["gibbs"]["notes"][0])

# %% tags=["check"]
# the long reference may judge, the short one may not, and the same cavi is then not judged at all
assert result.summary["converged"] and reference["rhat"] < 1.05 and reference["ess_bulk"] > 200
assert not hasty.summary["converged"] and hasty.summary["engines"]["cavi"]["verdict"].startswith(
    "not judged"
)

# %% [markdown]
# ## 5. Importance weights: a check without a reference
#
# Draw $x$ from $q$ and weigh it by $w = p(\text{data}, x) / q(x)$. If $q$ is close to the posterior
# all weights are alike. If $q$ is too narrow, a few draws in its tails carry enormous weights, and
# averages rest on these few. The number $\hat k$ is the shape of a Pareto distribution fitted to
# the largest weights: $w$ has about $1 / \hat k$ finite moments. Below 0.5 the variance of weighted
# averages is finite; up to 0.7 smoothing the largest weights (PSIS: Vehtari, Simpson, Gelman, Yao
# and Gabry 2024) still works; above that it does not.
#
# Our normal example has the answer in closed form. With $x_i = \sqrt{1 - \rho^2}\, z_i$ and $z$
# standard normal, the weights are
#
# $$ \log w = \text{const} + \rho\, z_1 z_2, \qquad \Pr(z_1 z_2 > t) \approx e^{-t} \;\Rightarrow\; \Pr(w > u) \approx u^{-1/\rho}, $$
#
# a tail of shape $k = \rho$. (A finite number of draws sees a little less of it, the more so the
# heavier it is.) So PSIS mends mean field up to a correlation of about 0.7.

# %%
rhos = np.array([0.1, 0.3, 0.5, 0.7, 0.8, 0.9])
khats, mended = np.zeros((2, len(rhos), 20))
for i, correlation in enumerate(rhos):
    for j in range(20):
        z = np.random.default_rng(j).normal(size=(4000, 2))
        x1, log_weights = np.sqrt(1 - correlation**2) * z[:, 0], correlation * z[:, 0] * z[:, 1]
        smoothed, khats[i, j] = smoothed_weights(log_weights)
        mended[i, j] = smoothed @ x1**2
fig, (left, right) = plt.subplots(1, 2, constrained_layout=True)
left.plot([0, 1], [0, 1], color="black", lw=1, label=r"$k = \rho$")
left.errorbar(
    rhos,
    khats.mean(1),
    khats.std(1),
    ls="",
    marker="o",
    ms=4,
    color=COLOUR["cavi"],
    label=r"$\hat k$ of 4,000 draws, ± sd",
)
left.axhline(0.7, color="grey", ls="--", lw=1)
left.set(xlabel=r"correlation $\rho$", ylabel=r"$\hat k$", title="The weights' tail has shape ρ")
left.legend()
right.plot(
    rhos, 1 - rhos**2, color=COLOUR["cavi"], marker="s", ms=4, label=r"mean field, $1 - \rho^2$"
)
right.errorbar(
    rhos,
    mended.mean(1),
    mended.std(1),
    color="#00805f",
    marker="o",
    ms=4,
    label="weighted by PSIS, ± sd",
)
right.axhline(1, color=COLOUR["exact"], lw=1, label="truth")
right.axvline(0.7, color="grey", ls="--", lw=1)
right.set(
    xlabel=r"correlation $\rho$",
    ylabel="variance of $x_1$",
    title=r"Weights mend q, up to $\hat k$ = 0.7",
)
right.legend(loc="lower left", fontsize=7)
plt.show()

# %% tags=["check"]
# k-hat tracks rho (0.1: the tail of z1 z2 has a factor 1/sqrt(t) besides, which 4,000 draws see);
# PSIS mends the variance below 0.7 and falls short at 0.9
assert np.all(np.abs(khats.mean(1) - rhos) < 0.13)
assert np.all(np.diff(khats.mean(1)) > 0)
assert np.all(np.abs(mended.mean(1)[rhos <= 0.5] - 1) < 0.08)
assert mended.mean(1)[-1] < 0.8 and mended.mean(1)[-1] > 2 * (1 - 0.9**2)
# "the variance of weighted averages is finite below 0.5": E_q w^2 = 1 / sqrt(1 - 4 rho^2) for rho <
# 1/2, from 400,000 weights
z = np.random.default_rng(1).normal(size=(400_000, 2))
assert np.allclose(
    np.mean(np.exp(2 * 0.3 * z[:, 0] * z[:, 1])), 1 / np.sqrt(1 - 4 * 0.3**2), rtol=0.03, atol=0
)

# %% [markdown]
# And the mixture? `compare` computes $\hat k$ for every distribution it finds, and where it is
# below 0.7 the weighted draws' own errors (`psis`).

# %%
q = result.fits["cavi"].posterior
sample = q.sample(jax.random.key(2), 4000)
log_joint, log_q = result.fits["cavi"].log_joint(sample), q.log_density(sample)
smoothed, khat = smoothed_weights(log_joint - log_q)
print(
    f"k-hat of cavi: {khat:.2f};  largest share of one draw: {smoothed.max():.1%};  4000 draws are worth {1 / np.sum(smoothed**2):.0f}"
)
pi_sd = np.sqrt(smoothed @ (sample["pi"][:, 0] - smoothed @ sample["pi"][:, 0]) ** 2)
print(
    f"sd of pi: q {sample['pi'][:, 0].std():.3f}, weighted {pi_sd:.3f}, gibbs {result.draws['gibbs']['pi'][:, 0].std():.3f}"
)

# %% [markdown]
# It is a warning, not a verdict: thirteen unknowns with modest errors each make heavy weights
# together, and in larger models $\hat k$ is often above 0.7 while most marginals are fine. A
# *small* $\hat k$ is strong evidence for $q$; a large one says only that weights will not mend it.
# And neither sees the second labelling, where $q$ has no draws.

# %% tags=["check"]
# of this q: heavy weights (k-hat above 0.5, where a normal of the same sd ratio would be far
# below), and weighting moves the sd of pi towards the reference's
assert khat > 0.5
assert sample["pi"][:, 0].std() < pi_sd < 1.1 * result.draws["gibbs"]["pi"][:, 0].std()

# %% [markdown]
# ## 6. The bound's gap
#
# For every $q$,
#
# $$ \log p(\text{data}) = \mathrm{bound}(q) + \mathrm{KL}(q \,\|\, \text{posterior}), $$
#
# so if the log evidence is known, the divergence is. Bridge sampling (Meng and Wong 1996) estimates
# it from a chain's draws: `marginal_likelihood.log_evidence`. The full `compare` calls it and writes
# the divergence of $q$, with the rows' components summed out, as `kl`. On a logarithm's scale of
# hundreds of nats, gaps are a few.

# %%
evidence = marginal_likelihood.log_evidence(gibbs, key=jax.random.key(3))
bound = result.fits["cavi"].bound
summed_out = np.mean(
    log_joint - log_q
)  # the same q of pi and beta, with the rows' components summed out
ratios = log_joint - log_q
weighted = ratios.max() + np.log(
    np.mean(np.exp(ratios - ratios.max()))
)  # of the one labelling where q has draws
print(f"log evidence {evidence.value:.2f} ± {evidence.error:.2f};  bound of cavi {bound:.2f}")
print(f"gap {evidence.value - bound:.2f} nats, of which log 2! = {np.log(2):.2f}")

fig, axis = plt.subplots(figsize=(7, 2.2), constrained_layout=True)
marks = {
    "bound of cavi": (bound, COLOUR["cavi"]),
    "the same q,\nrows summed out": (summed_out, "#a87400"),
    "mean weight\n(one labelling)": (weighted, "#00805f"),
}
marks["log evidence\n(bridge)"] = (evidence.value, COLOUR["exact"])
for height, (value, colour) in enumerate(marks.values()):
    axis.plot([value, evidence.value], [height, height], color=colour, lw=1)
    axis.plot(value, height, "o", color=colour)
axis.set_yticks(range(len(marks)), list(marks))
axis.set(
    xlabel="nats", title="What is missing between the bound and the log evidence", ylim=(-0.5, 3.5)
)
plt.show()

# %% [markdown]
# From the bottom: the bound; what is gained by not factorising the rows' components from the rest;
# what is gained by weighting $q$'s draws, which is all there is to gain in one labelling; and the
# rest, $\log K! = \log 2$: $q$ sits in one of two copies and misses the other half of the
# posterior's mass. That part of the gap is harmless, and is there even for a perfect $q$ of one
# copy.

# %% tags=["check"]
# the order of the four, the bridge's own error, and that the last step is log 2 (0.2 nats: mean
# weights of 4,000 draws at this k-hat)
assert bound < summed_out < weighted < evidence.value and evidence.error < 0.1
assert abs(evidence.value - weighted - np.log(2)) < 0.2
# the normal example: its gap, KL(q || p) = -1/2 log(1 - rho^2), is the logarithm of the weights'
# mean less the mean of their logarithm
z = np.random.default_rng(2).normal(size=(400_000, 2))
assert np.allclose(
    np.log(np.mean(np.exp(0.4 * z[:, 0] * z[:, 1]))) - 0.4 * np.mean(z[:, 0] * z[:, 1]),
    -0.5 * np.log(1 - 0.4**2),
    atol=0.01,
)

# %% [markdown]
# ## 7. Calibration: no reference, many data sets
#
# Draw parameters from the prior, data given the parameters, fit, and ask where the true value lies
# among the posterior's draws. If the posterior is exact, its rank is uniform, whatever the model
# (Talts, Betancourt, Simpson, Vehtari and Gelman 2018). If $q$ is too narrow, true values fall into
# its tails too often: the histogram is U-shaped. If $q$ is shifted, it slopes.
#
# First in ten lines, with two unknowns of which only the sum is observed: $x_1, x_2 \sim
# \mathcal{N}(0, 1)$, $y \sim \mathcal{N}(x_1 + x_2,\ \sigma^2)$. The posterior is normal, and so is
# mean field's $q$.

# %%
noise = 0.5
posterior_precision = np.eye(2) + np.ones((2, 2)) / noise**2
posterior_covariance = np.linalg.inv(posterior_precision)
rng, datasets, draws = np.random.default_rng(4), 4000, 49
true = rng.normal(size=(datasets, 2))
y = true.sum(1) + noise * rng.normal(size=datasets)
centre = y[:, None] * (posterior_covariance @ np.ones(2)) / noise**2
exact = centre[:, None, :1] + np.sqrt(posterior_covariance[0, 0]) * rng.normal(
    size=(datasets, draws, 1)
)
narrow = centre[:, None, :1] + np.sqrt(1 / posterior_precision[0, 0]) * rng.normal(
    size=(datasets, draws, 1)
)
ranks = {
    name: np.sum(sample_[:, :, 0] < true[:, :1], 1)
    for name, sample_ in (("exact", exact), ("cavi", narrow))
}

# %% [markdown]
# `inference.calibration.calibrate` does the same for any model and engine, ranking functions that
# no relabelling changes. On LDA mean field does badly: 40 data sets of 20 documents, ranks of eight
# word probabilities in each.

# %%
found = {
    engine: sbc.calibrate(
        "lda",
        engine,
        40,
        num_rows=20,
        num_columns=10,
        num_draws=49,
        options=options,
        progress=False,
    )
    for engine, options in (
        ("gibbs", {"num_warmup": 200, "thin": 20}),
        ("cavi", {"num_epochs": 100}),
    )
}
lda_ranks = {
    engine: one.ranks[
        :,
        [
            g == "expected data" and "mean" not in n
            for g, n in zip(one.groups, one.names, strict=True)
        ],
    ]
    for engine, one in found.items()
}

fig, panels = plt.subplots(1, 4, sharey=True, constrained_layout=True)
shown = [("exact", ranks["exact"], "Normal, exact"), ("cavi", ranks["cavi"], "Normal, mean field")]
shown += [
    ("gibbs", lda_ranks["gibbs"].ravel(), "LDA, Gibbs"),
    ("cavi", lda_ranks["cavi"].ravel(), "LDA, mean field"),
]
for panel, (name, values, title) in zip(panels, shown, strict=True):
    shares = np.histogram(values, np.linspace(0, 50, 11))[0] / len(values)
    panel.bar(np.arange(10) + 0.5, 10 * shares, width=0.9, color=COLOUR[name])
    panel.axhline(1, color="black", lw=1)
    panel.set(title=title, xlabel="rank, in tenths", xticks=(0, 5, 10))
panels[0].set_ylabel("share / uniform share")
plt.show()
for engine, one in found.items():
    share = np.mean(sbc.coverage(lda_ranks[engine], 49, 0.9))
    print(
        f"lda by {engine}: 90 % intervals of word probabilities hold {share:.0%}; p-value of uniform ranks {one.p_value:.3f}"
    )

# %% [markdown]
# Flat for the exact posterior and for Gibbs, U-shaped for mean field, in the toy and in LDA. For
# the toy the share of ranks in the two outer tenths follows from section 1: the posterior
# correlation is $-0.8$ and $r = 0.6$, so the central 80 % interval holds $2\Phi(1.28 \cdot 0.6) - 1
# = 56\,\%$, and 44 % of the ranks are outside instead of 20 %.
#
# Calibration averages over data sets drawn from the prior. It says that an engine is wrong on
# *such* data, not by how much it is wrong on *yours*; section 2 says that.

# %% tags=["check"]
# the toy: 44 % outside for mean field, 20 % for the exact posterior (4,000 data sets: standard
# error 0.8 %; 49 draws instead of quantiles cost mean field about 1 %)
outside = {name: np.mean((r < 5) | (r >= 45)) for name, r in ranks.items()}
assert np.allclose(
    posterior_covariance[0, 1] / posterior_covariance[0, 0], -0.8, rtol=1e-12, atol=0
)
assert abs(outside["exact"] - 0.20) < 0.03 and abs(outside["cavi"] - (1 - covered(0.6, 0.8))) < 0.03
# LDA: Gibbs passes the simultaneous test, mean field fails it, and its intervals hold far less than
# 90 % (docs: 65 %; 40 data sets: standard error 5 %)
assert found["gibbs"].p_value > 0.01 > found["cavi"].p_value
assert (
    np.mean(sbc.coverage(lda_ranks["cavi"], 49, 0.9))
    < 0.78
    < 0.84
    < np.mean(sbc.coverage(lda_ranks["gibbs"], 49, 0.9))
)

# %% [markdown]
# ## 8. Right widths from the same fit
#
# Mean field's width is the one *given* everything else. How far everything moves *together* is in
# the fit as well: tilt the log joint density a little, to $F + \epsilon\, g$, and see where the
# answer goes. Under the exact posterior, expectations move by the covariance with $g$. Under mean
# field they move by
#
# $$ \Sigma = \left(V^{-1} - F''\right)^{-1}, $$
#
# where $V$ is the covariance under $q$ and $F''$ the curvature of the expected log joint density.
# This is linear response (Giordano, Broderick and Jordan 2018). In section 1 $V = (1 - \rho^2) I$,
# and $F''$ couples the two numbers by $-\Lambda_{12} = \rho / (1 - \rho^2)$.

# %%
coupling = -precision * (1 - np.eye(2))  # F'': the part of the log density that q cannot hold
response = np.linalg.inv(np.diag(1 / variance) - coupling)
print("linear response:\n", response.round(12), "\ntruth:\n", covariance)

# %% tags=["check"]
# a normal posterior: exact, to rounding
assert np.allclose(response, covariance, rtol=1e-12, atol=0)

# %% [markdown]
# For a normal posterior it is exact. For the models of the zoo `fit.corrected()` solves that system
# by conjugate gradients, without forming a matrix. Here are 60 documents of LDA with three topics,
# beside a long Gibbs chain aligned to the fit.

# %%
rng = np.random.default_rng(0)
topics, shares = rng.dirichlet(np.full(12, 0.3), 3), rng.dirichlet(np.full(3, 0.4), 60)
corpus = pp_models.data.counts(np.array([rng.multinomial(50, p) for p in shares @ topics]))
given = {"hyper": {"num_topics": 3, "alpha": 0.5, "eta": 0.5}, "progress": False}
fitted = inference.fit("lda", corpus, "cavi", key=jax.random.key(0), **given)
chain = inference.fit(
    "lda", corpus, "gibbs", key=jax.random.key(1), num_samples=4000, num_chains=1, **given
)
corrected = fitted.corrected()
pivot = {site: corrected.mean(site) for site in ("theta", "beta")}
flat_chain = {site: np.asarray(x[0]) for site, x in chain.posterior.draws.items()}
posterior = align.align_draws(fitted.model, flat_chain, pivot)["beta"]
reference_sd, probability = posterior.std(0), posterior.mean(0)
off = np.abs(corrected.mean("beta") - probability) / reference_sd
widths = {"mean field": fitted.posterior.sd("beta"), "linear response": corrected.sd("beta")}
plain = fitted.posterior.sample(jax.random.key(3), 4000)["beta"]
intervals = {
    "mean field": np.quantile(plain, [0.05, 0.95], axis=0),
    "linear response": corrected.interval("beta"),
}
holds = {
    name: np.mean((low < posterior) & (posterior < high), axis=0)
    for name, (low, high) in intervals.items()
}
fig, (left, right) = plt.subplots(1, 2, constrained_layout=True)
for name, marker in (("mean field", "s"), ("linear response", "o")):
    style = {"ls": "", "marker": marker, "ms": 4, "color": COLOUR["cavi"], "label": name}
    style |= {"mfc": "white"} if name == "linear response" else {}
    left.plot(probability.ravel(), (widths[name] / reference_sd).ravel(), **style)
    right.plot(off.ravel(), holds[name].ravel(), **style)
left.axhline(1, color=COLOUR["gibbs"], lw=1)
left.set(
    xscale="log",
    xlabel="probability of the word in the topic",
    ylabel="sd / sd of Gibbs",
    title="Widths of topics",
)
right.axhline(0.9, color=COLOUR["gibbs"], lw=1)
right.set(
    xlabel="mean off, in sd of Gibbs",
    ylabel="held by 90 % intervals",
    title="Coverage falls where means are off",
    ylim=(0, 1),
)
left.legend(fontsize=8)
plt.show()
for name in widths:
    print(
        f"{name}: median sd ratio {np.median(widths[name] / reference_sd):.2f}, 90 % intervals "
        f"hold {np.mean(holds[name]):.0%}"
    )

# %% [markdown]
# **What mean field misses**: four tenths of the width of topics, because it holds the allocations of
# all words fixed while it looks at one. **What linear response mends**: the typical width, on the
# left, and with it most of the coverage, on the right. **What it cannot**: it is linear, and it keeps
# the means of mean field. Words that a topic hardly has stay too narrow (left, below 0.005): their
# skew posterior is not described by small changes about a mean near zero. Where means are off by
# most of an sd an interval of the right width is in the wrong place, and holds less than it says
# (right). Nor does it see the other labelling, or any other mode. `corrected.notes` says when the
# widths are not to be trusted, and
# `docs/widths.md` has the figures for every model.

# %% tags=["check"]
# topics: six tenths of the width, then within 7 %; coverage gains more than 15 points and stays
# short of 90 %, most of all where means are off; words below 0.005 stay below half of their width
ratio = {name: np.median(x / reference_sd) for name, x in widths.items()}
assert ratio["mean field"] < 0.7 and 0.93 < ratio["linear response"] < 1.07
held = {name: np.mean(x) for name, x in holds.items()}
assert held["mean field"] + 0.15 < held["linear response"] < 0.87
assert (
    holds["linear response"][off < 0.5].mean()
    > 0.86
    > 0.8
    > (holds["linear response"][off > 0.6].mean())
)
rare = probability < 0.005
assert rare.any() and np.median((widths["linear response"] / reference_sd)[rare]) < 0.5
assert corrected.notes == []

# %% [markdown]
# ## A checklist
#
# 1. **Is there a reference, and may it judge?** R-hat at most 1.01, several hundred effective
#    draws, chains in one mode after alignment, no divergences. If rows are too many, compare on a
#    random part of them (`rows=`).
# 2. **Align first**, or look at what no relabelling changes.
# 3. **Means**: errors in reference sd, beside those of a second sampler. Above 1 sd it is another
#    mode, or not converged: run `cavi` from other keys before you blame mean field.
# 4. **Widths**: `sd_ratio` parameter by parameter. Report intervals only of parameters where it is
#    near one, or say by how much they are too narrow.
# 5. **Coverage** of 50 and 90 % intervals says the same in the units readers care about.
# 6. **k-hat** below 0.7: weight the draws, and use the weighted moments. Above: do not. It says
#    nothing about other modes.
# 7. **The gap** to the log evidence, less $\log K!$. Bounds of two approximations of one model may
#    be compared; those of two models only if their gaps are alike.
# 8. **Too narrow?** Take the widths of `fit.corrected()`, and look at its notes.
# 9. **Calibrate** the engine on data like yours before you trust it where no reference can be had.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** For $d$ variables, all pairs with correlation $\rho$, what is the ratio of mean
# field's variance to the true one? What happens as $d$ grows?

# %% tags=["solution"]
for size in (2, 5, 50):
    inverse = np.linalg.inv((1 - 0.8) * np.eye(size) + 0.8)
    print(size, 1 / inverse[0, 0], (1 - 0.8) * (1 + (size - 1) * 0.8) / (1 + (size - 2) * 0.8))
# The ratio is (1 - rho)(1 + (d - 1) rho) / (1 + (d - 2) rho): 1 - rho^2 for d = 2, and it falls to
# 1 - rho.

# %% tags=["check"]
assert np.allclose(
    1 / inverse[0, 0], (1 - 0.8) * (1 + 49 * 0.8) / (1 + 48 * 0.8), rtol=1e-9, atol=0
)
assert 1 - 0.8 < 1 / inverse[0, 0] < 1.05 * (1 - 0.8)

# %% [markdown]
# **Exercise 2.** Minimise $\mathrm{KL}(p \,\|\, q)$ instead, over products of two normals. Which
# variances come out, and which side does this $q$ err on?

# %% tags=["solution"]
# KL(p || q) = const + sum_i [log(v_i) + E_p x_i^2 / v_i] / 2, least at v_i = E_p x_i^2 = 1: the
# true marginals. This q gives mass to corners where p has none.
candidates = np.linspace(0.2, 2, 181)
best = candidates[np.argmin(np.log(candidates) + 1 / candidates)]
print(
    "best variance:",
    best,
    "  mass of q where the true density is below 1 % of its maximum:",
    end=" ",
)
points = np.random.default_rng(0).normal(size=(100_000, 2))
print(
    np.mean(np.einsum("ni,ij,nj->n", points, precision, points) > -2 * np.log(0.01)).round(3),
    "and of p:",
    0.01,
)

# %% tags=["check"]
assert abs(best - 1) < 0.01
assert np.mean(np.einsum("ni,ij,nj->n", points, precision, points) > -2 * np.log(0.01)) > 0.1

# %% [markdown]
# **Exercise 3.** Take $n$ independent pairs, each with $\rho = 0.5$. Every marginal is as good as
# before. What becomes of $\hat k$?

# %% tags=["solution"]
for pairs in (1, 10, 100):
    z = np.random.default_rng(5).normal(size=(4000, pairs, 2))
    print(
        pairs,
        "pairs: k-hat",
        round(smoothed_weights(0.5 * np.sum(z[:, :, 0] * z[:, :, 1], 1))[1], 2),
    )
# It grows without end: log weights add up, and 4,000 draws no longer reach the tail. A large k-hat
# in a large model does not say that marginals are bad.

# %% tags=["check"]
assert smoothed_weights(0.5 * np.sum(z[:, :, 0] * z[:, :, 1], 1))[1] > 0.7

# %% [markdown]
# **Exercise 4.** Align the chains yourself, with the draw of highest log joint density for a pivot,
# and show that R-hat is the same as after `compare`.

# %% tags=["solution"]
flat = {"pi": weights.reshape(-1, 2), "beta": raw.reshape(-1, 2, 6)}
highest = int(np.argmax(gibbs.log_joint(flat)))
mine = align.align_draws(
    result.model, flat, {site: value[highest] for site, value in flat.items()}
)["beta"].reshape(raw.shape)
print(
    "R-hat",
    split_gelman_rubin(mine[:, :, 0, 0]).round(3),
    "effective draws",
    effective_sample_size(mine[:, :, 0, 0]).round(),
)

# %% tags=["check"]
assert split_gelman_rubin(mine[:, :, 0, 0]) < 1.05

# %% [markdown]
# **Exercise 5.** Rank the true values in the posterior of a wrong prior: in the toy of section 7
# shift the exact posterior by half its sd. What does the histogram look like, and why does coverage
# alone hardly notice?

# %% tags=["solution"]
shifted = exact[:, :, 0] + 0.5 * np.sqrt(posterior_covariance[0, 0])
ranks_shifted = np.sum(shifted < true[:, :1], 1)
print(
    "share per fifth:",
    (np.histogram(ranks_shifted, np.linspace(0, 50, 6))[0] / datasets).round(3),
    " 90 % intervals hold",
    sbc.coverage(ranks_shifted, 49, 0.9).round(3),
)
# It slopes: true values lie too low. One tail gains nearly what the other loses, so intervals hold
# nearly as much as they should.

# %% tags=["check"]
assert np.all(np.diff(np.histogram(ranks_shifted, np.linspace(0, 50, 6))[0]) < 0)
assert sbc.coverage(ranks_shifted, 49, 0.9) > 0.83

# %% [markdown]
# ## Summary
#
# Mean field finds the middle and underrates the width, by $1 - \rho^2$ in variance for two normals.
# A converged chain, aligned draws and errors in units of the reference's sd show it parameter by
# parameter; $\hat k$, the gap and calibration show it without, or beside, a reference. None of them
# replaces the others.
#
# **Where to go next.** Notebook 8 writes a model of your own and puts it through all this. `make
# compare` writes the whole comparison as one page. Papers: Yao, Vehtari, Simpson and Gelman 2018
# ("Yes, but did it work?"); Vehtari, Gelman, Simpson, Carpenter and Bürkner 2021 (R-hat); Talts and
# others 2018 (calibration); Vehtari and others 2024 (PSIS).
