"""The ASCII mathematics of model files as MathML, which browsers render without any library.

    beta_k  ~ Dirichlet(eta 1_V)        k = 1..K   topics over V words

is a left side, a relation, a right side and a comment. An expression is a sequence of factors and operators; a factor is a number, a name or a
bracket, with subscripts (`_dk` is two indices, `_{z_dn}` an expression), superscripts (`^-1`), and `'`, which transposes what a factor follows and is
a prime elsewhere. Greek letters are named (alpha, Lambda, lam, ell), a number at the end of a name is its subscript (alpha1, but sigma2 is a
square), and longer names stay words. What is no such expression is shown as it is written, as code: a page must not fail for a docstring.
"""

import re
from collections.abc import Iterator
from html import escape as _escape
from typing import NamedTuple

GREEK = {
    **{
        "alpha": "α",
        "beta": "β",
        "gamma": "γ",
        "delta": "δ",
        "epsilon": "ε",
        "zeta": "ζ",
        "eta": "η",
        "theta": "θ",
        "iota": "ι",
        "kappa": "κ",
    },
    **{
        "lambda": "λ",
        "lam": "λ",
        "mu": "μ",
        "nu": "ν",
        "xi": "ξ",
        "pi": "π",
        "rho": "ρ",
        "sigma": "σ",
        "tau": "τ",
        "upsilon": "υ",
        "phi": "φ",
    },
    **{"chi": "χ", "psi": "ψ", "omega": "ω", "ell": "ℓ"},
    **{
        "Gamma": "Γ",
        "Delta": "Δ",
        "Theta": "Θ",
        "Lambda": "Λ",
        "Xi": "Ξ",
        "Pi": "Π",
        "Sigma": "Σ",
        "Phi": "Φ",
        "Psi": "Ψ",
        "Omega": "Ω",
    },
}
LAWS = frozenset(
    (
        *(
            "Dirichlet",
            "Discrete",
            "Categorical",
            "Normal",
            "N",
            "Gamma",
            "Beta",
            "Poisson",
            "Bernoulli",
            "Binomial",
            "Multinomial",
        ),
        *(
            "Exponential",
            "Uniform",
            "Wishart",
            "invWishart",
            "NormalWishart",
            "invGamma",
            "LogNormal",
        ),
    )
)
FUNCTIONS = frozenset(("log", "exp", "softmax", "tr", "diag", "det", "min", "max", "sqrt", "Dir"))
WORDS = frozenset(("if", "and", "for", "otherwise"))
OPERATORS = {
    "-": "−",
    "*": "·",
    "<=": "≤",
    ">=": "≥",
    "<-": "←",
    "~": "∼",
    "||": "‖",
    "|": "∣",
    "in": "∈",
    "..": "…",
    "...": "…",
    "->": "→",
}
RELATIONS = ("~", "=", "<-")
MOST_BRACKETS = 50  # in an expression, so that reading it never goes too deep
SUBSCRIPT_DIGITS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z]+\d*)|(?P<sign>\.\.\.|\.\.|<=|>=|<-|->|\|\||[-+*/<>=~|,;:!?()\[\]{}_^']))"
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class Unreadable(ValueError):
    """The text is no expression of the kind this module knows."""


class Equation(NamedTuple):
    """A line of a generative process as HTML: left side, relation and right side, and what is said about it. A line without relation is `left`."""

    left: str
    relation: str
    right: str
    comment: str


class Token(NamedTuple):
    """kind: number, name or sign. spaced: whether white space comes before it."""

    kind: str
    text: str
    spaced: bool


def escape(text: str) -> str:
    """The text in HTML or XML, without the control characters that neither may hold."""
    return _escape(
        re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)
    )


# A model's process ------------------------------------------------------------------------------------------------------------


def split_story(docstring: str) -> tuple[list[str], str]:
    """The lines of the generative process, and the rest of the text without them and without the title.

    The process is the first indented block, and those after it that draw anything (`~`) before one says what F is.
    """
    blocks = re.split(r"\n[ \t]*\n", docstring.strip("\n"))
    process: list[str] = []
    rest: list[str] = []
    finished = False
    for block in blocks[1:]:
        lines = block.splitlines()
        indented = bool(lines) and all(line.startswith("    ") for line in lines)
        finished = finished or (indented and re.match(r"\s+F\s+=", block) is not None)
        if indented and not finished and (not process or "~" in block):
            process += lines
        else:
            rest.append(block)
    return process, "\n\n".join(rest).strip("\n")


def process(lines: list[str]) -> list[Equation]:
    """The lines of a generative process, each as one equation or more."""
    return [equation for line in lines for equation in _equations(line.strip())]


def _equations(line: str) -> Iterator[Equation]:
    """Cells are two spaces apart, but a relation belongs to both its sides. Words before an equation are its heading, those after it a comment.

    A second equation draws something, or follows a comma: another with = is part of the comment.
    """
    line = re.sub(r"\s+(~|=|<-)\s+", r" \1 ", line)
    found: list[Equation] = []
    goes_on = False
    for cell in (cell.strip() for cell in re.split(r"\s{2,}", line)):
        equation = _sides(cell)
        drawn = equation is not None and (
            goes_on or " ~ " in cell or not any(one.relation for one in found)
        )
        if equation is not None and drawn and not _is_range(cell):
            found.append(equation)
        elif not found or (not found[-1].relation and not found[-1].right and _readable(cell)):
            found.append(
                Equation("", "", mathml(cell), "")
                if _readable(cell) and found
                else Equation(_remark(cell.rstrip(",")), "", "", "")
            )
        else:
            found[-1] = found[-1]._replace(
                comment=", ".join(filter(None, (found[-1].comment, _remark(cell.rstrip(",")))))
            )
        goes_on = cell.endswith(",")
    yield from found


def _is_range(cell: str) -> bool:
    return re.fullmatch(r"(\w = 1\.\.\w,?\s*)+|\(\w, \w\) in \w+", cell) is not None


def _sides(cell: str) -> Equation | None:
    """A cell with a relation at its top level, split there. Clauses after a comma that are no mathematics are a comment."""
    for relation in RELATIONS:
        left, sign, right = cell.partition(f" {relation} ")
        if sign and left.count("(") == left.count(")"):
            break
    else:
        return None
    clauses = _clauses(right.rstrip(","))
    said = [clause for clause in clauses[1:] if not _readable(clause)]
    kept = [clause for clause in clauses if clause not in said]
    return Equation(
        mathml(left), mathml(relation), ", ".join(map(mathml, kept)), ", ".join(map(_remark, said))
    )


def _clauses(text: str) -> list[str]:
    """Split at commas outside all brackets."""
    depth, start, found = 0, 0, []
    for place, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [part for part in (*found, text[start:].strip()) if part]


def _remark(text: str) -> str:
    """Words, in which Greek letters and ranges such as k = 1..K are mathematics and what is between backticks is code."""
    return "".join(_piece(part, place % 2 == 1) for place, part in enumerate(_SPECIAL.split(text)))


def _piece(part: str, special: bool) -> str:
    if special and part.startswith("`"):
        return f"<code>{escape(part[1:-1])}</code>"
    return mathml(part) if special else escape(part)


_LETTER = rf"(?:{'|'.join(sorted(GREEK, key=len, reverse=True))})\d?(?:_[a-z]{{1,2}})?"
_SPECIAL = re.compile(
    rf"(`[^`]+`|\b\w = 1\.\.\w\b|^\(\w, \w\) in \w+$|\b{_LETTER}(?:' {_LETTER})?\b(?!\())"
)


# Expressions ------------------------------------------------------------------------------------------------------------------


def mathml(text: str) -> str:
    """An expression as a <math> element, or as <code> where it cannot be read."""
    try:
        return f"<math>{expression(text)}</math>"
    except Unreadable:
        return f"<code>{escape(text)}</code>"


def symbol(name: str) -> str:
    """A hyper-parameter or site: a letter with its subscript where the name is one, else code."""
    if name.endswith("_prime"):
        name = f"{name[: -len('_prime')]}'"
    base = re.sub(r"\d+$", "", name.rstrip("'"))
    return mathml(name) if base in GREEK or len(base) == 1 else f"<code>{escape(name)}</code>"


def plain(name: str) -> str:
    """The same in plain text: Greek letters and subscripts as characters."""
    match = re.fullmatch(r"([A-Za-z]+)(\d*)(_prime)?", name)
    if match is None or (match[1] not in GREEK and len(match[1]) > 1):
        return name
    digits = (
        "²" if match[1] == "sigma" and match[2] == "2" else match[2].translate(SUBSCRIPT_DIGITS)
    )
    return GREEK.get(match[1], match[1]) + digits + ("′" if match[3] else "")


def _readable(text: str) -> bool:
    try:
        expression(text)
    except Unreadable:
        return False
    return True


def expression(text: str) -> str:
    """The MathML of an expression, without <math> around it."""
    tokens = _tokens(text)
    if not tokens or sum(token.text in _CLOSING for token in tokens) > MOST_BRACKETS:
        raise Unreadable(text)
    markup, place = _sequence(tokens, 0, "")
    if place < len(tokens):
        raise Unreadable(text)
    return markup


def _tokens(text: str) -> list[Token]:
    found, place = [], 0
    text = text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or not text.isascii():
            raise Unreadable(text)
        kind = str(match.lastgroup)
        found.append(Token(kind, match[kind], match.start(kind) > place))
        place = match.end()
    return found


def _sequence(tokens: list[Token], place: int, closing: str) -> tuple[str, int]:
    """Factors and operators up to the closing bracket. Two words side by side are prose."""
    parts: list[str] = []
    previous, word = "", False  # the markup of the factor just before, and whether that was a word
    while place < len(tokens) and tokens[place].text != closing:
        token = tokens[place]
        if token.kind == "sign" and token.text not in _CLOSING:
            if token.text in ")]}_^'":
                raise Unreadable(token.text)
            markup, place = f"<mo>{escape(OPERATORS.get(token.text, token.text))}</mo>", place + 1
            if token.text == "||":
                markup, place = _scripts(tokens, place, markup, "", "")
            parts.append(markup)
            previous, word = "", False
        elif token.text in WORDS:
            parts.append(f"<mtext>&#xa0;{token.text}&#xa0;</mtext>")
            previous, place = "", place + 1
        elif token.text == "in":
            parts.append("<mo>∈</mo>")
            previous, word, place = "", False, place + 1
        else:
            is_word = token.kind == "name" and _is_word(token.text)
            if is_word and word:
                raise Unreadable(token.text)
            markup, place = _factor(tokens, place, previous)
            if previous and (token.spaced or is_word):
                parts.append('<mspace width="0.2em"></mspace>')
            parts.append(markup)
            previous, word = markup, is_word
    return "".join(parts), place


def _is_word(name: str) -> bool:
    base = name.rstrip("0123456789")
    return (
        len(base) > 1
        and base not in GREEK
        and base not in LAWS
        and base not in FUNCTIONS
        and base not in ("sum", "inf")
    )


def _factor(tokens: list[Token], place: int, previous: str) -> tuple[str, int]:
    """An atom with its scripts."""
    token = tokens[place]
    opens = place + 1 < len(tokens) and tokens[place + 1].text == "("
    digits = ""
    if token.text in _CLOSING and token.kind == "sign":
        inside, after = _bracket(tokens, place)
        base, place = (
            f"<mrow>{_fence(token.text)}{inside}{_fence(_CLOSING[token.text])}</mrow>",
            after,
        )
    elif token.text == "sum":
        return _sum(tokens, place + 1)
    elif token.kind == "number":
        bold = token.text == "1" and place + 1 < len(tokens) and tokens[place + 1].text == "_"
        base, place = f"<mn>{'𝟏' if bold else token.text}</mn>", place + 1
    else:
        base, digits, place = _name(tokens, place, opens)
    return _scripts(tokens, place, base, digits, previous)


def _fence(sign: str) -> str:
    """A bracket of the size of a letter: lines of a process are read as text."""
    return f'<mo stretchy="false">{sign}</mo>'


def _name(tokens: list[Token], place: int, opens: bool) -> tuple[str, str, int]:
    """A name's letter or word, the digits that are its subscript, and the place after it. N+( is the normal law cut off at zero."""
    match = re.fullmatch(r"([A-Za-z]+)(\d*)", tokens[place].text)
    assert match is not None
    name, digits = match[1], match[2]
    if name == "N" and [token.text for token in tokens[place + 1 : place + 3]] == ["+", "("]:
        return '<msup><mi mathvariant="normal">N</mi><mo>+</mo></msup>', "", place + 2
    if opens and name in LAWS:
        return f'<mi mathvariant="normal">{name}</mi>', digits, place + 1
    if name == "inf":
        return "<mi>∞</mi>", digits, place + 1
    return f"<mi>{GREEK.get(name, name)}</mi>", digits, place + 1


def _sum(tokens: list[Token], place: int) -> tuple[str, int]:
    if place >= len(tokens) or tokens[place].text != "_":
        return "<mo>∑</mo>", place
    index, place = _script(tokens, place + 1)
    return f"<munder><mo>∑</mo>{index}</munder>", place


def _scripts(
    tokens: list[Token], place: int, base: str, digits: str, previous: str
) -> tuple[str, int]:
    """Subscripts and superscripts that follow without a space."""
    square = base == "<mi>σ</mi>" and digits == "2"
    below = "" if square else f"<mn>{digits}</mn>" if digits else ""
    above = "<mn>2</mn>" if square else ""
    while (
        place < len(tokens) and tokens[place].text in ("_", "^", "'") and not tokens[place].spaced
    ):
        sign = tokens[place].text
        if sign == "_":
            index, place = _script(tokens, place + 1)
            below += index
        elif sign == "^":
            power, place = _script(tokens, place + 1)
            above += power
        else:
            place += 1
            above += (
                "<mo>⊤</mo>"
                if _is_factor(tokens, place) or _attach(base, below, above) == previous
                else "<mo>′</mo>"
            )
    return _attach(base, below, above), place


def _is_factor(tokens: list[Token], place: int) -> bool:
    """Whether something to multiply with begins here."""
    return (
        place < len(tokens)
        and (tokens[place].kind in ("name", "number") or tokens[place].text == "(")
        and tokens[place].text not in WORDS
    )


def _attach(base: str, below: str, above: str) -> str:
    below, above = (f"<mrow>{part}</mrow>" if part else "" for part in (below, above))
    if below and above:
        return f"<msubsup>{base}{below}{above}</msubsup>"
    return (
        f"<msub>{base}{below}</msub>" if below else f"<msup>{base}{above}</msup>" if above else base
    )


def _script(tokens: list[Token], place: int) -> tuple[str, int]:
    """What stands after _ or ^: a bracket, a signed number, or letters, each an index of its own unless they spell a Greek one."""
    if place >= len(tokens) or tokens[place].spaced:
        raise Unreadable("a script is missing")
    token = tokens[place]
    if token.kind == "sign" and token.text in "({[":
        inside, place = _bracket(tokens, place)
        return f"<mrow>{inside}</mrow>", place
    if (
        token.text == "-"
        and place + 1 < len(tokens)
        and tokens[place + 1].kind in ("number", "name")
    ):
        inside, place = _script(tokens, place + 1)
        return f"<mrow><mo>−</mo>{inside}</mrow>", place
    if token.kind == "number":
        return f"<mn>{token.text}</mn>", place + 1
    if token.kind != "name":
        raise Unreadable(token.text)
    if token.text in GREEK:
        return f"<mi>{GREEK[token.text]}</mi>", place + 1
    letters = "".join(
        f"<mn>{sign}</mn>" if sign.isdigit() else f"<mi>{sign}</mi>" for sign in token.text
    )
    return f"<mrow>{letters}</mrow>", place + 1


def _bracket(tokens: list[Token], place: int) -> tuple[str, int]:
    closing = _CLOSING[tokens[place].text]
    inside, after = _sequence(tokens, place + 1, closing)
    if after >= len(tokens):
        raise Unreadable(f"{tokens[place].text} is not closed")
    return inside, after + 1
