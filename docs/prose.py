"""Docstrings as Markdown: what is set in columns for people who read the source becomes equations, tables, lists and code.

A docstring is made of blocks with blank lines between them. An indented block is mathematics, typeset by `typeset` if all of it can be
read and shown as code if not; lines `name: meaning` are a list of terms; lines that begin with | are a table of symbols, whose column "here" holds
names to type. In running text, terms with a subscript or an operator are typeset; a Greek letter by itself stays a word, for that is the name of a
site.
"""

import inspect
import re

from inference.report import typeset

_GREEK = "|".join(sorted(typeset.GREEK, key=len, reverse=True))
_LETTER = rf"(?<![A-Za-z0-9_])(?:{_GREEK}|[A-Za-z])\d?"
_INDEX = r"_(?:[A-Za-z0-9]{1,3}(?![A-Za-z0-9_])|\{[^{}]*\})"
_POWER = r"(?:\^-?(?:\w+|\([^()]*\)))?"
_STRONG = rf"(?:(?<![A-Za-z0-9_])sum_[a-z]{{1,3}}(?![A-Za-z0-9_])|{_LETTER}(?:{_INDEX})'?{_POWER}|\b(?:log|exp)\([^()]*\))"
_WEAK = rf"(?:{_LETTER}(?![A-Za-z0-9_]){_POWER}|(?<![\w.])\d+(?:\.\d+)?(?: [A-Z](?![A-Za-z0-9_]))?{_POWER}|\([^()`,]*\){_POWER})"
_SIGN = r" ?(?:=|\+|/|~|<-|<=|->) ?| - "
_RUN = re.compile(
    rf"(?:{_STRONG}|{_WEAK})(?:(?:{_SIGN})(?:{_STRONG}|{_WEAK})| {_STRONG})*(?![\w'])"
)
_SIGNED = re.compile(_SIGN)
_FIELD = re.compile(r"^(`?[A-Za-z_]\w*`?(?:, `?[A-Za-z_]\w*`?)*(?: \(\w+\))?):\s+(?=\S)")
_FORMULA, _TAG = re.compile(r"\w_\w|\^| [-+=] "), re.compile(r"<math>.*?</math>|<[^>]*>")
_UNKNOWN = re.compile(
    r"\bint_|\bd\^?2?[A-Z]?/d"
)  # integrals and derivatives, which the typesetter does not know
_ITEM = re.compile(r"^(- |\d+\. )")


def markdown(text: str) -> str:
    """A docstring, without the indentation that it has in a function."""
    blocks = [block for block in re.split(r"\n[ \t]*\n", text.strip("\n")) if block.strip()]
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: str) -> str:
    lines = block.splitlines()
    if all(line.startswith("    ") for line in lines):
        return equations(lines, whole=True) or _code(lines)
    if lines[0].startswith("|"):
        return _table(lines)
    if lines[0].startswith(">>>"):
        return "```pycon\n" + "\n".join(lines) + "\n```"
    if _ITEM.match(lines[0]):
        return _items(lines)
    if re.match(r"[^\s:]+ {3,}\S", lines[0]):
        return _code(lines)
    return _paragraph(lines)


def _code(lines: list[str]) -> str:
    return "```text\n" + inspect.cleandoc("\n".join(["", *lines])) + "\n```"


# Mathematics -------------------------------------------------------------------------------------------------------------------


def equations(lines: list[str], whole: bool = False) -> str:
    """Lines of mathematics as a table. `whole`: nothing if some of it would have to be shown as it is written."""
    if whole and any(_UNKNOWN.search(line) for line in lines):
        return ""
    found = typeset.process(_joined(lines))
    if whole and not all(
        one.relation
        and "<code>" not in one.left + one.right
        and not _FORMULA.search(_TAG.sub("", one.comment))
        for one in found
    ):
        return ""
    rows = "".join(_row(one) for one in found)
    return f'<div class="equations"><table class="lines"><tbody>{rows}</tbody></table></div>'


def _joined(lines: list[str]) -> list[str]:
    """Lines that go on with an operator belong to the one before."""
    joined: list[str] = []
    for line in lines:
        if joined and re.match(r"\s+[-+] ", line):
            joined[-1] = f"{joined[-1].rstrip()} {line.strip()}"
        else:
            joined.append(line)
    return [re.sub(r"\.$", "", line.rstrip()) for line in joined]


def _row(one: typeset.Equation) -> str:
    if not one.relation and not one.right:
        return f'<tr><td class="case" colspan="4">{one.left}</td></tr>'
    return f'<tr><td class="left">{one.left}</td><td>{one.relation}</td><td>{one.right}</td><td class="comment">{one.comment}</td></tr>'


def inline(text: str) -> str:
    """Running text: code between backticks, mathematics where it is safe to tell, and nothing else that Markdown would take for its own."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if place % 2 else _words(part) for place, part in enumerate(parts))


def _words(text: str) -> str:
    found, end = [], 0
    for match in _RUN.finditer(text):
        if _is_whole(text[: match.start()], text[match.end() :]) and _is_mathematics(match[0]):
            found += [plain(text[end : match.start()]), typeset.mathml(match[0])]
            end = match.end()
    return "".join([*found, plain(text[end:])])


def _is_whole(before: str, after: str) -> bool:
    """Whether what stands on either side is words or punctuation, not the rest of a formula."""
    left, right = re.search(r"(\S*?)( ?)(\(?)$", before), re.match(r"( ?)(\S*)", after)
    assert left is not None and right is not None
    if (left[1] and not left[2]) or (right[2] and not right[1] and right[2][0] not in ".,;:)"):
        return False
    return not (_looks_mathematical(left[1]) or (right[1] and _looks_mathematical(right[2])))


def _looks_mathematical(word: str) -> bool:
    if word.endswith((".", ",", ";", ":")) and not re.search(r"[_^=<\[]", word):
        return False
    letter = rf"(?:{_GREEK}|[A-Zb-z]|log|exp|det)\d?'?"
    return re.fullmatch(rf"{letter}|[-+=~/<>|*]+|<-|->", word.strip(",.;:()")) is not None or bool(
        re.search(r"\w_|\^|[\[\]<>=|]|\w'\w?$|^\(.*[-+/]", word)
    )


def _is_mathematics(run: str) -> bool:
    """A word that happens to be a letter is none."""
    words = (
        set(re.findall(r"[A-Za-z]{2,}", re.sub(r"_\w+|_\{[^}]*\}", "", run)))
        - set(typeset.GREEK)
        - {"log", "exp", "sum"}
    )
    if (
        words
        or re.match(r"[A-Za-z] [A-Za-z]", run)
        or not (re.search(_STRONG, run) or (_SIGNED.search(run) and re.search(r"[A-Za-z]", run)))
    ):
        return False
    try:
        typeset.expression(run)
    except typeset.Unreadable:
        return False
    return True


def plain(text: str) -> str:
    """Text that Markdown leaves as it is."""
    return "".join(f"&#{ord(sign)};" if sign in r"\`*_{}[]#|$~^=+!<>&" else sign for sign in text)


# Text --------------------------------------------------------------------------------------------------------------------------


def _items(lines: list[str]) -> str:
    joined: list[str] = []
    for line in lines:
        if _ITEM.match(line):
            joined.append(line)
        else:
            joined[-1] += f" {line.strip()}"
    return "\n".join(
        f"{_ITEM.match(line)[0]}{inline(line[_ITEM.match(line).end() :])}" for line in joined
    )  # type: ignore[index, union-attr]


def _paragraph(lines: list[str]) -> str:
    """Running text, and below or in place of it a list of terms."""
    said: list[str] = []
    terms: list[list[str]] = []
    for line in lines:
        match = _FIELD.match(line)
        begins = not said or said[-1].endswith(
            (".", ":", ";", ")")
        )  # or it is a sentence whose second line happens to look like a term
        if match and (terms or (begins and (match[1][0].islower() or match[1][0] in "_`"))):
            terms.append([match[1].replace("`", ""), line[match.end() :]])
        elif terms:
            terms[-1][1] += f" {line.strip()}"
        else:
            said.append(line.strip())
    text = inline(" ".join(said))
    if len(terms) == 1 and not said and len(terms[0][1]) < 30:
        return inline(" ".join(line.strip() for line in lines))
    listed = "\n\n".join(f"`{name}`\n:   {inline(meaning)}" for name, meaning in terms)
    return "\n\n".join(part for part in (text, listed) if part)


def cells(line: str) -> list[str]:
    """Of a row of a table in Markdown."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _table(lines: list[str]) -> str:
    heads = cells(lines[0])
    body = [_table_row(heads, cells(line)) for line in lines[2:]]
    return "\n".join(
        ["| " + " | ".join(map(inline, heads)) + " |", "|" + " --- |" * len(heads), *body]
    )


def _table_row(heads: list[str], row: list[str]) -> str:
    shown = (
        _name(cell) if head == "here" else term(cell) for head, cell in zip(heads, row, strict=True)
    )
    return "| " + " | ".join(shown) + " |"


def _name(cell: str) -> str:
    return f"`{cell}`" if cell else ""


def term(cell: str) -> str:
    """A symbol, or words about one."""
    if cell in ("", "-"):
        return cell.replace("-", "–")
    if (
        set(re.findall(r"[A-Za-z]{2,}", re.sub(r"_\w+", "", cell)))
        - typeset.LAWS
        - typeset.FUNCTIONS
        - set(typeset.GREEK)
    ):
        return inline(cell)
    try:
        typeset.expression(cell)
    except typeset.Unreadable:
        return inline(cell)
    return typeset.mathml(cell)
