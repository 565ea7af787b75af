"""Networks: how our forward passes compute, by which kernels, and where their weights lie meanwhile."""
