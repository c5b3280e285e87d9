"""`python -m inference.calibration` makes the calibration tables."""

from inference.calibration.tables import main
from pp_models.errors import InputError

if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        raise SystemExit(f"error: {error}") from None
