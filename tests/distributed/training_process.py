"""One of the processes that train a run: python training_process.py FOLDER SHARD [STEP at which it is killed]."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from retrograd.train import LostError, Settings, Trainer, joined, reproducible


def main(folder: Path, shard: bool, killed_at: int | None) -> int:
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


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), sys.argv[2] == "shard", int(sys.argv[3]) if len(sys.argv) > 3 else None)
    sys.stderr.flush()
    # Without Python's own end: a thread of gloo that frees a tensor during it stops the process with an error.
    os._exit(code)
