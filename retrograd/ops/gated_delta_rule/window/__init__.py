"""An exact step that overwrites its window: the op's own kernels, on the steps of a block."""
