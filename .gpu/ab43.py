"""Hopper path against Triton path: errors, bits, times. python .gpu_ab.py [--quick] (from the repository's root)."""
import os, statistics, sys, time
sys.path.insert(0, os.getcwd())
import torch
from retrograd.core.arch import SUPPORTED
from retrograd.opinfo.info import spec_of
from retrograd.ops.gated_delta_rule.cases import ALL, bench, case
from retrograd.ops.gated_delta_rule.info import INFO
from retrograd.ops.gated_delta_rule.op import OP
from retrograd.testing.draw import draw, options

BEGIN = time.time()
PATHS = {"triton": INFO.variant(only="triton"), "hopper": INFO.variant()}
CASES = [bench(1, 32768), bench(1, 8192), bench(8, 4096), bench(1, 32768, sequences=4)]
SMALL = [case("tail", (2, 300, 2, 4, 128, 128), **ALL), case("strong", (1, 500, 2, 4, 128, 128), decay=3.0, **ALL),
         case("three", (1, 700, 1, 3, 128, 128), cu_seqlens=(5, 128, 128, 384, 690), **ALL),
         case("fp16", (2, 200, 1, 1, 128, 128), dtype="float16", wide_dtype="float32")]
FLUSH = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")


def call(info, c, inputs):
    leaves = {n: x.detach().requires_grad_(x.is_floating_point()) for n, x in inputs.items()}
    found = info.torch(**leaves, **options(c))
    found = found if isinstance(found, tuple) else (found,)
    return found, [x for x in leaves.values() if x.requires_grad]


def whole(info, c, inputs, douts):
    found, leaves = call(info, c, inputs)
    return [*(x.detach() for x in found), *torch.autograd.grad(found, leaves, douts)]


def names(c):
    o = ["o"] + (["last"] if c.options.get("return_final_state") else [])
    return o + [f"d{n}" for n in c.inputs if n != "cu_seqlens"]


def compare(c):
    torch.manual_seed(0)
    inputs = {n: x.cuda() for n, x in draw(c, "cpu" if c in SMALL else "cuda", 1).items()}
    with torch.no_grad():
        outs = PATHS["triton"].torch(**inputs, **options(c))
    outs = outs if isinstance(outs, tuple) else (outs,)
    douts = [torch.randn_like(x) for x in outs]
    a, b = (whole(PATHS[p], c, inputs, douts) for p in ("triton", "hopper"))
    again = whole(PATHS["hopper"], c, inputs, douts)
    again2 = whole(PATHS["hopper"], c, inputs, douts)
    bits = all(torch.equal(x, y) and torch.equal(x, z) for x, y, z in zip(b, again, again2))
    errors = []
    for n, x, y in zip(names(c), a, b):
        x, y = x.double(), y.double()
        errors.append(f"{n} {((x - y).norm() / x.norm()).item():.1e}" + ("" if y.isfinite().all() else " NOT FINITE"))
    print(f"[{time.time() - BEGIN:.0f} s] {c.name}: same bits {bits}; hopper - triton: {', '.join(errors)}", flush=True)
    return inputs, douts


def graph_of(run):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    return graph, kept


def timed(graph, count=11):
    times = []
    for _ in range(count):
        FLUSH.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record(); graph.replay(); end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def kernels(run):
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        FLUSH.zero_(); run(); torch.cuda.synchronize()
    return " ".join(f"{e.name[:24]}={e.device_time_total if hasattr(e, 'device_time_total') else e.cuda_time_total:.0f}"
                    for e in prof.events() if "lementwise" not in e.name and "emset" not in e.name)


def measure(c, inputs, douts):
    graphs = {}
    for p, info in PATHS.items():
        def fwd(info=info):
            return call(info, c, inputs)
        try:
            f, (found, leaves) = graph_of(fwd)
            b, _ = graph_of(lambda: torch.autograd.grad(found, leaves, douts, retain_graph=True))
            graphs[p] = (f, b)
        except Exception as error:
            print(f"  {p}: no graph, {error!r}"[:300], flush=True)
    for which in range(2):
        line = {p: [] for p in graphs}
        for _ in range(2):
            for p in graphs:
                line[p].append(timed(graphs[p][which]))
        print(f"  {('fwd', 'bwd')[which]} ms: " + "; ".join(f"{p} {' '.join(f'{t:.3f}' for t in ts)}" for p, ts in line.items()),
              flush=True)
    del graphs
    info = PATHS["hopper"]
    try:
        found, leaves = call(info, c, inputs)
        print("  us fwd:", kernels(lambda: call(info, c, inputs)), flush=True)
        print("  us bwd:", kernels(lambda: torch.autograd.grad(found, leaves, douts, retain_graph=True)), flush=True)
    except Exception as error:
        print(f"  no profile, {error!r}"[:300])


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    for c in CASES[1:2]:
        for p in (OP.forward(spec_of(OP, c)), OP.backward(spec_of(OP, c), frozenset("qkv"))):
            print([f"{l.kernel.__module__.split('.')[-2]}.{l.kernel.__name__}" for l in p.program({}, SUPPORTED["sm_90"]).launches])
    for c in SMALL:
        compare(c)
    if "--quick" not in sys.argv:
        for c in CASES:
            measure(c, *compare(c))
            torch.cuda.empty_cache()
    print(f"{time.time() - BEGIN:.0f} s in all")
