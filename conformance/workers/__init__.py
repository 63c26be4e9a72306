"""``pytest -n N``: a run spread over worker processes of pytest-xdist, and brought together again.

Each worker draws, launches and judges as a run of its own does; the controller launches nothing. What a worker has
found it writes into a folder of the run after every test, and the controller reads it when the run ends, however it
ends.
"""
