"""How far PTX's ex2.approx.ftz.f32 is from 2**x on this GPU, in units of 2^-24, relative: mean, deviation and most.

The reference of selective_scan allows for it (`hardware_exp`).
"""

import torch
import triton
import triton.language as tl

COUNT = 1 << 20


@triton.jit
def ex2(x_ptr, y_ptr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [tl.load(x_ptr + i)], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(y_ptr + i, y)


def main() -> None:
    print(f"{torch.cuda.get_device_name()}: ex2.approx.ftz.f32 of random x, relative error in units of 2^-24")
    print(f"{'x from':>12} {'to':>12} {'mean':>6} {'std':>6} {'most':>6}")
    for power in range(-20, 4):
        most = 2.0**power
        x = -(most * (0.5 + 0.5 * torch.rand(COUNT, device="cuda", dtype=torch.float64))).float()
        y = torch.empty_like(x)
        ex2[(COUNT // 1024,)](x, y, 1024)
        exact = torch.exp2(x.double())
        error = (y.double() - exact) / exact * 2**24
        print(f"{-most:12.3g} {-most / 2:12.3g} {error.mean():6.2f} {error.std():6.2f} {error.abs().max():6.2f}")


if __name__ == "__main__":
    main()
