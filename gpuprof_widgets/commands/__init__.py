"""The commands of `gpuprof`, which `cli.COMMANDS` lists with their modules."""
