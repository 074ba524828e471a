"""atoll: a decentralised, internet-scale training node."""

__version__ = "0.1.0"
