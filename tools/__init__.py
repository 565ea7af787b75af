"""What writes the repository: generated pages, and pictures of the screens. Not part of the installed package."""
