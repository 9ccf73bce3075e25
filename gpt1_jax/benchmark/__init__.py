"""Measures what this package does on the machine at hand, beside others that do the same work: launch/benchmark.py.

    settings -> cases (contestants that do the same work) -> rounds (one after another, again and again) -> figures

A case is timed in rounds: in each, every contestant works once, and so does a lone matrix product. A machine that slows
down for a while slows all of them, so that ratios taken within a round hold where times alone do not.
"""
