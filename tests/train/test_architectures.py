"""Training of every architecture, in both frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_runs import bits, go_on, new_trainer, train

from retrograd.nn import load
from retrograd.train import ARCHITECTURES, Settings, preset
from retrograd.train.learner import Learner
from retrograd.train.loop import learner_of

# JAX compiles a step for seconds.
FRAMEWORKS = [
    pytest.param(arch, framework, marks=pytest.mark.slow if framework == "jax" and arch != "hybrid" else ())
    for arch in ARCHITECTURES
    for framework in ("torch", "jax")
]


def learner(framework: str, arch: str, **changed: Any) -> Learner:
    settings = Settings(name="tiny", preset=preset("tiny", arch), source="", arch=arch, framework=framework, **changed)
    return learner_of(settings)


def windows(seed: int) -> np.ndarray:
    of = preset("tiny")
    return np.random.default_rng(seed).integers(0, 256, (of.batch, of.time + 1))


@pytest.mark.parametrize(("arch", "framework"), FRAMEWORKS)
def test_a_run_that_was_stopped_ends_in_the_bits_of_one_that_never_was(
    tmp_path: Path, arch: str, framework: str
) -> None:
    for name, stops in (("whole", ()), ("stopped", (1, 3))):
        trainer = new_trainer(tmp_path / name, steps=4, arch=arch, framework=framework)
        for stop in stops:
            train(trainer, stop_after=stop)
            trainer = go_on(tmp_path / name)
            assert trainer.step == stop
        train(trainer)
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")
    assert load(tmp_path / "whole").config == preset("tiny", arch).model


@pytest.mark.parametrize(
    "arch", [pytest.param(a, marks=() if a == "hybrid" else pytest.mark.slow) for a in ARCHITECTURES]
)
def test_both_frameworks_take_the_same_steps(arch: str) -> None:
    torch_learner, jax_learner = learner("torch", arch), learner("jax", arch)
    jax_learner.restore(torch_learner.model, {})
    for step in range(3):
        losses = [own.numbers([own.step(windows(step), 1e-2)])[0] for own in (torch_learner, jax_learner)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch_learner.loss(windows(9)) == pytest.approx(jax_learner.loss(windows(9)), rel=1e-4)
    ours, theirs = (own.moments() for own in (torch_learner, jax_learner))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array.numpy(), theirs[name].numpy(), rtol=1e-2, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_moments_of_other_parameters_are_refused_by_name(framework: str) -> None:
    own = learner(framework, "mamba")
    own.step(windows(0), 1e-2)
    moments = own.moments()
    other = "backbone.norm_f.weight/exp_avg"
    for changed, said in (
        ({**moments, "extra/exp_avg": moments[other]}, "extra/exp_avg is of no parameter"),
        ({name: array for name, array in moments.items() if name != other}, f"{other} is missing"),
        ({**moments, other: moments[other][:3]}, f"{other} has shape"),
    ):
        with pytest.raises(ValueError, match=said):
            own.restore(own.model, changed)


def test_what_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="arch is 'rwkv', expected mamba or mamba2"):
        preset("cpu", "rwkv")
    with pytest.raises(ValueError, match="framework is 'flax', expected torch or jax"):
        learner("flax", "mamba")
