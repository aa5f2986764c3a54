"""Who is measured by `data`: one file per package, each giving torch a dataset whose samples are an object's bytes."""
