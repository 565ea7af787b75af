"""The engine: reads chunks, leases memory to one model at a time, computes, delivers and remembers.

Imports neither the console nor the widgets, nor the libraries they draw with.
"""

__version__ = "0.1.0"
