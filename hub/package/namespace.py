"""The namespace of this copy's operators in `torch.ops`: the name that it is loaded under, which no other copy has."""

import re

NAMESPACE = re.sub(r"\W", "_", str(__package__))
