"""Ahead of time: compiles the step a workflow trains with for chips that are not here, and reads what came out.

    config + topology -> the trainer's own step over a mesh of that topology -> compiler -> memory, time, collectives

Nothing is executed; a CPU is enough. `launch/compile.py` is the program.
"""
