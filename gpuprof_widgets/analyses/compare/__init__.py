"""Two runs side by side: what each thing took in either, matched by name, and what is noise."""
