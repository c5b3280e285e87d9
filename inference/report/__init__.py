"""The page that shows a comparison."""
