"""How the console looks: themes of its own besides Textual's, one of them safe for the colour-blind.

`signal` is the house's own; `daltonic` tells good from bad by blue against orange, which deuter-, prot- and tritanopes
tell apart; `ansi` leaves all colours to the terminal, which costs the fewest bytes on a slow link.
"""

from textual.theme import Theme

SIGNAL = Theme(
    name="signal",
    primary="#4f9dde",
    secondary="#7a8794",
    accent="#56b6c2",
    success="#7fbf5f",
    warning="#e5b84b",
    error="#e8615a",
    foreground="#d5d9de",
    background="#14181d",
    surface="#1b2027",
    panel="#232a33",
)
DALTONIC = Theme(
    name="daltonic",
    primary="#56b4e9",
    secondary="#8a8f98",
    accent="#f0e442",
    success="#56b4e9",
    warning="#e69f00",
    error="#ff6db6",
    foreground="#e0e0e0",
    background="#101214",
    surface="#181b1f",
    panel="#20242a",
)
OWN = (SIGNAL, DALTONIC)
THEMES = ("signal", "daltonic", "textual-light", "ansi-dark")
"""What `t` walks through."""
SLOW = "ansi-dark"
