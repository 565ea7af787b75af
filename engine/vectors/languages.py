"""The languages that a store's BM25 can stem, by the engine's names."""

NO_LANGUAGE = "none"
"""No stop words, and no stems."""
LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian"),
    *("norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish"),
)
"""Those for which the engine has stop words and a stemmer."""
