r"""Vocabulary of answers: symbols, functions, operators, connectives, named answers, number words."""

from types import MappingProxyType

GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron rho varrho "
    "sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega "
    "hbar ell mho partial nabla aleph odot oplus imath jmath prime star dagger perp parallel".split()
)
CONSTANTS = MappingProxyType({"pi": "pi"} | dict.fromkeys(("infty", "infinity", "inf", "oo", "Infinity"), "infinity"))
FUNCTIONS = MappingProxyType(
    {
        name: name
        for name in "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc "
        "arsinh arcosh artanh ln log exp sqrt cbrt abs floor ceil min max gcd lcm gamma factorial binomial sgn Re Im "
        "det arg deg rad".split()
    }
    | {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "arcsinh": "arsinh", "arccosh": "arcosh", "tg": "tan"}
    | {"arctanh": "artanh", "asinh": "arsinh", "acosh": "arcosh", "atanh": "artanh", "lg": "log10", "log10": "log10"}
    | {"log2": "log2", "cosec": "csc", "ctg": "cot", "arctg": "arctan", "comb": "binomial", "ceiling": "ceil"}
    | {"Gamma": "gamma", "sign": "sgn"}
)
LATEX_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan ln log exp min max gcd lg det arg tg ctg Re Im "
    "arsinh arcosh artanh arccot lcm".split()
)
RELATIONS = MappingProxyType(
    {"le": "≤", "leq": "≤", "leqslant": "≤", "leqq": "≤", "ge": "≥", "geq": "≥", "geqslant": "≥", "geqq": "≥"}
    | {"ne": "≠", "neq": "≠", "lt": "<", "gt": ">", "approx": "≈", "simeq": "≈", "cong": "≅", "sim": "∼"}
    | {"in": "∈", "equiv": "≡", "subset": "⊂", "subseteq": "⊆", "propto": "∝", "notin": "∉", "perp": "⊥"}
    | {"parallel": "∥", "doteq": "="}
)
OPERATORS = MappingProxyType(
    {"cdot": "*", "times": "*", "ast": "*", "bullet": "*", "div": "/", "pm": "±", "mp": "∓", "cup": "∪", "cap": "∩"}
    | {"bigcup": "∪", "bigcap": "∩", "setminus": "∖", "backslash": "∖", "mid": "∣", "colon": ":", "land": "and"}
    | {"lor": "or", "wedge": "and", "vee": "or", "degree": "°", "circ": "∘", "lvert": "|", "rvert": "|", "vert": "|"}
    | {"lVert": "‖", "rVert": "‖", "Vert": "‖", "choose": "choose", "over": "over", "bmod": "mod", "mod": "mod"}
)
BRACKETS = MappingProxyType(
    {"lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "langle": "⟨", "rangle": "⟩", "lbrace": "\\{"}
    | {"rbrace": "\\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")"}
)
ACCENTS = frozenset(
    "vec overrightarrow hat widehat dot ddot bar overline tilde widetilde mathring acute grave check overleftarrow "
    "overleftrightarrow".split()
)
CONNECTIVES = frozenset({"and", "or"})

SPECIAL_TEXTS = MappingProxyType(
    {
        text: meaning
        for meaning, texts in {
            "no solution": "no solution|no solutions|no real solution|no real solutions|none|empty set|the empty set|"
            "there is no solution|there are no solutions|no roots|no real roots|no values|has no solution|"
            "no such number exists|no solution exists|no solutions exist|null set|emptyset|no integer solutions",
            "undefined": "undefined|does not exist|dne|doesnt exist|not defined|do not exist|limit does not exist|"
            "indeterminate",
            "all real numbers": "all real numbers|all reals|all real x|r|real numbers|the set of all real numbers|"
            "set of real numbers|all real values|any real number|every real number|all real values of x|x is any real"
            " number|all x",
            "infinitely many": "infinitely many|infinitely many solutions|infinite|infinite solutions|"
            "infinite number of solutions|an infinite number of solutions|infinity many",
            "yes": "yes|true|correct|yes it is|it is true",
            "no": "no|false|incorrect|no it is not|it is false",
        }.items()
        for text in texts.split("|")
    }
)
"""Named answers: canonical text and its meaning."""

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen".split()
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBER_WORDS = MappingProxyType(
    {word: value for value, word in enumerate(_ONES)}
    | {word: 10 * value for value, word in enumerate(_TENS, start=2)}
    | {
        f"{ten} {unit}": 10 * ten_value + unit_value
        for ten_value, ten in enumerate(_TENS, start=2)
        for unit_value, unit in enumerate(_ONES[1:10], start=1)
    }
    | {"one hundred": 100, "hundred": 100, "dozen": 12, "one dozen": 12, "two dozen": 24, "one thousand": 1000}
)
