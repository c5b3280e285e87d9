"""Document completion and perplexity: held-out scores, the same for every engine.

The words of a document are split into folds (`splits`), and each fold n is predicted from the others o, whose words tell the document's weights
(P 11.6, T 25):

    log p(n | o) = sum_v n_v log (1/S) sum_s p_s(v | o),      p_s(v | o) = rate_s(v) / sum_u rate_s(u),      rate_s = E[theta | o, beta_s]' beta_s

beta_s are the global sites: for a point itself, for a distribution its mean, alone (S = 1); for a Markov chain or a grid (H 13) draws. Each draw has
labels of its own, and only probabilities are averaged. E[theta | o, beta] is the mean of the model's own mean-field posterior of the document.

For models that have weights and topics nothing of size (documents x words) nor (entries x K) is ever made: rates are computed at the held-out
entries alone, and their sum over words is theta' (sum_v beta_v).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from inference import devices
from inference import objective as obj
from inference.scores import Score, check_vocabulary, ratio
from inference.splits import Split, hold_out, split_tokens
from inference.topic_tools import has_topics
from pp_models.base import check_count
from pp_models.batches import Batch, Layout
from pp_models.data import Data
from pp_models.errors import InputError, unknown
from pp_models.rows import RowOptions

__all__ = ["COUNTS", "Perplexity", "Scale", "Score", "Split", "document_completion", "hold_out", "perplexity", "split_tokens"]

MOST_CELLS = 4_000_000  # rows x columns predicted at a time, where they must be
MOST_ROWS = 4096  # scored at a time otherwise
ENTRIES = 1024  # whose probabilities are computed at a time
FLOOR = float(np.finfo(np.float32).tiny)  # the probability, 1e-38, that a word counts with where a model rules it out


class Scale(NamedTuple):
    """What a model was fitted to in place of counts. apply: (sparse counts) -> sparse matrix; undo: predictions of its entries -> rates of counts."""

    apply: Callable[[Any], Any]
    undo: Callable[[jax.Array], jax.Array]


def _same(x: Any) -> Any:
    return x


COUNTS = Scale(_same, _same)


# One batch of documents -------------------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """Held-out entries: the row within the batch, column and count of each, then padding with a count of 0. blocks: of `ENTRIES`, that hold any."""

    rows: jax.Array
    columns: jax.Array
    counts: jax.Array
    blocks: jax.Array


def _pack_held(matrix: Any, capacity: int) -> Held:
    coordinates, size = matrix.tocoo(), matrix.nnz
    room = -(-max(capacity, size, 1) // ENTRIES) * ENTRIES

    def padded(x: np.ndarray, kind: Any) -> np.ndarray:
        return np.pad(x.astype(kind), (0, room - size))

    parts = padded(coordinates.coords[0], np.int32), padded(coordinates.coords[1], np.int32), padded(coordinates.data, jnp.result_type(float))
    return jax.device_put(Held(*parts, np.int32(-(-size // ENTRIES))))


def _at_entries(weights: jax.Array, topics: jax.Array, held: Held, total: jax.Array) -> jax.Array:
    """Add p(v) of every held-out entry to `total`. A row that nothing is known of, neither from tokens nor from a prior, is spread evenly."""
    table, size = topics.T, weights @ jnp.sum(topics, 1)

    def block(i, total):
        rows, columns, before = (lax.dynamic_slice(x, (i * ENTRIES,), (ENTRIES,)) for x in (held.rows, held.columns, total))
        rate, whole = jnp.sum(weights[rows] * table[columns], 1), size[rows]
        share = jnp.where(whole <= 0, 1 / topics.shape[1], rate / jnp.where(whole == 0, 1, whole))
        return lax.dynamic_update_slice(total, before + share, (i * ENTRIES,))

    return lax.fori_loop(0, held.blocks, block, total)


def _at_cells(rates: jax.Array, held: Held, total: jax.Array) -> jax.Array:
    """The same from the rates of all words."""
    size = jnp.sum(rates, 1, keepdims=True)
    shares = jnp.where(size <= 0, 1 / rates.shape[1], rates / jnp.where(size == 0, 1, size))
    return total + shares[jnp.minimum(held.rows, len(shares) - 1), held.columns]


@partial(jax.jit, static_argnames=("model", "structure", "undo"))
def _complete(model, structure, values, draws, batch, held, options, undo):
    """Per row: log probability of the held-out counts, the prediction from the observed ones averaged over draws of the global sites."""
    hyper = obj.make(model, structure, values)
    start = obj.start_local(model, hyper, batch)

    def add(total, shared):
        sites = {**shared, **row_means(model, hyper, shared, batch, start, options)}
        if undo is _same and has_topics(model):
            weights = sites["theta"] if model.weights is None else model.weights(hyper, sites)
            return _at_entries(weights, sites["beta"] if model.topics is None else model.topics(hyper, sites), held, total), None
        return _at_cells(undo(model.predict(hyper, sites)), held, total), None

    total, _ = lax.scan(add, jnp.zeros_like(held.counts), draws)
    log_p = jnp.log(jnp.maximum(total / len(jax.tree.leaves(draws)[0]), FLOOR))
    return jnp.zeros_like(batch.mask).at[held.rows].add(jnp.where(held.counts > 0, held.counts * log_p, 0))


def _finite(stat: jax.Array) -> jax.Array:
    return jnp.where(jnp.isneginf(stat), np.log(FLOOR), stat)


def row_means(model, hyper, shared, batch, start, options):
    """The local sites' means given values of the global ones. A word that none of these has is taken to be equally improbable under all."""
    stats = {site: jax.tree.map(_finite, model.families[site].stats(x)) for site, x in shared.items()}
    part = obj.local_part(model, hyper, stats, batch, start, options)
    return {site: model.families[site].distribution(eta).mean for site, eta in part.natural.items()}


class Plan(NamedTuple):
    """How documents are scored. size, layout: rows of a batch, padding included, and its static sizes, which all batches share."""

    size: int
    layout: Layout
    folds: int = 3
    seed: int = 0
    num_local: int = 50
    scale: Scale = COUNTS


def complete_rows(problem: obj.Problem, shared: dict[str, jax.Array], data: Data, rows: np.ndarray, plan: Plan) -> np.ndarray:
    """(rows,) log probability of all tokens of these rows, each predicted from the other folds of its document, given (draws, ...) global sites."""
    some = data.select(rows)
    logs = np.zeros(len(rows))
    for observed, held in split_tokens(some, plan.folds, plan.seed):
        batch = Data("counts", matrix=plan.scale.apply(observed)).pack(np.arange(len(rows)), plan.size, layout=plan.layout)
        known = problem.model, problem.structure, problem.values
        entries = _pack_held(held, plan.layout.capacity["matrix"])
        found = _complete(*known, shared, batch, entries, RowOptions(plan.num_local, 0.0), plan.scale.undo)
        logs += np.asarray(found, np.float64)[: len(rows)]
    return logs


def global_sites(posterior: Any, num_draws: int = 20, seed: int = 0, from_q: bool = False) -> dict[str, jax.Array]:
    """(draws, ...) values of the global sites: draws of a Markov chain or a grid, or with `from_q` of a distribution; else the point or the mean."""
    sites, kind = posterior.problem.model.shared, posterior.kind
    if kind in ("draws", "mixture") or (kind == "variational" and from_q):
        sampled = posterior.sample(jax.random.key(seed), num_draws)
        return {site: jnp.asarray(sampled[site]) for site in sites}
    return {site: jnp.asarray(posterior.mean(site))[None] for site in sites}


def plan_for(data: Data, size: int, **options: Any) -> Plan:
    """A plan for batches of rows one after the other, of one layout that has room for each of them."""
    layout = data.layout(size)
    used = np.add.reduceat(data.lengths, np.arange(0, data.num_rows, size))
    return Plan(size, layout._replace(capacity={"matrix": max(layout.capacity["matrix"], int(used.max()))}), **options)


def score_batch(posterior: Any, data: Data, batches: Sequence[Batch], size: int) -> float | None:
    """log p per word of a batch's documents by threefold completion given what was learned so far (P 11.6); None where they are empty."""
    rows = np.concatenate([np.asarray(batch.positions)[np.asarray(batch.mask) > 0] for batch in batches])
    logs, tokens = 0.0, float(data.totals[rows].sum())
    if tokens:
        logs = float(complete_rows(posterior.problem, global_sites(posterior), data, rows, Plan(size, data.layout(size))).sum())
    logs, tokens = devices.added(posterior.problem.devices, [logs, tokens]).tolist()
    return logs / tokens if tokens else None


# All of them ------------------------------------------------------------------------------------------------------------------


def document_completion(
    fit: Any, heldout: Data, folds: int = 3, seed: int = 0, num_local: int = 50, num_draws: int = 20, scale: Scale = COUNTS
) -> Score:
    """log p per held-out word (P 11.6): each document's tokens are split into `folds` parts at random; each part is predicted from the others.

    A distribution's or a point's global sites are fixed at their means; of a Markov chain or a grid (H 13), `num_draws` draws are used in turn and
    their predictions averaged, whatever their labels. A document's own sites are inferred from its observed tokens by `num_local` iterations, and the
    prediction is the mean rate, normalised over words. A word that the model rules out counts as one of probability 1e-38.
    seed: with a document's contents it decides how its tokens are split; the order of documents and what else there is do not matter.
    scale: how observed tokens were turned into what the model was fitted to.
    Units: nats per token; perplexity is exp(-value).

    >>> import inference, pp_models
    >>> data = pp_models.data.counts([[4, 3, 0, 0], [3, 5, 0, 1], [0, 0, 6, 2], [0, 1, 3, 4]])
    >>> fit = inference.fit("lda", data, engine="cavi", hyper={"num_topics": 2})
    >>> score = inference.document_completion(fit, data)
    >>> score.num_tokens, score.value > -1.5
    (array([7., 9., 8., 8.]), True)
    """
    check_documents(fit, heldout, "document_completion")
    if folds < 2:
        raise InputError(f"folds must be at least 2, not {folds}: some words must stay observed.")
    check_count("num_local", num_local)
    check_count("num_draws", num_draws)
    most = MOST_ROWS if scale.undo is _same and has_topics(fit.model) else max(1, MOST_CELLS // heldout.num_columns)
    plan = plan_for(heldout, min(heldout.num_rows, most), folds=folds, seed=seed, num_local=num_local, scale=scale)
    shared, logs = global_sites(fit.posterior, num_draws, seed), np.zeros(heldout.num_rows)
    for first in range(0, heldout.num_rows, plan.size):  # batches of rows
        rows = np.arange(first, min(first + plan.size, heldout.num_rows))
        logs[rows] = complete_rows(fit.problem, shared, heldout, rows, plan)
    return Score(*ratio(logs, heldout.totals), logs, heldout.totals)


def check_documents(fit: Any, heldout: Any, what: str) -> None:
    """Refuse what is not a corpus of the fit's vocabulary with a token in it."""
    if not isinstance(heldout, Data) or heldout.kind != "counts":
        raise InputError(f"{what} scores counts, made with pp_models.data.counts, not {getattr(heldout, 'kind', type(heldout).__name__)}.")
    if fit.model.kind != "counts":
        raise InputError(f"{what} scores models of counts, and {fit.model.name} explains {fit.model.kind} data.")
    check_vocabulary(fit, heldout)
    if heldout.total == 0:
        raise InputError("The held-out documents are empty: there is nothing to score.")


class Perplexity(NamedTuple):
    """value: H(17). standard_error: over documents. per_document: log p(y_d) in nats; num_tokens: n_d."""

    value: float
    standard_error: float
    per_document: np.ndarray
    num_tokens: np.ndarray


METHODS = ("completion", "chib", "left_to_right")


def perplexity(fit: Any, heldout: Data, method: str = "completion", **options: Any) -> Perplexity:
    """exp(-sum_d log p(y_d) / sum_d n_d), H(17), with n_d the words of document d: as many equally probable words would be as hard to guess.

    p(y_d) is the probability of the words in their order, without the coefficient that counts the orders of the same words.
    method: "completion" puts for log p(y_d) the sum over folds of log p(n | o) as in `document_completion`, the integral H(18) over hyper-parameters
    and factors being an average over the draws for each word; "chib" and "left_to_right" estimate p(y_d) itself (`log_evidence`).
    options: of `document_completion` or `log_evidence`.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method == "completion":
        score: Any = document_completion(fit, heldout, **options)
    else:
        from inference.evidence import log_evidence

        score = log_evidence(fit, heldout, method, **options)
    value = float(np.exp(-score.value))
    return Perplexity(value, value * score.standard_error, score.per_document, score.num_tokens)
