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
# # 4. PMF: ridge regressions, MAP against full Bayes, uncertainty in recommendations
#
# **What you will learn**
#
# - that probabilistic matrix factorisation is a set of coupled ridge regressions, five lines of
#   NumPy;
# - why the best single point over-fits as the rank grows and the average over the posterior does
#   not;
# - how sure a predicted rating is, who gets the unsure ones, and what that does to a list of
#   recommendations.
#
# **What you need to know**: linear regression with a squared penalty (ridge regression), the normal
# distribution, Bayes' rule.
#
# Papers: Salakhutdinov and Mnih (2007, 2008). The derivation follows lecture 17 of Paisley's course
# *Machine Learning* (cited as C17).

# %%
import warnings

import jax

warnings.filterwarnings(
    "ignore", message="IProgress not found"
)  # of progress bars, which are off here
jax.config.update("jax_num_cpu_devices", 2)

import matplotlib.pyplot as plt
import numpy as np

import inference
import pp_models

MAP, BAYES, OTHER, GREY = (
    "#D55E00",
    "#0072B2",
    "#009E73",
    "#555555",
)  # one colour for each, throughout
plt.rcParams.update(
    {
        "figure.figsize": (7, 3.2),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 9,
    }
)

# %% [markdown]
# ## Ratings, most of them missing
#
# MovieLens-100K holds ratings of films from 1 to 5. We take 250 of its users and the films that at
# least ten of them rated, and hold back a fifth of the ratings, at random, to be judged by.

# %%
full = pp_models.datasets.load("movielens100k", model="pmf")
chosen = np.sort(np.random.default_rng(0).choice(full.num_rows, 250, replace=False))
part = full.matrix[chosen]
films = np.flatnonzero(np.diff(part.tocsc().indptr) >= 10)
cells = part[:, films].tocoo()
titles = [full.column_names[j] for j in films]
data = pp_models.data.ratings(*cells.coords, cells.data, shape=cells.shape, column_names=titles)
train, heldout = inference.split_ratings(data, 0.2, 0)
ratings = train.matrix.tocoo()
users, items, values = *(np.asarray(x) for x in ratings.coords), np.asarray(ratings.data, float)
per_user, per_film = (
    np.bincount(users, minlength=data.num_rows),
    np.bincount(items, minlength=data.num_columns),
)
seen = len(values) / (data.num_rows * data.num_columns)
print(
    f"{data.num_rows} users, {data.num_columns} films, {len(values)} ratings to fit ({seen:.0%} of all pairs), {heldout.num_entries} to predict"
)

# %%
figure, (left, right) = plt.subplots(1, 2)
left.bar(np.arange(1, 6), np.bincount(values.astype(int), minlength=6)[1:], color=GREY)
left.set(xlabel="rating", ylabel="number of ratings", title="Ratings are high on average")
right.plot(np.sort(per_user)[::-1], color=GREY)
right.set(
    xlabel="user, the busiest first",
    ylabel="ratings to learn from",
    title="A few users rate a lot, most little",
)
figure.tight_layout()
plt.show()

# %% tags=["check"]
# The titles of the two panels, and "most are missing".
assert values.mean() > 3.3
assert np.median(per_user) < 0.7 * per_user.mean() and per_user.max() > 5 * np.median(per_user)
assert seen < 0.15

# %% [markdown]
# ## A rating is an inner product
#
# User $i$ gets a vector $u_i$ and film $j$ a vector $v_j$, both of $d$ numbers ($d$ is the *rank*).
# With $m$ the mean rating, and $\Omega$ the pairs that were rated (C17),
#
# $$u_i \sim N(0, \lambda^{-1} I), \qquad v_j \sim N(0, \lambda^{-1} I), \qquad
# M_{ij} \sim N(m + u_i^\top v_j,\; \sigma^2) \quad \text{for } (i, j) \in \Omega.$$
#
# $\lambda$ is the precision (one over the variance) of the prior, $\sigma^2$ the variance of the
# noise. The coordinates of $v_j$ are traits of the film, those of $u_i$ the user's taste for them;
# nobody says which traits. Pairs outside $\Omega$ do not appear. They are *missing*, not zero.
#
# A normal is a wrong distribution for five stars. It is convenient, and we shall check how wrong
# its intervals are.
#
# ## Each update is a ridge regression
#
# The log of the joint density of everything is, up to a constant,
#
# $$-\frac{1}{2\sigma^2} \sum_{(i,j) \in \Omega} (M_{ij} - m - u_i^\top v_j)^2 -
# \frac{\lambda}{2} \sum_i |u_i|^2 - \frac{\lambda}{2} \sum_j |v_j|^2 .$$
#
# Hold all $v_j$ fixed. What is left for one user is a linear regression of the user's ratings on
# the vectors of the films, with a squared penalty:
#
# $$u_i = \Big(\lambda\sigma^2 I + \sum_{j \in \Omega_i} v_j v_j^\top\Big)^{-1} \sum_{j \in \Omega_i} (M_{ij} - m)\, v_j ,$$
#
# $\Omega_i$ being the films that user $i$ rated. Films are updated in the same way, given users. In
# NumPy:


# %%
def ridge(penalty, others, row, column, size):
    """One vector for each row: the regression of its ratings on the vectors of the other side."""
    found = np.zeros((size, others.shape[1]))
    for i in range(size):
        x, y = others[column[row == i]], values[row == i] - values.mean()
        found[i] = np.linalg.solve(penalty * np.eye(x.shape[1]) + x.T @ x, x.T @ y)
    return found


hyper = {"rank": 2, "lam": 3.0, "sigma2": 0.6}
start = np.random.default_rng(1).normal(size=(data.num_columns, 2))
u = ridge(3.0 * 0.6, start, users, items, data.num_rows)
v = ridge(3.0 * 0.6, u, items, users, data.num_columns)

# %% [markdown]
# The engine `map` looks for the *maximum a posteriori* point (MAP) by such sweeps. One of its
# sweeps, from the same start:

# %%
sweep = inference.fit("pmf", train, "map", hyper, init={"v": start}, num_epochs=1, progress=False)
apart = np.abs(sweep.posterior.mean("u") - u).max(), np.abs(sweep.posterior.mean("v") - v).max()
print(f"largest difference: users {apart[0]:.1e}, films {apart[1]:.1e}")

# %% tags=["check"]
# "five lines equal a sweep": single precision, numbers of size one.
assert (
    np.abs(sweep.posterior.mean("u") - u).max() < 1e-3
    and np.abs(sweep.posterior.mean("v") - v).max() < 1e-3
)

# %% [markdown]
# **The penalty is a ratio of variances.** Only the product $\lambda\sigma^2$ enters the update, and
# $\lambda\sigma^2 = \sigma^2 / \lambda^{-1}$: the variance of the noise over the variance of the
# prior. Noisy ratings, or tastes that hardly differ, call for a strong penalty. And MAP cannot tell
# $(\lambda, \sigma^2) = (3, 0.6)$ from $(6, 0.3)$. The posterior can: its width depends on both.
#
# **The penalty is needed.** Without it, a user with fewer ratings than $d$ leaves the equations
# singular. The prior makes them solvable.

# %%
same = inference.fit(
    "pmf",
    train,
    "map",
    {"rank": 2, "lam": 6.0, "sigma2": 0.3},
    init={"v": start},
    num_epochs=1,
    progress=False,
)
print(
    "largest difference between the two settings:",
    f"{np.abs(same.posterior.mean('u') - sweep.posterior.mean('u')).max():.1e}",
)

# %% tags=["check"]
# Same product, same sweep; another product, another sweep. And the sparsest user's equations of
# rank 20 are singular without a penalty.
assert np.abs(same.posterior.mean("u") - sweep.posterior.mean("u")).max() < 1e-3
assert np.abs(ridge(0.6, start, users, items, data.num_rows) - u).max() > 0.01
sparsest = np.random.default_rng(0).normal(size=(per_user.min(), 20))
assert per_user.min() < 20 and np.linalg.matrix_rank(sparsest.T @ sparsest) < 20

# %% [markdown]
# ## The best point, or all of them?
#
# MAP gives one $u$ and one $v$. The Bayesian answer is the posterior $p(u, v \mid M)$, and a
# prediction is an average over it:
#
# $$\mathbb{E}[M_{ij} \mid \text{data}] = m + \int u_i^\top v_j \; p(u, v \mid
# \text{data})\, du\, dv \approx m + \frac{1}{S} \sum_{s=1}^S u_i^{(s)\top} v_j^{(s)} .$$
#
# The draws come from Gibbs sampling. Given all $v_j$, the posterior of $u_i$ is a normal whose mean
# is the ridge solution and whose precision is $\lambda I + \sum_j v_j v_j^\top / \sigma^2$. So the
# sampler is the same sweep as before, with a draw from a normal in place of its mean. We fit both
# at several ranks with *the same* prior and noise; what differs is only point against average.
# (`bayesian_pmf` would give $\lambda$ and $\sigma^2$ priors of their own.)

# %%
LIMITS = (1.0, 5.0)
RANKS = (2, 5, 10, 20)


def settings(rank, lam=3.0):
    return {"rank": rank, "lam": lam, "sigma2": 0.6}


points, chains = {}, {}
for rank in RANKS:
    points[rank] = inference.fit(
        "pmf", train, "map", settings(rank), num_epochs=100, progress=False
    )
    chains[rank] = inference.fit(
        "pmf",
        train,
        "gibbs",
        settings(rank),
        num_samples=150,
        num_warmup=100,
        num_chains=2,
        progress=False,
    )


def rmse(fits, where):
    return [inference.score_ratings(fit, where, limits=LIMITS).rmse for fit in fits]


errors = {
    (name, part): rmse(fits.values(), where)
    for name, fits in (("MAP", points), ("Bayes", chains))
    for part, where in (("training", train), ("held out", heldout))
}
for key, found in errors.items():
    print(
        f"{key[0]:5s} {key[1]:8s} "
        + "  ".join(f"rank {rank}: {x:.3f}" for rank, x in zip(RANKS, found, strict=True))
    )

# %%
figure, axes = plt.subplots()
for (name, part), found in errors.items():
    axes.plot(
        RANKS,
        found,
        "o-" if part == "held out" else "o:",
        color=MAP if name == "MAP" else BAYES,
        label=f"{name}, {part}",
    )
axes.set(
    xlabel="rank $d$",
    ylabel="RMSE (stars)",
    xticks=RANKS,
    title="With rank, MAP learns the noise; the average over the posterior hardly does",
)
axes.legend(frameon=False, fontsize=8, loc="lower left")
plt.show()

# %% [markdown]
# RMSE is the root of the mean squared error. On the training ratings (dotted) more rank is always
# better, and MAP is ahead. On held-out ratings (solid) MAP gets worse: it has fitted the noise. The
# average over the posterior stays where it was. The posterior holds many ways to explain the noise;
# they contradict each other where there are no data, and cancel.

# %% tags=["check"]
# The curves: MAP's training error falls with rank and its held-out error rises; the average's
# held-out error hardly changes, and is below MAP's everywhere.
assert np.all(np.diff(errors["MAP", "training"]) < 0)
assert errors["MAP", "held out"][-1] > errors["MAP", "held out"][0] + 0.03
assert np.ptp(errors["Bayes", "held out"]) < 0.03
assert np.all(np.array(errors["Bayes", "held out"]) < np.array(errors["MAP", "held out"]))

# %% [markdown]
# To be fair to MAP: a penalty can be tuned. Here is rank 10 with many penalties.

# %%
penalties = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
tuned = [
    inference.fit("pmf", train, "map", settings(10, penalty / 0.6), num_epochs=100, progress=False)
    for penalty in penalties
]
curve = {part: rmse(tuned, where) for part, where in (("training", train), ("held out", heldout))}
bayes = errors["Bayes", "held out"][RANKS.index(10)]

figure, axes = plt.subplots()
axes.plot(penalties, curve["held out"], "o-", color=MAP, label="MAP, held out")
axes.plot(penalties, curve["training"], "o:", color=MAP, label="MAP, training")
axes.axhline(bayes, color=BAYES, label="Bayes with $\\lambda\\sigma^2 = 1.8$, held out")
axes.set(
    xscale="log",
    xlabel="penalty $\\lambda\\sigma^2$",
    ylabel="RMSE (stars)",
    title="Rank 10: a tuned penalty helps MAP, and has to be found",
)
axes.set_xticks(penalties, [f"{x:g}" for x in penalties])
axes.minorticks_off()
axes.legend(frameon=False, fontsize=8)
plt.show()
print(
    f"MAP at its best penalty, {penalties[np.argmin(curve['held out'])]:g}: {min(curve['held out']):.3f}; Bayes: {bayes:.3f}"
)

# %% [markdown]
# The best penalty is several times the $\lambda\sigma^2$ that we believe in: MAP needs a prior that
# is too strong, to make up for treating its point as certain. It was also chosen by looking at the
# held-out ratings, which flatters it; so, to be fair again, were our $\lambda = 3$ and $\sigma^2 =
# 0.6$, among a few settings. With $\sigma^2 = 0.8$ the intervals below are a little too wide.
# `bayesian_pmf` learns both from the training ratings.

# %% tags=["check"]
# Best inside the range tried, more than twice 1.8, and still not as good as the average.
best = int(np.argmin(curve["held out"]))
assert 0 < best < len(penalties) - 1 and penalties[best] > 2 * 1.8
assert min(curve["held out"]) > bayes

# %% [markdown]
# ## How sure is a prediction?
#
# `inference.predict_ratings` returns mean, standard deviation and a central interval for each pair.
# The variance has two parts,
#
# $$\operatorname{var}(M_{ij} \mid \text{data}) = \underbrace{\operatorname{var}(u_i^\top v_j \mid
# \text{data})}_{\text{what we do not know of } i \text{ and } j} + \underbrace{\sigma^2}_{\text{noise}} .$$
#
# A point has no first part. Worse, whoever estimates $\sigma^2$ from MAP's own residuals finds too
# little, for MAP has fitted the noise. How often do the intervals hold the rating?

# %%
bayesian, point = chains[10], points[10]
held = heldout.matrix.tocoo()
pairs, truth = tuple(np.asarray(x) for x in held.coords), np.asarray(held.data, float)
residual_sd = errors["MAP", "training"][RANKS.index(10)]
nominal = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.95])


def coverage(fit, interval, sd=None):
    """The share of held-out ratings inside their intervals; with `sd`, of intervals of that
    standard deviation instead of the fit's."""
    told = inference.predict_ratings(fit, *pairs, interval=float(interval))
    wide = 1.0 if sd is None else sd / told.sd
    return np.mean(np.abs(truth - told.mean) <= (told.upper - told.mean) * wide)


covered = {
    "Bayes": [coverage(bayesian, share) for share in nominal],
    "MAP with its residuals": [coverage(point, share, residual_sd) for share in nominal],
}
figure, axes = plt.subplots(figsize=(5, 3.6))
axes.plot([0.3, 1], [0.3, 1], color=GREY, linewidth=0.8, label="as promised")
for (name, found), colour in zip(covered.items(), (BAYES, MAP), strict=True):
    axes.plot(nominal, found, "o-", color=colour, label=name)
axes.set(xlabel="probability promised", ylabel="share of ratings inside", aspect="equal")
axes.set_title("Intervals that keep their promise, and others")
axes.legend(frameon=False, fontsize=8, loc="upper left")
plt.show()
score = inference.score_ratings(bayesian, heldout)
print(
    f"90 % intervals hold {score.coverage:.1%} of {score.num_ratings} ratings by the posterior, {covered['MAP with its residuals'][4]:.1%} by MAP"
)

# %% tags=["check"]
# The posterior's intervals hold about what they promise (within 0.05), MAP's far less at every
# level.
assert np.abs(np.array(covered["Bayes"]) - nominal).max() < 0.06
assert np.all(np.array(covered["MAP with its residuals"]) < nominal - 0.08)
assert abs(score.coverage - covered["Bayes"][4]) < 1e-6  # the two ways to count agree

# %% [markdown]
# ## Who gets the wide intervals?
#
# Take the noise away: $\operatorname{sd}(u_i^\top v_j)$ is what the model does not know of user and
# film. Averaged over all films, for every user:

# %%
some = np.arange(0, data.num_columns, 3)
grid = np.repeat(np.arange(data.num_rows), len(some)), np.tile(some, data.num_rows)
unknown = np.sqrt(np.maximum(inference.predict_ratings(bayesian, *grid).sd ** 2 - 0.6, 0)).reshape(
    data.num_rows, len(some)
)
per_user_sd = unknown.mean(1)

figure, axes = plt.subplots()
axes.plot(per_user, per_user_sd, ".", color=BAYES)
axes.set(
    xscale="log",
    xlabel="ratings of the user (training)",
    ylabel="sd of $u_i^\\top v_j$ (stars)",
    ylim=(0, None),
)
axes.set_xticks((10, 30, 100, 300), ("10", "30", "100", "300"))
axes.minorticks_off()
axes.set_title("Users with few ratings get the widest predictions")
plt.show()

# %% [markdown]
# No surprise, and no MAP estimate says it. Films with few ratings are uncertain in the same way. At
# equal numbers of ratings, users of pronounced taste, whose predictions differ most between films,
# are predicted with less certainty: what is not known of a film counts more with them.

# %% tags=["check"]
# "few ratings, wide": rank correlations. Pronounced taste, given the number of ratings: the
# coefficient of a regression.
rank_of = lambda x: np.argsort(np.argsort(x))  # noqa: E731
assert np.corrcoef(rank_of(per_user), rank_of(per_user_sd))[0, 1] < -0.5
assert np.corrcoef(rank_of(per_film[some]), rank_of(unknown.mean(0)))[0, 1] < -0.3
taste = inference.predict_ratings(bayesian, *grid).mean.reshape(unknown.shape).std(1)
assert (
    np.linalg.lstsq(np.stack([np.ones(len(taste)), np.log(per_user), taste], 1), per_user_sd)[0][2]
    > 0.1
)

# %% [markdown]
# ## A list of recommendations
#
# A user with few ratings: which ten films, not rated yet, shall we show? By the highest mean
# $\mathbb{E}[u_i^\top v_j]$? Or by what the film is worth with some certainty, the 10 % quantile of
# $u_i^\top v_j$? With draws both are one line.

# %%
user = int(np.flatnonzero(per_user <= 20)[0])
draws = bayesian.posterior.sample(jax.random.key(0), 300)
worth = values.mean() + np.einsum("sd,sjd->sj", draws["u"][:, user], draws["v"])
new = np.setdiff1d(np.arange(data.num_columns), items[users == user])
mean, low, high = worth.mean(0), *np.quantile(worth, (0.1, 0.9), axis=0)
by_mean, by_quantile = (new[np.argsort(-x[new], kind="stable")[:10]] for x in (mean, low))
lists = {"ranked by mean": by_mean, "ranked by 10 % quantile": by_quantile}

figure, panels = plt.subplots(1, 2, figsize=(8.5, 3.4), sharex=True)
for axes, (name, shown) in zip(panels, lists.items(), strict=True):
    rows = np.arange(10)
    axes.hlines(rows, low[shown], high[shown], color=BAYES, linewidth=1)
    axes.plot(mean[shown], rows, "o", color=BAYES, markersize=4)
    axes.plot(low[shown], rows, "|", color=GREY, markersize=8)
    axes.set_yticks(rows, [titles[j][:24] + f" ({per_film[j]})" for j in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="expected rating (stars)", title=name)
figure.suptitle(
    f"User with {per_user[user]} ratings: means (dots), 10 to 90 % of the posterior (lines); ratings of the film in brackets",
    fontsize=9,
)
figure.tight_layout()
plt.show()
print(f"{len(set(by_mean) & set(by_quantile))} films are on both lists")

# %% [markdown]
# The mean does not mind a bet: a film that a dozen people rated may be near the top, with a long
# line. The quantile asks for evidence, and moves films up whose lines are short, which are those
# that many have rated. Neither is right in itself. To avoid disappointment, take a low quantile. To
# *learn* about the user, show what is uncertain: a high quantile. A point estimate offers no
# choice.

# %% tags=["check"]
# The two lists differ; over all users with few ratings, those by quantile have shorter lines and
# films with more ratings.
assert set(by_mean) != set(by_quantile)
shorter, popular = [], []
for i in np.flatnonzero(per_user <= 25):
    w = np.einsum("sd,sjd->sj", draws["u"][:, i], draws["v"])[
        :, np.setdiff1d(np.arange(data.num_columns), items[users == i])
    ]
    count = per_film[np.setdiff1d(np.arange(data.num_columns), items[users == i])]
    a, b = np.argsort(-w.mean(0))[:10], np.argsort(-np.quantile(w, 0.1, axis=0))[:10]
    shorter.append(w.std(0)[b].mean() - w.std(0)[a].mean())
    popular.append(count[b].mean() - count[a].mean())
assert np.mean(shorter) < 0 and np.mean(popular) > 0, (np.mean(shorter), np.mean(popular))

# %% [markdown]
# ## Vectors are not identified, products are
#
# Let $Q$ be any orthogonal matrix: $Q^\top Q = I$. Then $(Qu_i)^\top (Qv_j) = u_i^\top v_j$ and
# $|Qu_i| = |u_i|$. Likelihood and prior are both unchanged. The posterior is the same in all
# directions, and by symmetry the exact posterior mean of every $u_i$ is zero, which is of no use to
# anybody. Two chains need not agree on a coordinate:

# %%
chain = bayesian.posterior.draws  # site -> (chains, draws, ...)
busy, film = int(per_user.argmax()), int(per_film.argmax())
coordinate = chain["u"][..., busy, 0]
product = (
    np.einsum("csud,csjd->csuj", chain["u"][:, :, [busy]], chain["v"][:, :, [film]])[..., 0, 0]
    + values.mean()
)

figure, panels = plt.subplots(1, 2)
for axes, trace, title in zip(
    panels,
    (coordinate, product),
    ("one coordinate of $u_i$", "the prediction $m + u_i^\\top v_j$"),
    strict=True,
):
    for one, colour in zip(trace, (BAYES, OTHER), strict=True):
        axes.plot(one, color=colour, linewidth=0.9)
    axes.set(xlabel="draw", title=title)
panels[0].set_ylabel("value")
panels[1].set_ylabel("stars")
figure.suptitle(
    "Two chains: they wander apart in a coordinate and agree on the product", fontsize=10
)
figure.tight_layout()
plt.show()

# %% [markdown]
# So never average $u$ over draws, and never read a meaning into its first coordinate. Average
# products. All functions used above do. For variational engines, which sit in one of the rotations,
# or to compare two posteriors, `inference.compare` first turns them to a common direction.


# %%
def r_hat(trace):
    """Between-chain over within-chain spread, of (chains, draws, ...): near one where chains agree."""
    number = trace.shape[1]
    within, between = trace.var(1, ddof=1).mean(0), trace.mean(1).var(0, ddof=1)
    return np.sqrt((number - 1) / number + between / within)


coordinates = r_hat(chain["u"].astype(float)).ravel()
products = r_hat(
    np.einsum("csud,csjd->csuj", chain["u"][:, :, ::10], chain["v"][:, :, ::20]).astype(float)
).ravel()
print(
    f"median R-hat of coordinates {np.median(coordinates):.2f}, of products {np.median(products):.2f}"
)

# %% tags=["check"]
# Chains disagree on coordinates and agree on products.
assert np.median(products) < 1.03 and np.median(coordinates) > np.median(products) + 0.03
# A rotation changes nothing that the model sees (log joint density, single precision: relative
# 1e-5).
Q = np.linalg.qr(np.random.default_rng(0).normal(size=(10, 10)))[0].astype(np.float32)
few = {site: draws[site][:2] for site in ("u", "v")}
assert np.allclose(
    bayesian.log_joint(few), bayesian.log_joint({site: x @ Q for site, x in few.items()}), rtol=1e-5
)

# %% [markdown]
# ## Exercises
#
# 1. Somebody new, without any rating, has the prior. What are mean and standard deviation of
#    $u^\top v_j$ then? Compare with the users above.
# 2. Show that one half of a sweep cannot lower the log joint density. Follow it over ten sweeps of
#    your own `ridge`.
# 3. Treat missing ratings as zeros (of $M - m$) and regress on all films. How does the training
#    error on the ratings that *are* there change?
# 4. For each user, take the held-out film with the highest mean and that with the highest 10 %
#    quantile. Does the user rate the second higher?

# %% tags=["solution"]
# 1. u has mean zero and variance 1/lambda in every direction, whatever v is: E[u'v] = 0, var(u'v) =
# E|v|^2 / lambda. Everybody is recommended the mean.
newcomer = np.sqrt(np.mean(np.sum(draws["v"] ** 2, -1), 0) / 3.0)
print(
    f"newcomer: sd {newcomer.mean():.2f} on average; wider than {np.mean(per_user_sd < newcomer.mean()):.0%} of the users"
)

# %% tags=["check"]
assert np.mean(per_user_sd < newcomer.mean()) > 0.9

# %% tags=["solution"]
# 2. Each half maximises the density over its block with the other fixed, so it can only rise.
a, b, heights = u, start, []
for _ in range(10):
    a = ridge(1.8, b, users, items, data.num_rows)
    for turn in range(2):
        if turn:
            b = ridge(1.8, a, items, users, data.num_columns)
        heights.append(
            -0.5 * np.sum((values - values.mean() - np.sum(a[users] * b[items], 1)) ** 2) / 0.6
            - 1.5 * (np.sum(a**2) + np.sum(b**2))
        )
print(np.round(heights[:6], 1))

# %% tags=["check"]
assert np.all(np.diff(heights) > -1e-6)

# %% tags=["solution"]
# 3. The regression now believes in thousands of average ratings that nobody gave, and shrinks to
# nothing: the error is nearly that of the mean alone.
zero = np.zeros((data.num_rows, data.num_columns))
zero[users, items] = values - values.mean()
a, b = zero @ start @ np.linalg.inv(1.8 * np.eye(2) + start.T @ start), start
for _ in range(30):
    b = zero.T @ a @ np.linalg.inv(1.8 * np.eye(2) + a.T @ a)
    a = zero @ b @ np.linalg.inv(1.8 * np.eye(2) + b.T @ b)
as_zeros = np.sqrt(np.mean((values - values.mean() - np.sum(a[users] * b[items], 1)) ** 2))
print(
    f"RMSE on training ratings: as zeros {as_zeros:.3f}, as missing {errors['MAP', 'training'][0]:.3f}, the mean alone {values.std():.3f}"
)

# %% tags=["check"]
assert errors["MAP", "training"][0] + 0.1 < as_zeros < values.std()

# %% tags=["solution"]
# 4. Both choices are rated well above the average of the user's held-out films; between the two
# there is no difference to be seen.
taken = {"any": [], "mean": [], "quantile": []}
for i in range(data.num_rows):
    mine = pairs[1][pairs[0] == i]
    if len(mine) >= 5:
        w, rated = (
            np.einsum("sd,sjd->sj", draws["u"][:, i], draws["v"][:, mine]),
            truth[pairs[0] == i],
        )
        taken["any"].append(rated.mean())
        taken["mean"].append(rated[w.mean(0).argmax()])
        taken["quantile"].append(rated[np.quantile(w, 0.1, axis=0).argmax()])
print({name: f"{np.mean(x):.2f} +- {np.std(x) / np.sqrt(len(x)):.2f}" for name, x in taken.items()})

# %% tags=["check"]
assert abs(np.mean(taken["mean"]) - np.mean(taken["quantile"])) < 0.15
assert min(np.mean(taken["mean"]), np.mean(taken["quantile"])) > np.mean(taken["any"]) + 0.3

# %% [markdown]
# ## Summary
#
# - PMF is ridge regression of users on films and of films on users, in turn; the penalty is the
#   noise's variance over the prior's.
# - MAP over-fits as the rank grows and has no honest interval. The average over the posterior does
#   neither, with the same prior.
# - Uncertainty is widest for those with few ratings. It changes what to recommend: rank by a
#   quantile according to what a mistake costs.
# - $u$ and $v$ are known up to a rotation; predictions use $u^\top v$, which is known.
#
# Next: notebook 3 has the same rotations in topic models, notebook 7 judges approximate posteriors
# against Gibbs. Read Salakhutdinov and Mnih (2007), *Probabilistic matrix factorization*;
# Salakhutdinov and Mnih (2008), *Bayesian probabilistic matrix factorization using Markov chain
# Monte Carlo*.
