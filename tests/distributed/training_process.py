"""What one of the processes does that train a run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from retrograd.train import LostError, Settings, Trainer, joined, reproducible


def work(folder: Path, shard: bool, killed_at: int | None) -> int:
    """Train to the end, or to the step at which the process is killed; its exit status."""
    settings = Settings.read(folder)
    with joined("cpu") as ranks, reproducible(settings.threads):
        trainer = Trainer(folder, settings, ranks, shard)

        def stop() -> bool:
            if trainer.step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        try:
            trainer.run(lambda row: None, stop)
        except LostError as error:
            print(error, file=sys.stderr)
            return 3
        ranks.any(False)  # no process leaves while another still talks to it
    return 0
