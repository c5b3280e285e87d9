r"""The probability of whole documents given topics, $p(w \mid \beta, \alpha)$, with proportions and
topic assignments $z$ summed out (Theis & Hoffman (T) 4.3; Wallach et al. 2009).

Two estimators, both unbiased for the probability of a document $w_1, \dots, w_N$ with proportions
$\theta \sim \mathrm{Dirichlet}(\alpha)$:

- `chib`: $p(w) = p(w, z^*) / p(z^* \mid w)$ at a probable $z^*$, with $p(z^* \mid w)$ from $S$
  states of a Gibbs sampler (Murray & Salakhutdinov 2009). One of these, at random, is reached from
  $z^*$ by a sweep in reverse order, the later ones by forward sweeps and the earlier ones by
  reverse sweeps:

$$ p(z^* \mid w) \approx \frac1S \sum_s T(z^* \leftarrow z_s), \qquad
   T(z^* \leftarrow z) = \prod_n p(z^*_n \mid z^*_{1..n-1}, z_{n+1..N}, w) $$

- `left_to_right`: $p(w) = \prod_n p(w_n \mid w_{1..n-1})$, each factor an average over particles,
  whose assignments are drawn anew by a Gibbs sweep before each word. Particles are resampled with
  weights $p(w_n \mid z_{1..n-1})$ after each word; without this, as in Wallach et al., the product
  is biased. It needs $N$ sweeps and is much slower than `chib`.

Repeats are averaged as probabilities. The log of an average is biased downwards by about half its
relative variance. If a document's error is near 1, one repeat dominates and the bias is larger than
the error; this happens to `chib` for documents of a hundred words and as many topics, where
`left_to_right` is the better choice.

Documents are sequences of words, so there is no multinomial coefficient. A document's random
numbers depend on its contents alone (`core.tokens`), not on order, batches or padding.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import lax
from jax.scipy.special import gammaln

from inference.core.completion import FLOOR
from inference.core.tokens import fingerprints, shuffled_tokens
from inference.evaluation.completion import check_documents
from inference.evaluation.scores import ratio
from pp_models import families as fam
from pp_models.data.batches import power_of_two
from pp_models.data.types import Data
from pp_models.elimination.allocate import pick
from pp_models.elimination.passes import LANES
from pp_models.errors import InputError, unknown
from pp_models.model import Model, check_count

CELLS = 1 << 19  # particles x the larger of words and topics at a time
BURN_IN = 10  # sweeps before the search for z*
CLIMB = 3  # sweeps that choose the most probable topic of each word


class Evidence(NamedTuple):
    """value: mean log probability per token of whole documents, in nats.

    standard_error: over documents. per_document, num_tokens: its terms. monte_carlo_error,
    per_document_error: standard errors over repeats, given the draws of topics.
    """

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray
    monte_carlo_error: float
    per_document_error: np.ndarray

    @property
    def perplexity(self) -> float:
        """exp(-value): H(17)."""
        return float(np.exp(-self.value))


class Given(NamedTuple):
    """weights: (columns, padded K) topics, scaled to a largest value of 1 in each column.
    log_scale: (columns,) log of the scale. alpha: (padded K,), zero in the padding."""

    weights: jax.Array
    log_scale: jax.Array
    alpha: jax.Array


class Chains(NamedTuple):
    """Documents, each repeated. words: (chains, width). lengths: (chains,). keys: (chains,)."""

    words: jax.Array
    lengths: jax.Array
    keys: jax.Array


_fold_in = jax.vmap(jax.random.fold_in, (0, None))


def _uniform(keys: jax.Array, number: Any, width: int) -> jax.Array:
    """(chains, width) random numbers of a sweep, from each chain's own key."""
    return jax.vmap(lambda key: jax.random.uniform(key, (width,), float))(_fold_in(keys, number))


# Gibbs sweeps over z with theta summed out --------------------------------------------------------


class State(NamedTuple):
    """z: (chains, width) topics, padded K where there is none. counts: (chains, padded K)."""

    z: jax.Array
    counts: jax.Array


def _visit(
    given: Given, chains: Chains, state: State, place: jax.Array, choose: Any
) -> tuple[State, jax.Array]:
    """Choose the topics of the words at (chains,) places given all others.

    Returns the new state and the log conditional probability of the choices.
    """
    size, each, width = given.weights.shape[1], jnp.arange(len(place)), chains.words.shape[1]
    one_hot = partial(jax.nn.one_hot, num_classes=size, dtype=state.counts.dtype)
    active = (place >= 0) & (place < chains.lengths)
    at = jnp.clip(place, 0, width - 1)
    old = jnp.where(active, state.z[each, at], size)
    others = state.counts - one_hot(old)
    weights = (others + given.alpha) * given.weights[chains.words[each, at]]
    new = jnp.where(active, choose(weights, at), size)
    chosen = one_hot(new)
    log_p = jnp.log(jnp.sum(weights * chosen, 1)) - jnp.log(jnp.sum(weights, 1))
    z = state.z.at[each, jnp.where(active, at, width)].set(new, mode="drop")
    return State(z, others + chosen), jnp.where(active, log_p, 0)


def _sweep(
    given: Given, chains: Chains, state: State, choose: Any, forward: Any = True
) -> tuple[State, jax.Array]:
    """Visit every word once, in order or in reverse; also returns the log probability."""

    def visit(n, carry):
        place = jnp.where(forward, n, chains.lengths - 1 - n)
        state, log_p = _visit(given, chains, carry[0], place, choose)
        return state, carry[1] + log_p

    start = state, jnp.zeros(len(chains.lengths), given.alpha.dtype)
    return lax.fori_loop(0, jnp.max(chains.lengths), visit, start)


def _sampled(chains: Chains, number: Any) -> Any:
    """The choice of a Gibbs sweep: a draw for each word."""
    uniform = _uniform(chains.keys, number, chains.words.shape[1])
    return lambda weights, at: pick(weights, uniform[jnp.arange(len(at)), at])


def _unassigned(given: Given, chains: Chains) -> State:
    shape, size = chains.words.shape, given.weights.shape[1]
    return State(jnp.full(shape, size, jnp.int32), jnp.zeros((shape[0], size), given.alpha.dtype))


def _log_joint(given: Given, chains: Chains, state: State) -> jax.Array:
    """log p(w, z): Wallach et al.'s (3), with the topics given."""
    inside = jnp.arange(chains.words.shape[1]) < chains.lengths[:, None]
    odds = given.weights[chains.words, jnp.minimum(state.z, given.weights.shape[1] - 1)]
    words = jnp.sum(jnp.where(inside, jnp.log(odds) + given.log_scale[chains.words], 0), 1)
    real, total = given.alpha > 0, jnp.sum(given.alpha)
    alpha = jnp.where(real, given.alpha, 1)
    topics = jnp.sum(jnp.where(real, gammaln(state.counts + alpha) - gammaln(alpha), 0), 1)
    return words + topics + gammaln(total) - gammaln(total + chains.lengths)


# The estimators -----------------------------------------------------------------------------------


@jax.jit
def _chib(given: Given, chains: Chains, num_sweeps: Any) -> jax.Array:
    """(chains,) log of an unbiased estimate of p(w)."""

    def improve(i, state):
        draw = _sampled(chains, i)

        def choose(w, at):
            return jnp.where(i > BURN_IN, jnp.argmax(w, 1).astype(jnp.int32), draw(w, at))

        return _sweep(given, chains, state, choose)[0]

    first = BURN_IN + CLIMB + 1
    best = lax.fori_loop(0, first, improve, _unassigned(given, chains))
    keys = _fold_in(chains.keys, first)
    place = jax.vmap(lambda key: jax.random.randint(key, (), 0, num_sweeps))(keys)

    def step(t, carry):
        # first the state reached from z* in reverse, then the later ones, then the earlier ones
        state, middle, total = carry
        forward, turn = (t > 0) & (t < num_sweeps - place), t == num_sweeps - place
        state = jax.tree.map(lambda a, b: jnp.where(turn[:, None], a, b), middle, state)
        state, _ = _sweep(given, chains, state, _sampled(chains, first + 1 + t), forward)
        back, each = (lambda w, at: best.z[each, at]), jnp.arange(len(place))
        _, log_p = _sweep(given, chains, state, back)
        middle = jax.tree.map(lambda a, b: jnp.where(t == 0, a, b), state, middle)
        return state, middle, jnp.logaddexp(total, log_p)

    start = best, best, jnp.full(len(place), -jnp.inf, given.alpha.dtype)
    total = lax.fori_loop(0, num_sweeps, step, start)[2]
    return _log_joint(given, chains, best) - total + jnp.log(num_sweeps)


def _resampled(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """(chains, particles) index of the particle that replaces each one: systematic resampling."""
    size = weights.shape[1]
    height = jnp.cumsum(weights, 1) / jnp.sum(weights, 1, keepdims=True)
    level = (jnp.arange(size) + uniform[:, None]) / size
    return jnp.minimum(jnp.sum(height[:, None, :] <= level[:, :, None], 2), size - 1)


@partial(jax.jit, static_argnames=("num_particles",))
def _left_to_right(given: Given, chains: Chains, num_particles: int) -> jax.Array:
    """(chains,) log of an unbiased estimate of p(w)."""
    count, total = len(chains.words), jnp.sum(given.alpha)
    own, common = _fold_in(chains.keys, 0), _fold_in(chains.keys, 1)
    keys = jax.vmap(lambda key: jax.random.split(key, num_particles))(own).reshape(-1)
    words, lengths = (jnp.repeat(x, num_particles, 0) for x in (chains.words, chains.lengths))
    particles = Chains(words, lengths, keys)

    def word(n, carry):
        state, log_p = carry
        known = particles._replace(lengths=jnp.minimum(lengths, n))
        state, _ = _sweep(given, known, state, _sampled(particles, 2 * n))
        weights = (state.counts + given.alpha) * given.weights[words[:, n]]
        odds = jnp.sum(weights, 1).reshape(count, num_particles) / (total + n)
        gain = jnp.log(jnp.mean(odds, 1)) + given.log_scale[chains.words[:, n]]
        chosen = _resampled(odds, _uniform(common, n, 1)[:, 0])
        chosen = (chosen + num_particles * jnp.arange(count)[:, None]).reshape(-1)
        state = jax.tree.map(lambda x: x[chosen], state)
        place = jnp.full(len(chosen), n)
        state, _ = _visit(given, particles, state, place, _sampled(particles, 2 * n + 1))
        return state, log_p + jnp.where(n < chains.lengths, gain, 0)

    start = _unassigned(given, particles), jnp.zeros(count, given.alpha.dtype)
    return lax.fori_loop(0, jnp.max(chains.lengths), word, start)[1]


# All documents ------------------------------------------------------------------------------------


def check_model(model: Model) -> None:
    """Refuse models other than Dirichlet proportions of the rows and Dirichlet topics."""
    sites = len(model.local), len(model.shared)
    if sites != (1, 1) or any(family is not fam.dirichlet for family in model.families.values()):
        raise InputError(
            "log_evidence sums topic assignments out under a Dirichlet prior on the documents' "
            f"proportions, which {model.name} does not have: use document_completion."
        )


def _given(fit: Any, topics: jax.Array) -> Given:
    """alpha is the gradient of F for a document without words. A word that is in no topic counts
    as one of probability 1e-38."""
    model, hyper = fit.model, fit.problem.hyper
    (row,), (shared,) = model.local, model.shared
    nothing = scipy.sparse.csr_array((1, topics.shape[1]), dtype=np.float32)
    empty, stats = Data("counts", matrix=nothing).pack(), model.families[shared].stats(topics)
    theta = jnp.full((1, len(topics)), -np.log(len(topics)))
    alpha = jax.grad(lambda t: model.log_local(hyper, {shared: stats, row: t}, empty))(theta)[0]
    pad, largest = [(0, 0), (0, -len(alpha) % LANES)], jnp.max(topics, 0)
    scaled = jnp.where(largest > 0, topics / jnp.where(largest > 0, largest, 1), 1).T
    log_scale = jnp.log(jnp.maximum(largest, FLOOR))
    return Given(jnp.pad(scaled, pad), log_scale, jnp.pad(alpha, pad[1:]))


def _blocks(corpus: Data, seed: int, num_repeats: int, cells: int, num_topics: int) -> Any:
    """All documents with words, repeated, in blocks of a few shapes and at most `cells` cells.

    Yields (documents, repeats, words, lengths, halves of fingerprints) of chains of about equal
    length; all but documents are padded to one size.
    """
    words = corpus.matrix.indices[shuffled_tokens(corpus.matrix, seed).entry].astype(np.int32)
    lengths = corpus.totals.astype(int)
    starts, marks = np.cumsum(lengths) - lengths, fingerprints(corpus.matrix, seed)
    halves = np.stack([marks >> np.uint64(32), marks & np.uint64(0xFFFFFFFF)], 1).astype(np.uint32)
    widths = LANES << np.ceil(np.log2(np.maximum(lengths, LANES) / LANES)).astype(int)
    for width in np.unique(widths[lengths > 0]).tolist():
        documents = np.flatnonzero((widths == width) & (lengths > 0))
        documents = np.repeat(documents[np.argsort(lengths[documents], kind="stable")], num_repeats)
        repeats = np.tile(np.arange(num_repeats), len(documents) // num_repeats)
        most = max(1, cells // max(width, num_topics))
        size = min(power_of_two(most), power_of_two(len(documents)))
        for some in np.split(np.arange(len(documents)), range(size, len(documents), size)):
            padded = np.pad(some, (0, size - len(some)), mode="edge")
            rows = documents[padded]
            place = np.minimum(starts[rows, None] + np.arange(width), len(words) - 1)
            sizes = lengths[rows].astype(np.int32)
            yield documents[some], repeats[padded], words[place], sizes, halves[rows]


@jax.jit
def _keys(key, halves, repeats):
    """(chains,) keys from the documents' fingerprints and the numbers of the repeats."""
    fold = jax.vmap(jax.random.fold_in)
    keys = jnp.broadcast_to(key, repeats.shape)
    return fold(fold(fold(keys, halves[:, 0]), halves[:, 1]), repeats)


def log_evidence(
    fit: Any,
    heldout: Data,
    method: str = "chib",
    num_repeats: int = 10,
    num_sweeps: int = 100,
    num_particles: int = 10,
    num_draws: int | None = None,
    seed: int = 0,
) -> Evidence:
    """log p of whole documents given topics, in nats per token; perplexity is exp(-value), H(17).

    method:        "chib" or "left_to_right" (Wallach et al. 2009); see the module
    num_repeats:   independent estimates, averaged as probabilities; their spread is the Monte Carlo
                   error
    num_sweeps:    S of chib
    num_particles: of left_to_right
    num_draws:     draws of topics to average the probability over. By default 20 draws of a Markov
                   chain, or the mean of a distribution (T 4.3)
    """
    if method not in ("chib", "left_to_right"):
        raise unknown("method", method, ("chib", "left_to_right"))
    check_documents(fit, heldout, "log_evidence")
    check_model(fit.model)
    counts = {"num_repeats": num_repeats, "num_sweeps": num_sweeps, "num_particles": num_particles}
    for name, number in (counts | {"num_draws": 20 if num_draws is None else num_draws}).items():
        check_count(name, number)
    (site,) = fit.model.shared
    shared = fit.posterior.global_values(num_draws or 20, seed, from_q=num_draws is not None)
    draws = [_given(fit, topics) for topics in shared[site]]
    logs = np.zeros((heldout.num_rows, len(draws), num_repeats))
    cells = CELLS // (num_particles if method == "left_to_right" else 1)
    blocks = _blocks(heldout, seed, num_repeats, cells, draws[0].weights.shape[1])
    for documents, repeats, words, lengths, halves in blocks:
        for m, given in enumerate(draws):
            keys = _keys(jax.random.key(m), halves, repeats.astype(np.uint32))
            chains = Chains(jnp.asarray(words), jnp.asarray(lengths), keys)
            if method == "chib":
                found = _chib(given, chains, num_sweeps)
            else:
                found = _left_to_right(given, chains, num_particles)
            number = len(documents)
            logs[documents, m, repeats[:number]] = np.asarray(found[:number])
    return _combined(logs, heldout.totals, fingerprints(heldout.matrix, seed))


def _combined(logs: np.ndarray, tokens: np.ndarray, marks: np.ndarray) -> Evidence:
    """Average (documents, draws, repeats) estimates as probabilities; errors by the delta method.

    Documents with equal marks share their random numbers, so their errors add up.
    """
    top = logs.max((1, 2))
    share = np.exp(logs - top[:, None, None])
    average, (num_draws, num_repeats) = share.mean((1, 2)), logs.shape[1:]
    spread = share.var(2, ddof=1).sum(1) if num_repeats > 1 else np.full(len(logs), np.nan)
    error = np.sqrt(spread / num_repeats) / num_draws / average
    alike = np.bincount(np.unique(marks, return_inverse=True)[1], error)
    total = float(np.sqrt(np.sum(alike**2)) / tokens.sum())
    per_document = top + np.log(average)
    return Evidence(*ratio(per_document, tokens), per_document, tokens, total, error)
