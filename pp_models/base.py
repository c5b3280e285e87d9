"""The names of the model layer for model files.

`Model` here also takes the fields of the first version, in which a model declared its name, kind,
local, observed, coupled and damped sites, and each part of a capability was a field.
"""

from typing import Any

from pp_models import model as _model
from pp_models.errors import InputError, unknown
from pp_models.model import Learning, Marginal, Ratings, Rotation, Tokens, Topics

globals().update({name: getattr(_model, name) for name in _model.__all__ if name != "Model"})

_DERIVED = ("name", "kind", "local", "observed", "coupled", "damped")
_RECORDS: dict[str, tuple[Any, dict[str, str]]] = {  # field -> record and its first-version names
    "tokens": (Tokens, {"odds": "odds", "begin": "begin"}),
    "topics": (Topics, {"weights": "weights", "topics": "topics"}),
    "ratings": (Ratings, {"noise": "noise"}),
    "marginal": (Marginal, {n: n for n in ("gridded", "balance", "bent")}),
    "rotation": (Rotation, {"rotated": "sites"}),
    "learning": (Learning, {"learn": "start", "fix_rows": "fix_rows"}),
}


def Model(**fields: Any) -> _model.Model:
    """A model from its fields, those of the first version among them."""
    declared = {name: fields.pop(name) for name in _DERIVED if name in fields}
    for field, (record, names) in _RECORDS.items():
        given = {
            new: fields.pop(old)
            for old, new in names.items()
            if callable(fields.get(old)) or (old in fields and old not in _RECORDS)
        }
        if given:
            fields[field] = record(**given)
    known = _model.Model.__dataclass_fields__
    for name in fields:
        if name not in known:
            raise unknown("field of a model", name, known)
    model = _model.Model(**fields)
    for name, value in declared.items():
        if name in ("name", "kind") and getattr(model, name) != value:
            found = getattr(model, name)
            told = f"{name} is declared as {value!r}, but follows as {found!r}"
            raise InputError(f"{told}: leave it out.")
    return model


Model.of = _model.Model.of  # type: ignore[attr-defined]
