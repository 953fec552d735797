"""Derived seeds are reproducible, and differ if a part differs."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mathppo.seeds import derive_seed

PARTS = st.lists(st.integers(-(2**70), 2**70) | st.text(max_size=6), max_size=4)


def test_values_never_change() -> None:
    assert derive_seed(0) == 106626989726651986
    assert derive_seed(17, "sample", 3, "p17", 1) == 3937126416292622719


def _by_hand(*parts: bytes) -> int:
    joined = b"".join(
        kind_and_text[:1] + len(kind_and_text[1:]).to_bytes(8, "big") + kind_and_text[1:] for kind_and_text in parts
    )
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8, person=b"mathppo-seed").digest(), "big") // 2


def test_formula() -> None:
    assert derive_seed(5, "ä", -12) == _by_hand(b"i5", "sä".encode(), b"i-12")


@given(st.integers(), PARTS, st.integers(), PARTS)
def test_different_parts_give_different_seeds(
    seed: int, parts: list[int | str], other: int, more: list[int | str]
) -> None:
    one, two = derive_seed(seed, *parts), derive_seed(other, *more)
    assert 0 <= one < 2**63
    assert (one == two) == ((seed, parts) == (other, more))


@pytest.mark.parametrize(
    ("left", "right"), [((1, "a", "b"), (1, "ab")), ((1, 2), (1, "2")), ((12,), (1, 2)), ((1, "a"), (1, "a", ""))]
)
def test_parts_that_concatenate_to_the_same_text_differ(left: tuple, right: tuple) -> None:
    assert derive_seed(*left) != derive_seed(*right)


def test_seeds_are_uniform() -> None:
    seeds = [derive_seed(7, "sample", i) for i in range(4000)]
    assert abs(sum(seed >> 62 for seed in seeds) - 2000) < 160  # five standard deviations
    assert len({seed % 1009 for seed in seeds}) > 950  # 4000 uniform draws of 1009 values miss about 19


@pytest.mark.parametrize("part", [1.0, True, None, b"x"])
def test_other_types_raise(part: object) -> None:
    with pytest.raises(TypeError, match="expected integers and strings, got"):
        derive_seed(0, part)  # pyright: ignore[reportArgumentType]
