"""Who is measured: one file per package, each in the way its users would use it best in one process."""
