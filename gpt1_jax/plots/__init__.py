"""Pictures of runs and models; `style` is how they look.

Figures are made without pyplot: no window, no state, and a notebook's own backend is not touched. Nothing here is
imported by a run before it draws.
"""
