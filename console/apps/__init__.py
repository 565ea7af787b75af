"""One application each: a run on the screen, the set-up form, the summary viewer; and what they have in common."""
