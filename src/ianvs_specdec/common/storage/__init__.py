"""Files that must survive: lines that are appended, files that are replaced, folders for one run at a time."""
