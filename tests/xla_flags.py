"""XLA flags with which JAX compiles quickly, for tests, whose calls are short. As a script, print them."""

from __future__ import annotations

from importlib.metadata import version

from packaging.version import Version

NOT_OPTIMISED = "--xla_backend_optimization_level=0"
# The older way to emit fusions compiles faster, and so does a program that is not split for threads to compile its
# parts. XLA ends a process that names a flag that it does not have.
OLDER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
WITHOUT_OLDER = Version("0.11.1")


def quick() -> str:
    """The flags for the jaxlib that is installed."""
    older = Version(version("jaxlib")) < WITHOUT_OLDER
    return f"{NOT_OPTIMISED} {OLDER}" if older else NOT_OPTIMISED


if __name__ == "__main__":
    print(quick())
