"""The models, one file each. Files whose names begin with an underscore hold parts that several models share."""
