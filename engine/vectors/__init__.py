"""Shapes: fusion of models, narrower numbers, and what a delivery says of itself."""

SPARSE_SHARE, UNSAID_SHARE = 0.25, 0.2
"""How much all sparse lists of a new store count beside the dense one where a question does not say it
(bench/retrieval.md), and of a store that says nothing of it, as earlier versions made them: its answers stay."""
NO_LANGUAGE = "none"
"""No stop words, and no stems."""
LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian"),
    *("norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish"),
)
"""Those for which the engine has stop words and a stemmer, by its names; here, since settings offer
them and load nothing heavy."""
