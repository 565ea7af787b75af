"""Shapes: fusion of models, narrower numbers, and what a delivery says of itself."""
