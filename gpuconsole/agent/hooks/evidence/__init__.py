"""What the findings need beside the segments: the use of CPU by the loader, the lines of the
script, and experiments that were allowed."""
