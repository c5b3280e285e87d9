"""`pp-models list`: names only. No model and no engine is imported."""

import argparse

from inference.core.registry import engines
from pp_models.discovery import available


def run_list(chosen: argparse.Namespace) -> int:
    """Print the models and engines there are."""
    print("models: ", " ".join(available()))
    print("engines:", " ".join(engines()))
    return 0
