"""Files of data: readers, writers and what they share."""
