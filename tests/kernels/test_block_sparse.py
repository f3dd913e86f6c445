"""Block-sparse attention and block mass: the reference against plain softmax, Triton kernels against the reference.

The Triton kernels run in Triton's interpreter on the CPU, with poisoned outputs.
"""

import dataclasses
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import dispatch, reference
from kernels.block_lists import BlockLists
from support.paths import ROOT

BLOCK = 64


def random_case(heads=2, queries=200, keys=330, head_dim=64, density=0.4, batch=1, seed=0, dtype=torch.float32):
    random = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, queries, heads * head_dim, generator=random).to(dtype)
    # Keys and values as one projection gives them: slices with a row stride of twice their width.
    fused = torch.randn(batch, keys, 2 * heads * head_dim, generator=random).to(dtype)
    k, v = fused.chunk(2, dim=-1)
    mask = torch.rand(heads, -(-queries // BLOCK), -(-keys // BLOCK), generator=random) < density
    return q, k, v, mask


def dense_softmax(q, k, v, mask):
    """float64, scores of skipped blocks at −inf; rows without a key are zero."""
    heads = mask.shape[0]
    query, key, value = (reference.split_heads(x.double(), heads) for x in (q, k, v))
    kept = mask.repeat_interleave(BLOCK, 1)[:, : q.shape[1]].repeat_interleave(BLOCK, 2)[..., : k.shape[1]]
    scores = (query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])).masked_fill(~kept, -math.inf)
    return torch.nan_to_num(torch.softmax(scores, -1)) @ value


def naive_mass(q, k, heads):
    """float64, block by block."""
    query, key = (reference.split_heads(x[None].double(), heads)[0] for x in (q, k))
    weights = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]), -1)
    by_key = torch.stack([part.sum(-1) for part in weights.split(BLOCK, dim=-1)], dim=-1)
    return torch.stack([part.mean(1) for part in by_key.split(BLOCK, dim=1)], dim=1)


def relative(out, expected, heads):
    return float((reference.split_heads(out.double(), heads) - expected).norm() / expected.norm())


@given(st.integers(1, 3), st.integers(1, 300), st.integers(1, 300), st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_reference_equals_a_masked_softmax(heads, queries, keys, density, seed) -> None:
    q, k, v, mask = random_case(heads, queries, keys, 16, density, seed=seed)
    mask[0, 0] = True
    out = reference.attend(q, k, v, BlockLists.of(mask, BLOCK))
    assert relative(out, dense_softmax(q, k, v, mask), heads) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_with_every_block_kept_the_reference_is_dense_attention(dtype) -> None:
    q, k, v, mask = random_case(2, 150, 330, 64, 1.0, batch=2, dtype=dtype)
    out = reference.attend(q, k, v, BlockLists.of(torch.ones_like(mask), BLOCK))
    dense = F.scaled_dot_product_attention(*(reference.split_heads(x.float(), 2) for x in (q, k, v)))
    assert out.dtype == dtype and out.is_contiguous() and out.shape == q.shape
    torch.testing.assert_close(out, dense.transpose(1, 2).flatten(2).to(dtype), atol=1e-5, rtol=2e-2)


def test_rows_without_a_block_are_zero_whatever_the_inputs() -> None:
    q, k, v, mask = random_case(2, 200, 330, 16)
    mask[0, 1], mask[1] = False, False
    out = reference.split_heads(reference.attend(q, k, v, BlockLists.of(mask, BLOCK)), 2)
    assert not out[0, 0, BLOCK : 2 * BLOCK].any() and not out[0, 1].any()
    assert out[0, 0, :BLOCK].any()


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0, 1), st.integers(1, 10**6))
@settings(max_examples=25, deadline=None)
def test_how_much_is_computed_at_a_time_changes_nothing(queries, keys, density, chunk) -> None:
    q, k, v, mask = random_case(2, queries, keys, 16, density)
    lists = BlockLists.of(mask, BLOCK)
    expected = reference.attend(q, k, v, lists), reference.block_mass(q[0], k[0], 2, BLOCK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "CHUNK_BYTES", chunk)
        found = reference.attend(q, k, v, lists), reference.block_mass(q[0], k[0], 2, BLOCK)
    torch.testing.assert_close(found, expected)


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 9), st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_lists_hold_exactly_their_mask_longest_row_first(heads, query_blocks, key_blocks, density, seed) -> None:
    random = torch.Generator().manual_seed(seed)
    mask = torch.rand(heads, query_blocks, key_blocks, generator=random) < density
    lists = BlockLists.of(mask, BLOCK)
    assert torch.equal(lists.mask(), mask)
    in_order = lists.counts[lists.order.long()]
    assert torch.equal(in_order, in_order.sort(descending=True).values)
    assert lists.density == pytest.approx(float(mask.float().mean()))


@given(st.integers(1, 9), st.integers(1, 12), st.floats(0, 1), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_lists_take_no_more_room_than_rows_are_said_to_keep(key_blocks, most, density, seed) -> None:
    random = torch.Generator().manual_seed(seed)
    mask = torch.rand(2, 3, key_blocks, generator=random) < density
    lists = BlockLists.of(mask, BLOCK, most)
    assert lists.indices.shape == (6, min(most, key_blocks))
    first = mask & (mask.cumsum(-1) <= most)
    assert torch.equal(lists.mask(), first), "of a row that keeps more, the first ones"


def test_lists_of_other_sizes_are_refused() -> None:
    q, k, v, mask = random_case()
    with pytest.raises(ValueError, match="do not fit"):
        reference.attend(q, k[:, :100], v[:, :100], BlockLists.of(mask, BLOCK))
    with pytest.raises(ValueError, match="block mask"):
        BlockLists.of(mask.float(), BLOCK)


@pytest.mark.parametrize("queries, keys, density", [(200, 330, 0.4), (64, 256, 1.0), (130, 70, 0.5), (3, 5, 1.0)])
def test_the_triton_kernel_equals_the_reference(triton_kernels, poisoned, queries, keys, density) -> None:
    q, k, v, mask = random_case(2, queries, keys, 64, density, batch=2, dtype=torch.float16)
    mask[0, 0] = True
    mask[1, -1] = False
    lists = BlockLists.of(mask, BLOCK)
    out = triton_kernels("triton_block_sparse").attend(q, k, v, lists)
    expected = reference.attend(q.float(), k.float(), v.float(), lists)
    assert float((out.float() - expected).norm() / expected.norm()) < 2e-3
    assert bool(torch.isfinite(out).all()), "every element is written"


def test_room_that_a_list_does_not_need_changes_nothing_for_the_triton_kernel(triton_kernels, poisoned) -> None:
    q, k, v, mask = random_case(2, 130, 330, 64, 0.4, dtype=torch.float16)
    most = int(mask.sum(-1).max())
    assert most < mask.shape[-1], "for this to say anything"
    attend = triton_kernels("triton_block_sparse").attend
    tight, roomy = (attend(q, k, v, BlockLists.of(mask, BLOCK, room)) for room in (most, None))
    assert torch.equal(tight, roomy)


def test_the_triton_kernels_pass_the_self_checks_that_dispatch_gives_them(triton_kernels, poisoned) -> None:
    case = dispatch.Case(torch.device("cpu"), torch.float16, 64, 64)  # the interpreter takes bfloat16 for integers
    assert dispatch._disagreement(triton_kernels("triton_block_sparse").attend, case) is None
    assert dispatch._mass_disagreement(triton_kernels("triton_block_mass").block_mass, case) is None


@pytest.mark.parametrize("programs", [512, 2])
def test_block_mass_of_the_triton_kernel_equals_the_reference(triton_kernels, poisoned, monkeypatch, programs) -> None:
    q, k, _, _ = random_case(2, 130, 200, 64, dtype=torch.float16)
    kernel = triton_kernels("triton_block_mass")
    monkeypatch.setattr(kernel, "PROGRAMS", programs)  # fewer than rows: each takes several
    mass = kernel.block_mass(q[0], k[0], 2, BLOCK)
    expected = reference.block_mass(q[0], k[0], 2, BLOCK)
    torch.testing.assert_close(mass, expected, atol=2e-4, rtol=2e-3)


@given(st.integers(1, 3), st.integers(1, 200), st.integers(1, 200), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_block_mass_is_a_distribution_over_key_blocks(heads, queries, keys, seed) -> None:
    q, k, _, _ = random_case(heads, queries, keys, 16, seed=seed)
    mass = reference.block_mass(3 * q[0], k[0], heads, BLOCK)  # so that some blocks hold much more than others
    torch.testing.assert_close(mass.sum(-1), torch.ones_like(mass[..., 0]))
    torch.testing.assert_close(mass.double(), naive_mass(3 * q[0], k[0], heads), atol=1e-6, rtol=1e-4)


def test_every_kernel_passed_over_has_its_reason() -> None:
    case = dispatch.Case(torch.device("cpu"), torch.float32, 128, 128)
    for choice, kernels in (
        (dispatch.choose(case), dispatch.KERNELS),
        (dispatch.choose_mass(case), dispatch.MASS_KERNELS),
    ):
        assert choice.name == "reference"
        assert [name for name, _ in choice.passed_over] == [k.module for k in kernels[:-1]]
        assert all("NVIDIA" in why for _, why in choice.passed_over)


def test_a_constraint_that_is_not_met_is_named() -> None:
    case = dispatch.Case(torch.device("cpu"), torch.float32, 96, 32)
    kernel = functools.partial(dispatch.Kernel, "none")
    assert dispatch.unmet(kernel(), case) is None
    assert dispatch.unmet(kernel(head_dims=(64, 128)), case) == "head dim 96 is not among 64, 128"
    assert dispatch.unmet(kernel(blocks=(64,)), case) == "block 32 is not among 64"
    assert "dtype torch.float32 is not" in dispatch.unmet(kernel(dtypes=dispatch.HALF_TYPES), case)


def test_a_kernel_for_another_gpu_is_passed_over_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = dispatch.Case(torch.device("cuda"), torch.bfloat16, 128, 128)
    by_name = {kernel.module: kernel for kernel in dispatch.KERNELS}
    for capability, usable in (
        ((7, 0), set()),
        ((8, 6), {"triton_block_sparse", "flex_block_sparse"}),
        ((9, 0), {"gluon_block_sparse", "triton_block_sparse", "flex_block_sparse"}),
        ((12, 0), {"triton_block_sparse", "flex_block_sparse"}),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        reasons = {name: dispatch.unmet(kernel, gpu) for name, kernel in by_name.items()}
        assert {name for name, why in reasons.items() if why is None} == usable | {"reference"}
        expected = f"not for compute capability {capability[0]}.{capability[1]}"
        assert {why for why in reasons.values() if why is not None} <= {expected}
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "this is ROCm" in dispatch.unmet(by_name["triton_block_sparse"], gpu)


def test_a_kernel_whose_module_cannot_be_imported_or_is_wrong_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where Triton is missing: each one passed over says why."""

    def wrong(q, k, v, lists):
        return reference.attend(q, k, v, lists) * 1.05

    wrong_module = types.SimpleNamespace(attend=wrong)
    importing = dispatch.importlib.import_module
    monkeypatch.setattr(
        dispatch.importlib,
        "import_module",
        lambda name, package: wrong_module if name == ".wrong" else importing(name, package),
    )
    kernels = tuple(dispatch.Kernel(name) for name in ("missing", "wrong", "reference", "never"))
    case = dispatch.Case(torch.device("cpu"), torch.float32, 64, 64)
    choice = dispatch._first(kernels, "attend", dispatch._disagreement, case)
    assert choice.name == "reference" and choice.function is reference.attend
    (missing, why), (bad, off) = choice.passed_over
    assert (missing, bad) == ("missing", "wrong")
    assert why.startswith("ModuleNotFoundError") and "self-check is off by" in off


def test_every_device_and_dtype_has_a_choice_of_its_own() -> None:
    device = torch.device("cpu")
    cases = [dispatch.Case(device, dtype, 64, 64) for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    for case in [*cases, dispatch.Case(device, torch.float32, 64, 32)]:
        assert dispatch.choose(case) is dispatch.choose(dataclasses.replace(case))
        assert dispatch._disagreement(dispatch.choose(case).function, case) is None
    assert len({id(dispatch.choose(case)) for case in cases}) == len(cases)


def test_kernels_stand_in_the_order_of_their_measured_speed() -> None:
    measured = json.loads((ROOT / "benchmarks" / "results" / "h200_kernels.json").read_text(encoding="utf-8"))
    rates: dict[tuple, dict[str, float]] = {}
    for row in measured["rows"]:
        if "tflops" in row:
            case = row["size"], row["rows"], row["density"]
            rates.setdefault(case, {})[row["kernel"].replace("flex_attention", "flex_block_sparse")] = row["tflops"]
    order = [kernel.module for kernel in dispatch.KERNELS]
    compared = 0
    for found in rates.values():
        present = [found[name] for name in order if name in found]
        assert present == sorted(present, reverse=True), found
        compared += len(present) > 1
    assert compared >= 20 and measured["chosen"] == order[0] and order[-1] == "reference"


def test_a_wrong_kernel_fails_its_self_check() -> None:
    case = dispatch.Case(torch.device("cpu"), torch.float32, 64, 64)
    assert dispatch._disagreement(reference.attend, case) is None
    for wrong in (
        lambda q, k, v, lists: reference.attend(q, k, v, lists) * 1.05,
        lambda q, k, v, lists: reference.attend(q, k, v, lists).masked_fill(q > 3, math.nan),
        lambda q, k, v, lists: reference.attend(q, k, v, BlockLists.of(torch.ones_like(lists.mask()), lists.block)),
    ):
        assert "self-check" in dispatch._disagreement(wrong, case)


def test_wrong_block_mass_fails_its_self_check() -> None:
    case = dispatch.Case(torch.device("cpu"), torch.float32, 64, 64)
    assert dispatch._mass_disagreement(reference.block_mass, case) is None
    for wrong in (
        lambda q, k, heads, block: reference.block_mass(q, k, heads, block).roll(1, 0),
        lambda q, k, heads, block: torch.full_like(found := reference.block_mass(q, k, heads, block), found.mean()),
        lambda q, k, heads, block: reference.block_mass(q, k, heads, block) / 0.98,
    ):
        assert "self-check" in dispatch._mass_disagreement(wrong, case)


def test_lists_reach_flex_attention_as_they_are() -> None:
    from kernels.flex_block_sparse import block_mask

    mask = random_case(3, 200, 330)[3]
    mask[0, 0] = False
    blocks = block_mask(BlockLists.of(mask, BLOCK), 200, 330)
    assert torch.equal(blocks.to_dense()[0].bool(), mask)
    assert blocks.shape == (1, 3, 200, 330)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for the CPU with g++")
def test_compiled_flex_attention_passes_its_self_check() -> None:
    from kernels import flex_block_sparse

    case = dispatch.Case(torch.device("cpu"), torch.float32, 64, 64)
    with torch.inference_mode():
        assert dispatch._disagreement(flex_block_sparse.attend, case) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_operators_work_in_inference_mode_for_rows_of_a_region(dtype) -> None:
    q, k, v, mask = random_case(2, 130, 330, 64, dtype=dtype)
    with torch.inference_mode():
        lists = BlockLists.of(mask, BLOCK)
        out = dispatch.block_sparse_attention(q, k, v, lists)
        mass = dispatch.block_mass(q[0], k[0], 2, BLOCK)
    assert out.dtype == dtype and mass.dtype == torch.float32
    limit = 1e-5 if dtype == torch.float32 else 5e-3
    assert relative(out, dense_softmax(q, k, v, mask), 2) < limit
    torch.testing.assert_close(mass.double(), naive_mass(q[0], k[0], 2), atol=1e-6, rtol=1e-4)


def test_what_sparse_attention_is_worth_is_measured_once() -> None:
    case = dispatch.Case(torch.device("cpu"), torch.float32, 64, 64)
    worth = dispatch.worthwhile(case, 200, 650, 2, 0.3)
    assert worth is dispatch.worthwhile(case, 200, 650, 2, 0.3)
    assert math.isfinite(worth.ratio) and worth.ratio > 0
    assert worth.faster == (worth.ratio >= 1 + dispatch.MARGIN)
    assert "200 × 650 tokens" in worth.sentence and "reference" in worth.sentence


def test_a_large_size_is_measured_on_fewer_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(dispatch.MOST_WORK, "cpu", 4 * 640 * 2 * 64 * 150)
    worth = dispatch.worthwhile(dispatch.Case(torch.device("cpu"), torch.float32, 64, 64), 100_000, 640, 2, 0.5)
    assert "128 × 640 tokens" in worth.sentence


@pytest.mark.parametrize("device, why", [("meta", "not measured on meta"), ("cuda:77", "it fails")])
def test_what_cannot_be_measured_is_not_worthwhile(device: str, why: str) -> None:
    worth = dispatch.worthwhile(dispatch.Case(torch.device(device), torch.float32, 64, 64), 200, 640, 2, 0.5)
    assert not worth.faster and worth.ratio == 0.0
    assert why in worth.sentence


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("none left"), RuntimeError("Triton Error: out of memory")])
def test_what_memory_was_too_short_for_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    case = dispatch.Case(torch.device("cpu"), torch.float32, 32, 64)
    dispatch._worth.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "_measured", fail)
        worth = dispatch.worthwhile(case, 200, 650, 2, 0.3)
    assert not worth.faster and worth.sentence.startswith("sparse attention is not used this time: OutOfMemoryError")
    assert dispatch.worthwhile(case, 200, 650, 2, 0.3).ratio > 0
    dispatch.choose.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(dispatch, "unmet", lambda kernel, case: None)
        patch.setattr(dispatch.importlib, "import_module", fail)
        with pytest.raises(torch.OutOfMemoryError):
            dispatch.choose(case)
    assert dispatch.choose(case).name == "reference"


def test_a_measurement_that_fails_for_another_reason_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        raise RuntimeError("no compiler")

    monkeypatch.setattr(dispatch, "_measured", fail)
    case = dispatch.Case(torch.device("cpu"), torch.float32, 16, 64)
    worth = [dispatch.worthwhile(case, 200, 650, 2, 0.3) for _ in range(2)]
    assert len(calls) == 1 and worth[0] is worth[1] and "no compiler" in worth[0].sentence
    dispatch._worth.cache_clear()


def test_the_operators_can_be_traced_without_computing() -> None:
    q, k, v, mask = random_case()
    lists = BlockLists.of(mask, BLOCK)
    args = (q, k, v, lists.indices, lists.counts, lists.order,
            lists.heads, lists.query_blocks, lists.key_blocks, lists.block)  # fmt: skip
    torch.library.opcheck(getattr(torch.ops, dispatch.NAMESPACE).attention.default, args)
    torch.testing.assert_close(dispatch.block_sparse_attention(q, k, v, lists), reference.attend(q, k, v, lists))
    torch.library.opcheck(getattr(torch.ops, dispatch.NAMESPACE).block_mass.default, (q[0], k[0], 2, BLOCK))


IMPORTED_TWICE = """
import importlib, sys, types
import torch

def load():
    from kernels import block_lists, dispatch
    return dispatch, block_lists.BlockLists.of(torch.ones(1, 2, 2, dtype=torch.bool), 64)

first = load()
for name in [name for name in sys.modules if name.startswith("kernels")]:
    del sys.modules[name]
second = load()
pack = types.ModuleType("pack")
pack.__path__ = ["."]
sys.modules["pack"] = pack
third = importlib.import_module("pack.kernels.dispatch"), second[1]
assert len({id(module) for module, _ in (first, second, third)}) == 3
q = torch.randn(1, 100, 64)
for module, lists in (first, second, third, first):
    assert module.block_sparse_attention(q, q, q, lists).shape == q.shape
    assert module.block_mass(q[0], q[0], 1, 64).shape == (1, 2, 2)
"""


def test_importing_the_package_again_leaves_earlier_imports_working() -> None:
    """In a process of its own: torch crashes when a freed operator is called."""
    done = subprocess.run([sys.executable, "-c", IMPORTED_TWICE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype, head_dim", [("bf16", 128), ("fp16", 64)])
def test_the_hopper_kernel_compiles_without_spilling(dtype, head_dim) -> None:
    """In a process of its own, where Triton compiles instead of interpreting."""
    pytest.importorskip("triton.experimental.gluon")
    environ = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compile_hopper.py")), dtype, str(head_dim)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = json.loads(done.stdout)
    assert built["wgmma"] and built["setmaxnreg"]
    assert built["shared"] <= 227 * 1024, "shared memory of one multiprocessor"
    assert built["spilled_bytes"] == 0
    for names in built["specialised"]:  # of what a region step changes, no other kernel is made in the middle of a run
        assert "indices" in names and not {"n_rows", "n_query_blocks", "capacity"} & {*names}
