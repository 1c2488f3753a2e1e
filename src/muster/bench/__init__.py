"""Measuring Muster beside its peers, on this machine, in one run. Ratios count; absolute figures are local colour."""
