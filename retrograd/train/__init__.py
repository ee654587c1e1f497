"""Training of a byte-level language model; runs are bitwise reproducible, also if stopped and resumed."""

from importlib.util import find_spec

from retrograd.core.errors import missing

if find_spec("torch") is None:
    raise missing(__name__, "torch")

from .data import Split, Windows, stdlib, text_at
from .loop import Trainer, check_shard, parameters
from .metrics import Row
from .presets import ARCHITECTURES, DEFAULT, PRESETS, Preset, preset
from .ranks import LostError, Ranks, joined
from .reproducible import reproducible
from .runs import alone, free, start
from .settings import Settings

__all__ = [
    "ARCHITECTURES",
    "DEFAULT",
    "PRESETS",
    "LostError",
    "Preset",
    "Ranks",
    "Row",
    "Settings",
    "Split",
    "Trainer",
    "Windows",
    "alone",
    "check_shard",
    "free",
    "joined",
    "parameters",
    "preset",
    "reproducible",
    "start",
    "stdlib",
    "text_at",
]
