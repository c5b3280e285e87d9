"""What a model may offer beyond its nine fields. Each is a small record that one group of engines
or measures reads; a model without it is served by the general way, or not at all by those.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pp_models.data.batches import Batch
from pp_models.elimination.passes import Solved


class Tokens(NamedTuple):
    """How tokens of counts choose a factor. Read by `collapsed_gibbs` and `hybrid`.

    odds:  (hyper, stats, batch, summary="collapsed") -> `row_solver.Odds`, with the weights of the
           rows, the first site of `families`, integrated out: Dirichlet or gamma priors
    begin: (hyper, data, topics) -> natural parameters of global sites that begin at these
           (K, columns) distributions over columns
    """

    odds: Callable[..., Any]
    begin: Callable[..., Any] | None = None


class Topics(NamedTuple):
    """Where no sites theta and beta hold them: (hyper, values) -> weights of the rows on topics
    (rows, K), and topics (K, columns). Read by `inference.topics` and its relatives."""

    weights: Callable[..., jax.Array]
    topics: Callable[..., jax.Array]


class Ratings(NamedTuple):
    """noise: (hyper, values) -> variance of an observation about `predict`. sites: factors of the
    rows and of the columns, whose product `predict` adds to an offset. Read by the predictions of
    ratings."""

    noise: Callable[..., Any]
    sites: tuple[str, str] = ("u", "v")


class Votes(NamedTuple):
    """Probit votes of members on rows: P(yea) = Phi(row'member + offset). Read by the predictions
    of votes.

    rows, members: sites of positive weights (rows, K) and of normal tastes (members, K)
    precision:     name of the tastes' prior precision, a hyper-parameter, or a site if not given
    offsets:       (hyper) -> (members,), or one number
    prior:         (hyper, stats, batch) -> natural parameters (rows, K) and (1, K, K) of normals
                   that, restricted to positive weights, are the rows' density without votes
    """

    rows: str
    members: str
    precision: str
    offsets: Callable[..., Any]
    prior: Callable[..., Any]


class Marginal(NamedTuple):
    """What `laplace` and `inla` need of latent Gaussian models.

    gridded: hyper-parameters, sites where they are not given, that may be put on a grid
    balance: (hyper) -> two dicts site -> prior precision: scaling the first sites by c and the
             second by 1/c leaves the likelihood as it is
    bent:    (model, hyper, stats, batch) -> the part of F that is not linear in the sites `curved`
             (default: F)
    """

    gridded: tuple[str, ...] = ()
    balance: Callable[[Any], tuple[Mapping[str, Any], Mapping[str, Any]]] | None = None
    bent: Callable[..., jax.Array] | None = None


class Rotation(NamedTuple):
    """sites: those of a space known up to a common rotation, or, for the symmetry
    "signed_permutation", up to the signs of its axes. The first, a global one, decides which."""

    sites: tuple[str, ...] = ()


def _without_allocations(hyper: Any, stats: Any, batch: Batch) -> Batch:
    """The same rows without allocations, whose bound is a function of statistics alone."""
    if batch.entries is None:
        return batch
    known = Solved(jnp.zeros((), batch.mask.dtype), None, None)
    return batch.replace(entries=dataclasses.replace(batch.entries, solved=known))


class Learning(NamedTuple):
    """What empirical Bayes may learn.

    start:    (hyper) -> name -> value to start from (default: every positive value)
    fix_rows: (hyper, stats, batch) -> the batch with what hyper-parameters do not change worked
              out (default: without its allocations)
    """

    start: Callable[[Any], Mapping[str, Any]] | None = None
    fix_rows: Callable[..., Batch] = _without_allocations
