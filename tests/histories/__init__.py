"""What clients called and heard, as values and as files, and the judges of it.

Used by the simulation and by the runs with real processes.
"""
