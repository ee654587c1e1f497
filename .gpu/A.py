"""KDA forward: Hopper path against Triton path: errors, bits, times."""
import os, statistics, sys, time
sys.path.insert(0, os.getcwd())
from dataclasses import replace
import torch
from retrograd.opinfo.info import spec_of
from retrograd.ops.gated_delta_rule.cases import ALL, bench_channels, case
from retrograd.ops.gated_delta_rule.info import INFO
from retrograd.ops.gated_delta_rule.op import OP
from retrograd.testing.draw import draw, options
from retrograd.ops.gated_delta_rule.hopper.channels import launches as mine

BEGIN = time.time()
REGS, NEAR = int(os.environ.get("KDA_REGS", "128")), int(os.environ.get("KDA_NEAR", "288"))
def regs(plan):
    return replace(plan, row_registers=REGS, rows_ahead=NEAR) if hasattr(plan, "row_registers") else plan
HOPPER = INFO.variant(replan=regs)
TRITON = replace(INFO, op=replace(OP, implementations=tuple(i for i in OP.implementations if ".hopper" not in i.package))).variant()
FLUSH = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")
CH = {"of_channels": True}
SMALL = [case("one", (1, 64, 1, 1, 128, 128), wide_dtype="float32", **CH), case("tail", (2, 300, 2, 4, 128, 128), **CH, **ALL),
         case("strong", (1, 500, 2, 4, 128, 128), decay=3.0, **CH, **ALL), case("weak", (1, 500, 2, 4, 128, 128), decay=-8.0, **CH, **ALL),
         case("packed", (1, 700, 1, 3, 128, 128), cu_seqlens=(5, 128, 128, 384, 690), **CH, **ALL),
         case("fp16", (2, 200, 1, 1, 128, 128), dtype="float16", wide_dtype="float32", **CH)]

def run(info, c, inputs):
    with torch.no_grad():
        o = info.torch(**inputs, **options(c))
    return o if isinstance(o, tuple) else (o,)

def compare(c):
    inputs = {n: x.cuda() for n, x in draw(c, "cpu" if c in SMALL else "cuda", 1).items()}
    b = run(HOPPER, c, inputs); torch.cuda.synchronize()
    print(f"[{time.time() - BEGIN:.0f} s] {c.name} ran", flush=True)
    a = run(TRITON, c, inputs)
    again = [run(HOPPER, c, inputs) for _ in range(2)]
    bits = all(torch.equal(x, y) for r in again for x, y in zip(b, r))
    errors = []
    for x, y in zip(a, b):
        x, y = x.double(), y.double()
        errors.append(f"{((x - y).norm() / x.norm()).item():.1e}" + ("" if y.isfinite().all() else " NOT FINITE"))
    print(f"  same bits {bits}; hopper - triton: {', '.join(errors)}", flush=True)
    return inputs

def prefix():
    c = case("p", (2, 300, 2, 4, 128, 128), **CH, **ALL)
    inputs = {n: x.cuda() for n, x in draw(c, "cpu", 1).items()}
    o, last = run(HOPPER, c, inputs)
    cut = {n: (x if n == "initial_state" else x[:, :128]) for n, x in inputs.items()}
    o1, s1 = run(HOPPER, c, cut)
    rest = {n: (s1 if n == "initial_state" else x[:, 128:]) for n, x in inputs.items()}
    o2, s2 = run(HOPPER, c, rest)
    cut3 = {n: (x if n == "initial_state" else x[:, :150]) for n, x in inputs.items()}
    o3, _ = run(HOPPER, c, cut3)
    print("prefix", torch.equal(o[:, :128], o1), "continued", torch.equal(o[:, 128:], o2), torch.equal(last, s2), "inside", torch.equal(o[:, :150], o3), flush=True)

def grads():
    c = case("g", (1, 300, 2, 4, 128, 128), **CH, **ALL)
    found = []
    for info in (TRITON, HOPPER):
        inputs = {n: x.cuda().requires_grad_() for n, x in draw(c, "cpu", 1).items()}
        o, last = info.torch(**inputs, **options(c))
        torch.manual_seed(0)
        found.append(torch.autograd.grad((o, last), list(inputs.values()), (torch.randn_like(o), torch.randn_like(last))))
    print("grads", [f"{((x.double() - y.double()).norm() / x.double().norm()).item():.1e}" for x, y in zip(*found)], flush=True)

def timed(fn, count=9):
    side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side): fn()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph): kept = fn()
    times = []
    for _ in range(count):
        FLUSH.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(); graph.replay(); end.record(); torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)

def kernels(fn):
    from torch.profiler import ProfilerActivity, profile
    fn(); torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        FLUSH.zero_(); fn(); fn(); torch.cuda.synchronize()
    return " ".join(f"{e.name[:24]}={e.device_time_total:.0f}" for e in prof.events() if e.name in ("rows", "invert", "walk"))

if __name__ == "__main__":
    quick = "--times" in sys.argv
    if not quick:
        print(torch.cuda.get_device_name(), torch.__version__)
        for c in [SMALL[1], SMALL[4], SMALL[5]]: compare(c)
        prefix()
        compare(bench_channels(1, 8192))
    for c in [bench_channels(1, 8192)] + ([] if quick else [bench_channels(1, 32768), bench_channels(8, 4096)]):
        inputs = {n: x.cuda() for n, x in draw(c, "cuda", 1).items()}
        for name, info in (("hopper", HOPPER),):
            print(f"[{time.time() - BEGIN:.0f} s] {c.name} {name} fwd ms {timed(lambda: run(info, c, inputs)):.3f}", kernels(lambda: run(info, c, inputs)), flush=True)
        del inputs; torch.cuda.empty_cache()
    if not quick:
        import subprocess
        for l, near in (("6", "1000000"), ("6", "144"), ("6", "576"), ("3", "288"), ("0", "288")):
            print("levels", l, "near", near, subprocess.run([sys.executable, __file__, "--times"], env={**os.environ, "KDA_LEVELS": l, "KDA_NEAR": near}, capture_output=True, text=True, timeout=60).stdout, flush=True)
    print(f"{time.time() - BEGIN:.0f} s in all")
