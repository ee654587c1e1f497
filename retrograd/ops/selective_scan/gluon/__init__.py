"""The scans for NVIDIA GPUs, where who holds which state decides the speed."""
