"""`gpuprof_widgets.ranks(...)`, which is in `profiles`: the ranks of one run, compared.

Nothing is imported here: processes that only read files would import the page as well.
"""
