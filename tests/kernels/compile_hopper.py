"""Compiles the Hopper kernel for compute capability 9.0, on any machine, and prints what came out as JSON.

With it the arguments by whose values both kernels would be compiled anew.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import compile as compile_kernel
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout

from kernels import gluon_block_sparse as hopper
from kernels import triton_block_sparse

dtype, head_dim = sys.argv[1], int(sys.argv[2])
layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
half, whole = (f"tensordesc<{dtype}[{tokens},{head_dim}],{layout!r}>" for tokens in (64, 128))
types = {"q_desc": half, "k_desc": whole, "v_desc": whole, "o_desc": half, "scale": "fp32"}
types |= dict.fromkeys(("indices", "counts", "order"), "*i32")
types |= dict.fromkeys(("n_rows", "n_query_blocks", "n_keys", "capacity"), "i32")
fixed = {"BLOCK": 128, "HEAD_DIM": head_dim, "STAGES": hopper.STAGES}
names = hopper._forward.arg_names
source = GluonASTSource(
    hopper._forward,
    {name: types.get(name, "constexpr") for name in names},
    {(names.index(name),): value for name, value in fixed.items()},
)
options = {"num_warps": hopper.WARPS, "maxnreg": hopper.REGISTERS}
built = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=options)
with tempfile.TemporaryDirectory() as folder:
    cubin = Path(folder) / "kernel.cubin"
    cubin.write_bytes(built.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
stack, local = (int(re.search(rf"{name}:(\d+)", usage)[1]) for name in ("STACK", "LOCAL"))
found = {name: name in built.asm["ptx"] for name in ("wgmma", "setmaxnreg")}
functions = hopper._forward, triton_block_sparse._forward
found["specialised"] = [[p.name for p in f.params if not p.is_constexpr and not p.do_not_specialize] for f in functions]
print(json.dumps({**found, "shared": built.metadata.shared, "spilled_bytes": stack + local}))
