"""Clusters of whole nodes in the simulation: Raft, leases, controller, clients and operators.

`plan` draws what a seed does, `run` carries it out, `checks` judges, `mutants` opens known holes.
"""
