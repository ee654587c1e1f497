"""What every op shares: declarations, errors, architectures, programs of kernel launches, and their launchers."""
