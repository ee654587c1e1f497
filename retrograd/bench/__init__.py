"""Speed, measured by the rules of docs/design.md: device time with a cold L2, medians, peers and limits in one run."""
