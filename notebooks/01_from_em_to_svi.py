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
# # 1. From EM to mean field to SVI on LDA
#
# **What you will learn.** How a topic model is fitted, in three steps that each change one thing:
# EM finds the best *point*, mean-field variational inference finds a *distribution*, and stochastic
# variational inference (SVI) finds the same distribution from small batches of documents. Each is a
# few lines of NumPy, and each is then one call of this library with the same numbers.
#
# **What you need to know.** NumPy, what a probability is, and what a logarithm and a derivative
# are. Everything else is defined here.
#
# The model is latent Dirichlet allocation, LDA (Blei, Ng and Jordan 2003). The algorithms follow
# Hoffman, Blei, Wang and Paisley (2013).

# %%
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import digamma, gammaln, logsumexp, polygamma
from scipy.stats import beta as beta_distribution

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


def show_topics(rows, titles):
    """Each row is a set of topics; each topic is drawn as a 5 x 5 picture, darker where a word is
    more probable."""
    fig, axes = plt.subplots(
        len(rows), len(rows[0]), figsize=(7, 1.25 * len(rows) + 0.4), squeeze=False
    )
    for line, (topics, title) in enumerate(zip(rows, titles, strict=True)):
        for k, topic in enumerate(topics):
            axes[line, k].imshow(
                topic.reshape(5, 5), cmap="Greys", vmin=0, vmax=max(0.25, topic.max())
            )
            axes[line, k].set(xticks=[], yticks=[])
            axes[line, k].spines[["top", "right"]].set_visible(True)
        axes[line, 0].set_ylabel(title, fontsize=9)
    return fig, axes


# %% [markdown]
# ## The story of how documents come about
#
# A **document** is a bag of words: we only keep how often each word occurs. Words are numbered $v =
# 0, \dots, V-1$. A **topic** $\beta_k$ is a list of $V$ probabilities that add up to one: how
# likely each word is when somebody writes about topic $k$. There are $K$ topics. Document $d$ mixes
# them in **proportions** $\theta_d$, $K$ probabilities that add up to one. LDA says that each of
# its $N_d$ words comes about like this:
#
# 1. choose a topic $z$, topic $k$ with probability $\theta_{dk}$;
# 2. choose a word from that topic, word $v$ with probability $\beta_{zv}$.
#
# We see the words. We see neither the topics, nor the proportions, nor which word came from which
# topic.
#
# To be able to look at topics, let there be 25 words that are the pixels of a 5 x 5 picture (an
# idea of Griffiths and Steyvers 2004). Our five topics are bars: three rows and two columns, each
# with probability 1/5 on its five pixels.

# %%
D, K, V = 200, 5, 25
bars = np.zeros((K, 5, 5))
for k, row in enumerate([0, 2, 4]):
    bars[k, row, :] = 1 / 5
for k, column in enumerate([1, 3]):
    bars[3 + k, :, column] = 1 / 5
true_beta = bars.reshape(K, V)

rng = np.random.default_rng(1)


def write_documents(num_documents):
    """Proportions at random, mostly few topics to a document; then words: X[d, v] counts word v in
    document d."""
    theta = rng.dirichlet(np.full(K, 0.3), num_documents)
    lengths = rng.integers(10, 61, num_documents)
    return theta, np.array(
        [rng.multinomial(n, p) for n, p in zip(lengths, theta @ true_beta, strict=True)]
    )


true_theta, X = write_documents(D)
N = X.sum(1)  # words of each document
print(
    f"{D} documents, {V} words in the vocabulary, {X.sum()} words in all, {N.min()} to {N.max()} to a document"
)

# %%
fig, axes = show_topics([true_beta, X[:5] / N[:5, None]], ["the topics", "5 documents"])
fig.suptitle(
    "Five topics, and documents that mix them: a pixel is a word, dark means frequent", fontsize=10
)
plt.show()

# %% [markdown]
# Both steps of the story together: a word of document $d$ is $v$ with probability $\sum_k
# \theta_{dk}\beta_{kv}$, a product of two matrices. That is why a topic model is a matrix
# factorisation (notebook 2). The **likelihood** is the probability of all words, a product over
# words; its logarithm is a sum. (Logarithms are natural ones here, and their unit is called a
# *nat*.) With $n_{dv}$ for the count `X[d, v]`,
#
# $$\log p(X \mid \theta, \beta) = \sum_{d,v} n_{dv} \log \sum_k \theta_{dk}\,\beta_{kv}.$$
#
# (A bag forgets the order of its words; the number of orders adds a constant to this, which we take
# in later.)


# %%
def log_likelihood(theta, beta):
    return np.sum(X * np.log(np.maximum(theta @ beta, 1e-300)))  # the maximum only guards 0 log 0


print(f"log likelihood at the truth: {log_likelihood(true_theta, true_beta):.1f}")

# %% [markdown]
# ## EM: the best point
#
# We look for the $\theta$ and $\beta$ of highest likelihood. A sum inside a logarithm is awkward.
# It would be easy if we knew the topic of every word: then $\theta_{dk}$ is the share of topic $k$
# among the words of document $d$, and $\beta_{kv}$ the share of word $v$ among the words of topic
# $k$. We do not know the topics, but for given $\theta$ and $\beta$ we know how probable each is.
# By Bayes' rule, topic $k$ is behind word $v$ of document $d$ with probability
#
# $$\varphi_{dvk} = \frac{\theta_{dk}\,\beta_{kv}}{\sum_j \theta_{dj}\,\beta_{jv}} .$$
#
# EM (Dempster, Laird and Rubin 1977) alternates. **E-step**: compute $\varphi$, that is, share
# every word out among the topics. **M-step**: count the shares, as if they were words, and divide
# by their sum. The loop below does this twice in each round: share out and renew $\theta$, share
# out again and renew $\beta$.


# %%
def share_out(theta, beta):
    """phi[d, v, k]: the share of topic k in word v of document d."""
    phi = theta[:, None, :] * beta.T[None, :, :]
    return phi / np.maximum(
        phi.sum(2, keepdims=True), 1e-300
    )  # the maximum guards words that no topic of the document has


def words_by_document(X, phi):
    """(documents, K): how many words of each document belong to each topic."""
    return np.sum(X[:, :, None] * phi, axis=1)


def words_by_topic(X, phi):
    """(K, V): how often each topic was used for each word."""
    return np.sum(X[:, :, None] * phi, axis=0).T


start_beta = rng.dirichlet(np.full(V, 5.0), K)  # random topics
theta, beta = np.full((D, K), 1 / K), start_beta
em_path = [log_likelihood(theta, beta)]
for _ in range(100):
    counts = words_by_document(X, share_out(theta, beta))
    theta = counts / counts.sum(1, keepdims=True)
    counts = words_by_topic(X, share_out(theta, beta))
    beta = counts / counts.sum(1, keepdims=True)
    em_path.append(log_likelihood(theta, beta))
em_theta, em_beta = theta, beta
print(
    f"EM from {em_path[0]:.1f} to {em_path[-1]:.1f}; the truth has {log_likelihood(true_theta, true_beta):.1f}"
)

# %% [markdown]
# Neither of the two updates ever lowers the likelihood. We will see why below, under "The ELBO": it
# is the same reason for which everything else in this notebook rises.
#
# The library calls this engine `map`, for *maximum a posteriori*, the best point. It can take a
# prior into account (next section), which adds $\alpha - 1$ and $\eta - 1$ to the counts; with
# `alpha = eta = 1` it adds nothing, and `map` is the loop above. `init` says where to begin.

# %%
data = pp_models.data.counts(X)
flat = {"num_topics": K, "alpha": 1.0, "eta": 1.0}
em_fit = inference.fit(
    "lda",
    data,
    "map",
    flat,
    init={"theta": np.full((D, K), 1 / K), "beta": start_beta},
    num_epochs=100,
    tolerance=0.0,
    progress=False,
)
print(
    "largest difference between the two topics' probabilities:",
    f"{np.abs(em_fit.posterior.mean('beta') - em_beta).max():.1e}",
)

# %% tags=["check"]
# EM never falls (rounding of a sum of about -20,000 aside), ends above the truth, and `map` with
# flat priors is the same loop.
assert np.diff(em_path).min() > -1e-8
assert em_path[-1] > log_likelihood(true_theta, true_beta)
assert (
    np.abs(em_fit.posterior.mean("beta") - em_beta).max() < 1e-6
)  # double precision over 100 sweeps


# %%
def match(beta):
    """The order of the topics that is nearest to the true one: their numbers mean nothing."""
    return linear_sum_assignment(-np.sqrt(true_beta) @ np.sqrt(beta).T)[1]


fig, axes = show_topics(
    [true_beta, start_beta, em_beta[match(em_beta)]], ["the truth", "the start", "EM"]
)
fig.suptitle("EM finds the bars from random topics, up to their order", fontsize=10)
plt.show()

# %% [markdown]
# What EM does not tell is how sure we may be. It gives every document one set of proportions, a
# long one and a short one alike, and it fits what is accidental, too: its likelihood is *above*
# that of the truth. Ask it about the shortest document, and it answers with zeros:

# %%
shortest = int(np.argmin(N))
print(f"document {shortest}, {N[shortest]} words")
print("truth:", true_theta[shortest, :].round(2))
print("EM:   ", em_theta[shortest, match(em_beta)].round(2))

# %% tags=["check"]
# EM says that a topic is impossible in the shortest document.
assert em_theta[shortest].min() < 1e-3

# %% [markdown]
# ## Beliefs instead of points
#
# A Bayesian answer is a distribution: how probable is each $(\theta, \beta)$ given the words? We
# need a belief *before* seeing them, the **prior**. For lists of probabilities the natural choice
# is the **Dirichlet distribution**. It has one positive number per entry, $a_1, \dots, a_K$, and
# density
#
# $$\text{Dir}(\theta \mid a) = \frac{\Gamma(\sum_k a_k)}{\prod_k \Gamma(a_k)} \prod_k \theta_k^{a_k - 1},$$
#
# where $\Gamma$ is the gamma function, the factorial for real numbers ($\Gamma(n+1) = n!$). Three
# things to know about it:
#
# - Its mean is $a_k / \sum_j a_j$. The larger the sum of the $a$, the closer draws lie to the mean.
#   Read $a_k$ as a *count*: as if topic $k$ had been seen $a_k$ times.
# - With all $a_k = 1$ it is flat, with all $a_k < 1$ draws have few large entries and many near
#   zero.
# - If $\theta$ is drawn from $\text{Dir}(a)$, written $\theta \sim \text{Dir}(a)$, and we then see
#   $c_k$ words of topic $k$, our belief becomes $\text{Dir}(a + c)$: by Bayes' rule the density is
#   multiplied by the probability $\prod_k\theta_k^{c_k}$ of what we saw, so the exponents $a_k - 1$
#   become $a_k + c_k - 1$. Counts are added to counts.
#
# LDA's priors are $\theta_d \sim \text{Dir}(\alpha, \dots, \alpha)$ and $\beta_k \sim
# \text{Dir}(\eta, \dots, \eta)$. We take $\alpha = 0.3$ (few topics to a document) and $\eta = 0.1$
# (few words to a topic).

# %%
alpha, eta = 0.3, 0.1
for a in (0.1, 1.0, 10.0):
    print(
        f"three draws from a Dirichlet of five numbers {a}:",
        *np.random.default_rng(0).dirichlet(np.full(5, a), 3).round(2),
    )

# %% [markdown]
# By Bayes' rule the belief after seeing the words, the **posterior**, is
#
# $$p(\theta, \beta \mid X) = \frac{p(X \mid \theta, \beta)\, p(\theta)\, p(\beta)}{p(X)}, \qquad p(X) = \int p(X \mid \theta, \beta)\,
#   p(\theta)\, p(\beta)\, d\theta\, d\beta .$$
#
# The numerator is easy. The denominator, the **evidence**, is an integral in 920 dimensions here
# (each of 200 documents has 4 free proportions, each of 5 topics 24 free probabilities). We cannot
# compute it. So we look for a simpler distribution $q$ that is close to the posterior.
#
# ### How close? Expectations and the KL divergence
#
# The **expectation** of a function $f$ under $q$, written $\mathbb{E}_q[f]$, is its average over
# draws from $q$; if $q$ is a list of probabilities, it is $\sum_i q_i f_i$, and if $q$ is a
# density, the sum is an integral. The **Kullback-Leibler divergence** measures how far $q$ is from
# $p$ (it is not symmetric: $q$ and $p$ cannot be swapped):
#
# $$\text{KL}(q \,\|\, p) = \mathbb{E}_q\big[\log q - \log p\big].$$
#
# It is never negative, and zero only when the two are the same. The reason is that the logarithm
# bends downwards, so that the mean of logarithms is at most the logarithm of the mean: $-\text{KL}
# = \mathbb{E}_q[\log (p/q)] \le \log \mathbb{E}_q[p/q] = \log \sum_i p_i = 0$. This inequality
# (Jensen's) is the engine of everything below.

# %%
q, p = (
    rng.dirichlet(np.ones(6), 1000),
    rng.dirichlet(np.ones(6), 1000),
)  # a thousand pairs of distributions
kl = np.sum(q * (np.log(q) - np.log(p)), axis=1)
print(
    f"smallest of 1000 divergences: {kl.min():.3f}; of a distribution from itself: {np.sum(q[0] * (np.log(q[0]) - np.log(q[0]))):.1f}"
)

# %% tags=["check"]
# The divergence is positive for distributions that differ.
assert kl.min() > 0

# %% [markdown]
# ### The ELBO
#
# Write $h$ for all that is hidden: $\theta$, $\beta$, and $z$, which from here on stands for the
# topics of all words. We want the $q(h)$ that makes $\text{KL}(q \,\|\, p(h \mid X))$ small, but
# the posterior holds the unknown $p(X)$. By Bayes' rule $p(h \mid X) = p(X, h) / p(X)$, where $p(X,
# h)$ is the **joint** probability of what we see and what is hidden. Put this into the divergence;
# $\log p(X)$ is one number, so its average is itself:
#
# $$\text{KL}(q \,\|\, p(h \mid X)) = \mathbb{E}_q[\log q(h)] - \mathbb{E}_q[\log p(X, h)] + \log p(X).$$
#
# The first two terms we can compute. Their negative is the **evidence lower bound**, ELBO:
#
# $$\mathcal{L}(q) = \mathbb{E}_q[\log p(X, h)] - \mathbb{E}_q[\log q(h)] = \log p(X) - \text{KL}(q \,\|\, p(h \mid X)) .$$
#
# Since the divergence is not negative, $\mathcal{L}(q) \le \log p(X)$ for every $q$; and since
# $\log p(X)$ does not depend on $q$, *raising the bound is the same as lowering the divergence*.
#
# **Why EM never falls.** In EM only the topics $z$ are hidden; $\theta$ and $\beta$ are numbers to
# be chosen, and the bound is one on $\log p(X \mid \theta, \beta)$. The E-step takes for $q(z)$ the
# exact posterior of $z$, which is $\varphi$: the divergence is zero, and the bound touches the log
# likelihood. Now keep $q$ and choose $\theta_d$. What depends on it in the bound is $\sum_k
# c_k\log\theta_{dk}$, with $c_k$ the words of the document that were given to topic $k$. With $r_k
# = c_k/N_d$ this is $N_d\big(\sum_k r_k\log r_k - \text{KL}(r\,\|\,\theta_d)\big)$, highest at
# $\theta_d = r$: count and divide, the M-step. (The same holds for $\beta_k$.) It raises the bound,
# and the log likelihood, which lies above the bound, must rise at least as much.
#
# ### Mean field, on one small document
#
# Which $q$? **Mean field** takes distributions in which the hidden variables are independent:
# $q(\theta, z) = q(\theta)\, q(z)$. That is a simplification: in truth, if a document has much of
# topic 1, more of its words come from topic 1. Let us see what it costs where the truth can still
# be computed: two *known* topics over three words, and one document of six words. Its $\theta = (t,
# 1 - t)$ is one number $t$, the share of the first topic, with a flat prior (in this example
# $\alpha = 1$). The exact posterior is a curve.

# %%
two_topics = np.array([[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]])
small = np.array([3, 2, 1])  # counts of the three words
t = (np.arange(20000) + 0.5) / 20000  # a fine grid between 0 and 1
joint = np.prod(
    (t[:, None] * two_topics[0] + (1 - t[:, None]) * two_topics[1]) ** small, axis=1
)  # p(words | t) p(t), and p(t) = 1
log_evidence = np.log(joint.mean())  # the integral over t
exact = joint / joint.mean()  # the posterior density
print(f"log p(words) = {log_evidence:.4f}")

# %% [markdown]
# Mean field says: $q(\theta) = \text{Dir}(\gamma_1, \gamma_2)$, and word $v$ comes from topic $k$
# with probability $\varphi_{vk}$. Write out the bound. By the story, the joint probability is
# $p(\theta)$ times, for every word $v$ with its topic $z$, the factor $\theta_z\,\beta_{zv}$. So
#
# $$\log p(X, z, \theta) = \log p(\theta) + \sum_{\text{words}} \big(\log\theta_z + \log\beta_{zv}\big).$$
#
# Average this under $q$: the topic is $k$ with probability $\varphi_{vk}$, and there are $n_v$
# words $v$. Then subtract $\mathbb{E}_q[\log q]$: its part for $z$ is the $\log\varphi$ below, and
# its part for $\theta$ makes a divergence with $\log p(\theta)$:
#
# $$\mathcal{L} = \underbrace{\sum_{v} n_v \sum_k \varphi_{vk} \big(\mathbb{E}_q[\log\theta_k] + \log\beta_{kv} -
#   \log\varphi_{vk}\big)}_{\text{words}} - \text{KL}(q(\theta)\,\|\,p(\theta)).$$
#
# For a Dirichlet that expectation is known: $\mathbb{E}[\log\theta_k] = \psi(\gamma_k) -
# \psi(\sum_j\gamma_j)$ with the **digamma function** $\psi$, the derivative of $\log\Gamma$. For
# our purposes $\psi$ is a logarithm that is pessimistic about small counts: $e^{\psi(x)}$ is about
# $x - \tfrac12$ for $x > 1$, and falls to zero quickly below.

# %%
draws = rng.dirichlet([3.0, 0.5], 200_000)
print("mean of log theta over draws:      ", np.log(draws).mean(0).round(3))
print("digamma(3, 0.5) - digamma(3.5):    ", (digamma([3.0, 0.5]) - digamma(3.5)).round(3))
print("exp(digamma(x)) for x = .1, .5, 1, 2, 10:", np.exp(digamma([0.1, 0.5, 1, 2, 10])).round(5))

# %% tags=["check"]
# The formula of E log theta: 200,000 draws, sd of log theta_2 about 2.1, so a standard error of
# .005.
assert np.allclose(np.log(draws).mean(0), digamma([3.0, 0.5]) - digamma(3.5), atol=0.03)
# exp(psi(x)) is about x - 1/2 above 1, and falls quickly below.
assert (
    np.allclose(np.exp(digamma([2.0, 10.0])), [1.5, 9.5], atol=0.05) and np.exp(digamma(0.1)) < 1e-4
)


# %% [markdown]
# The divergence of one Dirichlet from another follows. With $C(a) = \Gamma(\sum_k
# a_k)/\prod_k\Gamma(a_k)$, the factor in front of the density, the logarithm of the density is
# $\log C(a) + \sum_k (a_k - 1)\log\theta_k$. Subtract two of these and average under the first:
#
# $$\text{KL}\big(\text{Dir}(a)\,\|\,\text{Dir}(b)\big) = \log C(a) - \log C(b) + \sum_k (a_k - b_k)\,\mathbb{E}[\log\theta_k].$$
#
# In the code `log_normaliser` is $\log C$ (`gammaln` is $\log\Gamma$), and `expected_log` is
# $\mathbb{E}[\log\theta]$ under $\text{Dir}(a)$.


# %%
def expected_log(a):
    """E[log x] of Dirichlet distributions, one per row of a."""
    return digamma(a) - digamma(a.sum(-1, keepdims=True))


def log_normaliser(a):
    return gammaln(a.sum(-1)) - gammaln(a).sum(-1)


def kl_dirichlet(a, prior):
    """KL(Dir(a) || Dir(prior, ..., prior)), one number per row."""
    prior = np.full_like(a, prior)
    return (
        log_normaliser(a) - log_normaliser(prior) + np.sum((a - prior) * expected_log(a), axis=-1)
    )


# %% [markdown]
# Now raise the bound, one of $\varphi$ and $\gamma$ at a time: **coordinate ascent**. Both have a
# best value in closed form.
#
# - For given $\gamma$, take one word $v$ and write $\varphi_k$ for $\varphi_{vk}$. Maximise $\sum_k
#   \varphi_k (s_k - \log\varphi_k)$ with $s_k = \mathbb{E}_q[\log\theta_k] + \log\beta_{kv}$
#   (`scores` in the code). With $Z = \sum_k e^{s_k}$ we have $s_k = \log Z + \log(e^{s_k}/Z)$, so
#   this is $\log Z - \text{KL}(\varphi \,\|\, e^{s}/Z)$, and the best is $\varphi_k = e^{s_k}/Z$:
#   **EM's E-step with $\exp\mathbb{E}[\log\theta]$ in place of $\theta$**. The value there is $\log
#   Z = \log\sum_k e^{s_k}$, which SciPy computes safely as `logsumexp`. So the words' part of the
#   bound is $\sum_v n_v \log Z_v$, in the code `small @ logsumexp(scores, axis=1)`.
# - For given $\varphi$, write $c_k = \sum_v n_v\varphi_{vk}$ for the words that topic $k$ got. What
#   depends on $q(\theta)$ in the bound is $\mathbb{E}_q[\sum_k (\alpha + c_k - 1)\log\theta_k -
#   \log q(\theta)]$, which is a constant minus $\text{KL}(q(\theta)\,\|\,\text{Dir}(\alpha + c))$.
#   The best is $\gamma_k = \alpha + c_k$ (here $\alpha = 1$): counts are added to counts. **EM's
#   M-step, with the prior added and nothing divided.**

# %%
gamma = np.array([1.0, 6.0])  # a bad first guess
small_path, gammas = [], []
for _ in range(30):
    scores = expected_log(gamma)[None, :] + np.log(two_topics.T)  # (words, topics)
    small_path.append(small @ logsumexp(scores, axis=1) - kl_dirichlet(gamma, 1.0))
    gammas.append(gamma)
    phi = np.exp(scores - logsumexp(scores, axis=1, keepdims=True))
    gamma = 1.0 + small @ phi
q_density = beta_distribution.pdf(t, *gamma)  # a Dirichlet of two numbers is a beta distribution
print(f"ELBO {small_path[0]:.4f} -> {small_path[-1]:.4f}; log p(words) {log_evidence:.4f}")

# %%
fig, (left, right) = plt.subplots(1, 2)
left.plot(small_path[:15], "o-", color=ORANGE, ms=4, label="ELBO")
left.axhline(log_evidence, color=BLUE, label="log evidence (exact)")
left.set(xlabel="update", ylabel="nats", title="The bound rises, and stays below")
left.legend(frameon=False)
right.plot(t, exact, color=BLUE, label="exact posterior")
right.plot(t, q_density, color=ORANGE, label="mean field q")
right.set(
    xlabel="share t of the first topic",
    ylabel="density",
    title="Right place, too narrow",
    ylim=(0, None),
)
right.legend(frameon=False, loc="upper left", fontsize=8)
plt.show()

# %% tags=["check"]
# The bound rises, and stays below the evidence.
assert np.diff(small_path).min() > -1e-12 and small_path[-1] < log_evidence
# It is what its definition says: the expectation over q(t), on the grid, of log p(words, z, t) -
# log q.
log_t = np.log(np.stack([t, 1 - t], axis=1))
inner = np.einsum(
    "v,vk,tvk->t", small, phi, log_t[:, None, :] + np.log(two_topics.T)[None] - np.log(phi)[None]
)
by_grid = np.mean(
    beta_distribution.pdf(t, *gammas[-1]) * (inner - beta_distribution.logpdf(t, *gammas[-1]))
)
assert abs(by_grid - small_path[-1]) < 1e-5  # the grid's error
# "Too narrow": the sd under q is below the exact one; "right place": the means differ by less than
# half an exact sd.
exact_mean = np.mean(t * exact)
exact_sd = np.sqrt(np.mean((t - exact_mean) ** 2 * exact))
assert beta_distribution.std(*gamma) < 0.9 * exact_sd
assert abs(beta_distribution.mean(*gamma) - exact_mean) < 0.5 * exact_sd

# %% [markdown]
# Two things to see. The bound stops short of the evidence; the gap *is* the divergence, the price
# of pretending that $\theta$ and $z$ do not know of each other. And $q$ is narrower than the truth:
# each factor behaves as if the others were known. Keep this in mind; it comes back at the end.

# %% [markdown]
# ## Mean field for the whole corpus: CAVI
#
# For LDA the topics are hidden as well: $q = \prod_k \text{Dir}(\beta_k \mid \lambda_k) \prod_d
# \text{Dir}(\theta_d \mid \gamma_d) \times q(z)$, with a row $\lambda_k$ of $V$ numbers for each
# topic and a row $\gamma_d$ of $K$ numbers for each document. (In the code $\lambda$ is `lam`,
# since `lambda` is a word of Python.) The bound is that of the small document, with
# $\mathbb{E}[\log\beta_{kv}]$ in place of $\log\beta_{kv}$, the best $\varphi$ already put in, and
# one more divergence, that of the topics:
#
# $$\mathcal{L}(\gamma,\lambda) = \sum_{d,v} n_{dv} \log\sum_k e^{\mathbb{E}[\log\theta_{dk}] + \mathbb{E}[\log\beta_{kv}]} - \sum_d
#   \text{KL}(q(\theta_d)\|p(\theta_d)) - \sum_k \text{KL}(q(\beta_k)\|p(\beta_k)) + \text{orders},$$
#
# "orders" being the constant we left out, the logarithm of the number of orders of each bag,
# $N_d!/\prod_v n_{dv}!$.

# %%
orders = np.sum(gammaln(N + 1)) - np.sum(gammaln(X + 1))


def elbo(gamma, lam):
    scores = (
        expected_log(gamma)[:, None, :] + expected_log(lam).T[None, :, :]
    )  # (documents, words, topics)
    return (
        np.sum(X * logsumexp(scores, axis=2))
        - kl_dirichlet(gamma, alpha).sum()
        - kl_dirichlet(lam, eta).sum()
        + orders
    )


# %% [markdown]
# The updates are those of the small document, once for $\gamma$ and once for $\lambda$: a topic
# adds up its words over documents as a document adds up its words over the vocabulary. The sign
# $\propto$ means: divide by the sum over $k$. (Equations 12 and 13 of Fox's 2014 lecture slides.)
#
# $$\gamma_{dk} = \alpha + \sum_v n_{dv}\,\varphi_{dvk}, \qquad \lambda_{kv} = \eta + \sum_d n_{dv}\,\varphi_{dvk}, \qquad \varphi_{dvk}
#   \propto e^{\mathbb{E}[\log\theta_{dk}] + \mathbb{E}[\log\beta_{kv}]} .$$
#
# This is **coordinate-ascent variational inference**, CAVI: documents first, here ten rounds of
# them, then topics. Compare the loop with EM's. `share_out` is the same function; it is given
# $\exp\mathbb{E}[\log\cdot]$, which need not add up to one, since shares are divided by their sum
# anyway.


# %%
def solve_documents(X, lam, gamma=None, rounds=50):
    """gamma for the documents X given the topics, from words spread evenly over the topics unless
    gamma is given."""
    gamma = alpha + np.repeat(X.sum(1, keepdims=True) / K, K, axis=1) if gamma is None else gamma
    for _ in range(rounds):
        gamma = alpha + words_by_document(
            X, share_out(np.exp(expected_log(gamma)), np.exp(expected_log(lam)))
        )
    return gamma


def topics_target(X, gamma, lam, scale=1.0):
    """What lambda becomes when the words of the documents X, each counted `scale` times, are shared
    out."""
    return eta + scale * words_by_topic(
        X, share_out(np.exp(expected_log(gamma)), np.exp(expected_log(lam)))
    )


def random_start(seed):
    """Each topic begins as three random documents, smoothed, with a fifth of all words."""
    rng = np.random.default_rng(seed)
    mixed = np.array([X[rng.choice(D, 3)].sum(0) for _ in range(K)]) + 0.5
    return eta + X.sum() / K * mixed / mixed.sum(1, keepdims=True)


start = random_start(1)

lam, gamma, cavi_path, snapshots = start, None, [], {0: start}
for sweep in range(1, 81):
    gamma = solve_documents(X, lam, gamma, rounds=10)
    cavi_path.append(elbo(gamma, lam))
    lam = topics_target(X, gamma, lam)
    snapshots[sweep] = lam
print(f"ELBO after the first sweep {cavi_path[0]:.1f}, after the last {cavi_path[-1]:.1f}")

# %% [markdown]
# The mean of $\text{Dir}(\lambda_k)$ is $\lambda_k / \sum_v\lambda_{kv}$. Here is how it moves.

# %%
order = match(lam / lam.sum(1, keepdims=True))
shown = [0, 3, 10, 80]
means = [(snapshots[sweep] / snapshots[sweep].sum(1, keepdims=True))[order] for sweep in shown]
fig, axes = show_topics(means, [f"sweep {sweep}" for sweep in shown])
fig.suptitle(
    "CAVI: from three random documents each, topics become bars in a few sweeps", fontsize=10
)
plt.show()

# %% [markdown]
# The library derives these updates by itself. In $\log p(X, h)$ each $\log\theta_{dk}$ and
# $\log\beta_{kv}$ is multiplied by a count, and the updates are these counts with the prior added.
# A number that multiplies something is a derivative, so the model need only state $\log p(X, h)$ as
# a function of $\log\theta$ and $\log\beta$, and JAX, which differentiates programs, finds the
# counts (`MODEL_CONTRACT.md`). Engine `cavi`, from the same start, must give the same numbers.
# `init` is $\lambda$; `num_local` are the rounds over documents.

# %%
hyper = {"num_topics": K, "alpha": alpha, "eta": eta}
exactly = {"local_tolerance": 0.0, "tolerance": 0.0, "progress": False}  # no early stop
cavi = inference.fit(
    "lda", data, "cavi", hyper, init={"beta": start}, num_epochs=80, num_local=10, **exactly
)
print(f"ELBO, ours and the library's: {cavi_path[-1]:.6f} and {cavi.history['bound'][-1]:.6f}")
print(
    f"largest difference between mean topics: {np.abs(cavi.posterior.mean('beta') - lam / lam.sum(1, keepdims=True)).max():.1e}"
)

# %% tags=["check"]
# The bound never falls; the library's sweeps are ours, every one of them.
assert np.diff(cavi_path).min() > -1e-8
assert np.allclose(cavi.history["bound"], cavi_path, rtol=1e-9)
assert np.abs(cavi.posterior.mean("beta") - lam / lam.sum(1, keepdims=True)).max() < 1e-6
# CAVI found the bars: the overlap sum_v min(found, true) of each topic is near one (noise of some
# 1,400 words a topic).
cavi_beta = (lam / lam.sum(1, keepdims=True))[order]
assert np.minimum(cavi_beta, true_beta).sum(1).min() > 0.85

# %% [markdown]
# Does it help to have a distribution? Take new documents, hide a third of the words of each (each
# third in turn), infer $\theta_d$ from the rest, and ask how probable the hidden words are. This is
# *document completion*; the score is the mean log probability of a hidden word, and higher is
# better. EM pays for its zeros: a hidden word of which EM says that it is impossible costs a great
# deal (the library stops at a probability of $10^{-38}$, or 87 nats). CAVI has no zeros. It has the
# better prior, too, but that is the smaller part of the difference.

# %%
new_theta, new_X = write_documents(300)
new = pp_models.data.counts(new_X)
for name, fit in (("EM", em_fit), ("CAVI", cavi)):
    score = inference.document_completion(fit, new)
    print(
        f"{name:5s} {score.value:.3f} nats per hidden word (standard error {score.standard_error:.3f})"
    )

# %% tags=["check"]
# CAVI predicts new documents better than EM: the same documents and words, so the difference is
# judged document by document.
scores = [inference.document_completion(fit, new) for fit in (em_fit, cavi)]
difference = (scores[1].per_document - scores[0].per_document) / scores[0].num_tokens
assert difference.mean() > 3 * difference.std() / np.sqrt(len(difference))

# %% [markdown]
# ## The update is a step of length one along the natural gradient
#
# CAVI looks at *all* documents before it moves the topics once. To do better we first need to see
# its update as a step along a gradient.
#
# Take the derivative of the bound with respect to $\lambda_k$, with $\gamma$ held fixed. Write
# $\hat\lambda_{kv} = \eta + \sum_d n_{dv}\varphi_{dvk}$ for the target of CAVI's update and $e_v =
# \mathbb{E}[\log\beta_{kv}] = \psi(\lambda_{kv}) - \psi(\sum_w\lambda_{kw})$. The derivatives of
# $e_v$ with respect to $\lambda_{kw}$ make a matrix,
#
# $$F_k = \text{diag}\big(\psi'(\lambda_{kv})\big) - \psi'\Big(\sum_v\lambda_{kv}\Big)\,\mathbf{1}\mathbf{1}^\top,$$
#
# where $\psi'$ is the derivative of $\psi$ and $\mathbf{1}\mathbf{1}^\top$ the matrix of ones
# (NumPy subtracts a number from every entry without being told). Two terms of the bound depend on
# $\lambda_k$:
#
# - *Words.* The derivative of $\log\sum_j e^{s_j}$ by $s_k$ is $e^{s_k}/Z = \varphi_k$. So that of
#   the words' term by $e_v$ is $\sum_d n_{dv}\varphi_{dvk} = \hat\lambda_{kv} - \eta$, and by
#   $\lambda_k$, with the chain rule, $F_k(\hat\lambda_k - \eta)$.
# - *Divergence from the prior.* It is $\log C(\lambda_k) + \sum_v (\lambda_{kv} - \eta)\,e_v$ and a
#   constant. The derivative of $\log C$ by $\lambda_{kw}$ is $-e_w$, which cancels against the
#   $e_w$ of the product rule. What is left is $F_k(\lambda_k - \eta)$.
#
# The first minus the second is
#
# $$\nabla_{\lambda_k}\mathcal{L} = F_k\,(\hat\lambda_k - \lambda_k).$$
#
# The matrix $F_k$ is also the *Fisher information* of the Dirichlet: it tells how much the
# *distribution* changes when $\lambda_k$ changes. A small change $\delta$ moves it by a divergence
# of about $\tfrac12\delta^\top F_k\,\delta$. Let us believe nothing and compare the gradient with a
# derivative by differences.

# %%
lam = snapshots[3]  # somewhere on the way
gamma = solve_documents(X, lam, rounds=200)
target = topics_target(X, gamma, lam)

k, step = 0, 1e-4
by_differences = np.zeros(V)
for v in range(V):
    moved = np.zeros((K, V))
    moved[k, v] = step
    by_differences[v] = (elbo(gamma, lam + moved) - elbo(gamma, lam - moved)) / (2 * step)


def fisher(a):
    return np.diag(polygamma(1, a)) - polygamma(1, a.sum())


by_formula = fisher(lam[k]) @ (target[k] - lam[k])
print("by differences:", by_differences[:5].round(4))
print("by formula:    ", by_formula[:5].round(4))

# %% tags=["check"]
# The gradient is Fisher times (target - lambda); differences of a bound of about 1e4 at steps of
# 1e-4 are good to about 1e-6.
assert np.allclose(by_differences, by_formula, atol=1e-4 * np.abs(by_formula).max())
# Half delta' F delta is the divergence of a small move.
delta = 0.01 * rng.normal(size=V) * lam[k]
exact_kl = (
    log_normaliser(lam[k] + delta) - log_normaliser(lam[k]) + delta @ expected_log(lam[k] + delta)
)
assert abs(exact_kl / (0.5 * delta @ fisher(lam[k]) @ delta) - 1) < 0.1

# %% [markdown]
# A gradient points where the bound rises fastest *per unit of distance*. Measured by the plain
# distance between numbers, a unit is a different thing everywhere: from $\lambda = 0.1$ to $1.1$ a
# topic changes beyond recognition, from $100$ to $101$ one sees nothing. So measure distance by the
# divergence between distributions: among all moves $\delta$ with the same $\tfrac12\delta^\top
# F\delta$, which has the largest gain $\delta^\top\nabla\mathcal{L}$? With a Lagrange multiplier
# $\mu$, $\nabla\mathcal{L} = \mu F\delta$, so $\delta$ points along $F^{-1}\nabla\mathcal{L}$. This
# is the **natural gradient** (Amari 1998), and for our bound it is simply
#
# $$F_k^{-1}\nabla_{\lambda_k}\mathcal{L} = \hat\lambda_k - \lambda_k .$$
#
# A step of length $\rho$ along it is $\lambda \leftarrow \lambda + \rho(\hat\lambda - \lambda) =
# (1-\rho)\lambda + \rho\hat\lambda$. With $\rho = 1$ it is $\lambda\leftarrow\hat\lambda$: **CAVI's
# update.** Here is what happens along both gradients, from the same start (the grey line is where
# CAVI ended above). A larger step does not save the plain gradient: small $\lambda$ have a large
# gradient and are thrown far off.


# %%
def climb(direction, rate, steps=60):
    lam, path = start, []
    for _ in range(steps):
        gamma = solve_documents(X, lam, rounds=20)
        path.append(elbo(gamma, lam))
        move = topics_target(X, gamma, lam) - lam
        if direction == "plain":
            move = np.stack([fisher(a) @ m for a, m in zip(lam, move, strict=True)])
        lam = np.maximum(lam + rate * move, 1e-2)  # lambda must stay positive
    return np.array(path)


natural = {rate: climb("natural", rate) for rate in (1.0, 0.3)}
plain = {rate: climb("plain", rate) for rate in (0.02, 0.05, 0.1, 0.3)}
best = max(plain, key=lambda rate: plain[rate][-1])

# %%
fig, axis = plt.subplots()
top = max(cavi_path)
axis.plot(natural[1.0], color=ORANGE, label=r"natural gradient, $\rho = 1$ (CAVI)")
axis.plot(natural[0.3], color=ORANGE, ls="--", label=r"natural gradient, $\rho = 0.3$")
axis.plot(plain[best], color=BLUE, label=f"plain gradient, best of four step sizes ({best})")
axis.axhline(top, color=GREY, lw=0.8)
axis.set(
    xlabel="steps, each over all documents",
    ylabel="ELBO (nats)",
    title="In 60 steps the plain gradient hardly leaves the start",
)
axis.legend(frameon=False)
plt.show()

# %% tags=["check"]
# The figure's title: the best plain gradient, whose rate is not at the grid's edge, makes less than
# a fifth of the natural gradient's way up.
assert min(plain) < best < max(plain)
assert (plain[best][-1] - plain[best][0]) < 0.2 * (natural[1.0][-1] - natural[1.0][0])

# %% [markdown]
# ## Noise: SVI
#
# The target is the prior plus a sum over documents. Take a random **batch** of $|B|$ documents and
# count each $D/|B|$ times. This *noisy* target is wrong each time and **right on average**:
#
# $$\hat\lambda_{kv}^{B} = \eta + \frac{D}{|B|}\sum_{d\in B} n_{dv}\,\varphi_{dvk}, \qquad
#   \mathbb{E}\big[\hat\lambda_{kv}^B\big] = \hat\lambda_{kv} ,$$
#
# the average being over batches: each document is in the batch with probability $|B|/D$, which
# cancels the factor $D/|B|$.

# %%
gamma = solve_documents(X, lam)
batches = np.random.default_rng(0).permutation(D).reshape(10, 20)
noisy = np.array([topics_target(X[b], gamma[b], lam, D / 20) for b in batches])
full = topics_target(X, gamma, lam)
print(f"word 0 of topic 0: target {full[0, 0]:.1f}; by batches of 20:", *noisy[:, 0, 0].round(1))
print(f"their mean: {noisy[:, 0, 0].mean():.1f}")

# %% tags=["check"]
# Right on average: over batches that together are the corpus, exactly; each alone, not.
assert np.allclose(noisy.mean(0), full) and np.abs(noisy - full).max() > 1

# %% [markdown]
# With a noisy target, $\rho = 1$ would throw away everything learned before. We take a part
# $\rho_t$ of step $t = 0, 1, 2, \dots$ (this $t$ has nothing to do with the share $t$ above), and
# less and less: Robbins and Monro (1951) showed that noise averages out and the end is still
# reached if
#
# $$\sum_t \rho_t = \infty \quad\text{(far enough)} \qquad\text{and}\qquad \sum_t \rho_t^2 < \infty\quad\text{(calm in the end)},$$
#
# for instance with $\rho_t = (\tau + t)^{-\kappa}$, where $\kappa$ is above $\tfrac12$ and at most
# one, and a larger $\tau \geq 1$ makes the first steps smaller. (With $\tau = 1$ the first step has
# $\rho_0 = 1$. It throws away the random start, which is no loss.) This is stochastic variational
# inference, in ten lines:


# %%
def svi(lam, batch_size, num_steps, rate, seed=0):
    rng, path = np.random.default_rng(seed), [lam]
    for step in range(num_steps):
        batch = rng.choice(D, batch_size, replace=False)
        gamma = solve_documents(X[batch], lam)
        target = topics_target(X[batch], gamma, lam, scale=D / batch_size)
        rho = rate(step)
        lam = (1 - rho) * lam + rho * target
        path.append(lam)
    return path


def falling(step):
    return (1 + step) ** -0.7


paths = {
    "falling": svi(start, 20, 200, falling, seed=1),
    "constant": svi(start, 20, 200, lambda step: 0.7, seed=1),
}
every = 5  # steps between two evaluations of the bound
heights = {
    name: [elbo(solve_documents(X, lam), lam) for lam in path[::every]]
    for name, path in paths.items()
}

# %%
fig, axis = plt.subplots()
axis.plot(
    D * np.arange(len(cavi_path)), cavi_path, color=ORANGE, label="CAVI: 200 documents a step"
)
for name, label, colour, dash in (
    ("falling", r"SVI, 20 documents a step, $\rho_t = (1+t)^{-0.7}$", GREEN, "-"),
    ("constant", r"SVI, 20 documents a step, $\rho = 0.7$", GREY, "--"),
):
    axis.plot(
        20 * every * np.arange(len(heights[name])),
        heights[name],
        color=colour,
        ls=dash,
        label=label,
    )
low = min(*heights["falling"][2:], *heights["constant"][2:])
axis.set(
    xlim=(0, 4000),
    ylim=(low - 50, top + 30),
    xlabel="documents looked at",
    ylabel="ELBO of all documents (nats)",
)
axis.set_title("SVI starts faster; with a constant rate it never comes to rest")
axis.legend(frameon=False, loc="lower right")
plt.show()

# %% tags=["check"]
# "SVI starts faster": after 200 documents, one step of CAVI, SVI is above CAVI. `cavi_path[1]` is
# the bound after the first update of the topics.
assert heights["falling"][2] > cavi_path[1]
# "Never comes to rest": over the last half, the constant rate moves more than five times as much
# from one evaluation to the next.
last = {name: np.array(values[len(values) // 2 :]) for name, values in heights.items()}
moves = {name: np.abs(np.diff(values)).mean() for name, values in last.items()}
assert moves["constant"] > 5 * moves["falling"]
# "CAVI overtakes it later": within the same 4,000 documents.
assert cavi_path[20] > heights["falling"][-1]
# The falling rate ends near CAVI's bound: what is left is about a hundredth of the way from the
# start.
assert top - heights["falling"][-1] < 0.02 * (top - heights["falling"][0])

# %% [markdown]
# The library's `svi` does these steps (its options `tau` and `kappa` are the rate's). It takes the
# batches from a shuffled corpus instead of drawing each anew, so its path is not ours number for
# number, but the end is the same.
#
# One case can be compared exactly. With *all* documents in the batch and $\rho = 1$ (that is
# $\kappa = 0$), nothing is random and nothing is kept: **SVI is then CAVI**. One difference of
# detail remains: `svi`, which may see a document only once, solves each afresh, where `cavi` goes
# on from the last sweep.

# %%
fitted = inference.fit(
    "lda",
    data,
    "svi",
    hyper,
    init={"beta": start},
    batch_size=20,
    num_epochs=20,
    tau=1.0,
    kappa=0.7,
    progress=False,
)
svi_lam = np.asarray(fitted.posterior.natural("beta"))  # lambda
print(
    f"ELBO: CAVI {top:.1f}, our SVI {heights['falling'][-1]:.1f}, the library's {elbo(solve_documents(X, svi_lam), svi_lam):.1f}"
)

options = {"num_epochs": 20, "num_local": 50, **exactly}
full_batch = inference.fit(
    "lda", data, "svi", hyper, init={"beta": start}, batch_size=D, tau=1.0, kappa=0.0, **options
)
sweeps = inference.fit("lda", data, "cavi", hyper, init={"beta": start}, **options)
ours = svi(start, D, 20, lambda step: 1.0)[-1]
difference = np.abs(ours / ours.sum(1, keepdims=True) - full_batch.posterior.mean("beta")).max()
print(f"all documents, rho = 1: our topics against the library's {difference:.1e}")
print(
    f"ELBO after 20 steps {full_batch.history['bound'][-1]:.3f}, of engine cavi {sweeps.history['bound'][-1]:.3f}"
)

# %% tags=["check"]
# The library's SVI ends where ours does, within a few nats of CAVI.
assert abs(elbo(solve_documents(X, svi_lam), svi_lam) - top) < 0.02 * (top - cavi_path[0])
# SVI with all documents and rate one is the loop of CAVI with documents started afresh: NumPy's and
# the library's to rounding.
assert difference < 1e-8
# Against engine cavi: the first step is the same; later ones differ by where documents start, by
# two nats of 4,760 in the end.
assert abs(full_batch.history["bound"][0] - sweeps.history["bound"][0]) < 1e-6
assert abs(full_batch.history["bound"][-1] - sweeps.history["bound"][-1]) < 5

# %% [markdown]
# In the figure, SVI is far up before CAVI has moved twice, and CAVI overtakes it later: with 200
# documents one can afford sweeps. The constant rate is the faster one at first, for its steps are
# longer, and then jumps about below the others. (The axis counts documents, not time: our SVI
# starts each document afresh and gives it 50 rounds, CAVI goes on from the last sweep and gives it
# 10.) The start and the seed of this figure were chosen among several: from some others SVI settles
# in a worse local optimum, hundreds of nats lower, and stays there. Noise does not save it from
# that. The gain grows with the corpus: SVI's step costs the same for a thousand documents and for a
# million.

# %% [markdown]
# ## What the uncertainty means, and where it is wrong
#
# $q(\theta_d)$ is a distribution, so we may ask it how sure it is: the standard deviation (sd) of
# $\theta_{dk}$ under $q$, the typical distance of a draw from the mean. Long documents tell more
# than short ones:

# %%
theta_sd = cavi.posterior.sd("theta")
largest = cavi.posterior.mean("theta").max(1)
mixed = largest < 0.8  # documents of one topic alone are certain anyway
for low, high in ((10, 20), (20, 40), (40, 61)):
    chosen = mixed & (low <= N) & (high > N)
    print(
        f"documents of {low} to {high - 1} words: typical sd of a proportion {theta_sd[chosen].max(1).mean():.3f}"
    )

# %% [markdown]
# But the small document taught us that mean field is too narrow. How much so here? A **Gibbs
# sampler** draws from the exact posterior, given time: it draws the topic of every word given
# $\theta$ and $\beta$, then $\theta$ and $\beta$ given those, and so on; its draws are dependent,
# but in the long run they follow the posterior. It is slow on large corpora. On ours it can be the
# judge. We start it at CAVI's means, so that the numbers of the topics agree.

# %%
begin = {site: cavi.posterior.mean(site) for site in ("theta", "beta")}
gibbs = inference.fit(
    "lda",
    data,
    "gibbs",
    hyper,
    init=begin,
    num_samples=2000,
    num_warmup=300,
    num_chains=2,
    progress=False,
)
print(gibbs.posterior.draws["theta"].shape, "chains, draws, documents, topics")

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 3.4))
for axis, site, name in zip(axes, ("theta", "beta"), ("proportions", "topics"), strict=True):
    exact_sd, q_sd = gibbs.posterior.sd(site).ravel(), cavi.posterior.sd(site).ravel()
    limit = 1.05 * max(exact_sd.max(), q_sd.max())
    axis.plot([0, limit], [0, limit], color=GREY, lw=0.8)
    axis.plot(exact_sd, q_sd, ".", color=ORANGE, ms=3, alpha=0.5)
    axis.set(
        xlabel="sd by Gibbs sampling",
        ylabel="sd under mean field",
        title=f"{name}",
        xlim=(0, limit),
        ylim=(0, limit),
        aspect="equal",
    )
fig.suptitle("Below the line: mean field is surer than it should be", fontsize=10)
plt.show()

# %%
for site in ("theta", "beta"):
    wide = gibbs.posterior.sd(site) > 0.01  # where there is something to be unsure of
    ratio = cavi.posterior.sd(site)[wide] / gibbs.posterior.sd(site)[wide]
    error = (
        np.abs(cavi.posterior.mean(site) - gibbs.posterior.mean(site))[wide]
        / gibbs.posterior.sd(site)[wide]
    )
    print(
        f"{site:5s}  median ratio of sds {np.median(ratio):.2f}; median error of the mean {np.median(error):.2f} sd"
    )

# %% tags=["check"]
# The chains agree (their means differ by little against the sd), so that they can judge.
means = gibbs.posterior.draws["beta"].mean(1)
assert np.abs(means[0] - means[1]).max() < 0.3 * gibbs.posterior.sd("beta").max()
# Mean field is too narrow for both (0.97: two thousand draws know an sd to about 2 %), and its
# means are within about a standard deviation.
for site in ("theta", "beta"):
    wide = gibbs.posterior.sd(site) > 0.01
    assert np.median(cavi.posterior.sd(site)[wide] / gibbs.posterior.sd(site)[wide]) < 0.97
    assert (
        np.median(
            np.abs(cavi.posterior.mean(site) - gibbs.posterior.mean(site))[wide]
            / gibbs.posterior.sd(site)[wide]
        )
        < 1
    )
# "Most of all for words that a topic hardly uses": the ratio of sds there is far lower than on the
# bars.
bar = cavi.posterior.mean("beta") > 0.1
ratio = cavi.posterior.sd("beta") / gibbs.posterior.sd("beta")
assert np.median(ratio[~bar]) < 0.7 * np.median(ratio[bar])
# Longer documents are surer.
spread = [
    theta_sd[mixed & (low <= N) & (high > N)].max(1).mean()
    for low, high in ((10, 20), (20, 40), (40, 61))
]
assert spread[0] > spread[1] > spread[2]

# %% [markdown]
# The means are good, the standard deviations are too small: by a tenth or so for proportions, less
# for the words of a topic's bar, but for words that a topic hardly uses (the points at the lower
# left of the right panel, which the printed ratio leaves out) they are about a third of what they
# should be. Draws from $q$ can be used for predictions; its intervals should be read as too short.

# %% [markdown]
# ## Summary
#
# | | what stands for $\theta$, $\beta$ | update | documents per step |
# |---|---|---|---|
# | EM | a point | shares of words, counted and divided | all |
# | CAVI | Dirichlets $\gamma$, $\lambda$ | the same shares with $\exp\mathbb{E}[\log\cdot]$, counted and added to the prior | all |
# | natural gradient | Dirichlets | $(1-\rho)\lambda + \rho\hat\lambda$; with $\rho = 1$ CAVI | all |
# | SVI | Dirichlets | the same with a noisy target and falling $\rho_t$ | a batch |
#
# Mean field finds means that are about right, predicts new documents better than EM's point, and is
# too sure of itself. All of these climb to a *local* optimum: where they end depends on where they
# begin (exercise 1).
#
# **Where to go next.** Notebook 2 shows that LDA, GaP and Bayesian NMF are one family. Later
# notebooks treat better steps (trust regions, Theis and Hoffman 2015), streams, and judging
# posteriors against MCMC. Papers: Blei, Ng and Jordan (2003); Hoffman, Blei, Wang and Paisley
# (2013); Paisley, Blei and Jordan (2014).

# %% [markdown]
# ## Exercises
#
# **1.** Run CAVI from ten random starts. How different are the bounds it ends with? Does the
# highest find all bars, does the lowest?

# %% tags=["solution"]
ends = []
for seed in range(10):
    one = inference.fit(
        "lda",
        data,
        "cavi",
        hyper,
        init={"beta": random_start(seed)},
        num_epochs=300,
        progress=False,
    )
    found = one.posterior.mean("beta")
    ends.append((one.bound, np.minimum(found[match(found)], true_beta).sum(1).min()))
for bound, share in sorted(ends):
    print(f"bound {bound:9.1f}, least overlap of a topic with its bar {share:.2f}")

# %% tags=["check"]
# Starts matter, and the highest bound has the bars.
assert max(ends)[0] - min(ends)[0] > 1 and max(ends)[1] > 0.9

# %% [markdown]
# **2.** The bound is a lower bound of the log evidence, so it can compare models. Fit with $K = 3,
# \dots, 7$ topics, three starts each, and plot the best bound. Which $K$ wins?

# %% tags=["solution"]
numbers = [3, 4, 5, 6, 7]
bounds = []
for number in numbers:
    fits = [
        inference.fit(
            "lda",
            data,
            "cavi",
            {**hyper, "num_topics": number},
            key=jax.random.key(seed),
            progress=False,
        )
        for seed in range(3)
    ]
    bounds.append(max(fit.bound for fit in fits))
print(dict(zip(numbers, np.round(bounds, 1).tolist(), strict=True)))
fig, axis = plt.subplots()
axis.plot(numbers, bounds, "o-", color=ORANGE)
axis.set_xticks(numbers)
axis.set(
    xlabel="number of topics K",
    ylabel="best ELBO of three starts (nats)",
    title="The bound prefers the true number of topics",
)
plt.show()

# %% tags=["check"]
assert numbers[int(np.argmax(bounds))] == 5

# %% [markdown]
# **3.** With a constant rate $\rho = 0.7$ SVI does not come to rest. Average the last 100 values of
# $\lambda$ of that run. How high is the bound of the average, against that of the last value?

# %% tags=["solution"]
average = np.mean(paths["constant"][-100:], axis=0)
height = elbo(solve_documents(X, average), average)
print(f"last value {heights['constant'][-1]:.1f}, average {height:.1f}, CAVI {top:.1f}")

# %% tags=["check"]
# Averaging removes most of the noise.
assert top - height < 0.5 * (top - np.mean(last["constant"]))

# %% [markdown]
# **4.** EM is CAVI without beliefs. Replace $\exp\mathbb{E}[\log\theta]$ and
# $\exp\mathbb{E}[\log\beta]$ in one CAVI sweep by the means of $\theta$ and $\beta$, and set
# $\alpha = \eta = 0$: show that it is one sweep of EM.

# %% tags=["solution"]
some_theta, some_beta = rng.dirichlet(np.ones(K), D), rng.dirichlet(np.ones(V), K)
gamma_0 = words_by_document(X, share_out(some_theta, some_beta))  # alpha = 0
mean_theta = gamma_0 / gamma_0.sum(1, keepdims=True)  # the mean of Dir(gamma)
lam_0 = words_by_topic(X, share_out(mean_theta, some_beta))  # eta = 0
mean_beta = lam_0 / lam_0.sum(1, keepdims=True)
em = inference.fit(
    "lda",
    data,
    "map",
    flat,
    init={"theta": some_theta, "beta": some_beta},
    num_epochs=1,
    tolerance=0.0,
    progress=False,
)
print(f"{np.abs(em.posterior.mean('beta') - mean_beta).max():.1e}")

# %% tags=["check"]
assert np.abs(em.posterior.mean("beta") - mean_beta).max() < 1e-12
