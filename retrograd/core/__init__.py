"""What every room shares: errors, architecture facts, programs of kernel launches, and the launchers that run them."""
