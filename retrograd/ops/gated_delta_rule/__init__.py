"""The gated delta rule. Start with README.md in this folder."""
