"""scikit-learn estimators, one for each model: `pp_models.sklearn.LDA(n_components=20).fit(X)`.

A class is made for every model that is found, with the model's hyper-parameters as parameters
(`base.Estimator`). `bayesian_nmf` is `BayesianNMF`: words of four letters and more are capitalised,
shorter ones are abbreviations. Needs scikit-learn.
"""

from typing import Any

from pp_models.models import available


def class_name(model: str) -> str:
    """What the estimator of a model is called."""
    words = model.split("_")
    return "".join(word.upper() if len(word) < 4 else word.capitalize() for word in words)


def __getattr__(name: str) -> Any:
    for model in available():
        if class_name(model) == name:
            from inference.estimators.base import estimator  # scikit-learn takes long to import

            return estimator(model)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(map(class_name, available()))
