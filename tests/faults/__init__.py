"""Faults: real runs are killed, starved and damaged, and have to end as if nothing had happened.

python -m tests.faults            # all of it
python -m tests.faults --quick    # a part, for every change
"""
