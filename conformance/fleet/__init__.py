"""``python -m conformance.fleet``: the suite on many machines, as tasks of a Ray cluster.

A *round* is one run of pytest, ``--shard I/N`` with a seed of its own, in one task that has one device. A failing case
is told to an actor, the *exchange*, the moment it is found, and every round begins with all of them. What a round
leaves comes back as bytes: nothing has to be shared but the cluster.
"""
