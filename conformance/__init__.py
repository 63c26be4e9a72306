"""The suite: who is tested (subjects), where it runs (lanes), how it is kept from doing harm (execution), and the
tests.
"""
