"""Files that appear whole or not at all: see `pp_models.files`."""

from pp_models.files import write_whole

__all__ = ["write_whole"]
