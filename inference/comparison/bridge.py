r"""Bridge sampling of a normalising constant (Meng & Wong 1996), and the density to bridge from.

For a density $q$ that can be sampled, an unnormalised posterior $\tilde p = c\,p$ and any function
$h$,

$$ c = \frac{E_q[\tilde p h]}{E_p[q h]}, \qquad h = \frac{1}{s_1 \tilde p + s_2 c q} $$

is the best $h$, where $s_1 : s_2$ are the effective draws from the posterior and from $q$. It is
iterated to its fixed point. The squared standard error of $\log c$ is (Frühwirth-Schnatter 2004)

$$ \frac{\operatorname{Var}_q f_1}{n_2 E^2 f_1}
   + \frac{\operatorname{Var}_p f_2}{\text{ESS} E^2 f_2}, \quad
   f_1 = \frac{\tilde p}{s_1 \tilde p + s_2 c q}, \quad
   f_2 = \frac{q}{s_1 \tilde p + s_2 c q}. $$

$q$ is normal. Rows of data are independent given the global coordinates: the local coordinates of a
row depend on the global ones by a linear regression. Correlations are shrunk by the factor with
which halves of the draws fit each other best.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from inference.io import arviz

SHRINKAGES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
MOST_ROUNDS = 1000


class Proposal(NamedTuple):
    """A normal density of x: global coordinates together, and each row's by regression on them.

    shared: places of the global coordinates. local: (rows, p) places of each row's
    slopes: (rows, p, globals). shared_tril, local_tril: Cholesky factors
    """

    mean: np.ndarray
    shared: np.ndarray
    local: np.ndarray
    shared_tril: np.ndarray
    slopes: np.ndarray
    local_tril: np.ndarray

    def sample(self, rng: np.random.Generator, number: int) -> np.ndarray:
        """Draws of x."""
        shared = rng.normal(size=(number, len(self.shared))) @ self.shared_tril.T
        return self._with_local(rng, shared)

    def resample(self, rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
        """x with new draws of the local coordinates."""
        return self._with_local(rng, (x - self.mean)[:, self.shared])

    def _with_local(self, rng: np.random.Generator, shared: np.ndarray) -> np.ndarray:
        noise = rng.normal(size=(len(shared), *self.local.shape))
        x = np.empty((len(shared), len(self.mean)))
        x[:, self.shared] = shared
        x[:, self.local] = self._regression(shared)
        x[:, self.local] += np.einsum("rij,nrj->nri", self.local_tril, noise)
        return x + self.mean

    def _regression(self, shared: np.ndarray) -> np.ndarray:
        return np.einsum("rig,ng->nri", self.slopes, shared, optimize=True)

    def log_density(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the global coordinates (n,), and of each row's given them (n, rows)."""
        away = x - self.mean
        shared = np.linalg.solve(self.shared_tril, away[:, self.shared].T)
        rest = away[:, self.local] - self._regression(away[:, self.shared])
        local = np.linalg.solve(self.local_tril, np.moveaxis(rest, 0, -1))
        return _log_normal(shared, self.shared_tril), _log_normal(local, self.local_tril).T


def _log_normal(standard: np.ndarray, tril: np.ndarray) -> np.ndarray:
    """Log densities (..., n) of normals at standardised values (..., d, n)."""
    log_det = np.log(np.diagonal(tril, axis1=-2, axis2=-1)).sum(-1)
    constant = tril.shape[-1] * math.log(2 * math.pi)
    return -0.5 * (np.sum(standard**2, -2) + constant) - log_det[..., None]


def fit_proposal(x: np.ndarray, rows: np.ndarray) -> Proposal:
    """Fit the proposal to draws x (n, dimensions), with the shrinkage that fits halves best."""
    half, size = len(x) // 2, x.shape[1]
    parts = x[:half], x[half:]
    moments = [
        (part.mean(0), np.cov(part.T, bias=True).reshape(size, size)) for part in (*parts, x)
    ]

    def score(shrinkage: float) -> float:
        found = [_normal(*moments[i], rows, shrinkage).log_density(parts[1 - i]) for i in (0, 1)]
        return float(sum(shared.mean() + local.sum(1).mean() for shared, local in found))

    best = int(np.nanargmax([score(shrinkage) for shrinkage in SHRINKAGES]))
    return _normal(*moments[2], rows, SHRINKAGES[best])


def _normal(
    mean: np.ndarray, covariance: np.ndarray, rows: np.ndarray, shrinkage: float
) -> Proposal:
    shared = np.flatnonzero(rows < 0)
    num_rows = rows.max(initial=-1) + 1
    local = np.argsort(rows, kind="stable")[len(shared) :]
    local = local.reshape(num_rows, -1) if num_rows else np.zeros((0, 0), int)
    variance = np.maximum(np.diagonal(covariance), 1e-12) * (1 + 1e-9)
    covariance = np.where(np.eye(len(mean), dtype=bool), variance, (1 - shrinkage) * covariance)

    inner, across = covariance[np.ix_(shared, shared)], covariance[local[..., None], shared]
    slopes = np.linalg.solve(inner, across.reshape(-1, len(shared)).T).T.reshape(across.shape)
    within = covariance[local[:, :, None], local[:, None, :]] - slopes @ np.swapaxes(across, 1, 2)
    return Proposal(mean, shared, local, _tril(inner), slopes, _tril(within))


def _tril(covariance: np.ndarray) -> np.ndarray:
    """The Cholesky factor; small eigenvalues are raised where it does not exist."""
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        least = 1e-6 * np.maximum(values.max(-1, keepdims=True), 1e-12)
        raised = vectors * np.maximum(values, least)[..., None, :]
        return np.linalg.cholesky(raised @ np.swapaxes(vectors, -1, -2))


def meng_wong(posterior: np.ndarray, proposed: np.ndarray) -> tuple[float, float]:
    """The log evidence and its error from log p~ / q at posterior (chains, n) and q's draws (m,).

    The weights depend on the effective sample size of f2, at first on that of the log ratio.
    """
    size = _effective(posterior)
    for _ in range(2):
        share = size / (size + len(proposed))
        value, f1, f2 = _solve(posterior, proposed, share)
        size = _effective(f2)
    if not np.isfinite(value):
        return value, math.inf
    relative = np.var(f1) / np.mean(f1) ** 2 / len(f1) + np.var(f2) / np.mean(f2) ** 2 / size
    return value, math.sqrt(relative)


def _effective(chains: np.ndarray) -> float:
    """The effective sample size, between 1 and the number of draws."""
    found = chains.size if np.ptp(chains) == 0 else arviz.effective_size(chains)
    return float(min(max(found, 1.0), chains.size)) if np.isfinite(found) else 1.0


def _solve(
    posterior: np.ndarray, proposed: np.ndarray, share: float
) -> tuple[float, np.ndarray, np.ndarray]:
    """The fixed point log c, f1 and f2 up to constants; nan where it is not reached."""
    centre = float(np.median(posterior))
    log_share, log_rest, log_c = math.log(share), math.log1p(-share), 0.0
    p_at_q, p_at_p = proposed - centre, posterior - centre
    for _ in range(MOST_ROUNDS):
        f1 = p_at_q - np.logaddexp(log_share + p_at_q, log_rest + log_c)
        f2 = -np.logaddexp(log_share + p_at_p, log_rest + log_c)
        new = float(logsumexp(f1) - logsumexp(f2)) + math.log(f2.size / f1.size)
        if not np.isfinite(new):
            break
        if abs(new - log_c) < 1e-9:
            return new + centre, np.exp(f1 - f1.max()), np.exp(f2 - f2.max())
        log_c = new
    return math.nan, np.zeros(len(proposed)), np.zeros(posterior.shape)
