"""Laws of the typesetter: every model's process is read, equations come out as the papers print them, and no text breaks a page."""

import sys
from xml.etree import ElementTree

import hypothesis
import hypothesis.strategies as st
import pytest

import pp_models
from inference.report import typeset


def well_formed(markup):
    return ElementTree.fromstring(f"<p>{markup.replace('&#x2061;', '')}</p>")


def said(markup):
    """The text of some markup."""
    return "".join(well_formed(markup).itertext()).replace("\xa0", " ")


def story(name):
    return sys.modules[pp_models.load(name).log_local.__module__].__doc__


@pytest.mark.parametrize("name", pp_models.available())
def test_the_process_of_every_model_is_read(name):
    """Both sides of every equation are mathematics, none falls back to code, and something is drawn or minimised."""
    lines, rest = typeset.split_story(story(name))
    equations = typeset.process(lines)
    assert sum(bool(one.relation) for one in equations) >= (1 if name == "nmf" else 3)
    for one in equations:
        for part in one:
            well_formed(part)
        if one.relation:
            assert one.left.startswith("<math>")
            assert one.right.startswith("<math>")
            assert "<code>" not in one.left + one.relation + one.right
    assert "| here" in rest or "with" in rest.lower()
    assert not any(line.strip() in rest for line in lines)


def test_lda_reads_as_in_the_paper():
    equations = typeset.process(typeset.split_story(story("lda"))[0])
    assert [(said(one.left), said(one.relation), said(one.right)) for one in equations] == [
        ("βk", "∼", "Dirichlet(η𝟏V)"),
        ("θd", "∼", "Dirichlet(α)"),
        ("zdn", "∼", "Discrete(θd)"),
        ("wdn", "∼", "Discrete(βzdn)"),
    ]
    assert said(equations[0].comment) == "k=1…K, topics over V words"


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("alpha", "<mi>α</mi>"),
        ("theta_dk", "<msub><mi>θ</mi><mrow><mrow><mi>d</mi><mi>k</mi></mrow></mrow></msub>"),
        ("Lambda_k^-1", None),
        ("sigma2", "<msup><mi>σ</mi><mrow><mn>2</mn></mrow></msup>"),
        ("alpha1", "<msub><mi>α</mi><mrow><mn>1</mn></mrow></msub>"),
        ("offset", "<mi>offset</mi>"),
        ("x - 1", "<mi>x</mi><mo>−</mo><mn>1</mn>"),
    ],
)
def test_symbols(text, markup):
    found = typeset.expression(text)
    assert markup is None or found == markup


def test_transposes_and_primes_are_told_apart():
    assert "⊤" in typeset.expression("u_i'v_j")
    assert "⊤" in typeset.expression("ell_k' u_d")
    assert "⊤" in typeset.expression("x x'")
    assert "′" in typeset.expression("Gamma(a', b')")
    assert "⊤" not in typeset.expression("Gamma(a', b')")


def test_sums_powers_and_cut_off_normals():
    assert said(typeset.mathml("Poisson(sum_k theta_dk beta_kv)")) == "Poisson(∑kθdkβkv)"
    assert "<munder><mo>∑</mo>" in typeset.mathml("sum_k theta_dk")
    assert typeset.expression("N+(0, I / K)").startswith(
        '<msup><mi mathvariant="normal">N</mi><mo>+</mo></msup>'
    )
    power = ElementTree.fromstring(f"<math>{typeset.expression('(kappa Lambda_k)^-1')}</math>")
    assert power[0].tag == "msup"
    assert "".join(power[0][1].itertext()) == "−1"
    nested = ElementTree.fromstring(f"<math>{typeset.expression('beta_{z_dn}')}</math>")
    assert nested[0].tag == "msub"
    assert nested[0].find(".//msub") is not None


def test_prose_is_no_mathematics():
    (equation,) = typeset.process(
        [
            "mu, Lambda ~ NormalWishart(0, kappa, W, nu), W^-1 = scale I, independently for users and items"
        ]
    )
    assert said(equation.right) == "NormalWishart(0,κ,W,ν), W−1=scaleI"
    assert equation.comment == "independently for users and items"


@pytest.mark.parametrize(
    "text", ["x_", "f(x", "a ] b", "é", "two words here", "^2", "", 60 * "(" + 60 * ")"]
)
def test_what_cannot_be_read_is_shown_as_code(text):
    assert typeset.mathml(text) == f"<code>{typeset.escape(text)}</code>"


def test_names_of_hyper_parameters():
    assert said(typeset.symbol("alpha1")) == "α1"
    assert said(typeset.symbol("a_prime")) == "a′"
    assert typeset.symbol("num_topics") == "<code>num_topics</code>"
    assert [
        typeset.plain(name) for name in ("alpha1", "sigma2", "beta", "v", "num_topics", "a_prime")
    ] == ["α₁", "σ²", "β", "v", "num_topics", "a′"]


ALPHABET = st.sampled_from(
    [
        *"abkx_^'(){}[]+-*/|<>=~.,;!& \"`",
        "alpha",
        "sum_",
        "Gamma(",
        " ~ ",
        "  ",
        "N+(",
        "1..K",
        "\x00",
        "é",
        "<b>",
    ]
)


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(st.one_of(st.text(max_size=60), st.lists(ALPHABET, max_size=30).map("".join)))
def test_any_text_gives_well_formed_markup(text):
    well_formed(typeset.mathml(text))
    well_formed(typeset.symbol(text))
    for one in typeset.process([text]):
        for part in one:
            well_formed(part)
    lines, rest = typeset.split_story(f"Title.\n\n    {text}\n\nWords: {text}")
    well_formed(typeset.escape(rest + "".join(lines)))
