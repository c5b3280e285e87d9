"""tomotopy, fed and read as fairly as we can: for the benchmarks that run it beside ours."""

from typing import Any

import numpy as np
import scipy.sparse


def tomotopy_model(data: Any, num_topics: int, **settings: Any) -> Any:
    """tomotopy's LDA on counts, before its first sweep."""
    import tomotopy

    model = tomotopy.LDAModel(k=num_topics, seed=0, **settings)
    matrix = scipy.sparse.csr_array(data.matrix)
    names = np.array([f"w{v}" for v in range(data.num_columns)])
    for row in range(matrix.shape[0]):
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        model.add_doc(
            np.repeat(names[matrix.indices[part]], matrix.data[part].astype(int)).tolist()
        )
    model.train(0)
    return model


def tomotopy_topics(model: Any, num_columns: int) -> np.ndarray:
    """(K, columns) mean topics given its allocations. Words of no training document, which it leaves out, have the prior's share too, as in ours."""
    column = np.array([int(name[1:]) for name in model.used_vocabs])
    topics = np.full((model.k, num_columns), float(model.eta))
    sizes = np.asarray(model.get_count_by_topics(), float)[:, None] + model.eta * len(column)
    topics[:, column] = sizes * np.stack([model.get_topic_word_dist(k) for k in range(model.k)])
    return topics / topics.sum(1, keepdims=True)
