"""All ranks at once: W processes that each compute the slots of their own tokens, and an attention that uses them.

``python -m conformance.ranks --ranks W``
"""
