"""The terminal under the screens: held, given back, written to without waiting, and with few bytes."""
