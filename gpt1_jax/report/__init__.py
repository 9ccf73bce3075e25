"""What the reports that this project writes have in common, see `page`."""
