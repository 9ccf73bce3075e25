"""What is copied into an exported folder. These files import nothing of this package, and run beside each other."""
