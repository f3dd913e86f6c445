"""Identity: digests that are stable and differ where requests differ."""

import hashlib
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from carnator_core import identity
from carnator_core.identity import HardKey, digest, pooled_text, sampled_digest, sampled_digest_of, tensor_digest
from support.paths import ROOT

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
fields = st.dictionaries(st.text(min_size=1, max_size=6), st.text(max_size=6), max_size=5)
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


@given(plain, plain)
def test_digests_of_plain_values_are_equal_only_for_equal_values(a: object, b: object) -> None:
    assert digest(a) == digest(a)
    # repr tells 1 from True, which Python's == does not
    assert (digest(a) == digest(b)) == (_canonical(a) == _canonical(b))


def _canonical(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{k!r}:{_canonical(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    return repr(value)


def test_a_digest_does_not_depend_on_the_order_of_a_dictionary() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_a_digest_depends_on_where_its_parts_end() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")


def test_a_digest_is_the_same_in_another_process() -> None:
    code = (
        "import torch; from carnator_core.identity import digest, tensor_digest, HardKey;"
        "print(digest(1, 'a', {'b': [2.5, None]}), tensor_digest(torch.arange(6.).view(2, 3)),"
        "HardKey.of({'b': '2', 'a': '1'}).digest)"
    )
    expected = (
        digest(1, "a", {"b": [2.5, None]}),
        tensor_digest(torch.arange(6.0).view(2, 3)),
        HardKey.of({"b": "2", "a": "1"}).digest,
    )
    environ = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert tuple(run.stdout.split()) == expected


@given(st.lists(st.floats(-10, 10, width=16), min_size=1, max_size=12), st.sampled_from(DTYPES), st.data())
def test_a_tensor_digest_sees_every_value(values: list[float], dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = torch.tensor(values).to(dtype)
    at = data.draw(st.integers(0, len(values) - 1))
    other = tensor.clone()
    other[at] = ~other[at] if dtype is torch.bool else other[at] + 1
    assert tensor_digest(tensor) == tensor_digest(tensor.clone())
    assert tensor_digest(tensor) != tensor_digest(other)


@given(st.integers(17, 80), st.data())
def test_a_tensor_digest_in_pieces_sees_every_value_and_its_place(count: int, data: st.DataObject) -> None:
    at, other = (data.draw(st.integers(0, count - 1)) for _ in "ab")
    tensor = torch.arange(count, dtype=torch.uint8)
    changed, swapped = tensor.clone(), tensor.clone()
    changed[at] += 1
    swapped[[at, other]] = tensor[[other, at]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "PIECE_BYTES", 16)
        assert tensor_digest(tensor) == tensor_digest(tensor.clone()) != tensor_digest(changed)
        assert (tensor_digest(tensor) == tensor_digest(swapped)) == (at == other)


def test_a_tensor_digest_sees_shape_and_dtype() -> None:
    zeros = torch.zeros(6)
    variants = [
        zeros,
        zeros.view(2, 3),
        zeros.view(3, 2),
        zeros.half(),
        zeros.int(),
        torch.zeros(7),
        torch.zeros(()),
    ]
    assert len({tensor_digest(v) for v in variants}) == len(variants)


def test_a_tensor_digest_is_about_values_and_not_about_memory_layout() -> None:
    matrix = torch.arange(12.0).view(3, 4)
    assert tensor_digest(matrix.T) == tensor_digest(matrix.T.contiguous())


@given(st.integers(1, 5000), st.integers(0, 4))
def test_a_sampled_digest_sees_a_change_of_all_values(size: int, seed: int) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    assert sampled_digest(tensor) == sampled_digest(tensor.clone())
    assert sampled_digest(tensor) != sampled_digest(tensor + 0.5)
    assert sampled_digest(tensor) != sampled_digest(tensor.double())
    assert sampled_digest(tensor) != sampled_digest(tensor[None])


class Reads(TorchDispatchMode):
    """Counts the values that are taken out of a large tensor; views take none."""

    def __init__(self, size: int):
        super().__init__()
        self.size, self.values = size, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        large = torch.is_tensor(args[0]) and args[0].numel() >= self.size
        if large and out.untyped_storage().data_ptr() != args[0].untyped_storage().data_ptr():
            self.values += out.numel()
        return out


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_sampled_digest_takes_256_values_out_of_a_large_tensor(contiguous: bool) -> None:
    tensor = torch.zeros(1000, 1000) if contiguous else torch.zeros(1000, 1000).T
    with Reads(1_000_000) as reads:
        sampled_digest(tensor)
    assert reads.values == 256


def test_many_tensors_in_one_digest_are_told_apart_by_name_and_place() -> None:
    one, two = torch.zeros(5), torch.ones(5)
    variants = [
        [("a", one), ("b", two)],
        [("a", two), ("b", one)],
        [("b", one), ("a", two)],
        [("a", one), ("c", two)],
        [("a", torch.zeros(4)), ("b", torch.cat([torch.zeros(1), two]))],
    ]
    assert len({sampled_digest_of(v) for v in variants}) == len(variants)


class Wrapped(torch.Tensor):
    """A quantised tensor as torch and its users make them: two inner tensors, no data of its own."""

    def __new__(cls, values: torch.Tensor, scale: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=scale.dtype)

    def __init__(self, values: torch.Tensor, scale: torch.Tensor):
        self.values_, self.scale_ = values, scale

    def __tensor_flatten__(self):
        return ["values_", "scale_"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError("only its inner tensors can be read")


def test_a_sampled_digest_sees_the_inner_tensors_of_a_wrapped_one() -> None:
    values, scale = torch.arange(6, dtype=torch.uint8), torch.tensor(0.5)
    first = sampled_digest(Wrapped(values, scale))
    assert first == sampled_digest(Wrapped(values.clone(), scale.clone()))
    assert first != sampled_digest(Wrapped(values + 1, scale))
    assert first != sampled_digest(Wrapped(values, scale * 2))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.bfloat16])
def test_a_sampled_digest_reads_every_kind_of_weight(dtype: torch.dtype) -> None:
    zeros = torch.zeros(40, 40, dtype=dtype)
    assert sampled_digest(zeros) != sampled_digest(torch.ones(40, 40).to(dtype))


@given(fields, fields)
def test_hard_keys_are_equal_exactly_if_no_field_differs(a: dict, b: dict) -> None:
    mine, theirs = HardKey.of(a), HardKey.of(b)
    expected = sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))
    assert mine.differs_in(theirs) == theirs.differs_in(mine) == expected
    assert (mine == theirs) == (mine.digest == theirs.digest) == (not expected)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"video size", "seed", "input latent"}, ["video size"]),
        ({"steps", "scheduler", "probe"}, ["steps"]),
        ({"shift", "scheduler", "probe"}, ["shift"]),
        ({"sampler", "probe", "CFG"}, ["CFG", "sampler"]),
        ({"scheduler", "seed"}, ["scheduler", "seed"]),
        ({"probe"}, ["probe"]),
    ],
)
def test_a_field_that_only_follows_from_another_is_not_blamed(changed: set[str], named: list[str]) -> None:
    names = ("video size", "seed", "input latent", "steps", "scheduler", "shift", "sampler", "probe", "CFG")
    before = HardKey.of(dict.fromkeys(names, "1"))
    after = HardKey.of({name: "2" if name in changed else "1" for name in names})
    assert before.differs_in(after) == named


def test_a_hard_key_does_not_depend_on_the_order_of_its_fields() -> None:
    assert HardKey.of({"a": "1", "b": "2"}) == HardKey.of({"b": "2", "a": "1"})


def test_pooled_text_ignores_padding_rows() -> None:
    text = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([text, torch.zeros(1, 7, 8)], dim=1)
    torch.testing.assert_close(pooled_text(padded), pooled_text(text))


@given(st.integers(1, 6), st.integers(1, 16), st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
def test_pooled_text_has_unit_length_and_float32(tokens: int, width: int, dtype: torch.dtype) -> None:
    pooled = pooled_text(torch.rand(1, tokens, width, generator=torch.Generator().manual_seed(1)).to(dtype) + 0.1)
    assert pooled.dtype == torch.float32 and pooled.shape == (width,)
    torch.testing.assert_close(pooled.norm(), torch.tensor(1.0))


def test_pooled_text_without_a_token_is_zero_and_finite() -> None:
    assert torch.equal(pooled_text(torch.zeros(1, 4, 8)), torch.zeros(8))


def test_digests_are_short_hexadecimal_words() -> None:
    for word in (digest("x"), tensor_digest(torch.zeros(2)), sampled_digest(torch.zeros(2))):
        assert len(word) == 2 * hashlib.blake2b(digest_size=16).digest_size
        assert set(word) <= set("0123456789abcdef")


def test_a_sampled_digest_sees_every_column_of_a_square_matrix() -> None:
    one = torch.zeros(256, 256)
    two = one.clone()
    two[:, 1:] = 1.0
    assert sampled_digest(one) != sampled_digest(two)
