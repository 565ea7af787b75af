"""Shapes: fusion of models, narrower numbers, and what a delivery says of itself."""

NO_LANGUAGE = "none"
"""No stop words, and no stems."""
LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian"),
    *("norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "turkish"),
)
"""Those for which the engine has stop words and a stemmer, by its names; here, since settings offer
them and load nothing heavy."""
