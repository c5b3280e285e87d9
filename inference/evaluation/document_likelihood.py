"""The probability of whole documents given topics: p(w | beta, alpha), proportions and assignments z summed out (T 4.3, Wallach et al. 2009).

Two estimators, both unbiased for the probability itself, for documents w_1..w_N with theta ~ Dirichlet(alpha):

chib            p(w) = p(w, z*) / p(z* | w) at some probable z*, and p(z* | w) from S states z_1..z_S of a Gibbs sampler, one of which, at random, was
                reached from z* by a sweep in reverse order, those after it by sweeps onwards, and those before it by sweeps in reverse (Murray &
                Salakhutdinov 2009):

                    p(z* | w) ~ (1/S) sum_s T(z* <- z_s),     T(z* <- z) = prod_n p(z*_n | z*_1..n-1, z_n+1..N, w)

left_to_right   p(w) = prod_n p(w_n | w_1..n-1), each factor an average over particles: assignments of the words before, drawn again by a Gibbs sweep
                before each word. Wallach et al. let particles run side by side, which is biased; here they are resampled with their weights
                p(w_n | z_1..n-1) after each word, which makes their product unbiased, as in any particle filter. Much dearer than chib: N sweeps.

Repeats are averaged as probabilities. The log of an average lies below the log of what it estimates, by about half its relative variance where that
is small. A document's error cannot exceed one: near it, one repeat outweighs all others, and the estimate lies further below than the error says, as
chib's does for documents of a hundred words and as many topics. Left to right then is the better one for the time it takes.

Documents are sequences of words: no multinomial coefficient. The random numbers of a document come from its contents (`splits.fingerprints`) and its
own length, so that the order of documents, batches and padding change nothing.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import lax
from jax.scipy.special import gammaln

from inference.evaluation.completion import FLOOR, check_documents
from inference.evaluation.scores import ratio
from inference.evaluation.splits import fingerprints, shuffled_tokens
from pp_models import families as fam
from pp_models.data.batches import power_of_two
from pp_models.data.types import Data
from pp_models.elimination.allocate import pick
from pp_models.elimination.passes import LANES
from pp_models.errors import InputError, unknown
from pp_models.model import Model, check_count

CELLS = 1 << 19  # particles x the larger of words and topics at a time
BURN_IN = 10  # sweeps before z* is climbed to
CLIMB = 3  # sweeps that take the most probable topic of each word


class Evidence(NamedTuple):
    """value: mean log probability per token, in nats, of whole documents. standard_error: over documents. per_document, num_tokens: its terms.

    monte_carlo_error, per_document_error: standard errors of the value and its terms over repeats, which more repeats make smaller; that the topics
    are but some draws is not part of them.
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
    """What documents are judged by. weights: (columns, padded K) beta, its largest in each column one. log_scale: (columns,) the log of what it was.

    alpha: (padded K,) concentration of the proportions, zero in the padding.
    """

    weights: jax.Array
    log_scale: jax.Array
    alpha: jax.Array


class Chains(NamedTuple):
    """Documents to estimate, each as often as there are repeats. words: (chains, width), lengths: (chains,), keys: (chains,)."""

    words: jax.Array
    lengths: jax.Array
    keys: jax.Array


@jax.jit
def _given(topics: jax.Array, alpha: jax.Array) -> Given:
    """A word that no topic has counts as one of probability 1e-38."""
    pad = [(0, 0), (0, -len(alpha) % LANES)]
    largest = jnp.max(topics, 0)
    scaled = jnp.where(largest > 0, topics / jnp.where(largest > 0, largest, 1), 1).T
    return Given(
        jnp.pad(scaled, pad), jnp.log(jnp.maximum(largest, FLOOR)), jnp.pad(alpha, pad[1:])
    )


@partial(jax.jit, static_argnames=("width",))
def _uniform(keys: jax.Array, number: jax.Array, width: int) -> jax.Array:
    """(chains, width) numbers for a sweep, from each chain's own key."""
    return jax.vmap(
        lambda key: jax.random.uniform(jax.random.fold_in(key, number), (width,), float)
    )(keys)


# Gibbs sweeps over z, with theta summed out. z is K (padded) where there is no word: it then counts nowhere ----------------------------------------


class State(NamedTuple):
    z: jax.Array  # (chains, width)
    counts: jax.Array  # (chains, padded K)


def _one(z: jax.Array, size: int, dtype: Any) -> jax.Array:
    return (z[:, None] == jnp.arange(size)).astype(dtype)


def _visit(
    given: Given, chains: Chains, state: State, place: jax.Array, choose: Any
) -> tuple[State, jax.Array]:
    """Choose the topics of the words at (chains,) places anew, given all others': the state, and log of the chosen ones' conditional probability."""
    size, each = given.weights.shape[1], jnp.arange(len(place))
    active = (place >= 0) & (place < chains.lengths)
    at = jnp.clip(place, 0, chains.words.shape[1] - 1)
    old = jnp.where(active, state.z[each, at], size)
    others = state.counts - _one(old, size, state.counts.dtype)
    weights = (others + given.alpha) * given.weights[chains.words[each, at]]
    new = jnp.where(active, choose(weights, at), size)
    chosen = _one(new, size, weights.dtype)
    log_p = jnp.where(
        active, jnp.log(jnp.sum(weights * chosen, 1)) - jnp.log(jnp.sum(weights, 1)), 0
    )
    return State(
        state.z.at[each, jnp.where(active, at, chains.words.shape[1])].set(new, mode="drop"),
        others + chosen,
    ), log_p


def _sweep(
    given: Given, chains: Chains, state: State, longest: Any, onwards: Any, choose: Any
) -> tuple[State, jax.Array]:
    """Every word once, in order or, where not `onwards`, in reverse; and the log probability of what was chosen."""

    def visit(n, carry):
        place = jnp.where(onwards, n, chains.lengths - 1 - n)
        state, log_p = _visit(given, chains, carry[0], place, choose)
        return state, carry[1] + log_p

    return lax.fori_loop(
        0, longest, visit, (state, jnp.zeros(len(chains.lengths), given.alpha.dtype))
    )


def _drawn(chains: Chains, number: Any) -> Any:
    uniform = _uniform(chains.keys, number, chains.words.shape[1])
    return lambda weights, at: pick(weights, uniform[jnp.arange(len(at)), at])


def _nothing(given: Given, chains: Chains) -> State:
    shape, size = chains.words.shape, given.weights.shape[1]
    return State(jnp.full(shape, size, jnp.int32), jnp.zeros((shape[0], size), given.alpha.dtype))


def _log_joint(given: Given, chains: Chains, state: State) -> jax.Array:
    """log p(w, z): Wallach et al.'s (3), with the topics given."""
    inside = jnp.arange(chains.words.shape[1]) < chains.lengths[:, None]
    odds = given.weights[chains.words, jnp.minimum(state.z, given.weights.shape[1] - 1)]
    words = jnp.sum(jnp.where(inside, jnp.log(odds) + given.log_scale[chains.words], 0), 1)
    total, alpha = jnp.sum(given.alpha), jnp.where(given.alpha > 0, given.alpha, 1)
    topics = jnp.sum(
        jnp.where(given.alpha > 0, gammaln(state.counts + alpha) - gammaln(alpha), 0), 1
    )
    return words + topics + gammaln(total) - gammaln(total + chains.lengths)


# The estimators ---------------------------------------------------------------------------------------------------------------


@jax.jit
def _chib(given: Given, chains: Chains, num_sweeps: Any) -> jax.Array:
    """(chains,) log of an unbiased estimate of p(w)."""
    longest = jnp.max(chains.lengths)

    def improve(i, state):  # drawn from left to right, burnt in, then climbed
        draw = _drawn(chains, i)
        return _sweep(
            given,
            chains,
            state,
            longest,
            True,
            lambda w, at: jnp.where(i > BURN_IN, jnp.argmax(w, 1).astype(jnp.int32), draw(w, at)),
        )[0]

    best = lax.fori_loop(0, BURN_IN + 1 + CLIMB, improve, _nothing(given, chains))
    place = jax.vmap(
        lambda key: jax.random.randint(
            jax.random.fold_in(key, BURN_IN + CLIMB + 1), (), 0, num_sweeps
        )
    )(chains.keys)

    def step(t, carry):
        """First the state reached from z* in reverse, then those after it, then from it in reverse those before."""
        state, middle, total = carry
        onwards, turn = (t > 0) & (t < num_sweeps - place), t == num_sweeps - place
        state = State(*(jnp.where(turn[:, None], a, b) for a, b in zip(middle, state, strict=True)))
        state, _ = _sweep(
            given, chains, state, longest, onwards, _drawn(chains, BURN_IN + CLIMB + 2 + t)
        )
        _, log_p = _sweep(
            given, chains, state, longest, True, lambda weights, at: best.z[jnp.arange(len(at)), at]
        )
        middle = State(*(jnp.where(t == 0, a, b) for a, b in zip(state, middle, strict=True)))
        return state, middle, jnp.logaddexp(total, log_p)

    nothing = jnp.full(len(place), -jnp.inf, given.alpha.dtype)
    total = lax.fori_loop(0, num_sweeps, step, (best, best, nothing))[2]
    return _log_joint(given, chains, best) - total + jnp.log(num_sweeps)


def _resampled(weights: jax.Array, uniform: jax.Array) -> jax.Array:
    """(chains, particles) which particle each one becomes, by systematic resampling: as often as its weight says, up to one."""
    size = weights.shape[1]
    height = jnp.cumsum(weights, 1) / jnp.sum(weights, 1, keepdims=True)
    return jnp.minimum(
        jnp.sum(
            height[:, None, :] <= ((jnp.arange(size) + uniform[:, None]) / size)[:, :, None], 2
        ),
        size - 1,
    )


@partial(jax.jit, static_argnames=("num_particles",))
def _left_to_right(given: Given, chains: Chains, num_particles: int) -> jax.Array:
    """(chains,) log of an unbiased estimate of p(w)."""
    longest, count, total = jnp.max(chains.lengths), len(chains.words), jnp.sum(given.alpha)
    own, common = (
        jax.vmap(lambda key, i=i: jax.random.fold_in(key, i))(chains.keys) for i in (0, 1)
    )
    keys = jax.vmap(lambda key: jax.random.split(key, num_particles))(own).reshape(-1)
    particles = Chains(
        jnp.repeat(chains.words, num_particles, 0), jnp.repeat(chains.lengths, num_particles), keys
    )

    def word(n, carry):
        state, log_p = carry
        known = particles._replace(lengths=jnp.minimum(particles.lengths, n))
        state, _ = _sweep(given, known, state, n, True, _drawn(particles, 2 * n))
        column = chains.words[:, n]
        weights = (state.counts + given.alpha) * given.weights[jnp.repeat(column, num_particles)]
        odds = jnp.sum(weights, 1).reshape(count, num_particles) / (total + n)
        log_p += jnp.where(
            n < chains.lengths, jnp.log(jnp.mean(odds, 1)) + given.log_scale[column], 0
        )
        chance = _uniform(common, n, 1)[:, 0]
        pick_from = (_resampled(odds, chance) + num_particles * jnp.arange(count)[:, None]).reshape(
            -1
        )
        state = State(state.z[pick_from], state.counts[pick_from])
        place = jnp.full(len(pick_from), n)
        return _visit(given, particles, state, place, _drawn(particles, 2 * n + 1))[0], log_p

    state = _nothing(given, particles)
    return lax.fori_loop(0, longest, word, (state, jnp.zeros(count, given.alpha.dtype)))[1]


# All documents ----------------------------------------------------------------------------------------------------------------


def _alpha(model: Model, hyper: Any, shared: dict[str, Any], num_columns: int) -> jax.Array:
    """The concentration of a document's proportions: what F's gradient is for a document without words."""
    empty = Data("counts", matrix=scipy.sparse.csr_array((1, num_columns), dtype=np.float32)).pack()
    stats = {site: model.families[site].stats(x) for site, x in shared.items()}
    theta = jnp.zeros((1, shared["beta"].shape[0])) - jnp.log(shared["beta"].shape[0])
    return jax.grad(lambda t: model.log_local(hyper, {**stats, "theta": t}, empty))(theta)[0]


def check_model(model: Model) -> None:
    """Refuse models whose topic assignments cannot be summed out so."""
    if model.local != {"theta"} or not all(
        model.families.get(site) is fam.dirichlet for site in ("theta", "beta")
    ):
        raise InputError(
            f"log_evidence sums topic assignments out under a Dirichlet prior on the documents' proportions, as lda has, and {model.name} has none: "
            "use document_completion."
        )


def _check(fit: Any, heldout: Any, method: str) -> None:
    if method not in ("chib", "left_to_right"):
        raise unknown("method", method, ("chib", "left_to_right"))
    check_documents(fit, heldout, "log_evidence")
    check_model(fit.model)


class Block(NamedTuple):
    """Chains of about equal length. documents, repeats: of each. size: chains, padding included. width: room for words."""

    documents: np.ndarray
    repeats: np.ndarray
    size: int
    width: int


def _blocks(
    lengths: np.ndarray, num_repeats: int, num_particles: int, num_topics: int
) -> list[Block]:
    """Every document with words in it, as often as there are repeats, in blocks of a few shapes."""
    found = []
    widths = LANES << np.ceil(np.log2(np.maximum(lengths, LANES) / LANES)).astype(int)
    for width in np.unique(widths[lengths > 0]).tolist():
        documents = np.flatnonzero((widths == width) & (lengths > 0))
        documents = np.repeat(documents[np.argsort(lengths[documents], kind="stable")], num_repeats)
        repeats = np.tile(np.arange(num_repeats), len(documents) // num_repeats)
        most = max(1, CELLS // (num_particles * max(width, num_topics)))
        size = min(power_of_two(most), power_of_two(len(documents)))
        found += [
            Block(documents[i : i + size], repeats[i : i + size], size, width)
            for i in range(0, len(documents), size)
        ]
    return found


class Sequences(NamedTuple):
    """A corpus, document after document. words: (tokens,). starts, lengths: (documents,). marks: (documents, 2) halves of their fingerprints."""

    words: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    marks: np.ndarray


def _sequences(corpus: Data, seed: int) -> Sequences:
    words, lengths = (
        corpus.matrix.indices[shuffled_tokens(corpus.matrix, seed).entry],
        corpus.totals.astype(int),
    )
    marks = fingerprints(corpus.matrix, seed)
    halves = np.stack([marks >> np.uint64(32), marks & np.uint64(0xFFFFFFFF)], 1).astype(np.uint32)
    return Sequences(words.astype(np.int32), np.cumsum(lengths) - lengths, lengths, halves)


def _chains(
    block: Block, corpus: Sequences
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """words, lengths, fingerprints' halves and repeats of a block's chains, padded with its last one."""
    documents, repeats = (
        np.pad(x, (0, block.size - len(x)), mode="edge") for x in (block.documents, block.repeats)
    )
    place = np.minimum(
        corpus.starts[documents, None] + np.arange(block.width), len(corpus.words) - 1
    )
    return (
        corpus.words[place],
        corpus.lengths[documents].astype(np.int32),
        corpus.marks[documents],
        repeats.astype(np.uint32),
    )


@jax.jit
def _keys(key, marks, repeats):
    """(chains,) keys from the two halves of each document's fingerprint and the number of the repeat."""
    return jax.vmap(
        lambda mark, r: jax.random.fold_in(
            jax.random.fold_in(jax.random.fold_in(key, mark[0]), mark[1]), r
        )
    )(marks, repeats)


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
    """log p of whole documents given topics, by the Chib-style or the left-to-right estimator of Wallach et al. (2009); see the module.

    num_repeats:   independent estimates, averaged as probabilities; their spread is the Monte Carlo error
    num_sweeps:    S of chib
    num_particles: of left_to_right
    num_draws:     topics to average the probability over: by default 20 draws of a Markov chain, and the mean of a distribution (T 4.3); a number
                   draws from the distribution as well
    Units: nats per token of a sequence of words; perplexity is exp(-value), H(17).
    """
    _check(fit, heldout, method)
    for name, number in (
        ("num_repeats", num_repeats),
        ("num_sweeps", num_sweeps),
        ("num_particles", num_particles),
    ):
        check_count(name, number)
    if num_draws is not None:
        check_count("num_draws", num_draws)
    shared = fit.posterior.global_values(num_draws or 20, seed, from_q=num_draws is not None)
    given = [
        _judge(fit, {site: x[m] for site, x in shared.items()}, heldout.num_columns)
        for m in range(len(shared["beta"]))
    ]
    corpus, logs = _sequences(heldout, seed), np.zeros((heldout.num_rows, len(given), num_repeats))
    particles = num_particles if method == "left_to_right" else 1
    for block in _blocks(corpus.lengths, num_repeats, particles, given[0].weights.shape[1]):
        table, lengths, halves, repeats = _chains(block, corpus)
        for m, judge in enumerate(given):  # draws of topics, a few
            chains = Chains(
                jnp.asarray(table), jnp.asarray(lengths), _keys(jax.random.key(m), halves, repeats)
            )
            found = (
                _chib(judge, chains, num_sweeps)
                if method == "chib"
                else _left_to_right(judge, chains, num_particles)
            )
            logs[block.documents, m, block.repeats] = np.asarray(found, np.float64)[
                : len(block.documents)
            ]
    return _combined(logs, heldout.totals, corpus.marks)


def _judge(fit: Any, shared: dict[str, jax.Array], num_columns: int) -> Given:
    return _given(shared["beta"], _alpha(fit.model, fit.problem.hyper, shared, num_columns))


def _combined(logs: np.ndarray, tokens: np.ndarray, marks: np.ndarray) -> Evidence:
    """(documents, draws, repeats) logs of unbiased estimates, averaged as probabilities; errors over repeats, by the delta method.

    Documents with equal marks are alike and share their random numbers, so that their errors add up instead of averaging out.
    """
    top = logs.max((1, 2))
    share = np.exp(logs - top[:, None, None])
    average, (num_draws, num_repeats) = share.mean((1, 2)), logs.shape[1:]
    spread = share.var(2, ddof=1).sum(1) if num_repeats > 1 else np.full(len(logs), np.nan)
    error = np.sqrt(spread / num_repeats) / num_draws / average
    alike = np.bincount(np.unique(marks, axis=0, return_inverse=True)[1].ravel(), error)
    per_document = top + np.log(average)
    return Evidence(
        *ratio(per_document, tokens),
        per_document,
        tokens,
        float(np.sqrt(np.sum(alike**2)) / tokens.sum()),
        error,
    )
