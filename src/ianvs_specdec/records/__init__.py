"""One answer and what it is worth: the journal, what determines an answer, its baseline and its cost."""
