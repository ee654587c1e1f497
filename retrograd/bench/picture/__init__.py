"""The parts of a picture of results: the page, the colours, the curves, the dots, and what stands below them."""
