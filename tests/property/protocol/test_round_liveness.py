"""A fair schedule with one death still commits (L1, L2), wherever the death strikes."""
