"""One ASCII or LaTeX spelling for every Unicode sign that mathematics is written with."""

import re

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ", "0123456789+-()n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξορστυφχψωΔΩΣΦΘϕℓ",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi "
        "chi psi omega Delta Omega Sigma Phi Theta phi ell".split(),
        strict=True,
    )
)
_COMMANDS = dict(
    zip(
        "√∛π∞∅⌊⌋⌈⌉⟨⟩…⋯∣≅∑∏∠△",
        "sqrt cbrt pi infty emptyset lfloor rfloor lceil rceil langle rangle dots dots mid cong sum prod angle "
        "triangle".split(),
        strict=True,
    )
)
_SIGNS = dict(zip("−–—‐‑×·⋅∗∙•÷∕⁄≦≧⩽⩾", "-----******///≤≥≤≥", strict=True))
_FULL_WIDTH = dict(zip("：；（）［］＝．％", ":;()[]=.%", strict=True))
_QUOTES = {"′": "'", "’": "'", "″": "''", "“": '"', "”": '"'}
_SPACES = {"\u00a0": " ", "\u2009": "\\,", "\u202f": "\\,", "\u200b": "", "\u2061": "", "\ufeff": "", "\u2062": "*"}
_OTHERS = {"，": ", ", "｛": "\\{", "｝": "\\}", "º": "°", "˚": "°", "∧": " and ", "∨": " or "}
_SETS = {"ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}", "ℂ": "\\mathbb{C}"}
_FRACTIONS = {
    sign: f"\\frac{{{parts[0]}}}{{{parts[1]}}}"
    for sign, parts in zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞", "12 13 23 14 34 15 25 35 45 16 56 18 38 58 78".split(), strict=True)
}
_TABLE = str.maketrans(
    {sign: f"\\{name} " for sign, name in (_GREEK | _COMMANDS).items()}
    | (_SIGNS | _FULL_WIDTH | _QUOTES | _SPACES | _OTHERS | _SETS | _FRACTIONS)
)
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")


def normalise(text: str) -> str:
    """The text in ASCII and LaTeX where it was written with Unicode signs; linear in its length."""
    if text.isascii():
        return text
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + "".join(_SUPERSCRIPTS[sign] for sign in run.group()) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_{" + "".join(_SUBSCRIPTS[sign] for sign in run.group()) + "}", text)
    return text.translate(_TABLE)
