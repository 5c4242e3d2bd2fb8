"""Callbacks for trainers that run the loop themselves: Lightning and Hugging Face.

`gpuprof_widgets.integrations.lightning` and `gpuprof_widgets.integrations.transformers` are
imported where they are used, since each needs the package that it is for.
"""
