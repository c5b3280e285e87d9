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
# # 6. Votes and bills: latent Gaussian factors, Laplace, and the grid against MCMC
#
# **What you will learn.** How text and votes can share one set of latent factors. What Laplace's
# approximation is, in one dimension first, and how it gives the posterior of a hyper-parameter on a
# grid (INLA). Why the version printed in the literature goes wrong when there are more words than
# documents, and what puts it right.
#
# **What you need to know.** The normal distribution, logarithms of densities, and second
# derivatives. Notebook 1 helps but is not needed.
#
# The models are those of Hu et al. (2014), "H" below; equation numbers are theirs.

# %%
import warnings

warnings.filterwarnings(
    "ignore", message="IProgress not found"
)  # of tqdm, in a Jupyter without ipywidgets

import jax

jax.config.update("jax_num_cpu_devices", 2)

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import log_ndtr, logsumexp, ndtr

import inference
import pp_models

FIRST, SECOND = "#0072B2", "#E69F00"  # the two parties
CHAIN, GRID, PAPER, TEXT = (
    "#999999",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
)  # Gibbs, the grid, the grid as printed in H, votes from text

# %% [markdown]
# ## A small legislature
#
# Sixty bills are written about three subjects. Bill $j$ has nonnegative weights $s_j$ on them, word
# $i$ has nonnegative loadings $d_{1i}$, and the count of word $i$ in bill $j$ is about $d_{1i}^\top
# s_j$. Twenty members belong to two parties. Member $i$ has a taste $d_{2i}$, of either sign, and
# votes yea when the *utility* $d_{2i}^\top s_j$ plus standard normal noise is positive. So yea has
# the probability $\Phi(d_{2i}^\top s_j)$, with $\Phi$ the normal distribution function: a *probit*
# model.
#
# The first party likes the first subject and dislikes the second, the other party the other way
# round, and both like the third a little.

# %%
rng = np.random.default_rng(7)
num_bills, num_words, num_members, K = 60, 120, 20, 3
true_s = np.abs(rng.normal(size=(num_bills, K)))
true_d1 = 0.3 * np.abs(rng.normal(size=(num_words, K)))
true_d1[np.arange(num_words), np.arange(num_words) * K // num_words] += 2 * np.abs(
    rng.normal(size=num_words)
)  # forty words of each subject
party = np.arange(num_members) // 10
true_d2 = np.where(party[:, None] == 0, [1.5, -1.5, 0.6], [-1.5, 1.5, 0.6]) + 0.4 * rng.normal(
    size=(num_members, K)
)

counts = np.maximum(np.round(true_s @ true_d1.T + rng.normal(size=(num_bills, num_words))), 0)
votes = (true_s @ true_d2.T + rng.normal(size=(num_bills, num_members)) > 0).astype(float)
known, new = np.arange(40), np.arange(40, 60)  # the last twenty bills are held out

# %%
order = np.argsort(true_s[:, 0] - true_s[:, 1])
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained", width_ratios=[2, 1])
axes[0].imshow(counts[order], cmap="Greys", aspect="auto", vmax=6)
axes[0].set(
    xlabel="words", ylabel="bills, second to first subject", title="Text: three blocks of words"
)
axes[1].imshow(votes[order], cmap="Greys", aspect="auto", interpolation="nearest")
axes[1].axvline(9.5, color=FIRST, linewidth=2)
axes[1].set(xlabel="members (line: parties)", yticks=[], title="Votes: dark is yea")
plt.show()
print(f"{votes.mean():.0%} of all votes are yea")

# %% [markdown]
# Bills are sorted by how much more they are about the first subject than the second. The text shows
# three blocks of words. The votes show two parties: at the top one party says nay and the other
# yea, at the bottom the reverse. What the model must find is that the same three numbers per bill
# explain both pictures.

# %% tags=["check"]
# "the votes show two parties": members agree more often with their own party than with the other,
# by a wide margin.
agree = (votes[:, :, None] == votes[:, None, :]).mean(0)
same = party[:, None] == party
assert agree[same & ~np.eye(num_members, dtype=bool)].min() > agree[~same].mean() + 0.1
assert agree[same].mean() > agree[~same].mean() + 0.25

# %% [markdown]
# ## The text alone: LG-NMF
#
# Latent Gaussian nonnegative matrix factorisation has a half-normal prior $\mathcal N_+$, a normal
# cut off at zero, for both factors (H 3):
#
# $$d_{1i} \sim \mathcal N_+(0, I/K), \qquad s_j \sim \mathcal N_+(0, I/\alpha_1), \qquad C_{ij} \sim \mathcal N(d_{1i}^\top s_j, 1).$$
#
# The precision $\alpha_1$ says how large the bills' weights are. Counts are treated as real numbers
# with unit noise, which is crude, and is what makes everything Gaussian. The maximum a posteriori
# (MAP) estimate is a penalised least-squares problem with nonnegative unknowns. The engine `map`
# solves it one block after the other. Here $\alpha_1 = 0.1$ is given.

# %%
text = pp_models.data.counts(counts[known])
point = inference.fit(
    "lg_nmf",
    text,
    "map",
    {"num_topics": K, "alpha1": 0.1},
    tolerance=1e-8,
    num_epochs=5000,
    progress=False,
)
found = point.posterior.mean("d1")
cosine = (found / np.linalg.norm(found, axis=0)).T @ (true_d1 / np.linalg.norm(true_d1, axis=0))
subject = linear_sum_assignment(-cosine.T)[
    1
]  # which factor is which subject: the labels are arbitrary
print("cosine between true and estimated loadings:", np.round(cosine[subject, np.arange(K)], 3))

# %% tags=["check"]
# "the subjects are found": cosines near one, where unrelated nonnegative columns of this kind have
# about 0.4.
assert np.all(cosine[subject, np.arange(K)] > 0.95)
assert np.all(found >= 0)

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), sharey=True, layout="constrained")
for axis, values, title in (
    (axes[0], true_d1, "true loadings"),
    (axes[1], found[:, subject], "MAP estimate: the same blocks"),
):
    axis.imshow(values.T / values.max(), cmap="Greys", aspect="auto", interpolation="nearest")
    axis.set(title=title, xlabel="words", yticks=range(K), yticklabels=["first", "second", "third"])
axes[0].set(ylabel="subject")
plt.show()

# %% [markdown]
# The subjects are found from the text alone. Which factor comes first is arbitrary, so we matched
# them to the truth before drawing. Their *scale* is arbitrary in another way, to which we come
# back: it is the reason for all the trouble below.
#
# ## Laplace's approximation in one dimension
#
# Take one member whose taste is a single number $z$ with prior $\mathcal N(0, 1/\alpha)$, and six
# bills with known weights $w_j$. The log posterior is
#
# $$\log p(z \mid \text{votes}) = -\tfrac{\alpha}{2} z^2 + \sum_j \log \Phi(\pm w_j z) + \text{const},$$
#
# plus for yea, minus for nay. Laplace's approximation replaces it by a parabola: find the top $z^*$
# by Newton's method, measure the curvature $h = -\frac{d^2}{dz^2} \log p$ there, and take the
# normal $\mathcal N(z^*, 1/h)$. With $r(t) = \phi(t)/\Phi(t)$, the derivatives of $\log\Phi(t)$ are
# $r$ and $-r(r + t)$. That is the whole method.


# %%
def log_joint(z, signs, w, alpha):
    """log p(votes, z), of many members at once: z (members,), signs (members, bills)."""
    return (
        -0.5 * alpha * z**2
        + 0.5 * np.log(alpha / (2 * np.pi))
        + log_ndtr(signs * w * z[..., None]).sum(-1)
    )


def laplace(signs, w, alpha):
    """The top and the curvature there, by Newton's method."""
    z = np.zeros(len(signs))
    for _ in range(30):
        t = signs * w * z[:, None]
        r = np.exp(-0.5 * t**2 - 0.5 * np.log(2 * np.pi) - log_ndtr(t))
        slope, curvature = -alpha * z + (signs * w * r).sum(1), alpha + (w**2 * r * (r + t)).sum(1)
        z = z + slope / curvature
    return z, curvature


w_few, signs_few = np.array([0.3, 0.6, 0.9, 1.2, 1.5, 2.0]), np.array([[1, 1, -1, 1, 1, 1.0]])
top, curvature = laplace(signs_few, w_few, 1.0)
z = np.linspace(-2.5, 4.5, 701)
exact = log_joint(z, signs_few, w_few, 1.0)
parabola = log_joint(top, signs_few, w_few, 1.0) - 0.5 * curvature * (z - top) ** 2
step = z[1] - z[0]
log_exact, log_laplace = logsumexp(exact) + np.log(step), logsumexp(parabola) + np.log(step)
print(
    f"top {top[0]:.3f}, sd {curvature[0] ** -0.5:.3f}; log p(votes): exact {log_exact:.3f}, Laplace {log_laplace:.3f}"
)

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
axes[0].plot(z, exact, color="k", label="log p(votes, z)")
axes[0].plot(z, parabola, "--", color=GRID, label="parabola at the top")
axes[0].set(xlabel="taste z", ylabel="nats", ylim=(-12, 0), title="Same top, same curvature")
axes[0].legend(fontsize=8)
axes[1].plot(z, np.exp(exact - log_exact), color="k", label="posterior")
axes[1].plot(z, np.exp(parabola - log_laplace), "--", color=GRID, label="Laplace's normal")
axes[1].set(xlabel="taste z", ylabel="density", title="The posterior leans to the right")
axes[1].legend(fontsize=8)
plt.show()

# %% [markdown]
# The normal is close but not the same: the posterior leans to one side, because $\log\Phi$ is no
# parabola. Five of six votes are yea, and $\log\Phi(t)$ is steep for negative $t$ and nearly flat
# for positive $t$. The integral over $z$, which is the probability of the votes, comes out within a
# few hundredths of a nat. This integral is what we need next:
#
# $$\int e^{f(z)}\,dz \approx e^{f(z^*)} \sqrt{2\pi/h}.$$

# %% tags=["check"]
# "the posterior leans to one side": its mean is above the top. "within a few hundredths of a nat".
weights = np.exp(exact - log_exact) * step
assert weights @ z > top[0] + 0.03
assert abs(log_exact - log_laplace) < 0.08
# The printed formula is the parabola's integral; the grid of z is fine and wide enough for 1e-3.
assert (
    abs(
        log_joint(top, signs_few, w_few, 1.0)[0]
        + 0.5 * np.log(2 * np.pi / curvature[0])
        - log_laplace
    )
    < 1e-3
)

# %% [markdown]
# ## From there to a hyper-parameter
#
# Now let the precision $\alpha$ be unknown, and let twenty members with one-dimensional tastes vote
# on twelve bills. By the definition of a conditional density, at *any* $z$
#
# $$p(\alpha \mid D) = \frac{p(z, \alpha \mid D)}{p(z \mid \alpha, D)}
#   \approx \frac{p(z^*, \alpha, D)}{p_G(z^* \mid \alpha, D)} \cdot \text{const}, \qquad (\text{H 7, 8})$$
#
# with Laplace's normal $p_G$ in the denominator, at its own top $z^*(\alpha)$. (H prints $p(\theta
# \mid \cdot)$ in the denominators, a slip.) Do this at a few values of $\log\alpha$ and normalise:
# that is the integrated nested Laplace approximation, INLA (Rue et al. 2009), for the
# hyper-parameter. Tastes are independent given $\alpha$ here, so we can also integrate each of them
# numerically and see the truth.

# %%
w_many, tastes = np.abs(rng.normal(size=12)), rng.normal(size=20)
signs_many = np.where(rng.normal(size=(20, 12)) + np.outer(tastes, w_many) > 0, 1.0, -1.0)
log_alpha, wide = np.linspace(-2.5, 3, 45), np.linspace(-12, 12, 1201)


def exact_marginal(alpha):
    every = np.array([log_joint(wide, signs, w_many, alpha) for signs in signs_many])
    return (logsumexp(every, axis=1) + np.log(wide[1] - wide[0])).sum()


def laplace_marginal(alpha):
    top, curvature = laplace(signs_many, w_many, alpha)
    return (log_joint(top, signs_many, w_many, alpha) + 0.5 * np.log(2 * np.pi / curvature)).sum()


def normalised(heights):
    return np.exp(heights - logsumexp(heights))


def moments(places, weights):
    mean = weights @ places
    return mean, np.sqrt(weights @ (places - mean) ** 2)


prior = log_alpha - np.exp(log_alpha)  # alpha ~ Gamma(1, 1), as a density of log alpha
by_integral = normalised(prior + [exact_marginal(a) for a in np.exp(log_alpha)])
by_laplace = normalised(prior + [laplace_marginal(a) for a in np.exp(log_alpha)])
(exact_mean, exact_sd), (laplace_mean, laplace_sd) = (
    moments(log_alpha, by_integral),
    moments(log_alpha, by_laplace),
)
print(
    f"log alpha: exact {exact_mean:.3f} +- {exact_sd:.3f}, Laplace {laplace_mean:.3f} +- {laplace_sd:.3f}"
)

# %%
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.plot(
    log_alpha,
    by_integral / (log_alpha[1] - log_alpha[0]),
    color="k",
    label="tastes integrated numerically",
)
axis.plot(
    log_alpha[::3],
    by_laplace[::3] / (log_alpha[1] - log_alpha[0]),
    "o",
    color=GRID,
    label="tastes integrated by Laplace",
)
axis.set(
    xlabel="log alpha",
    ylabel="posterior density",
    title="A grid of fifteen points tells the whole posterior of log alpha",
)
axis.legend(fontsize=8)
plt.show()

# %% [markdown]
# Twelve votes per member are enough: the points lie on the curve. Errors of the single integrals do
# not disappear, but they hardly depend on $\alpha$ and so cancel when we normalise.

# %% tags=["check"]
# "the points lie on the curve": a tenth of a posterior sd is invisible in the figure.
assert abs(laplace_mean - exact_mean) < 0.1 * exact_sd
assert abs(laplace_sd / exact_sd - 1) < 0.05
# "errors of the single integrals hardly depend on alpha and so cancel": they change by less than
# they are, where the posterior is.
likely = np.exp(log_alpha[by_integral > 0.01 * by_integral.max()])
errors = np.array([laplace_marginal(a) - exact_marginal(a) for a in likely])
assert np.ptp(errors) < np.abs(errors).max()

# %% [markdown]
# ## The grid for the text's $\alpha_1$, against Gibbs sampling
#
# In LG-NMF every row of $d_1$ and of $s$ is normal, or half normal, *given all the others*. The
# engine `inla` searches for the top of the approximate $\log p(\log\alpha_1 \mid D)$, lays a grid
# about it, and returns a mixture: a weight for each grid point and the rows' distributions there (H
# 13). The engine `gibbs` samples the same posterior and is the judge. `method="paper"` is the
# approximation as H prints it.

# %%
unknown = {"num_topics": K}  # alpha1 not given: it has H's vague Gamma(1e-6, 1e-6) prior
chain = inference.fit(
    "lg_nmf",
    text,
    "gibbs",
    unknown,
    num_samples=1500,
    num_warmup=300,
    num_chains=2,
    key=jax.random.key(1),
    progress=False,
)
grid = inference.fit(
    "lg_nmf", text, "inla", unknown, key=jax.random.key(1), progress=False
).posterior
paper = inference.fit(
    "lg_nmf", text, "inla", unknown, method="paper", key=jax.random.key(1), progress=False
).posterior

draws = np.log(chain.posterior.draws["alpha1"][..., 0])  # (chains, draws)
mean, sd = draws.mean(), draws.std()
print(
    f"Gibbs: log alpha1 = {mean:.3f} +- {sd:.3f}, the two chains' means differ by {np.ptp(draws.mean(1)) / sd:.2f} sd"
)
off, ratio = {}, {}
for name, one in (("grid", grid), ("as printed", paper)):
    centre, width = moments(one.theta[:, 0], one.weights)
    off[name], ratio[name] = (centre - mean) / sd, width / sd
    print(
        f"{name:>10}: {off[name]:+.2f} sd from Gibbs, width {ratio[name]:.2f} times Gibbs's, {len(one.weights)} points"
    )

# %%
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
axis.hist(draws.ravel(), bins=40, density=True, color=CHAIN, alpha=0.6, label="Gibbs")
for one, colour, name in ((grid, GRID, "grid"), (paper, PAPER, "grid as printed in H")):
    places = np.argsort(one.theta[:, 0])
    theta, weights = one.theta[places, 0], one.weights[places]
    axis.plot(theta, weights / (theta[1] - theta[0]), "o-", color=colour, label=name)
axis.set(
    xlabel="log alpha1",
    ylabel="posterior density",
    title="The grid agrees with Gibbs; as printed it is too far right",
)
axis.legend(fontsize=8)
plt.show()

# %% [markdown]
# The default grid agrees with the sampler: less than a fifth of a posterior standard deviation off,
# with the right width. As printed it puts $\alpha_1$ clearly too high, and is a little too sure of
# it. The data are the same, the model is the same. What went wrong?

# %% tags=["check"]
# The chain judges: two chains agree (its own error of the mean is well below 0.1 sd with 3,000
# draws that are nearly independent).
assert np.ptp(draws.mean(1)) < 0.25 * sd
# "less than a fifth of a posterior standard deviation off, with the right width": 0.25 leaves room
# for the chain's own error.
assert abs(off["grid"]) < 0.25
assert abs(ratio["grid"] - 1) < 0.1
# "clearly too high, and a little too sure"
assert off["as printed"] > 1
assert ratio["as printed"] < ratio["grid"]

# %% [markdown]
# ## The scale of the factors
#
# Multiply column $k$ of $d_1$ by $c$ and divide column $k$ of $s$ by $c$: the product, and so the
# likelihood, stays as it is. Only the priors decide. With $A = K \sum_i d_{1ik}^2$ and $B =
# \alpha_1 \sum_j s_{jk}^2$ they contribute along this line
#
# $$-\tfrac12 \left(A c^2 + B / c^2\right), \qquad \text{at its top } A = B .$$
#
# But a posterior is about volume, not height. There are $p$ numbers in a column of $d_1$ and $n$ in
# one of $s$, so moving along the line stretches volume by $c^{\,p-n}$ (the Jacobian), and the mass
# is where
#
# $$-\tfrac12 \left(A c^2 + B / c^2\right) + (p - n) \log c \quad \text{is highest:} \quad A - B = p - n .$$
#
# With as many bills as words the two agree. Here there are 40 bills and 120 words, and the MAP
# estimate is the wrong place to expand about. We can look: the sampler's draws of $A - B$ should
# lie about $p - n = 80$, the mode's at zero.

# %%
n, p = counts[known].shape
d1_draws, s_draws, alpha_draws = (chain.posterior.draws[site] for site in ("d1", "s", "alpha1"))
gap = K * (d1_draws**2).sum(2) - alpha_draws * (s_draws**2).sum(2)  # (chains, draws, K)
s_map, alpha1 = point.posterior.mean("s"), point.hyper.alpha1
A_map, B_map = K * (found**2).sum(0), alpha1 * (s_map**2).sum(0)
print("posterior mean of A - B:", np.round(gap.mean((0, 1)), 1), " p - n =", p - n)
print("at the MAP estimate:    ", np.round(A_map - B_map, 1))

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
log_c = np.linspace(-0.6, 1.0, 200)
line = -0.5 * (A_map[0] * np.exp(2 * log_c) + B_map[0] * np.exp(-2 * log_c))
for heights, colour, name in (
    (line, PAPER, "height alone"),
    (line + (p - n) * log_c, GRID, "with the volume"),
):
    axes[0].plot(log_c, np.exp(heights - heights.max()), color=colour, label=name)
axes[0].set(
    xlabel="log c",
    ylabel="density, relative to its top",
    ylim=(0, 1.35),
    title="Along the line of scales",
)
axes[0].legend(fontsize=8, loc="upper right")
axes[1].hist(gap.ravel(), bins=40, density=True, color=CHAIN, alpha=0.6)
axes[1].axvline(0, color=PAPER, label="the mode, A = B")
axes[1].axvline(p - n, color=GRID, label="p - n")
axes[1].set(xlabel="A - B", ylabel="density", ylim=(0, 0.033), title="Draws are about p - n, not 0")
axes[1].legend(fontsize=8, loc="upper right")
plt.show()

# %% tags=["check"]
# "the sampler's draws of A - B should lie about p - n = 80": the identity is exact for the mean;
# chains have an error of a unit or two.
assert np.allclose(gap.mean((0, 1)), p - n, atol=4)
# "the mode's at zero": coordinate ascent creeps along this line and ends where the objective gains
# less than 1e-8 of itself, so nearly.
assert np.all(np.abs(A_map - B_map) < 0.05 * A_map)

# %% [markdown]
# How far off is the printed version then? At its top, $A = B = \sqrt{\alpha_1 Q}$ with $Q = K \sum
# d^2 \sum s^2$ fixed by the text. Setting the derivative of H(8) in $\log \alpha_1$ to zero,
# determinants included, gives $\alpha_1 Q = (n + p)^2 / 4$. With the volume counted it is $\alpha_1
# Q = n p$. So
#
# $$\log \alpha_1 \text{ is shifted by } \log \frac{(n + p)^2}{4 n p}.$$

# %%
shift = np.log((n + p) ** 2 / (4 * n * p)) / sd
print(f"predicted shift {shift:.2f} sd, observed {off['as printed']:.2f} sd")

# %% tags=["check"]
# The prediction is a large-sample one, and leaves out that rows are cut off at zero: half a
# posterior sd.
assert abs(shift - off["as printed"]) < 0.5

# %% [markdown]
# The default `method="log"` repairs this: it takes the mode of the *logarithms* of the factors,
# whose Jacobian is the volume, balances $A - B$, and integrates each positive coordinate over the
# positive half line only. It still is an approximation: where text holds almost no signal, or votes
# can be told apart without error, rows are far from normal. `inla` notices by comparing with
# mean-field inference, warns, and weighs its points by short Gibbs runs instead. On a problem of
# this size it does not save much time either: Gibbs with moves along the scale line is about as
# fast.
#
# ## Votes from text
#
# `lg_nmf_votes` lets the same $s_j$ explain the votes, $B_{ij} \sim
# \text{Bernoulli}(\Phi(d_{2i}^\top s_j))$ with $d_{2i} \sim \mathcal N(0, I/\alpha_2)$ (H 4, 5). We
# fit forty bills with their votes by MAP, then predict all votes on the twenty others from their
# text alone. Two baselines: always yea, and each member's own share of yeas.
#
# One thing must be watched. The weights $s_j$ of a fitted bill have seen its votes, those of a new
# bill have not, so tastes that suit the former are too sure of the latter. `refit_members` infers
# the fitted bills' weights from their text alone and fits the tastes again to those.

# %%
given = {"num_topics": K, "alpha1": 0.1, "alpha2": 1.0}
both = pp_models.data.text_and_votes(counts[known], votes[known])
heldout = pp_models.data.text_and_votes(counts[new], votes[new])
fitted = inference.fit("lg_nmf_votes", both, "map", given, key=jax.random.key(0), progress=False)
refitted = inference.refit_members(fitted)

share = (votes[known].sum(0) + 1) / (len(known) + 2)
bills_of = np.repeat(new, num_members)
scores = {
    "always yea": inference.score_probabilities(
        np.full(votes[new].size, 0.999), votes[new].ravel(), bills_of
    ),
    "member's share": inference.score_probabilities(
        np.tile(share, len(new)), votes[new].ravel(), bills_of
    ),
    "text, MAP": inference.score_votes(fitted, heldout),
    "text, refitted": inference.score_votes(refitted, heldout),
    "the truth": inference.score_probabilities(
        ndtr(true_s @ true_d2.T)[new].ravel(), votes[new].ravel(), bills_of
    ),
}
for name, score in scores.items():
    right, error, loss = score.accuracy.value, score.accuracy.standard_error, score.log_loss.value
    print(f"{name:>15}: accuracy {right:.3f} +- {error:.3f}, log loss {loss:.3f} nats per vote")

# %%
figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
names = list(scores)
accuracy = [scores[name].accuracy for name in names]
colours = ["k", "k", TEXT, TEXT, "k"]
for row, (one, colour) in enumerate(zip(accuracy, colours, strict=True)):
    axis.errorbar(one.value, row, xerr=one.standard_error, fmt="o", color=colour, capsize=3)
axis.set(
    yticks=range(len(names)),
    yticklabels=names,
    xlabel="share of the votes on held-out bills predicted (bars: one standard error)",
)
axis.set(
    title="Text predicts votes nearly as well as the truth would", ylim=(len(names) - 0.5, -0.5)
)
plt.show()

# %% [markdown]
# Votes are noisy, so even the probabilities that generated them do not predict all. The text comes
# close to that ceiling and far above both baselines. Whether members are refitted makes no
# difference here that the standard errors could show: forty short bills with clear text leave the
# votes little to say about $s_j$. With thousands of words and few clear ones it does (see
# `docs/experiments.md`, votes of the 110th House).

# %% tags=["check"]
value = {name: score.accuracy.value for name, score in scores.items()}
error = {name: score.accuracy.standard_error for name, score in scores.items()}
# "far above both baselines": by more than three standard errors of the model's accuracy.
assert (
    value["text, MAP"] > max(value["always yea"], value["member's share"]) + 3 * error["text, MAP"]
)
# "close to that ceiling": within three standard errors of it, errors over twenty bills.
assert abs(value["text, MAP"] - value["the truth"]) < 3 * error["the truth"]
# "no difference here that the standard errors could show"
assert abs(value["text, MAP"] - value["text, refitted"]) < 2 * error["text, MAP"]

# %% [markdown]
# ## Members' places, with their uncertainty
#
# A point estimate of a taste invites stories that forty votes do not support. The engine `laplace`
# gives each member's taste a normal distribution about its mode (H 11), `gibbs` draws from the
# posterior. We draw the first two subjects.

# %%
normal = inference.fit(
    "lg_nmf_votes", both, "laplace", given, key=jax.random.key(0), progress=False
).posterior
sampled = inference.fit(
    "lg_nmf_votes",
    both,
    "gibbs",
    given,
    init={site: fitted.posterior.mean(site) for site in fitted.posterior.sites},
    num_samples=1000,
    num_warmup=200,
    num_chains=2,
    key=jax.random.key(2),
    progress=False,
).posterior


def matched(posterior):
    """Means and sds of the tastes, subjects in the true order."""
    loadings = posterior.mean("d1")
    alike = (loadings / np.linalg.norm(loadings, axis=0)).T @ (
        true_d1 / np.linalg.norm(true_d1, axis=0)
    )
    columns = linear_sum_assignment(-alike.T)[1]
    return posterior.mean("d2")[:, columns], posterior.sd("d2")[:, columns]


(taste, spread), (taste_normal, spread_normal) = matched(sampled), matched(normal)

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 3.4), sharex=True, sharey=True, layout="constrained")
for axis, centre, width, title in (
    (axes[0], taste, spread, "Gibbs"),
    (axes[1], taste_normal, spread_normal, "Laplace"),
):
    for number, colour, name in ((0, FIRST, "first party"), (1, SECOND, "second party")):
        chosen = party == number
        style = {"fmt": "o", "color": colour, "markersize": 4, "elinewidth": 0.8, "label": name}
        axis.errorbar(
            centre[chosen, 0],
            centre[chosen, 1],
            xerr=width[chosen, 0],
            yerr=width[chosen, 1],
            **style,
        )
    axis.set(title=f"{title} (bars: one posterior sd)", xlabel="taste for the first subject")
axes[0].set(ylabel="taste for the second subject")
axes[0].legend(fontsize=8)
plt.show()
print(
    f"a taste's posterior sd is {np.median(spread) / np.abs(taste).mean():.0%} of the mean size of tastes"
)
print(f"Laplace's sd is {np.median(spread_normal / spread):.2f} times that of Gibbs, in the median")

# %% [markdown]
# The parties are apart by many times the bars. Within a party most members' bars overlap: their
# order there is not known from forty votes, though it would be easy to read one off the dots.

# %% tags=["check"]
# "apart by many times the bars": difference of the party means, against the median sd.
for subject_number in (0, 1):
    apart = abs(taste[party == 0, subject_number].mean() - taste[party == 1, subject_number].mean())
    assert apart > 3 * np.median(spread[:, subject_number])
# "within a party most members' bars overlap": pairs closer than the sum of their sds, more than
# half of them.
close = np.abs(taste[:, None, 0] - taste[None, :, 0]) < spread[:, None, 0] + spread[None, :, 0]
assert close[same & ~np.eye(num_members, dtype=bool)].mean() > 0.5
# Laplace's widths are of the right order.
assert 0.6 < np.median(spread_normal / spread) < 1.4

# %% [markdown]
# ## Exercises
#
# 1. **The line of scales.** Maximise $-\frac12(Ac^2 + B/c^2) + \lambda\log c$ over $c$ by hand, and
#    check that after the step $A c^2 - B/c^2 = \lambda$ exactly.

# %% tags=["solution"]
A, B, lam = 30.0, 50.0, 80.0
square = (lam + np.sqrt(lam**2 + 4 * A * B)) / (
    2 * A
)  # c^2: the positive root of A x^2 - lam x - B = 0
print(f"c = {np.sqrt(square):.4f}, A c^2 - B / c^2 = {A * square - B / square:.4f}")

# %% tags=["check"]
assert np.isclose(A * square - B / square, lam)

# %% [markdown]
# 2. **A mode at the edge.** Let $s \sim \mathcal N_+(0, 1)$ and observe $c = -1$ with $c \sim
#    \mathcal N(s, 1)$. The mode of $s$ is zero. Compare $\int p(c, s)\,ds$, exactly, with Laplace's
#    $e^{f(0)}\sqrt{2\pi/h}$. Why does integrating the parabola over $s > 0$, slope included, mend
#    it?

# %% tags=["solution"]
c, h = -1.0, 2.0  # f(s) = -s^2/2 - (c - s)^2/2 + const: curvature 2, slope c at zero
f0 = np.log(2) - np.log(2 * np.pi) - 0.5 * c**2
exact_edge = (
    f0 + 0.5 * np.log(2 * np.pi / h) + c**2 / (2 * h) + log_ndtr(c / np.sqrt(h))
)  # the parabola with its slope, over the half line
printed = f0 + 0.5 * np.log(2 * np.pi / h)
s_line = np.linspace(0, 12, 24001)
by_sum = logsumexp(
    np.log(2) - np.log(2 * np.pi) - 0.5 * s_line**2 - 0.5 * (c - s_line) ** 2
) + np.log(s_line[1])
print(
    f"numerically {by_sum:.3f}, half line {exact_edge:.3f}, whole parabola without slope {printed:.3f}"
)

# %% tags=["check"]
# f is a parabola, so the half line is exact (the sum has an error of half a cell); the printed one
# is too large by more than log 2.
assert abs(by_sum - exact_edge) < 1e-3
assert printed - exact_edge > np.log(2)

# %% [markdown]
# 3. **A finer grid.** Fit `inla` with `spacing=0.5`. How many points are there, and how much do
#    mean and sd of $\log\alpha_1$ change?

# %% tags=["solution"]
finer = inference.fit(
    "lg_nmf", text, "inla", unknown, spacing=0.5, key=jax.random.key(1), progress=False
).posterior
(mean_coarse, sd_coarse), (mean_fine, sd_fine) = (
    moments(grid.theta[:, 0], grid.weights),
    moments(finer.theta[:, 0], finer.weights),
)
print(
    f"{len(grid.weights)} and {len(finer.weights)} points: mean {mean_coarse:.4f} and {mean_fine:.4f}, sd {sd_coarse:.4f} and {sd_fine:.4f}"
)

# %% tags=["check"]
# A normal summed at steps of one sd has errors far below these; what is left is skewness and the
# cut at 1e-3 of the largest weight.
assert len(finer.weights) > 1.5 * len(grid.weights)
assert abs(mean_fine - mean_coarse) < 0.05 * sd_fine
assert abs(sd_fine / sd_coarse - 1) < 0.05

# %% [markdown]
# 4. **As many words as bills.** What does the shift formula say for 40 bills and 40 words, and for
#    40 and 4,000? What does the second say about H's agreement with MCMC on a real vocabulary?

# %% tags=["solution"]
for words in (40, 120, 4000):
    print(
        f"40 bills, {words} words: log alpha1 shifted by {np.log((40 + words) ** 2 / (4 * 40 * words)):.2f}"
    )

# %% tags=["check"]
assert np.log((40 + 40) ** 2 / (4 * 40 * 40)) == 0
assert np.log((40 + 4000) ** 2 / (4 * 40 * 4000)) > 3

# %% [markdown]
# ## Summary
#
# - Half-normal factors explain text, the same factors explain votes, and new bills' votes follow
#   from their text.
# - Laplace's approximation is a parabola at the top of the log posterior; dividing the joint
#   density by it gives a hyper-parameter's posterior on a grid.
# - A product of factors has a line of equal likelihood, and the mode is at the wrong place on it
#   unless bills and words are equally many. Counting the volume brings the grid from almost two
#   standard deviations off to less than a fifth of one.
#
# Next: notebook 5 on trust regions, notebook 7 and 8 on other factorisations. To read: Hu et al.
# (2014), Rue, Martino and Chopin (2009) on INLA, Tierney and Kadane (1986) on Laplace's method,
# Albert and Chib (1993) on probit models.
