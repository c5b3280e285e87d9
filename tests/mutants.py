"""Do the fast tests notice wrong mathematics? `make mutants` makes one mistake at a time in a copy
of the tree and runs the tests that should fail.

A mutant is one replacement in one file, which changes results for ordinary input and which somebody
could have written. It is killed when a test fails or ends in an error, or when the tests hang; not
when something cannot be imported or collected, which is a mistake in the mutant. Every selection of
tests is run once on the tree as it is before any mutant, and must pass. Text that is not in its
file exactly once is refused, so that mutants do not rot in silence when code changes.

Results are kept in a file by the mutant, the packages' and the tests' contents: a run that was cut
short goes on, and what has not changed is not run again. The table goes to standard output; below
`ENOUGH` killed the script exits with 1. pytest does not collect this file.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Lock
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / ".cache" / "mutants.json"
ENOUGH = 0.95  # share killed below which the script fails
SECONDS = 300  # after which a selection of tests hangs
COPIED = ("pp_models", "inference", "tests", "pyproject.toml")


class Mutant(NamedTuple):
    """One mistake. file: where. text: exactly once in it. replacement: put in its place. wrong:
    what is wrong with it. tests: arguments of pytest, selection by selection, the cheapest and most
    direct first. equivalent: why no test can tell, of one that is kept nevertheless.
    """

    file: str
    text: str
    replacement: str
    wrong: str
    tests: tuple[str, ...]
    equivalent: str = ""


def law(model: str) -> str:
    """F against NumPyro's own log density of a model's example: the one law that all models take
    fast.
    """
    return f'"tests/laws/test_model_contract.py::test_joint_is_numpyros_log_density[{model}]"'


def only(file: str, expression: str) -> str:
    """Tests of a file by name, in whichever folder it is."""
    (path,) = (ROOT / "tests").rglob(f"test_{file}.py")
    return f'{path.relative_to(ROOT)} -k "{expression}"'


MUTANTS = (
    # Families -------------------------------------------------------------------------------------
    Mutant(
        "pp_models/families/_dirichlet.py",
        "_total(gammaln(c)) - gammaln(_total(c))",
        "_total(gammaln(c)) + gammaln(_total(c))",
        "Dirichlet normaliser: sign of the total's log gamma",
        (only("families", "normalizer"),),
    ),
    Mutant(
        "pp_models/families/_gamma.py",
        "mean=lambda n: Pair(digamma(n.first) - jnp.log(-n.second), n.first / -n.second),",
        "mean=lambda n: Pair(jnp.log(n.first) - jnp.log(-n.second), n.first / -n.second),",
        "gamma: log of the mean for the mean of the log",
        (only("families", "normalizer"),),
    ),
    Mutant(
        "pp_models/families/_normal.py",
        "return Pair(mean, covariance + outer(mean))",
        "return Pair(mean, outer(mean))",
        "normal: second moment without the covariance",
        (only("families", "normalizer"),),
    ),
    Mutant(
        "pp_models/families/base.py",
        "sum(term if len(term) == num_rows else term / num_rows for term in terms)",
        "sum(term for term in terms)",
        "a tied statistic counted once per row",
        (only("families", "entropy and tied"),),
    ),
    Mutant(
        "pp_models/families/_wishart.py",
        "scale = jnp.maximum(nu - size - 1, tiny(nu))",
        "scale = jnp.maximum(nu - size, tiny(nu))",
        "Wishart mode: degrees off by one",
        (only("families", "modes and wishart"),),
    ),
    Mutant(
        "pp_models/families/_wishart.py",
        "quadratic=centre.quadratic + mean.shape[-1] / kappa)",
        "quadratic=centre.quadratic + 1 / kappa)",
        "normal-Wishart: D / kappa of the mean's own variance lost",
        (only("families", "normalizer"),),
    ),
    Mutant(
        "pp_models/families/_positive.py",
        "jnp.sum(found.log_z + 0.5 * (n.first - b) * found.first, -1)",
        "jnp.sum(found.log_z + (n.first - b) * found.first, -1)",
        "positive rows: coupling counted twice in the normaliser",
        (only("families", "normalizer"),),
    ),
    # Positive normals -----------------------------------------------------------------------------
    Mutant(
        "pp_models/families/positive_normal.py",
        "- jnp.sum(row * x, 0) + p * here",
        "- jnp.sum(row * x, 0)",
        "a coordinate pulled by itself",
        (only("positive_normal", "settled"),),
    ),
    # Auxiliaries and passes -----------------------------------------------------------------------
    Mutant(
        "pp_models/elimination/allocate.py",
        "return value + jnp.sum(per_row) * math.log(row_logits.shape[1])",
        "return value",
        "even beliefs: their entropy dropped",
        (only("eliminate", "even"),),
    ),
    Mutant(
        "pp_models/elimination/allocate.py",
        "one = (token < num_tokens).astype(weights.dtype)",
        "one = jnp.ones(size, weights.dtype)",
        "sampled allocations: padding drawn for and counted",
        (only("eliminate", "sampled"),),
    ),
    Mutant(
        "pp_models/elimination/primitive.py",
        "lambda x: cotangent * x, statistics",
        "lambda x: x, statistics",
        "allocate: gradient forgets what it is scaled by",
        (only("eliminate", "cotangent"),),
    ),
    Mutant(
        "pp_models/elimination/choose.py",
        "return jnp.sum(weights * jax.nn.logsumexp(logits, 1))",
        "return jnp.sum(jax.nn.logsumexp(logits, 1))",
        "choose: padding not masked",
        (only("eliminate", "choose"),),
    ),
    Mutant(
        "pp_models/elimination/inner.py",
        "value * line if weighted else line",
        "line",
        "sums of rows: values lost",
        (only("eliminate", "inner"),),
    ),
    Mutant(
        "pp_models/elimination/inner.py",
        "return column, value * _line(block, row)",
        "return column, _line(block, row)",
        "sums of columns: values lost",
        (only("eliminate", "inner"),),
    ),
    Mutant(
        "pp_models/elimination/passes.py",
        "return Row(index, columns, jnp.where(inside, values, 0), clipped(table.weights[columns]))",
        "return Row(index, columns, values, clipped(table.weights[columns]))",
        "a row reads its neighbour's entries",
        (only("eliminate", "value_and_gradients"),),
    ),
    Mutant(
        "pp_models/elimination/row_solver.py",
        "(prior + allocated - shares) * scale",
        "(prior + allocated) * scale",
        "CVB0: a token counts itself",
        (only("collapsed", "fixed_point"),),
    ),
    Mutant(
        "pp_models/elimination/row_solver.py",
        "return jnp.maximum(c - 1, jnp.finfo(c.dtype).tiny ** 0.75), jnp.zeros_like(c)",
        "return jnp.maximum(c, jnp.finfo(c.dtype).tiny ** 0.75), jnp.zeros_like(c)",
        "mode of a concentration: off by one",
        (only("nmf", "printed_updates"),),
    ),
    Mutant(
        "pp_models/data/batches.py",
        "return jnp.sum(jnp.where(self.mask > 0, values, 0))",
        "return jnp.sum(values)",
        "sums over a batch: padding counted",
        (
            '"tests/laws/test_model_contract.py::test_rows_are_exchangeable_and_padding_is_nothing[lda]"',
        ),
    ),
    Mutant(
        "pp_models/elimination/tokens.py",
        "counts - own + one_hot(new)",
        "counts + one_hot(new)",
        "collapsed Gibbs: a token's old factor stays counted",
        (only("collapsed_gibbs", "exact_distribution"),),
    ),
    # Residuals and matrix factorisation -----------------------------------------------------------
    Mutant(
        "pp_models/elimination/residuals.py",
        "return jnp.where(np.tri(size, dtype=bool), lower, jnp.swapaxes(lower, 1, 2))",
        "return jnp.where(np.tri(size, dtype=bool), jnp.swapaxes(lower, 1, 2), lower)",
        "symmetric matrices: triangles transposed",
        (only("residuals", "definitions"),),
    ),
    Mutant(
        "pp_models/elimination/residuals.py",
        "gathered = jnp.where(inside[:, None], padded[columns], 0)",
        "gathered = padded[columns]",
        "normal equations: entries past the row's end",
        (only("residuals", "any_length"),),
    ),
    Mutant(
        "pp_models/models/pmf.py",
        'squared_error(t["u"], t["v"], rows, columns)',
        'squared_error(t["u"], t["v"], rows, batch.by_column)',
        "PMF: offset left in the ratings by column",
        (only("pmf", "both_sides"),),
    ),
    Mutant(
        "pp_models/models/pmf.py",
        "along(line_key, len(u) - len(v), ",
        "along(line_key, len(u) + len(v), ",
        "PMF: Jacobian of the scale move",
        (only("scales", "pmf"),),
    ),
    Mutant(
        "pp_models/models/bayesian_pmf.py",
        "along(line_key, 0.0, hyper.scale * of_items, hyper.scale * of_users)",
        "along(line_key, 0.0, hyper.scale * of_users, hyper.scale * of_items)",
        "Bayesian PMF: sides of the scale move exchanged",
        (only("scales", "bayesian_pmf"),),
    ),
    Mutant(
        "pp_models/models/bayesian_pmf.py",
        "rest = prior.log_det[0] - prior.quadratic[0] - constant",
        "rest = prior.log_det[0] - constant",
        "Bayesian PMF: mu' Lambda mu lost",
        (law("bayesian_pmf"),),
    ),
    Mutant(
        "pp_models/models/nmf.py",
        "rows = jnp.where(batch.mask[:, None] > 0, _root(theta.second), 0)",
        "rows = _root(theta.second)",
        "NMF, squared error: padding not masked",
        (only("nmf", "in_padding"),),
    ),
    # Models of counts -----------------------------------------------------------------------------
    Mutant(
        "pp_models/models/lda.py",
        "coefficient = gammaln(batch.totals + 1) - batch.log_factorials",
        "coefficient = gammaln(batch.totals) - batch.log_factorials",
        "LDA: multinomial coefficient off by one",
        (law("lda"),),
    ),
    Mutant(
        "pp_models/models/bayesian_nmf.py",
        "rate = -prior.second + beta.second.T",
        "rate = beta.second.T",
        "Bayesian NMF: prior's rate lost in P(11.29)",
        (only("collapsed_gibbs", "odds and bayesian_nmf"), only("bayesian_nmf", "updates")),
    ),
    Mutant(
        "pp_models/models/_scales.py",
        "return 0.5 * (volume * y - a * jnp.exp(y) - b * jnp.exp(-y))",
        "return volume * y - a * jnp.exp(y) - b * jnp.exp(-y)",
        "scale moves: factor 1/2 of the line's density",
        (only("scales", "keeps"),),
    ),
    Mutant(
        "pp_models/models/hpf.py",
        "return shape * (rate.first + x.first) - rate.second * x.second - gammaln(shape)",
        "return shape * x.first - rate.second * x.second - gammaln(shape)",
        "HPF: normaliser of a gamma with a random rate",
        (law("hpf"),),
    ),
    Mutant(
        "pp_models/models/_log_normal.py",
        "u.first @ ell.first.T + 0.5 * (jnp.einsum",
        "u.first @ ell.first.T + (jnp.einsum",
        "log-normal weights: half the variance for the whole",
        (only("correlated_nmf", "exact_expectation"),),
    ),
    Mutant(
        "pp_models/models/correlated_nmf.py",
        "factors = log_normal.Factors(ell, size, jnp.log(hyper.b0), ",
        "factors = log_normal.Factors(ell, size, -jnp.inf, ",
        "correlated NMF: prior's rate of the scales lost",
        (only("correlated_nmf", "optimum"),),
    ),
    Mutant(
        "pp_models/models/ctm.py",
        "log_sum = jax.nn.logsumexp(y.first + 0.5 * spread, 1)",
        "log_sum = jax.nn.logsumexp(y.first, 1)",
        "CTM: log sum of exponentials at the mean, no bound",
        (only("ctm", "bound_the_same_sum"),),
    ),
    # Latent Gaussian models -----------------------------------------------------------------------
    Mutant(
        "pp_models/models/_latent_gaussian.py",
        "return log_table(x, alpha, positive, jnp.sum(batch.mask))",
        "return log_table(x, alpha, positive)",
        "rows' prior: padding counted where statistics are tied",
        (only("latent_gaussian", "padding"),),
    ),
    Mutant(
        "pp_models/models/_latent_gaussian.py",
        "second = jnp.where(batch.mask[:, None, None] > 0, second, 0)",
        "second = rows.second",
        "sum of squared products: padding not masked",
        (only("latent_gaussian", "padding"),),
    ),
    Mutant(
        "pp_models/models/_latent_gaussian.py",
        'volume = size - len(values["s"])',
        "volume = size",
        "scale moves: Jacobian without the rows",
        (only("scales", "latent"),),
    ),
    Mutant(
        "pp_models/models/_latent_gaussian.py",
        "shape = 0.5 * size * hyper.num_topics + hyper.a0",
        "shape = 0.5 * size + hyper.a0",
        "scale moves with alpha1: coordinates counted once per row",
        (only("scales", "all_factors"),),
    ),
    Mutant(
        "pp_models/models/_latent_gaussian.py",
        "return log_table(d1, Pair(jnp.log(size), size), positive)",
        "return log_table(d1, Pair(-jnp.log(size), size), positive)",
        "LG-NMF: variance for precision in the words' prior",
        (law("lg_nmf"),),
    ),
    Mutant(
        "pp_models/models/lg_nmf_votes.py",
        "prior = -2 * hyper.a0 * log_c - hyper.b0 * alpha2",
        "prior = 2 * hyper.a0 * log_c - hyper.b0 * alpha2",
        "votes: Jacobian of the members' scale move",
        (only("scales", "members"),),
    ),
    Mutant(
        "pp_models/elimination/probit.py",
        "return jnp.sum(jnp.where(seen, (utility - offset) * m, 0))",
        "return jnp.sum(jnp.where(seen, utility * m, 0))",
        "votes: drawn utilities keep the members' inclination",
        (only("latent_gaussian", "mean_utility"),),
    ),
    Mutant(
        "pp_models/elimination/probit.py",
        "shift = density(low) - density(high)",
        "shift = density(high) - density(low)",
        "LG-OP: mean utility on the wrong side",
        (only("latent_gaussian", "ordinal_gradients"),),
    ),
    # Mixtures -------------------------------------------------------------------------------------
    Mutant(
        "pp_models/models/gaussian_mixture.py",
        "return jnp.sum(((x - mean) @ factor) ** 2, 1) + rest",
        "return jnp.sum(((x - mean) @ factor) ** 2, 1)",
        "Gaussian mixture: the mean's own variance, D / kappa, lost",
        (only("gaussian_mixture", "updates or polynomial"),),
    ),
    Mutant(
        "pp_models/models/bernoulli_mixture.py",
        "batch.dense @ (log_one - log_zero).T + jnp.sum(log_zero, 1)",
        "batch.dense @ log_one.T",
        "Bernoulli mixture: zeros tell nothing",
        (law("bernoulli_mixture"),),
    ),
    # Objective and engines ------------------------------------------------------------------------
    Mutant(
        "inference/core/objective.py",
        "return model.log_global(hyper, summarise(model, natural)) + sum(entropies)",
        "return model.log_global(hyper, summarise(model, natural))",
        "bound: entropy of the global sites dropped",
        (only("engine_contract", "never_falls"),),
    ),
    Mutant(
        "inference/core/objective.py",
        "goal = shorten(model, local, target(site, local), site)",
        "goal = shorten(model, local, target(site, start), site)",
        "rows' fixed point on the statistics it began with",
        (only("hpf", "rest"),),
    ),
    Mutant(
        "inference/core/objective.py",
        "jnp.where(going, jnp.max(jnp.stack(moved), 0), moves)",
        "jnp.where(going, jnp.mean(jnp.max(jnp.stack(moved), 0)), moves)",
        "rows stop by the mean of all rows' changes",
        (only("model_contract", "stop_for_themselves and lda"),),
    ),
    Mutant(
        "inference/engines/_coordinate_ascent.py",
        "obj.block_gradient, later, places, (hyper, shared), own",
        "obj.block_gradient, later, places, (hyper, state.shared), own",
        "cavi: later blocks see earlier ones' stale statistics",
        (only("pmf", "later_blocks"),),
    ),
    Mutant(
        "inference/engines/_minibatch.py",
        "scale = present / rows",
        "scale = jnp.ones(())",
        "stochastic steps: N / |B| lost",
        (only("stochastic_engines", "scaled_targets and lda"),),
    ),
    Mutant(
        "inference/engines/_natural_step.py",
        "return (options.tau + time) ** -options.kappa",
        "return (options.tau + time + 1) ** -options.kappa",
        "learning rate off by one",
        (only("engine_contract", "rates and lda"),),
    ),
    Mutant(
        "inference/engines/_natural_step.py",
        "old.window * (1 - rate) + 1)",
        "old.window * (1 - rate))",
        "svi: the adaptive rate's memory never grows",
        (only("engine_contract", "rates and lda"),),
    ),
    Mutant(
        "inference/engines/_trust_step.py",
        "mb.ascend(solved, shared, rate, anchor)",
        "mb.ascend(solved, shared, rate, shared)",
        "trust region: its centre moves along",
        (only("stochastic_engines", "(inner or large_xi) and lda"),),
    ),
    Mutant(
        "inference/engines/streaming.py",
        "arrived = present - options.num_present",
        "arrived = present",
        "streaming: rows that were there count as arrived",
        (only("stochastic_engines", "streaming and lda"),),
    ),
    Mutant(
        "inference/engines/svb.py",
        "return State(shared, shared, hyper, state.step + 1)",
        "return State(shared, state.prior, hyper, state.step + 1)",
        "svb: the last batch's posterior is no prior of the next",
        (only("stochastic_engines", "svb and lda"),),
    ),
    Mutant(
        "inference/engines/memoized.py",
        "lambda t, n, o: t + n - o, total, new, old",
        "lambda t, n, o: t + n, total, new, old",
        "memoized: a batch's old statistics stay",
        (only("stochastic_engines", "memoized and lda"),),
    ),
    Mutant(
        "inference/engines/_empirical_bayes.py",
        "gradient = prior[0] + scale * sum(g for g, _ in rows)",
        "gradient = scale * sum(g for g, _ in rows)",
        "empirical Bayes: the global sites' prior left out",
        (only("stochastic_engines", "empirical and lda"),),
    ),
    Mutant(
        "inference/core/summaries.py",
        "batch = batch.replace(entries=batch.entries.emptied())",
        "batch = batch.replace(entries=batch.entries)",
        "map: data taken for prior where a mode is looked for",
        (only("lda", "no_mode"),),
    ),
    Mutant(
        "inference/engines/_gibbs_sweep.py",
        "prior = 0.0 if site in model.local else model.log_global(hyper, shared)",
        "prior = 0.0",
        "gibbs: the global sites' prior forgotten",
        ('"tests/laws/test_samplers.py::test_geweke[gibbs-lda]"',),
    ),
    Mutant(
        "inference/engines/structured.py",
        "solved = mb.solve(*given, drawn=drawn, bound=evaluate)",
        "solved = mb.solve(*given, bound=evaluate)",
        "structured: rows are solved given the mean statistics, not given the draw",
        (only("structured", "widths_are"),),
    ),
    Mutant(
        "inference/engines/cvb0.py",
        'summary="collapsed", weights="mean")',
        'summary="collapsed", weights="geometric")',
        "cvb0: geometric means for means",
        (only("collapsed", "equations"),),
    ),
    Mutant(
        "inference/engines/hybrid.py",
        "if score > before:",
        "if score < before:",
        "hybrid: the trial judged the wrong way round",
        (only("hybrid", "trial"),),
    ),
    Mutant(
        "inference/engines/numpyro_svi.py",
        "Info(-loss, rate(state.parameters[0]))",
        "Info(loss, rate(state.parameters[0]))",
        "numpyro_svi: loss reported for the bound",
        (only("engine_contract", "history and numpyro_svi and lda"),),
    ),
    Mutant(
        "inference/engines/nuts.py",
        '{**stats, "lp": -stats["lp"]}',
        '{**stats, "lp": stats["lp"]}',
        "nuts: potential energy for the log density",
        (only("engine_contract", "answers and nuts and lda"),),
    ),
    Mutant(
        "inference/engines/_laplace.py",
        "value = float(height) + float(correction) + float(np.sum(theta))",
        "value = float(height) + float(correction)",
        "laplace: Jacobian of log theta missing",
        (only("laplace", "exact and log"),),
    ),
    Mutant(
        "inference/engines/_laplace.py",
        "bent = linear - ascent.bending(model, hyper, stats, batch, site)",
        "bent = linear",
        "laplace: curvature of eliminated utilities left out",
        (only("curvature", "curvature"),),
    ),
    Mutant(
        "inference/engines/inla.py",
        "float(logsumexp(values) + cell)",
        "float(logsumexp(values))",
        "inla: evidence without the width of cells",
        (only("laplace", "exact and log"),),
    ),
    Mutant(
        "inference/core/mixture.py",
        "squares = self._average(variances + means**2)",
        "squares = self._average(means**2)",
        "mixture: variance within grid points lost",
        (only("laplace", "grids_top or moments"),),
    ),
    # Scores, alignment and evidence ---------------------------------------------------------------
    Mutant(
        "inference/core/completion.py",
        "table, size = topics.T, weights @ jnp.sum(topics, 1)",
        "table, size = topics.T, jnp.sum(weights, 1)",
        "document completion: topics taken to sum to one",
        (only("evaluate", "normalisation"),),
    ),
    Mutant(
        "inference/core/completion.py",
        "log_p = jnp.log(jnp.maximum(total / len(jax.tree.leaves(draws)[0]), FLOOR))",
        "log_p = jnp.log(jnp.maximum(total, FLOOR))",
        "document completion: sum over draws for their mean",
        (only("evaluate", "alike"),),
    ),
    Mutant(
        "inference/core/align.py",
        "    return left @ right\n",
        "    return np.swapaxes(left @ right, -1, -2)\n",
        "Procrustes: rotation transposed",
        (only("align", "undoes and pmf"),),
    ),
    Mutant(
        "inference/evaluation/coherence.py",
        "ratio = np.log(joint / np.where(met, alone[:, None] * alone, 1))",
        "ratio = np.log(joint / np.where(met, alone[:, None], 1))",
        "coherence: conditional probability for mutual information",
        (only("measures", "coherence_by_hand"),),
    ),
    Mutant(
        "inference/evaluation/document_likelihood.py",
        "return _log_joint(given, chains, best) - total + jnp.log(num_sweeps)",
        "return _log_joint(given, chains, best) - total",
        "Chib's estimator: sum over sweeps for their mean",
        (only("evidence", "exact and chib"),),
    ),
    Mutant(
        "inference/comparison/coordinates.py",
        "return value, taken + kept + before[..., :-1]",
        "return value, taken + kept",
        "stick-breaking: Jacobian without what is left of the stick",
        (only("bridge", "bijections"),),
    ),
    Mutant(
        "inference/comparison/marginal_likelihood.py",
        "return math.lgamma(size + 1) + (size",
        "return math.lgamma(size) + (size",
        "evidence: (K - 1)! copies for K!",
        (only("bridge", "copies"),),
    ),
    # Linear response ------------------------------------------------------------------------------
    Mutant(
        "pp_models/families/_dirichlet.py",
        "_total(slope / own) / (1 - common * _total(1 / own))",
        "_total(slope / own) / (1 + common * _total(1 / own))",
        "regression on log x: sign in Sherman and Morrison's formula",
        (only("families", "regression"),),
    ),
    Mutant(
        "inference/core/linear_response.py",
        "image = jax.tree.map(jnp.subtract, now.image, bent)",
        "image = now.image",
        "linear response without the curvature of F",
        (only("corrected", "gaussian"),),
    ),
    Mutant(
        "pp_models/elimination/passes.py",
        "ratio = values / rate\n",
        "ratio = values / lax.stop_gradient(rate)\n",
        "linear response without that of the eliminated allocations",
        (only("response", "eliminated"),),
    ),
    Mutant(
        "inference/core/climb.py",
        "jumped = _highest(",
        "_ = _highest(",
        "climbing: stay on a saddle",
        (only("response", "saddle"),),
    ),
)


class Outcome(NamedTuple):
    """What became of a mutant. verdict: killed, hung, survived or broken. by: the test that
    noticed. seconds: of all selections run. said: a line.
    """

    verdict: str
    by: str
    seconds: float
    said: str = ""

    @property
    def killed(self) -> bool:
        return self.verdict in ("killed", "hung")


# One selection of tests ---------------------------------------------------------------------------


def environment(tree: Path) -> dict[str, str]:
    """That of `make test`, with the copy's packages first.

    No bytecode is kept: a mutant may be as long, and as old, as what it replaces.
    """
    kept = {
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return {**kept, **os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


def run(tree: Path, selection: str) -> tuple[Any, str, float]:
    """pytest's exit code (None where it hung), what it said, and seconds."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=line",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not costly",
        *shlex.split(selection),
    ]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment(tree),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, "", time.monotonic() - began
    return done.returncode, done.stdout, time.monotonic() - began


def failed_test(output: str) -> str:
    """The test that failed or ended in an error; "" where none did.

    What could not be collected is named without a test.
    """
    found = re.search(r"^(?:FAILED|ERROR) tests/(?:\S+/)?(\w+)\.py::(\w+)", output, re.MULTILINE)
    return f"{found[1]}::{found[2]}" if found else ""


def pattern(text: str) -> re.Pattern[str]:
    """The text however it is laid out: any white space, and a comma before a closing bracket."""
    tokens = re.findall(r"\w+|[^\w\s]", text)
    return re.compile(r"\s*".join(rf",?\s*\{x}" if x in ")]}" else re.escape(x) for x in tokens))


def judge(tree: Path, mutant: Mutant) -> Outcome:
    """Run the mutant's selections in turn until one of them notices."""
    file = tree / mutant.file
    whole = file.read_text()
    file.write_text(pattern(mutant.text).sub(lambda found: mutant.replacement.strip(), whole))
    seconds = 0.0
    try:
        for selection in mutant.tests:
            code, output, more = run(tree, selection)
            seconds += more
            if code is None:
                return Outcome("hung", selection, seconds)
            if code == 1 and failed_test(output):
                return Outcome("killed", failed_test(output), seconds)
            if code != 0:
                return Outcome("broken", selection, seconds, output.strip()[-2000:])
    finally:
        file.write_text(whole)
    return Outcome("survived", "", seconds)


# The tree, and what is known of it ----------------------------------------------------------------


def copy_tree(place: Path) -> Path:
    """What the tests of mutants need, without what was compiled."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)
    return place


def contents(tree: Path, *patterns: str) -> bytes:
    """A digest of files."""
    digest = hashlib.sha256()
    for file in sorted(
        file for pattern in patterns for file in tree.glob(pattern) if file.is_file()
    ):
        digest.update(str(file.relative_to(tree)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.digest()


def names_of(tree: Path, mutants: tuple[Mutant, ...]) -> dict[Any, str]:
    """Mutants and selections -> what their results are kept under: what is done, to which packages,
    and which tests judge.
    """
    packages = contents(
        tree,
        "pp_models/**/*",
        "inference/**/*",
        "tests/conftest.py",
        "tests/docs/examples.py",
        "tests/inference/core/joined.py",
        "pyproject.toml",
    )

    def name(what: Any, tests: tuple[str, ...]) -> str:
        judges = contents(
            tree, *sorted({shlex.split(selection)[0].split("::")[0] for selection in tests})
        )
        return hashlib.sha256(repr(what).encode() + packages + judges).hexdigest()

    found: dict[Any, str] = {mutant: name(mutant, mutant.tests) for mutant in mutants}
    return found | {
        selection: name(selection, (selection,)) for mutant in mutants for selection in mutant.tests
    }


def check(mutants: tuple[Mutant, ...]) -> None:
    """Refuse mutants whose text is not in its file exactly once, or that change nothing."""
    wrong = []
    for mutant in mutants:
        number = len(pattern(mutant.text).findall((ROOT / mutant.file).read_text()))
        if number != 1:
            wrong.append(
                f"{mutant.file} has the text of {mutant.wrong!r} {number} times, not once."
            )
        if mutant.text == mutant.replacement:
            wrong.append(f"The mutant {mutant.wrong!r} of {mutant.file} changes nothing.")
    if wrong:
        sys.exit("\n".join([*wrong, "Write these mutants anew."]))


def check_tests(
    tree: Path, mutants: tuple[Mutant, ...], names: dict[Any, str], known: dict[str, Any], keep: Any
) -> None:
    """Every selection must pass on the tree as it is, and have tests in it."""
    imported = (
        "import pathlib, pp_models, inference; "
        "print(*(pathlib.Path(m.__file__).parents[1] for m in (pp_models, inference)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", imported],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if {Path(path).resolve() for path in found} != {tree.resolve()}:
        sys.exit(
            f"The tests would import the packages from {found[0]} instead of the "
            "copy: run this from an environment that installs them editable."
        )
    selections = tuple(dict.fromkeys(selection for mutant in mutants for selection in mutant.tests))
    for i, selection in enumerate(selections, 1):
        name = names[selection]
        if name not in known:
            code, output, seconds = run(tree, selection)
            if code != 0:
                why = {None: "hangs", 5: "has no test in it"}.get(code, "fails")
                sys.exit(
                    f"The selection {selection} {why} on the tree as it is, so that "
                    f"it can judge no mutant.\n{output[-3000:]}"
                )
            known[name] = {"selection": selection, "seconds": seconds}
            keep()
        print(
            f"{i}/{len(selections)} passes as it is: {selection} ({known[name]['seconds']:.0f} s)",
            file=sys.stderr,
            flush=True,
        )


# The table ----------------------------------------------------------------------------------------


def noticed(mutant: Mutant, outcome: Outcome) -> str:
    """What a table says of how it ended."""
    if outcome.verdict == "killed":
        return outcome.by.replace("::", ": ")
    if outcome.verdict == "survived" and mutant.equivalent:
        return f"equivalent: {mutant.equivalent}"
    return {"hung": "hung", "survived": "SURVIVED", "broken": "BROKEN"}[outcome.verdict]


def share_killed(results: list[tuple[Mutant, Outcome]]) -> tuple[int, int]:
    """Killed, and how many there are to kill."""
    counted = [outcome for mutant, outcome in results if outcome.killed or not mutant.equivalent]
    return sum(outcome.killed for outcome in counted), len(counted)


def table(results: list[tuple[Mutant, Outcome]]) -> str:
    """Markdown."""
    lines = ["| | file | what is wrong | noticed by | s |", "|--:|---|---|---|--:|"]
    for i, (mutant, outcome) in enumerate(results, 1):
        lines.append(
            f"| {i} | `{mutant.file}` | {mutant.wrong} | {noticed(mutant, outcome)} | "
            f"{outcome.seconds:.0f} |"
        )
    killed, number = share_killed(results)
    return "\n".join([*lines, "", f"{killed} of {number} killed, {killed / max(number, 1):.1%}."])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(
            "Make one mistake at a time in a copy of the tree, and see whether the fast "
            "tests notice."
        )
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="SUBSTRING",
        help="mutants with this in their file or in what is wrong",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="mutants judged at a time, each in a copy of its own"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=RESULTS,
        metavar="FILE",
        help=f"where results are kept (default: {RESULTS.relative_to(ROOT)})",
    )
    parser.add_argument("--list", action="store_true", help="name the mutants and end")
    given = parser.parse_args()
    mutants = tuple(
        mutant for mutant in MUTANTS if given.only in mutant.file or given.only in mutant.wrong
    )
    check(mutants)
    if given.list:
        print(
            "\n".join(
                f"{mutant.file}: {mutant.wrong} [{'; '.join(mutant.tests)}]" for mutant in mutants
            )
        )
        return 0
    if not mutants or given.jobs < 1:
        parser.error(
            f"no mutant has {given.only!r} in it" if not mutants else "--jobs must be at least 1"
        )
    lock = Lock()
    known: dict[str, Any] = json.loads(given.json.read_text()) if given.json.exists() else {}

    def keep() -> None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        with lock:
            new = given.json.with_suffix(".new")
            new.write_text(json.dumps(dict(known), indent=1))
            new.replace(given.json)

    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as place,
        ThreadPoolExecutor(given.jobs) as pool,
    ):
        trees: Queue[Path] = Queue()
        for i in range(given.jobs):
            trees.put(copy_tree(Path(place) / str(i)))
        tree = trees.get()
        names = names_of(tree, mutants)
        check_tests(tree, mutants, names, known, keep)
        trees.put(tree)

        def one(mutant: Mutant) -> Outcome:
            name = names[mutant]
            if name not in known:
                tree = trees.get()
                known[name] = judge(tree, mutant)._asdict()
                trees.put(tree)
                keep()
            outcome = Outcome(**known[name])
            print(
                (
                    f"{noticed(mutant, outcome)} ({outcome.seconds:.0f} s): "
                    f"{mutant.file}, {mutant.wrong} {outcome.said}"
                ),
                file=sys.stderr,
                flush=True,
            )
            return outcome

        results = list(zip(mutants, pool.map(one, mutants), strict=True))
    print(table(results))
    killed, number = share_killed(results)
    return int(killed < ENOUGH * number)


if __name__ == "__main__":
    sys.exit(main())
