"""How fast decoding is, and where the time of a pass goes."""
