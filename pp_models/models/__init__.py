"""The models, one file each. Files named with an underscore hold what several models share."""
