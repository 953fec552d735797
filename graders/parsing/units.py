r"""Units of measurement: spellings, dimensions, and the exact conversion factor of two units.

The canonical form of a unit is a string of symbols with powers, joined by spaces: `cm^2`, `m s^-1`, `$`. A word that
is not a known unit becomes `~word`: it names what is counted.
"""

import re
from fractions import Fraction
from types import MappingProxyType

_SPELLINGS = (
    "m: m meter meters metre metres; cm: cm cms centimeter centimeters centimetre centimetres; "
    "mm: mm millimeter millimeters millimetre millimetres; km: km kms kilometer kilometers kilometre kilometres; "
    "um: um micrometer micrometers micron microns; nm: nm nanometer nanometers; in: inch inches; ft: ft feet foot; "
    "yd: yd yard yards yds; mi: mi mile miles; angstrom: angstrom angstroms Å; s: s sec secs second seconds; "
    "ms: ms millisecond milliseconds; min: min mins minute minutes; h: h hr hrs hour hours; day: day days; "
    "week: week weeks; year: year years yr yrs; month: month months; kg: kg kgs kilogram kilograms kilo kilos; "
    "g: g gram grams gm gms; mg: mg milligram milligrams; t: tonne tonnes; lb: lb lbs pound pounds; "
    "oz: oz ounce ounces; ton: ton tons; l: l L liter liters litre litres; "
    "ml: ml mL milliliter milliliters millilitre millilitres; gal: gal gallon gallons; qt: qt quart quarts; "
    "pt: pint pints; cup: cup cups; N: N newton newtons; J: J joule joules; kJ: kJ kilojoule kilojoules; "
    "W: W watt watts; kW: kW kilowatt kilowatts; Pa: Pa pascal pascals; kPa: kPa; Hz: Hz hertz; kHz: kHz; "
    "MHz: MHz; V: V volt volts; A: A amp amps ampere amperes; ohm: ohm ohms Ω; C: coulomb coulombs; eV: eV; "
    "K: K kelvin kelvins; degC: celsius; degF: fahrenheit; mol: mol mole moles; cal: cal calories; "
    "$: $ dollar dollars usd bucks; cent: cent cents ¢; €: € euro euros eur; £: £ gbp; ¥: ¥ yen yuan rmb; "
    "₹: ₹ rs rupee rupees inr; degree: degree degrees deg °; rad: rad rads radian radians; "
    "%: % percent pct percentage; uA: uA μA µA; mA: mA; kA: kA; mV: mV; kV: kV; MV: MV; MW: MW megawatt megawatts; "
    "mW: mW; GW: GW; MJ: MJ megajoule megajoules; mJ: mJ; MPa: MPa; GPa: GPa; atm: atm atmosphere atmospheres; "
    "kN: kN; GHz: GHz; keV: keV; MeV: MeV; GeV: GeV; uF: uF μF µF; kohm: kΩ; ns: ns; us: μs µs; ug: μg µg; "
    "kcal: kcal; kWh: kWh; Wh: Wh; rpm: rpm; mpg: mpg; knot: knot knots; T: tesla teslas; mph: mph; kph: kph kmh; "
    "dozen: dozen dozens; ha: hectare hectares; acre: acre acres"
)
"""Canonical symbol and spellings of each unit."""
_SYMBOL = MappingProxyType(
    {word: symbol for unit in _SPELLINGS.split("; ") for symbol, words in [unit.split(": ")] for word in words.split()}
)
_LOWER = MappingProxyType({word.lower(): symbol for word, symbol in _SYMBOL.items() if len(word) > 1})

_F = Fraction
_SCALE = MappingProxyType(
    {
        "length": {"m": _F(1), "cm": _F(1, 100), "mm": _F(1, 1000), "km": _F(1000), "um": _F(1, 10**6)}
        | {"nm": _F(1, 10**9), "in": _F(254, 10000), "ft": _F(3048, 10000), "yd": _F(9144, 10000)}
        | {"mi": _F(1609344, 1000), "angstrom": _F(1, 10**10)},
        "time": {"s": _F(1), "ms": _F(1, 1000), "min": _F(60), "h": _F(3600), "day": _F(86400), "week": _F(604800)},
        "calendar": {"month": _F(1), "year": _F(12)},
        "mass": {"kg": _F(1), "g": _F(1, 1000), "mg": _F(1, 10**6), "t": _F(1000)}
        | {"lb": _F(45359237, 10**8), "oz": _F(45359237, 16 * 10**8), "ton": _F(2000 * 45359237, 10**8)},
        "volume": {"l": _F(1), "ml": _F(1, 1000), "gal": _F(3785411784, 10**9), "qt": _F(946352946, 10**9)}
        | {"pt": _F(473176473, 10**9), "cup": _F(473176473, 2 * 10**9)},
        "dollars": {"$": _F(1), "cent": _F(1, 100)},
        "current": {"A": _F(1), "mA": _F(1, 1000), "uA": _F(1, 10**6), "kA": _F(1000)},
    }
)
"""Size of each unit in the base unit of its dimension."""
_ELECTRON_VOLT = _F(1602176634, 10**28)
_DERIVED = MappingProxyType(
    {name: ("kg m s^-2", _F(size)) for name, size in {"N": 1, "kN": 1000}.items()}
    | {name: ("kg m^2 s^-2", _F(size)) for name, size in {"J": 1, "kJ": 1000, "MJ": 10**6}.items()}
    | {"mJ": ("J", _F(1, 1000)), "cal": ("J", _F(4184, 1000)), "kcal": ("kJ", _F(4184, 1000))}
    | {"Wh": ("J", _F(3600)), "kWh": ("MJ", _F(36, 10)), "eV": ("J", _ELECTRON_VOLT)}
    | {name: ("eV", _F(size)) for name, size in {"keV": 1000, "MeV": 10**6, "GeV": 10**9}.items()}
    | {name: ("kg m^2 s^-3", _F(size)) for name, size in {"W": 1, "kW": 1000, "MW": 10**6, "GW": 10**9}.items()}
    | {name: ("kg m^-1 s^-2", _F(size)) for name, size in {"Pa": 1, "kPa": 1000, "MPa": 10**6, "GPa": 10**9}.items()}
    | {"mW": ("W", _F(1, 1000)), "atm": ("Pa", _F(101325))}
    | {name: ("s^-1", _F(size)) for name, size in {"Hz": 1, "kHz": 1000, "MHz": 10**6, "GHz": 10**9}.items()}
    | {"rpm": ("min^-1", _F(1)), "C": ("A s", _F(1)), "T": ("kg s^-2 A^-1", _F(1)), "V": ("W A^-1", _F(1))}
    | {"mV": ("V", _F(1, 1000)), "kV": ("V", _F(1000)), "MV": ("V", _F(10**6)), "ohm": ("V A^-1", _F(1))}
    | {"kohm": ("ohm", _F(1000)), "ns": ("s", _F(1, 10**9)), "us": ("s", _F(1, 10**6)), "ug": ("g", _F(1, 10**6))}
    | {"mph": ("mi h^-1", _F(1)), "kph": ("km h^-1", _F(1)), "mpg": ("mi gal^-1", _F(1)), "knot": ("m h^-1", _F(1852))}
    | {"ha": ("m^2", _F(10**4)), "acre": ("m^2", _F(40468564224, 10**7))}
)
"""Each derived unit as a product of other units and a factor."""
_GENERIC = frozenset("unit units square-units each total times measure answer x".split())
"""Words that name nothing in particular: a unit of these words agrees with any unit."""
_DIMENSION = MappingProxyType(
    {unit: (name, factor) for name, units in _SCALE.items() for unit, factor in units.items()}
)

SINGLE_LETTER_UNITS = frozenset(word for word in _SYMBOL if len(word) == 1 and word.isalpha())
_PART = re.compile(r"([A-Za-zÅΩ$€£¥₹%°¢]+)(?:\^?\{?(-?\d)\}?)?")
_NOT_IN_UNITS = frozenset(
    "or and not no nor is isn isnt are was were be maybe perhaps if but than then least most about approximately "
    "around between either neither except wrong incorrect correct right answer answers choice option any all none "
    "other also possibly probably unless without never plus minus times divided mod over squared-root dont know "
    "undefined infinite infinity some only when where for each-other false true yes".split()
)
MULTIPLIERS = MappingProxyType(
    {"hundred": "100", "thousand": "1000", "million": "1000000", "billion": "1000000000", "trillion": "1000000000000"}
)
ORDINALS = frozenset({"st", "nd", "rd", "th"})
MAX_UNIT_WORDS = 5


def known_symbol(word: str) -> str | None:
    """Return the canonical symbol of a spelled unit, or None."""
    return _SYMBOL.get(word) or _LOWER.get(word.lower())


def canonical_unit(phrase: str) -> str | None:
    """Return the canonical form of a unit phrase such as `square inches`, `cm^2`, `miles per hour` or `apples`.

    Returns:
        None if the phrase is not a unit: it is too long, or has a word that changes the meaning, such as "not" or "or".
    """
    parts = _split_phrase(phrase)
    if not parts or len(parts) > 2 * MAX_UNIT_WORDS:
        return None
    powers: dict[str, int] = {}
    sign, power = 1, 1
    for at, part in enumerate(parts):
        if part == "/":
            sign = -1
        elif part.lower() in ORDINALS:
            powers["~th"] = 1
        elif part.lower() in ("square", "cubic"):
            power = 2 if part.lower() == "square" else 3
        elif part.lower() in ("squared", "cubed"):
            if powers:
                powers[next(reversed(powers))] *= 2 if part.lower() == "squared" else 3
        else:
            match = _PART.fullmatch(part)
            if match is None or part.lower() in _NOT_IN_UNITS:
                return None
            measured = len(parts) == 1 or power > 1 or "/" in (parts[at - 1], *parts[at + 1 : at + 2]) or match[2]
            inch = match[1] == "in" and measured  # among other words it is a preposition
            symbol = "in" if inch else known_symbol(match[1]) or f"~{match[1].lower()}"
            powers[symbol] = powers.get(symbol, 0) + sign * power * int(match[2] or 1)
            power = 1
    if powers.keys() & {"degC", "degF", "K"}:
        powers.pop("degree", None)
    known = {symbol: exponent for symbol, exponent in powers.items() if symbol[0] != "~"}
    chosen = known or powers
    if not chosen:
        return "~square units" if power > 1 else None
    return " ".join(sorted(s if p == 1 else f"{s}^{p}" for s, p in chosen.items()))


def _split_phrase(phrase: str) -> list[str]:
    """Return the words of a unit phrase, with `square`, `cubic` and `/` as separate words."""
    text = re.sub(r"(?<=[A-Za-z])-(?=[A-Za-z])", " ", phrase).replace("^{", "^").replace("·", " ")
    text = re.sub(r"[\\~.,(){}*]", " ", text)
    text = re.sub(r"\b(sq|cu)\b", lambda short: {"sq": "square", "cu": "cubic"}[short[1]], text)
    text = re.sub(r"\b(square|cubic)(?=[a-z])(?!d\b)", r"\1 ", text)
    return re.sub(r"\bper\b|\ban? (?=hour|second|minute|day|week|month|year)|/", " / ", text).split()


def is_unit(text: str) -> bool:
    """Return True if the text consists of known units, such as `m/s` or `cm^2`."""
    words = re.findall(r"[A-Za-zÅΩ]+", text)
    return (
        bool(words)
        and all(known_symbol(word) for word in words)
        and re.fullmatch(r"[A-Za-zÅΩ/^{}\-\d~\s\\,.]+", text) is not None
    )


def conversion(source: str, target: str) -> Fraction | None:
    """Return the factor from `source` to `target`, or None if their dimensions differ.

    Words for what is counted convert to each other with factor 1, because one thing has many names; they do not
    convert to a known unit.
    """
    if source == target or _is_generic(source) or _is_generic(target):
        return Fraction(1)
    if source.startswith("~") or target.startswith("~"):
        return Fraction(1) if source.startswith("~") and target.startswith("~") else None
    from_base, to_base = _in_base(source), _in_base(target)
    if from_base is None or to_base is None or from_base[0] != to_base[0]:
        return None
    return from_base[1] / to_base[1]


def _is_generic(unit: str) -> bool:
    return unit.startswith("~") and set(re.findall(r"[a-z]+", unit)) <= _GENERIC | {"square"}


def _in_base(unit: str) -> tuple[dict[str, int], Fraction] | None:
    """Return the powers of the base dimensions of a unit and its size in base units; None if a symbol is unknown."""
    dimensions: dict[str, int] = {}
    factor = Fraction(1)
    stack = [(part, 1) for part in unit.split()]
    while stack:
        part, times = stack.pop()
        symbol, _, power = part.partition("^")
        exponent = int(power or 1) * times
        if abs(exponent) > 12:
            return None
        if symbol in _DERIVED:
            parts, size = _DERIVED[symbol]
            factor *= size**exponent
            stack.extend((inner, exponent) for inner in parts.split())
            continue
        if symbol not in _DIMENSION:
            return None
        name, scale = _DIMENSION[symbol]
        if name == "volume":  # a litre is a cubed decimetre
            factor *= scale**exponent
            name, scale, exponent = "length", Fraction(1, 10), 3 * exponent
        dimensions[name] = dimensions.get(name, 0) + exponent
        factor *= scale**exponent
    return {name: power for name, power in dimensions.items() if power}, factor
